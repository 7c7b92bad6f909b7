"""Operations that move elements: shapes, slices, joins, padding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ekiden.frontend.common import arithmetic, sizes
from ekiden.frontend.common.arithmetic import SMALL, Rule
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value, constant, known
from ekiden.frontend.jax.node import Node, Row, own, per_part, scalar
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import Dim, as_attr, as_dim, equal, tidy
from ekiden.topi.shape import known as number_of

Dims = Sequence[Dim]


# Shapes.


def spread(node: Node, value: Value, axes: Sequence[int], shape: Dims) -> Expr:
    """A value whose axes are these of a shape that it is repeated to."""
    data, source = node.scope.expr(value), value.type.shape
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    if order != list(range(len(axes))):
        data = op.transpose(data, order)
        source = tuple(source[i] for i in order)
        axes = sorted(axes)
    wide: list[Dim] = [1] * len(shape)
    for axis, dim in zip(axes, source, strict=True):
        wide[axis] = dim
    first = axes[0] if axes else len(shape)
    if list(axes) != list(range(first, len(shape))):  # not the last ones: others between
        data = op.reshape(data, as_attr(wide[first:]), allowzero=True)
    same = all(equal(as_dim(a), as_dim(b)) for a, b in zip(wide, shape, strict=True))
    if same and first == 0:
        return data
    return op.broadcast_to(data, as_attr(shape))


def _broadcast(node: Node) -> Expr:
    return spread(node, node.value(0), node.ints("broadcast_dimensions"), _declared(node))


def _declared(node: Node) -> tuple[int, ...]:
    return node.static([-1 if d is None else d for d in node.out_extents()], "the output")


def _dynamic_broadcast(node: Node) -> Expr:
    return spread(node, node.value(0), node.ints("broadcast_dimensions"), node.sizes(1))


def _broadcasted(node: Node) -> Rule:
    """Of what is known, into a known shape."""

    def rule(inputs: Sequence[Array]) -> Array | None:
        """The array in the result's shape, its axis i at `broadcast_dimensions[i]`; None where that
        is large or not known.
        """
        shape = _numbers(node.out_extents())
        if shape is None or int(np.prod(shape)) > SMALL:
            return None
        wide = [1] * len(shape)
        axes = node.ints("broadcast_dimensions")
        for axis, extent in zip(axes, inputs[0].shape, strict=True):
            wide[axis] = extent
        data = inputs[0].transpose(np.argsort(axes)) if axes else inputs[0]
        return np.broadcast_to(data.reshape(wide), shape)

    return rule


def _numbers(extents: Sequence[int | None]) -> tuple[int, ...] | None:
    found = tuple(e for e in extents if e is not None)
    return found if len(found) == len(extents) else None


def _reshape(node: Node) -> Expr:
    return op.reshape(node.expr(0), _declared(node), allowzero=True)


def _reshaped(node: Node) -> Rule:
    def rule(inputs: Sequence[Array]) -> Array | None:
        shape = _numbers(node.out_extents())
        return None if shape is None else inputs[0].reshape(shape)

    return rule


def _dynamic_reshape(node: Node) -> Expr:
    return op.reshape(node.expr(0), node.sizes(1), allowzero=True)


def _transpose(node: Node) -> Expr:
    return op.transpose(node.expr(0), node.ints("permutation"))


def _transposed(node: Node) -> Rule:
    return lambda inputs: inputs[0].transpose(node.ints("permutation"))


def _reverse(node: Node) -> Expr:
    return op.reverse(node.expr(0), node.ints("dimensions"))


def _concatenate(node: Node) -> Expr:
    return op.concatenate(node.exprs(), axis=node.integer("dimension"))


def _concatenated(node: Node) -> Rule:
    return partial(arithmetic.concatenated, axis=node.integer("dimension"))


def _extent(node: Node) -> Result:
    dim = node.shape(0)[node.integer("dimension")]
    return known(np.array(dim, object), node.out_dtype())


def _iota(node: Node, shape: Dims) -> Result:
    axis, dtype = node.integer("iota_dimension"), node.out_dtype()
    return iota(node, shape, axis, dtype)


def iota(node: Node, shape: Dims, axis: int, dtype: str) -> Result:
    """Positions along an axis."""
    extent, numbers = shape[axis], [number_of(d) for d in shape]
    total = int(np.prod([n or 0 for n in numbers]))
    if None not in numbers and total <= SMALL:
        wide = np.arange(number_of(extent) or 0).reshape([-1] + [1] * (len(shape) - axis - 1))
        return constant(np.broadcast_to(wide, [n or 0 for n in numbers]).astype(to_numpy(dtype)))
    counts = op.arange(0, extent, 1, dtype="int64")
    row = node.given(counts if dtype == "int64" else op.cast(counts, dtype))
    return spread(node, row, [axis], shape)


# Slices.


def _slice(node: Node) -> Expr:
    return op.strided_slice(
        node.expr(0),
        node.ints("start_indices"),
        node.ints("limit_indices"),
        strides=node.ints("strides"),
    )


def _sliced(node: Node) -> Rule:
    bounds = (node.ints(n) for n in ("start_indices", "limit_indices", "strides"))
    cut = tuple(slice(*b) for b in zip(*bounds, strict=True))
    return lambda inputs: inputs[0][cut]


def _real_slice(node: Node) -> Expr:
    """Bounds that are inputs: their distances are the extents, also where they are data."""
    steps = tuple(int(s) for s in node.numbers(3, "strides").ravel())
    first, last = node.partial(1), node.partial(2)
    begins, ends = (sizes.elements(node.scope, node.value(i)) for i in (1, 2))
    assert begins is not None and ends is not None, "bounds are vectors of known length"
    extents = [tidy(as_dim(e) - as_dim(b)) for b, e in zip(begins, ends, strict=True)]
    found, shape = node.expr(0), node.shape(0)
    for axis, (begin, end, extent) in enumerate(zip(first, last, extents, strict=True)):
        if begin is not None and end is not None:
            is_whole = number_of(begin) == 0 and equal(end, shape[axis]) and steps[axis] == 1
            if not is_whole:
                bounds = as_attr((begin,)), as_attr((end,))
                found = op.strided_slice(found, *bounds, strides=(steps[axis],), axes=(axis,))
        elif sizes.is_dim(extent) and steps[axis] == 1:
            start = op.take(op.cast(node.expr(1), "int64"), const(axis, "int64"), axis=0)
            found = _window(found, start, extent, axis)
        else:
            node.needs(1, "the extent of a slice must follow from shapes")
    return found


def _window(data: Expr, start: Expr, size: Dim, axis: int) -> Expr:
    """Some elements of an axis from a position that is data."""
    if number_of(size) == 1:
        places = op.reshape(start, (1,))
    else:
        places = op.add(start, op.arange(0, size, 1, dtype="int64"))
    return op.take(data, places, axis=axis)


def start_of(node: Node, index: int, extent: Dim, size: Dim) -> Value:
    """An input that is the position of a window along an axis, moved inside of it."""
    value = node.value(index)
    limit = tidy(as_dim(extent) - as_dim(size))
    zero = scalar(0, "int64")
    if value.array is not None and number_of(limit) is not None:
        return scalar(int(np.clip(int(value.array), 0, number_of(limit))), "int64")
    if number_of(limit) == 0:
        return zero
    wide = op.cast(node.scope.expr(value), "int64")
    moved = op.minimum(op.maximum(wide, node.scope.expr(zero)), node.scope.scalar(limit))
    return node.given(moved)


def _dynamic_slice(node: Node) -> Expr:
    """Windows of constant extents, moved inside."""
    found, shape = node.expr(0), node.shape(0)
    for axis, (extent, size) in enumerate(zip(shape, node.ints("slice_sizes"), strict=True)):
        if equal(as_dim(extent), as_dim(size)):
            continue
        start = start_of(node, axis + 1, extent, size)
        if start.array is not None:
            begin = int(start.array)
            found = op.strided_slice(found, (begin,), (begin + size,), axes=(axis,))
        else:
            found = _window(found, node.scope.expr(start), size, axis)
    return found


def _dynamic_update_slice(node: Node) -> Expr:
    starts, window = [], node.shape(1)
    for axis, (extent, size) in enumerate(zip(node.shape(0), window, strict=True)):
        starts.append(start_of(node, axis + 2, extent, size))
    if not starts:
        return node.expr(1)
    places = op.stack([node.scope.expr(s) for s in starts], axis=0)
    extents = node.scope.expr(known(np.array(window, object), "int64"))
    begin = node.scope.expr(node.given(places))
    ones = const(np.ones(len(window), np.int64))
    return op.strided_set(node.expr(0), node.expr(1), begin, op.add(begin, extents), ones)


# Padding.


def pad(node: Node, value: Value, fill: Expr, low: Dims, high: Dims, inner: Sequence[int]) -> Expr:
    """Elements between, before and behind those of a tensor; negative ones cut it."""
    data, shape = node.scope.expr(value), [as_dim(d) for d in value.type.shape]
    if any(inner):
        data, shape = _stretch(data, shape, fill, inner)
    cuts = [(max(-(number_of(a) or 0), 0), max(-(number_of(b) or 0), 0))
            for a, b in zip(low, high, strict=True)]  # fmt: skip
    widths = [
        tuple(0 if (number_of(w) or 0) < 0 else w for w in pair)
        for pair in zip(low, high, strict=True)
    ]
    if any(number_of(w) != 0 for pair in widths for w in pair):
        data = op.nn.pad(data, [as_attr(pair) for pair in widths], fill)
        shape = [tidy(d + as_dim(a) + as_dim(b)) for d, (a, b) in zip(shape, widths, strict=True)]
    if any(before or behind for before, behind in cuts):
        begin = [before for before, _ in cuts]
        end = as_attr(tidy(d - behind) for d, (_, behind) in zip(shape, cuts, strict=True))
        data = op.strided_slice(data, begin, end)
    return data


def _stretch(
    data: Expr, shape: list[PrimExpr], fill: Expr, inner: Sequence[int]
) -> tuple[Expr, list[PrimExpr]]:
    """Elements between: each becomes a row of itself and as many; those of the last are cut."""
    for axis, count in enumerate(inner):
        if not count:
            continue
        rank = len(shape)
        row = op.expand_dims(data, axis=axis + 1)
        widths = [(0, 0)] * (axis + 1) + [(0, count)] + [(0, 0)] * (rank - axis - 1)
        wide = tidy(as_dim(shape[axis]) * (count + 1))
        joined = (*shape[:axis], wide, *shape[axis + 1 :])
        data = op.reshape(op.nn.pad(row, widths, fill), as_attr(joined), allowzero=True)
        shape = [*shape[:axis], tidy(wide - count), *shape[axis + 1 :]]
        data = op.strided_slice(data, (0,), as_attr((shape[axis],)), axes=(axis,))
    return data, shape


def _pad(node: Node) -> Expr:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    low, high, inner = (node.ints(n) for n in names)
    return pad(node, node.value(0), node.expr(1), low, high, inner)


def _dynamic_pad(node: Node) -> Expr:
    inner = node.static(node.sizes(4), "interior padding")
    return pad(node, node.value(0), node.expr(1), _signed(node, 2), _signed(node, 3), inner)


def _signed(node: Node, index: int) -> list[Dim]:
    found = [as_attr((e,))[0] for e in node.partial(index) if e is not None]
    if len(found) < len(node.partial(index)):
        node.needs(index, "padding must follow from shapes")
    return found


def _static_iota(node: Node) -> Result:
    return _iota(node, _declared(node))


def _dynamic_iota(node: Node) -> Result:
    return _iota(node, node.sizes(0))


def _same(node: Node) -> Result:
    return list(node.inputs)


# fmt: off
ROWS: tuple[Row, ...] = (
    Row("stablehlo.broadcast_in_dim",         _broadcast,         _broadcasted, True, per_part),
    Row("stablehlo.dynamic_broadcast_in_dim", _dynamic_broadcast, _broadcasted, True, per_part),
    Row("stablehlo.reshape",                  _reshape,           _reshaped,    True, per_part),
    Row("stablehlo.dynamic_reshape",          _dynamic_reshape,   _reshaped,    True, per_part),
    Row("stablehlo.transpose",                _transpose,         _transposed,  True, per_part),
    Row("stablehlo.reverse",                  _reverse,           on_complex=per_part),
    Row("stablehlo.concatenate",              _concatenate,       _concatenated, False, per_part),
    Row("stablehlo.get_dimension_size",       _extent,            on_complex=own(_extent)),
    Row("stablehlo.iota",                     _static_iota),
    Row("stablehlo.dynamic_iota",             _dynamic_iota),
    Row("stablehlo.slice",                    _slice,             _sliced,      True, per_part),
    Row("stablehlo.real_dynamic_slice",       _real_slice,        on_complex=per_part),
    Row("stablehlo.dynamic_slice",            _dynamic_slice,     on_complex=per_part),
    Row("stablehlo.dynamic_update_slice",     _dynamic_update_slice, on_complex=per_part),
    Row("stablehlo.pad",                      _pad,               on_complex=per_part),
    Row("stablehlo.dynamic_pad",              _dynamic_pad,       on_complex=per_part),
    Row("stablehlo.optimization_barrier",     _same),
)
# fmt: on
