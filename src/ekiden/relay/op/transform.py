"""Operators that move elements: transposes, joins and splits, slices, repetition, layouts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, register_op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Expr, Tuple
from ekiden.relay.op._declare import (
    agree,
    attempt,
    attrs_of,
    call,
    fail,
    one_dtype,
    show,
    tensor_fields,
    tensors,
)
from ekiden.relay.op.reduce import axes_attr
from ekiden.te import Tensor
from ekiden.topi.layout import transform_array, transform_shape
from ekiden.topi.shape import (
    Dim,
    Dims,
    Shape,
    as_attr,
    as_dim,
    as_ints,
    as_shape,
    broadcast_shape,
    is_any,
    known,
    normalize_axes,
    normalize_axis,
    slice_range,
    tidy,
)


@node("relay.attrs.TransposeAttrs")
class TransposeAttrs(Attrs):
    """Which input axis each result axis is; None reverses them."""

    axes: tuple[int, ...] | None = None


def transposed_axes(attrs: TransposeAttrs, rank: int) -> tuple[int, ...]:
    """The permutation, counted from the front. Raises ValueError when it is none."""
    if attrs.axes is None:
        return tuple(reversed(range(rank)))
    axes = tuple(normalize_axis(a, rank, "transpose") for a in attrs.axes)
    if sorted(axes) != list(range(rank)):
        raise ValueError(f"axes must be a permutation of {rank} axes, got {attrs.axes}")
    return axes


def _transpose_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("transpose", types, 1)
    axes = attempt("transpose", transposed_axes, attrs_of(TransposeAttrs, attrs), len(data.shape))
    return TensorType(tuple(data.shape[a] for a in axes), data.dtype)


register_op(
    OpDef(
        name="transpose",
        arguments=("data",),
        attrs=TransposeAttrs,
        relation=_transpose_relation,
        reference=lambda attrs, data: np.transpose(data, attrs.axes),
        lower=lambda attrs, inputs, out: [
            topi.transpose(inputs[0], transposed_axes(attrs, inputs[0].ndim))
        ],
        pattern=OpPattern.INJECTIVE,
    )
)


def transpose(data: Expr, axes: Sequence[int] | None = None) -> Call:
    """`data` with its axes permuted."""
    return call("transpose", data, attrs=TransposeAttrs(None if axes is None else tuple(axes)))


@node("relay.attrs.ConcatenateAttrs")
class ConcatenateAttrs(Attrs):
    """The axis to join along."""

    axis: int = 0


def _total(dims: Sequence[PrimExpr]) -> PrimExpr:
    unknown = next((d for d in dims if is_any(d)), None)
    if unknown is not None:
        return unknown
    total = as_dim(0)
    for each in dims:
        total = total + each
    return tidy(total)


def _concatenate_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    fields = tensor_fields("concatenate", types)
    dtype, rank = one_dtype("concatenate", fields), len(fields[0].shape)
    if any(len(f.shape) != rank for f in fields):
        fail("concatenate", f"ranks must agree, got {', '.join(show(f.shape) for f in fields)}")
    at = attempt(
        "concatenate", normalize_axis, attrs_of(ConcatenateAttrs, attrs).axis, rank, "concatenate"
    )
    shape = list(fields[0].shape)
    for each in fields[1:]:
        for i, dim in enumerate(each.shape):
            shape[i] = (
                shape[i] if i == at else agree("concatenate", shape[i], dim, f"extents of axis {i}")
            )
    shape[at] = _total([f.shape[at] for f in fields])
    return TensorType(tuple(shape), dtype)


register_op(
    OpDef(
        name="concatenate",
        arguments=("data",),
        attrs=ConcatenateAttrs,
        relation=_concatenate_relation,
        reference=lambda attrs, *data: np.concatenate(data, attrs.axis),
        lower=lambda attrs, inputs, out: [topi.concatenate(inputs, attrs.axis % inputs[0].ndim)],
        pattern=OpPattern.INJECTIVE,
        variadic=True,
    )
)


def concatenate(data: Sequence[Expr] | Expr, axis: int) -> Call:
    """Tensors (a sequence, or an expression of tuple type) joined along an axis."""
    return call("concatenate", as_tuple(data), attrs=ConcatenateAttrs(axis))


def as_tuple(data: Sequence[Expr] | Expr) -> Expr:
    """A tuple expression."""
    return Tuple(tuple(data)) if isinstance(data, Sequence) else data


@node("relay.attrs.StackAttrs")
class StackAttrs(Attrs):
    """The position of the new axis in the result."""

    axis: int = 0


def _stack_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    fields = tensor_fields("stack", types)
    dtype, shape = one_dtype("stack", fields), list(fields[0].shape)
    for each in fields[1:]:
        if len(each.shape) != len(shape):
            fail("stack", f"ranks must agree, got {', '.join(show(f.shape) for f in fields)}")
        shape = [
            agree("stack", a, b, f"extents of axis {i}")
            for i, (a, b) in enumerate(zip(shape, each.shape, strict=True))
        ]
    at = attempt("stack", normalize_axis, attrs_of(StackAttrs, attrs).axis, len(shape) + 1, "stack")
    return TensorType((*shape[:at], as_dim(len(fields)), *shape[at:]), dtype)


register_op(
    OpDef(
        name="stack",
        arguments=("data",),
        attrs=StackAttrs,
        relation=_stack_relation,
        reference=lambda attrs, *data: np.stack(data, attrs.axis),
        lower=lambda attrs, inputs, out: [topi.stack(inputs, attrs.axis % (inputs[0].ndim + 1))],
        pattern=OpPattern.INJECTIVE,
        variadic=True,
    )
)


def stack(data: Sequence[Expr] | Expr, axis: int = 0) -> Call:
    """Tensors of one shape joined along a new axis."""
    return call("stack", as_tuple(data), attrs=StackAttrs(axis))


@node("relay.attrs.SplitAttrs")
class SplitAttrs(Attrs):
    """How many equal parts, or the positions to cut at; and the axis."""

    indices_or_sections: int | Dims = 1
    axis: int = 0


def split_ranges(attrs: SplitAttrs, size: PrimExpr) -> list[tuple[PrimExpr, PrimExpr]]:
    """(begin, extent) of each part. Raises ValueError when the axis does not divide."""
    cuts = attrs.indices_or_sections
    if isinstance(cuts, int):
        number = known(size)
        if number is not None and number % cuts:
            raise ValueError(f"an axis of extent {number} does not divide into {cuts} equal parts")
        part = tidy(size // cuts)
        return [(tidy(part * i), part) for i in range(cuts)]
    edges = [as_dim(0), *as_shape(cuts), size]
    return [(a, tidy(b - a)) for a, b in itertools.pairwise(edges)]


def _split_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("split", types, 1)
    wanted = attrs_of(SplitAttrs, attrs)
    at = attempt("split", normalize_axis, wanted.axis, len(data.shape), "split")
    parts = attempt("split", split_ranges, wanted, data.shape[at])
    return TupleType(
        tuple(TensorType(_replaced(data.shape, at, extent), data.dtype) for _, extent in parts)
    )


def _replaced(shape: Shape, axis: int, dim: PrimExpr) -> Shape:
    return (*shape[:axis], dim, *shape[axis + 1 :])


def _split_reference(attrs: SplitAttrs, data: Array) -> tuple[Array, ...]:
    at = normalize_axis(attrs.axis, data.ndim, "split")
    ranges = [as_ints(r) for r in split_ranges(attrs, as_dim(data.shape[at]))]
    return tuple(np.take(data, range(begin, begin + extent), axis=at) for begin, extent in ranges)


def _split_lower(attrs: SplitAttrs, inputs: Sequence[Tensor], out: Type) -> list[Tensor]:
    at = normalize_axis(attrs.axis, inputs[0].ndim, "split")
    return topi.split(inputs[0], split_ranges(attrs, inputs[0].shape[at]), at)


register_op(
    OpDef(
        name="split",
        arguments=("data",),
        attrs=SplitAttrs,
        relation=_split_relation,
        reference=_split_reference,
        lower=_split_lower,
        pattern=OpPattern.INJECTIVE,
    )
)


def split(data: Expr, indices_or_sections: int | Sequence[Dim], axis: int = 0) -> Call:
    """A tuple of parts of `data` along an axis: equal ones, or cut at positions."""
    cuts = indices_or_sections
    return call(
        "split", data, attrs=SplitAttrs(cuts if isinstance(cuts, int) else as_attr(cuts), axis)
    )


@node("relay.attrs.StridedSliceAttrs")
class StridedSliceAttrs(Attrs):
    """begin:end:stride per axis as NumPy slices; None for axes means the leading ones.

    Bounds may be symbolic, strides are numbers. A bound of at least 2**30 in size means "to the
    end".
    """

    begin: Dims = ()
    end: Dims = ()
    strides: tuple[int, ...] = ()
    slice_mode: str = "end"
    axes: tuple[int, ...] | None = None


def sliced(attrs: StridedSliceAttrs, shape: Shape) -> list[tuple[PrimExpr, int, PrimExpr]]:
    """(first index, stride, extent) for every axis. Raises ValueError for axes out of range or
    stride 0."""
    axes = range(len(attrs.begin)) if attrs.axes is None else attrs.axes
    ranges: list[tuple[PrimExpr, int, PrimExpr]] = [(as_dim(0), 1, d) for d in shape]
    for i, axis in enumerate(axes):
        at = normalize_axis(axis, len(shape), "strided_slice")
        stride = (
            attrs.strides[i] if i < len(attrs.strides) else attrs.strides[0] if attrs.strides else 1
        )
        if stride == 0:
            raise ValueError("a stride must not be 0")
        first, extent = _slice_one(attrs, i, stride, shape[at])
        ranges[at] = (first, stride, extent)
    return ranges


def _slice_one(
    attrs: StridedSliceAttrs, i: int, stride: int, size: PrimExpr
) -> tuple[PrimExpr, PrimExpr]:
    if attrs.slice_mode == "end":
        return slice_range(attrs.begin[i], attrs.end[i], stride, size)
    whole = known(attrs.end[i]) == -1  # slice_mode "size": end holds extents, -1 means the rest
    return slice_range(
        attrs.begin[i], 2**62 if whole else as_dim(attrs.begin[i]) + attrs.end[i], 1, size
    )


def _strided_slice_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("strided_slice", types, 1)
    ranges = attempt("strided_slice", sliced, attrs_of(StridedSliceAttrs, attrs), data.shape)
    return TensorType(tuple(extent for _, _, extent in ranges), data.dtype)


def _strided_slice_reference(attrs: StridedSliceAttrs, data: Array) -> Array:
    for at, (first, stride, extent) in enumerate(sliced(attrs, as_shape(data.shape))):
        begin, count = as_ints((first, extent))
        data = np.take(data, begin + stride * np.arange(count), axis=at)
    return data


register_op(
    OpDef(
        name="strided_slice",
        arguments=("data",),
        attrs=StridedSliceAttrs,
        relation=_strided_slice_relation,
        reference=_strided_slice_reference,
        lower=lambda attrs, inputs, out: [
            topi.strided_slice(inputs[0], sliced(attrs, inputs[0].shape))
        ],
        pattern=OpPattern.INJECTIVE,
    )
)


def strided_slice(
    data: Expr,
    begin: Sequence[Dim],
    end: Sequence[Dim],
    strides: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    slice_mode: str = "end",
) -> Call:
    """A slice per axis; see StridedSliceAttrs."""
    steps = (1,) * len(begin) if strides is None else tuple(strides)
    chosen = None if axes is None else tuple(axes)
    attrs = StridedSliceAttrs(as_attr(begin), as_attr(end), steps, slice_mode, chosen)
    return call("strided_slice", data, attrs=attrs)


@node("relay.attrs.BroadcastAttrs")
class BroadcastAttrs(Attrs):
    """The shape to broadcast to."""

    shape: Dims = ()


def _broadcast_to_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("broadcast_to", types, 1)
    wanted = as_shape(attrs_of(BroadcastAttrs, attrs).shape)
    found = broadcast_shape(data.shape, wanted)
    shrinks = found is not None and any(
        known(f) not in (None, known(w)) for f, w in zip(found, wanted, strict=False) if known(w)
    )
    if found is None or len(found) != len(wanted) or shrinks:
        fail("broadcast_to", f"{show(data.shape)} does not broadcast to {show(wanted)}")
    return TensorType(wanted, data.dtype)


register_op(
    OpDef(
        name="broadcast_to",
        arguments=("data",),
        attrs=BroadcastAttrs,
        relation=_broadcast_to_relation,
        reference=lambda attrs, data: np.array(np.broadcast_to(data, as_ints(attrs.shape))),
        lower=lambda attrs, inputs, out: [topi.broadcast_to(inputs[0], as_shape(attrs.shape))],
        pattern=OpPattern.BROADCAST,
    )
)


def broadcast_to(data: Expr, shape: Sequence[Dim]) -> Call:
    """`data` repeated along axes of extent 1 and new leading axes."""
    return call("broadcast_to", data, attrs=BroadcastAttrs(as_attr(shape)))


@node("relay.attrs.TileAttrs")
class TileAttrs(Attrs):
    """How often to repeat along each axis, aligned at the last one."""

    reps: Dims = ()


def _tile_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("tile", types, 1)
    reps = as_shape(attrs_of(TileAttrs, attrs).reps)
    rank = max(len(reps), len(data.shape))
    one = as_dim(1)
    shape = (one,) * (rank - len(data.shape)) + data.shape
    times = (one,) * (rank - len(reps)) + reps
    return TensorType(
        tuple(d if is_any(d) else tidy(d * r) for d, r in zip(shape, times, strict=True)),
        data.dtype,
    )


register_op(
    OpDef(
        name="tile",
        arguments=("data",),
        attrs=TileAttrs,
        relation=_tile_relation,
        reference=lambda attrs, data: np.tile(data, as_ints(attrs.reps)),
        lower=lambda attrs, inputs, out: [topi.tile(inputs[0], out.shape)],
        pattern=OpPattern.INJECTIVE,
    )
)


def tile(data: Expr, reps: Sequence[Dim]) -> Call:
    """`data` repeated as a whole along each axis."""
    return call("tile", data, attrs=TileAttrs(as_attr(reps)))


@node("relay.attrs.RepeatAttrs")
class RepeatAttrs(Attrs):
    """How often each element is repeated along the axis."""

    repeats: int = 1
    axis: int = 0


def _repeat_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("repeat", types, 1)
    wanted = attrs_of(RepeatAttrs, attrs)
    at = attempt("repeat", normalize_axis, wanted.axis, len(data.shape), "repeat")
    size = data.shape[at]
    return TensorType(
        _replaced(data.shape, at, size if is_any(size) else tidy(size * wanted.repeats)), data.dtype
    )


register_op(
    OpDef(
        name="repeat",
        arguments=("data",),
        attrs=RepeatAttrs,
        relation=_repeat_relation,
        reference=lambda attrs, data: np.repeat(data, attrs.repeats, attrs.axis),
        lower=lambda attrs, inputs, out: [
            topi.repeat(inputs[0], attrs.repeats, attrs.axis % inputs[0].ndim)
        ],
        pattern=OpPattern.INJECTIVE,
    )
)


def repeat(data: Expr, repeats: int, axis: int) -> Call:
    """Each element repeated along an axis."""
    return call("repeat", data, attrs=RepeatAttrs(repeats, axis))


@node("relay.attrs.ReverseAttrs")
class ReverseAttrs(Attrs):
    """The axes to reverse."""

    axis: tuple[int, ...] = (0,)


def _reverse_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("reverse", types, 1)
    attempt(
        "reverse", normalize_axes, attrs_of(ReverseAttrs, attrs).axis, len(data.shape), "reverse"
    )
    return data


register_op(
    OpDef(
        name="reverse",
        arguments=("data",),
        attrs=ReverseAttrs,
        relation=_reverse_relation,
        reference=lambda attrs, data: np.ascontiguousarray(np.flip(data, attrs.axis)),
        lower=lambda attrs, inputs, out: [
            topi.reverse(inputs[0], normalize_axes(attrs.axis, inputs[0].ndim, "reverse"))
        ],
        pattern=OpPattern.INJECTIVE,
    )
)


def reverse(data: Expr, axis: int | Sequence[int]) -> Call:
    """`data` backwards along axes."""
    return call("reverse", data, attrs=ReverseAttrs(axes_attr(axis) or ()))


@node("relay.attrs.LayoutTransformAttrs")
class LayoutTransformAttrs(Attrs):
    """Layout strings: NCHW, NHWC, NCHW16c."""

    src_layout: str = "NCHW"
    dst_layout: str = "NCHW"


def _layout_transform_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("layout_transform", types, 1)
    wanted = attrs_of(LayoutTransformAttrs, attrs)
    shape = attempt(
        "layout_transform", transform_shape, data.shape, wanted.src_layout, wanted.dst_layout
    )
    return TensorType(shape, data.dtype)


register_op(
    OpDef(
        name="layout_transform",
        arguments=("data",),
        attrs=LayoutTransformAttrs,
        relation=_layout_transform_relation,
        reference=lambda attrs, data: transform_array(data, attrs.src_layout, attrs.dst_layout),
        lower=lambda attrs, inputs, out: [
            topi.layout_transform(inputs[0], attrs.src_layout, attrs.dst_layout)
        ],
        pattern=OpPattern.INJECTIVE,
    )
)


def layout_transform(data: Expr, src_layout: str, dst_layout: str) -> Call:
    """`data` from one layout to another; an inner factor must divide its axis."""
    return call("layout_transform", data, attrs=LayoutTransformAttrs(src_layout, dst_layout))
