"""Operators whose result's shape is data: an argument says what is an attribute elsewhere.

TVM's `dyn.*`. The functions that make calls stand with their static forms, which take an expression
in place of the attribute: `reshape(x, newshape)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ekiden import te, topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import is_float, to_numpy
from ekiden.ir.node import node
from ekiden.ir.op import Array, DimsOf, OpDef, OpPattern, Wanted, register_op
from ekiden.ir.prim import NE, AnyDim, Or, PrimExpr, Select, binary, cast, const, maximum, minimum
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Constant, Expr
from ekiden.relay.op._declare import attempt, call, fail, rank_is, tensors
from ekiden.runtime.errors import InputError
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.topi.create import sequence
from ekiden.topi.nn.pad import pad_by_mode
from ekiden.topi.shape import expect_shape, known, normalize_axis, product
from ekiden.topi.slice import dynamic_strided_slice

Dims = tuple[list[PrimExpr], list[Wanted]]
"""The unknown dimensions of a result, and what must hold at run time."""


@node("relay.attrs.DynamicAttrs")
class DynamicAttrs(Attrs):
    """The unknown dimensions of the result, where they have names; the dtype, where there is one
    to choose."""

    dtype: str = ""
    symbols: tuple[PrimExpr, ...] = ()


@node("relay.attrs.DynReshapeAttrs")
class DynReshapeAttrs(Attrs):
    """Whether a 0 is a dimension of 0 and not a copy of the data's."""

    allowzero: bool = False
    symbols: tuple[PrimExpr, ...] = ()


@node("relay.attrs.DynStridedSliceAttrs")
class DynStridedSliceAttrs(Attrs):
    """slice_mode "size" takes `end` as extents, negative ones as all that is left; axes are the
    leading ones by default."""

    slice_mode: str = "end"
    axes: tuple[int, ...] | None = None
    symbols: tuple[PrimExpr, ...] = ()


@node("relay.attrs.DynPadAttrs")
class DynPadAttrs(Attrs):
    """The mode: "constant", "edge", "reflect" or "wrap"."""

    pad_mode: str = "constant"
    symbols: tuple[PrimExpr, ...] = ()


@node("relay.attrs.DynOneHotAttrs")
class DynOneHotAttrs(Attrs):
    """Where the new axis stands, and the dtype of the result."""

    axis: int = -1
    dtype: str = "float32"
    symbols: tuple[PrimExpr, ...] = ()


@node("relay.attrs.DynTopKAttrs")
class DynTopKAttrs(Attrs):
    """As of topk."""

    axis: int = -1
    ret_type: str = "both"
    is_ascend: bool = False
    dtype: str = "int32"
    symbols: tuple[PrimExpr, ...] = ()


Kind = Callable[[Any, Sequence[TensorType]], Type]
"""(attributes, argument types) -> the result's type, with `?` where data decides."""


def declare_dynamic(
    name: str,
    arguments: Sequence[str],
    attrs: type[Attrs],
    kind: Kind,
    dims: DimsOf,
    lower: Callable[..., Sequence[Tensor]],
    reference: Callable[..., Any],
    result: str,
    pattern: OpPattern = OpPattern.INJECTIVE,
    reshape_only: bool = False,
    fields: Callable[[Attrs | None], int] | None = None,
    layout: str = "",
    description: str = "",
) -> None:
    """Declare an operator of a result with unknown dimensions; see OpDef."""

    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        found = kind(attrs, tensors(name, types, len(arguments)))
        symbols = getattr(attrs, "symbols", ())
        return with_dims(found, iter(symbols)) if symbols else found

    def lowering(attrs: Attrs, inputs: Sequence[Tensor], out: Type) -> Sequence[Tensor]:
        return lower(attrs, inputs, out)

    register_op(
        OpDef(
            name=name,
            arguments=tuple(arguments),
            attrs=attrs,
            relation=relation,
            reference=reference,
            lower=lowering,
            pattern=pattern,
            reshape_only=reshape_only,
            dims=dims,
            fields=fields,
            layout=layout,
            result=result,
            description=description
            or f"`{name.removeprefix('dyn.')}`, where {_and(arguments[1:] or arguments)}"
            " say at run time what is an attribute there.",
        )
    )


def _and(names: Sequence[str]) -> str:
    return " and ".join(f"`{n}`" for n in names)


def with_dims(kind: Type, symbols: Iterator[PrimExpr]) -> Type:
    """A type with symbols, from the left, for its unknown dimensions."""
    if isinstance(kind, TupleType):
        return TupleType(tuple(with_dims(f, symbols) for f in kind.fields))
    assert isinstance(kind, TensorType)
    dims = tuple(next(symbols) if isinstance(d, AnyDim) else d for d in kind.shape)
    return TensorType(dims, kind.dtype)


def _unknown(rank: int, dtype: str) -> TensorType:
    return TensorType(tuple(AnyDim() for _ in range(rank)), dtype)


def _length(name: str, what: str, vector: TensorType) -> int:
    """How many numbers a vector of the result's shape has: the rank must be known."""
    number = known(vector.shape[0]) if len(vector.shape) == 1 else None
    if number is None:
        fail(name, f"{what!r} must be a vector of known length, got {list(vector.shape)}")
    return number


def _at(buffer: Buffer, *index: int) -> PrimExpr:
    """An element of an argument as an int64."""
    return cast(buffer[tuple(const(i) for i in index)], "int64")


def _elements(buffer: Buffer) -> list[PrimExpr]:
    number = known(buffer.shape[0])
    assert number is not None
    return [_at(buffer, i) for i in range(number)]


def _choose(condition: PrimExpr, yes: PrimExpr, no: PrimExpr) -> PrimExpr:
    return Select(condition, yes, no, "int64")


# reshape, expand_dims, squeeze


def _reshape_dims(attrs: DynReshapeAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, newshape = buffers
    wanted = _elements(newshape)
    if not attrs.allowzero:
        copied = data.shape[: len(wanted)]
        rest = wanted[len(copied) :]
        pairs = zip(wanted, copied, strict=False)
        wanted = [*(_choose(w.equal(0), d, w) for w, d in pairs), *rest]
    total = product(data.shape)
    others = product([_choose(w.equal(-1), const(1), w) for w in wanted])
    free = total // _choose(others.equal(0), const(1), others)
    dims = [_choose(w.equal(-1), free, w) for w in wanted]
    wrong, made = "the data has another number of elements", product(dims)
    shown = {"that of the data": total, "that of the new shape": made}
    open_ends = sum((cast(w.equal(-1), "int64") for w in wanted), const(0))
    clear = Or(open_ends.equal(0), binary(NE, others, 0), "bool")
    unclear = "what is left is not clear beside a dimension of 0"
    return dims, [Wanted(made.equal(total), wrong, shown), Wanted(clear, unclear)]


def _reshape_reference(attrs: DynReshapeAttrs, data: Array, newshape: Array) -> Array:
    wanted = [int(n) for n in newshape]
    if min(wanted, default=0) < -1:  # to NumPy, any negative number is what is left
        raise ValueError(f"dyn.reshape: a dimension of the result is negative; it is {min(wanted)}")
    if not attrs.allowzero:
        wanted = [data.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return np.reshape(data, wanted)


declare_dynamic(
    "dyn.reshape",
    ("data", "newshape"),
    DynReshapeAttrs,
    lambda attrs, types: _unknown(_length("dyn.reshape", "newshape", types[1]), types[0].dtype),
    _reshape_dims,
    lambda attrs, inputs, out: [topi.reshape(inputs[0], out.shape)],
    _reshape_reference,
    "the shape that newshape says: 0 copies a dimension of data, one -1 takes what is left",
    reshape_only=True,
)


def _expanded_dims(attrs: DynamicAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, axis = buffers
    rank = len(data.shape)
    given = _at(axis, *(0 for _ in axis.shape))
    at = _choose(given < 0, given + (rank + 1), given)
    dims = []
    for i in range(rank + 1):
        before = data.shape[i] if i < rank else const(1)
        after = data.shape[i - 1] if i else const(1)
        dims.append(_choose(at > i, before, _choose(at < i, after, const(1))))
    wrong, shown = "axis is out of range", {"it": given, "the rank": const(rank)}
    return dims, [Wanted(at >= 0, wrong, shown), Wanted(at <= rank, wrong, shown)]


declare_dynamic(
    "dyn.expand_dims",
    ("data", "axis"),
    DynamicAttrs,
    lambda attrs, types: _unknown(len(types[0].shape) + 1, types[0].dtype),
    _expanded_dims,
    lambda attrs, inputs, out: [topi.reshape(inputs[0], out.shape)],
    lambda attrs, data, axis: np.expand_dims(data, int(axis.reshape(-1)[0])),
    "data's shape with a 1 at the axis",
    reshape_only=True,
)


def _squeezed_dims(attrs: DynamicAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, axis = buffers
    rank = len(data.shape)
    axes = [_choose(a < 0, a + rank, a) for a in _elements(axis)]
    position: PrimExpr = const(0)
    dims: list[PrimExpr] = [const(0)] * (rank - len(axes))
    wrong = "axis is out of range"
    shown = [{"it": a, "the rank": const(rank)} for a in axes]
    checks = [Wanted(a >= 0, wrong, s) for a, s in zip(axes, shown, strict=True)]
    checks += [Wanted(a < rank, wrong, s) for a, s in zip(axes, shown, strict=True)]
    for i, extent in enumerate(data.shape):
        dropped = sum((cast(a.equal(i), "int64") for a in axes), const(0))
        for j in range(len(dims)):
            here = (position + dropped * rank).equal(j)
            dims[j] = _choose(here, extent, dims[j])
        one = (dropped * (extent - 1)).equal(0)
        wrong = f"dimension {i} of data is dropped and not 1"
        checks.append(Wanted(one, wrong, {"it": extent}))
        position = position + 1 - dropped
    return dims, checks


declare_dynamic(
    "dyn.squeeze",
    ("data", "axis"),
    DynamicAttrs,
    lambda attrs, types: _unknown(
        len(types[0].shape) - _length("dyn.squeeze", "axis", types[1]), types[0].dtype
    ),
    _squeezed_dims,
    lambda attrs, inputs, out: [topi.reshape(inputs[0], out.shape)],
    lambda attrs, data, axis: np.squeeze(data, tuple(int(a) for a in axis)),
    "data's shape without the axes, which are 1",
    reshape_only=True,
)

# full, zeros, ones, arange


def shape_dims(attrs: Attrs, buffers: Sequence[Buffer]) -> Dims:
    """The elements of the last argument are the unknown dimensions."""
    return _elements(buffers[-1]), []


def not_negative(name: str, what: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes as they are. Raises InputError for one below 0."""
    if min(sizes, default=0) < 0:
        raise InputError(f"run: {name}: {what} is negative; it is {min(sizes)}")
    return sizes


def _shape(shape: Array) -> tuple[int, ...]:
    return tuple(int(n) for n in shape)


declare_dynamic(
    "dyn.full",
    ("fill_value", "shape"),
    DynamicAttrs,
    lambda attrs, types: _unknown(
        _length("dyn.full", "shape", types[1]), attrs.dtype or types[0].dtype
    ),
    shape_dims,
    lambda attrs, inputs, out: [topi.full(out.shape, out.dtype, inputs[0])],
    lambda attrs, fill, shape: np.full(
        _shape(shape), fill, to_numpy(attrs.dtype or str(fill.dtype))
    ),
    "`shape`, with `dtype` or that of fill_value",
)


def _declare_fill(name: str, value: int) -> None:
    declare_dynamic(
        f"dyn.{name}",
        ("shape",),
        DynamicAttrs,
        lambda attrs, types: _unknown(
            _length(f"dyn.{name}", "shape", types[0]), attrs.dtype or "float32"
        ),
        shape_dims,
        lambda attrs, inputs, out: [topi.create.constant(value, out.shape, out.dtype, name)],
        lambda attrs, shape: np.full(_shape(shape), value, to_numpy(attrs.dtype or "float32")),
        "`shape`, with `dtype`",
    )


def _extents_kind(attrs: DynamicAttrs, types: Sequence[TensorType]) -> TensorType:
    nothing, sizes = types
    if tuple(map(known, nothing.shape)) != (0,):
        fail("dyn.extents", f"'nothing' must have the shape (0,), got {list(nothing.shape)}")
    unknown = (AnyDim() for _ in range(_length("dyn.extents", "sizes", sizes)))
    return TensorType((const(0), *unknown), nothing.dtype)


declare_dynamic(
    "dyn.extents",
    ("nothing", "sizes"),
    DynamicAttrs,
    _extents_kind,
    shape_dims,
    lambda attrs, inputs, out: [topi.reshape(inputs[0], out.shape)],
    lambda attrs, nothing, sizes: np.reshape(nothing, (0, *_shape(sizes))),
    "(0, *sizes)",
    reshape_only=True,
    description="A tensor of no elements whose further dimensions are `sizes`: whoever gives them "
    "names can use the numbers of a vector as dimensions.",
)

_declare_fill("zeros", 0)
_declare_fill("ones", 1)


def _arange_dims(attrs: DynamicAttrs, buffers: Sequence[Buffer]) -> Dims:
    dtype = "float64" if any(is_float(b.dtype) for b in buffers) else "int64"
    first = (b[tuple(const(0) for _ in b.shape)] for b in buffers)
    start, stop, step = (cast(v, dtype) for v in first)
    zero = step.equal(0)
    by = Select(zero, const(1, dtype), step, dtype)
    if dtype == "int64":
        count: PrimExpr = const(0) - (start - stop) // by
    else:
        count = cast(te.ceil((stop - start) / by), "int64")
    return [maximum(count, 0)], [Wanted(binary(NE, step, 0), "step is 0")]


def _only(x: Tensor) -> PrimExpr:
    """The element of a tensor of one."""
    return x[tuple(0 for _ in x.shape)]


def _arange_reference(attrs: DynamicAttrs, start: Array, stop: Array, step: Array) -> Array:
    exact = "float64" if any(a.dtype.kind == "f" for a in (start, stop, step)) else "int64"
    first, last, by = (a.astype(exact).reshape(-1)[0] for a in (start, stop, step))
    if by == 0:
        raise InputError("run: dyn.arange: the step is 0")
    count = max(0, int(np.ceil((last - first) / by)))
    return np.asarray(first + np.arange(count).astype(exact) * by).astype(to_numpy(attrs.dtype))


declare_dynamic(
    "dyn.arange",
    ("start", "stop", "step"),
    DynamicAttrs,
    lambda attrs, types: _unknown(1, attrs.dtype or types[0].dtype),
    _arange_dims,
    lambda attrs, inputs, out: [
        sequence(_only(inputs[0]), _only(inputs[2]), out.shape[0], out.dtype)
    ],
    _arange_reference,
    "(max(0, ceil((stop - start) / step)),)",
)

# broadcast_to, tile, pad, strided_slice


def _broadcast_dims(attrs: DynamicAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, shape = buffers
    wanted = _elements(shape)
    checks = []
    for axis, extent in enumerate(data.shape):
        target = wanted[len(wanted) - len(data.shape) + axis]
        fits = ((extent - 1) * (extent - target)).equal(0)
        wrong = f"dimension {axis} of data does not broadcast to the shape"
        checks.append(Wanted(fits, wrong, {"it": extent, "the shape there": target}))
    return wanted, checks


def _broadcast_kind(attrs: DynamicAttrs, types: Sequence[TensorType]) -> TensorType:
    rank = _length("dyn.broadcast_to", "shape", types[1])
    if rank < len(types[0].shape):
        fail("dyn.broadcast_to", f"data of rank {len(types[0].shape)} cannot have rank {rank}")
    return _unknown(rank, types[0].dtype)


declare_dynamic(
    "dyn.broadcast_to",
    ("data", "shape"),
    DynamicAttrs,
    _broadcast_kind,
    _broadcast_dims,
    lambda attrs, inputs, out: [topi.broadcast_to(inputs[0], out.shape)],
    lambda attrs, data, shape: np.broadcast_to(data, _shape(shape)),
    "`shape`",
    pattern=OpPattern.BROADCAST,
)


def _aligned(data: Sequence[PrimExpr], count: int) -> list[PrimExpr]:
    return [*([const(1)] * (count - len(data))), *data]


def _tile_dims(attrs: DynamicAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, reps = buffers
    times = _elements(reps)
    rank = max(len(times), len(data.shape))
    pairs = zip(_aligned(data.shape, rank), _aligned(times, rank), strict=True)
    return [d * t for d, t in pairs], [
        Wanted(t >= 0, "a repetition is negative", {"it": t}) for t in times
    ]


def _tile(data: Tensor, shape: Sequence[PrimExpr]) -> Tensor:
    skipped = len(shape) - data.ndim
    return te.compute(
        shape,
        lambda *i: data[[n % maximum(d, 1) for n, d in zip(i[skipped:], data.shape, strict=True)]],
        name="tile",
        tag="injective",
    )


declare_dynamic(
    "dyn.tile",
    ("data", "reps"),
    DynamicAttrs,
    lambda attrs, types: _unknown(
        max(_length("dyn.tile", "reps", types[1]), len(types[0].shape)), types[0].dtype
    ),
    _tile_dims,
    lambda attrs, inputs, out: [_tile(inputs[0], out.shape)],
    lambda attrs, data, reps: np.tile(data, not_negative("dyn.tile", "a repetition", _shape(reps))),
    "data's dimensions times reps, aligned at the last",
)


def _pad_dims(attrs: DynPadAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, width, _ = buffers
    pairs = [(_at(width, i, 0), _at(width, i, 1)) for i in range(len(data.shape))]
    dims = [d + a + b for d, (a, b) in zip(data.shape, pairs, strict=True)]
    if attrs.pad_mode == "constant":
        return dims, []
    left = [d + minimum(a, 0) + minimum(b, 0) for d, (a, b) in zip(data.shape, pairs, strict=True)]
    return dims, [Wanted(n > 0, "there is nothing that borders show", {"left": n}) for n in left]


def _pad(attrs: DynPadAttrs, inputs: Sequence[Tensor], out: TensorType) -> list[Tensor]:
    data, width, value = inputs
    pairs = [tuple(cast(width[i, n], "int64") for n in range(2)) for i in range(data.ndim)]
    return [pad_by_mode(data, value, pairs, attrs.pad_mode, out.shape)]


PAD_MODES = ("constant", "edge", "reflect", "wrap")
"""What borders hold: a value, the nearest element, the data mirrored, or the data repeated (TVM has
no "wrap")."""


def padded(data: Array, width: Sequence[Sequence[int]] | Array, mode: str) -> Array:
    """`data` with borders of a mode that takes no value."""
    return np.pad(data, width, mode=mode)  # type: ignore[call-overload,no-any-return]


def bordered(
    name: str, data: Array, width: Sequence[Sequence[int]], mode: str, value: Array
) -> Array:
    """`data` with borders of a mode; negative widths crop, beyond what there is too.

    Raises InputError where nothing is left of an axis and more is to go.
    """
    pairs = list(zip(data.shape, width, strict=True))
    shape = [d + a + b for d, (a, b) in pairs]
    if min(shape, default=0) < 0:
        raise InputError(f"run: {name}: a dimension of the result is negative; it is {min(shape)}")
    kept = [slice(max(0, -a), max(0, -a, min(d, d + b))) for d, (a, b) in pairs]
    if mode != "constant":
        if not data[tuple(kept)].size and data.size:
            raise InputError(f"run: {name}: borders of mode {mode!r} around nothing")
        return padded(data[tuple(kept)], [(max(0, a), max(0, b)) for _, (a, b) in pairs], mode)
    found = np.full(shape, value, data.dtype)
    moved = [slice(k.start + a, k.stop + a) for k, (_, (a, _)) in zip(kept, pairs, strict=True)]
    found[tuple(moved)] = data[tuple(kept)]
    return found


def _pad_reference(attrs: DynPadAttrs, data: Array, width: Array, value: Array) -> Array:
    return bordered("dyn.nn.pad", data, width.tolist(), attrs.pad_mode, value)


def _pad_kind(attrs: DynPadAttrs, types: Sequence[TensorType]) -> TensorType:
    data, width, value = types
    rank = len(data.shape)
    attempt("dyn.nn.pad", expect_shape, "dyn.nn.pad", "pad_width", width.shape, (rank, 2))
    rank_is("dyn.nn.pad", value, 0, "pad_value")
    if attrs.pad_mode not in PAD_MODES:
        modes = ", ".join(PAD_MODES)
        fail("dyn.nn.pad", f"pad_mode must be one of {modes}, got {attrs.pad_mode!r}")
    return _unknown(rank, data.dtype)


declare_dynamic(
    "dyn.nn.pad",
    ("data", "pad_width", "pad_value"),
    DynPadAttrs,
    _pad_kind,
    _pad_dims,
    _pad,
    _pad_reference,
    "data's shape with both pads added to each dimension",
)


def _sliced_axes(attrs: DynStridedSliceAttrs, rank: int, count: int) -> list[int]:
    chosen = range(count) if attrs.axes is None else attrs.axes
    return [normalize_axis(a, rank, "dyn.strided_slice") for a in chosen]


def _slice_kind(attrs: DynStridedSliceAttrs, types: Sequence[TensorType]) -> TensorType:
    data = types[0]
    what = "begin", "end", "strides"
    counts = [_length("dyn.strided_slice", n, t) for n, t in zip(what, types[1:], strict=True)]
    count = max(counts)
    if attrs.slice_mode not in ("end", "size"):
        fail("dyn.strided_slice", f"slice_mode must be 'end' or 'size', got {attrs.slice_mode!r}")
    if attrs.axes is not None and {*counts} != {len(attrs.axes)}:
        fail(
            "dyn.strided_slice",
            "begin, end, strides and axes must have one length,"
            f" got {', '.join(map(str, counts))} and {len(attrs.axes)}",
        )
    if count > len(data.shape):
        fail("dyn.strided_slice", f"{count} bounds for an input of rank {len(data.shape)}")
    axes = _sliced_axes(attrs, len(data.shape), count)
    shape = tuple(AnyDim() if i in axes else d for i, d in enumerate(data.shape))
    return TensorType(shape, data.dtype)


def _slice_dims(attrs: DynStridedSliceAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, begin, end, strides = buffers
    begins, ends, steps = map(_elements, (begin, end, strides))
    count = max(map(len, (begins, ends, steps)))
    axes = _sliced_axes(attrs, len(data.shape), count)
    by_end = attrs.slice_mode == "end"
    dims: dict[int, PrimExpr] = {}
    for n, axis in enumerate(axes):
        size, step = data.shape[axis], steps[n] if by_end and n < len(steps) else const(1)
        back = step < 0
        given = begins[n] if n < len(begins) else _choose(back, size - 1, const(0))
        first = _choose(given < 0, given + size, given)
        first = _choose(back, minimum(first, size - 1), maximum(first, 0))
        if n >= len(ends):
            last = _choose(back, const(-1), size)
        elif by_end:
            last = _choose(ends[n] < 0, ends[n] + size, ends[n])
        else:
            last = _choose(ends[n] < 0, size, first + ends[n])
        last = _choose(back, maximum(last, -1), minimum(last, size))
        by = _choose(step.equal(0), const(1), step)
        dims[axis] = maximum(const(0) - (first - last) // by, 0)
    checks = [Wanted(binary(NE, s, 0), "a stride is 0") for s in steps]
    return [dims[a] for a in sorted(dims)], checks


def _slice_reference(
    attrs: DynStridedSliceAttrs, data: Array, begin: Array, end: Array, strides: Array
) -> Array:
    cuts: list[slice] = [slice(None)] * data.ndim
    by_end = attrs.slice_mode == "end"
    count = max(map(len, (begin, end, strides)))
    for n, axis in enumerate(_sliced_axes(attrs, data.ndim, count)):
        size = data.shape[axis]
        step = int(strides[n]) if by_end and n < len(strides) else 1
        first = int(begin[n]) if n < len(begin) else 0 if step > 0 else size - 1
        last = int(end[n]) if n < len(end) else None
        if last is not None and not by_end:
            first = max(first + size if first < 0 else first, 0)
            last = None if last < 0 else first + last
        elif last is not None and step < 0 and last < -size:
            last = None
        cuts[axis] = slice(first, last, step)
    return data[tuple(cuts)]


declare_dynamic(
    "dyn.strided_slice",
    ("data", "begin", "end", "strides"),
    DynStridedSliceAttrs,
    _slice_kind,
    _slice_dims,
    lambda attrs, inputs, out: [
        dynamic_strided_slice(
            inputs[0],
            inputs[1],
            inputs[2],
            inputs[3],
            out.shape,
            None if attrs.axes is None else _sliced_axes(attrs, inputs[0].ndim, 0),
            attrs.slice_mode == "end",
        )
    ],
    _slice_reference,
    "per axis, ceil((end - begin) / stride) clipped to data's extent",
)

# one_hot, topk, sparse_to_dense


def _one_hot_kind(attrs: DynOneHotAttrs, types: Sequence[TensorType]) -> TensorType:
    shape = types[0].shape
    at = normalize_axis(attrs.axis, len(shape) + 1, "dyn.one_hot")
    return TensorType((*shape[:at], AnyDim(), *shape[at:]), attrs.dtype)


def _one_hot(attrs: DynOneHotAttrs, inputs: Sequence[Tensor], out: TensorType) -> list[Tensor]:
    at = attrs.axis % len(out.shape)
    return [topi.one_hot(inputs[0], inputs[1], inputs[2], out.shape[at], at, attrs.dtype)]


def _one_hot_reference(
    attrs: DynOneHotAttrs, indices: Array, on: Array, off: Array, depth: Array
) -> Array:
    at = attrs.axis % (indices.ndim + 1)
    count = int(depth.reshape(-1)[0])
    if count < 0:
        raise InputError(f"run: dyn.one_hot: a dimension of the result is negative; it is {count}")
    positions = np.arange(count).reshape((count,) + (1,) * (indices.ndim - at))
    chosen = np.expand_dims(indices, at).astype(np.int64) == positions
    return np.where(chosen, on, off).astype(to_numpy(attrs.dtype))


declare_dynamic(
    "dyn.one_hot",
    ("indices", "on_value", "off_value", "depth"),
    DynOneHotAttrs,
    _one_hot_kind,
    lambda attrs, buffers: ([_at(buffers[3], *(0 for _ in buffers[3].shape))], []),
    _one_hot,
    _one_hot_reference,
    "the shape of indices with `depth` inserted at `axis`",
)


def _topk_kind(attrs: DynTopKAttrs, types: Sequence[TensorType]) -> Type:
    data = types[0]
    at = normalize_axis(attrs.axis, len(data.shape), "dyn.topk")
    shape = (*data.shape[:at], AnyDim(), *data.shape[at + 1 :])
    fields = {"values": TensorType(shape, data.dtype), "indices": TensorType(shape, attrs.dtype)}
    return fields.get(attrs.ret_type) or TupleType(tuple(fields.values()))


def _topk_dims(attrs: DynTopKAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, number = buffers
    size = data.shape[attrs.axis % len(data.shape)]
    k = _at(number, *(0 for _ in number.shape))
    wanted = _choose(k < 1, size, k)
    wrong, shown = "k is larger than the extent of the axis", {"k": k, "the extent": size}
    both = 2 if attrs.ret_type == "both" else 1
    return [wanted] * both, [Wanted(k <= size, wrong, shown)]


def _topk(attrs: DynTopKAttrs, inputs: Sequence[Tensor], out: Type) -> list[Tensor]:
    first = out.fields[0] if isinstance(out, TupleType) else out
    assert isinstance(first, TensorType)
    k = first.shape[attrs.axis % len(first.shape)]
    found = topi.topk(inputs[0], k, attrs.axis, attrs.ret_type, attrs.is_ascend, attrs.dtype)
    return [found] if isinstance(found, Tensor) else list(found)


def _topk_reference(attrs: DynTopKAttrs, data: Array, k: Array) -> tuple[Array, ...] | Array:
    size, count = data.shape[attrs.axis], int(k.reshape(-1)[0])
    order = np.argsort(data, attrs.axis, kind="stable")
    if not attrs.is_ascend:
        backwards = np.argsort(np.flip(data, attrs.axis), attrs.axis, kind="stable")
        order = size - 1 - np.flip(backwards, attrs.axis)
    order = order.take(range(count if count >= 1 else size), attrs.axis)
    values = np.take_along_axis(data, order, attrs.axis)
    positions = order.astype(to_numpy(attrs.dtype))
    return {"values": values, "indices": positions}.get(attrs.ret_type, (values, positions))


declare_dynamic(
    "dyn.topk",
    ("data", "k"),
    DynTopKAttrs,
    _topk_kind,
    _topk_dims,
    _topk,
    _topk_reference,
    "data's shape with `k` along the axis: values, indices, or a tuple of both",
    pattern=OpPattern.OPAQUE,
    fields=lambda attrs: 2,
)


def constant_of(value: object) -> Any:  # noqa: ANN401
    """The numbers of an argument that is a constant; None for any other expression; itself if it is
    none."""
    if isinstance(value, Constant):
        return value.data.tolist()
    return None if isinstance(value, Expr) else value


def dynamic(name: str, *args: Expr, attrs: Attrs) -> Call:
    """A call of an operator of this file."""
    return call(f"dyn.{name}", *args, attrs=attrs)


__all__ = ["constant_of", "declare_dynamic", "dynamic", "not_negative", "shape_dims"]
