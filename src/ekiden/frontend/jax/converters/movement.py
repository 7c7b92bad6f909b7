"""Data movement: shapes, slices, concatenation, padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ekiden.frontend.common import arithmetic, sizes
from ekiden.frontend.common.arithmetic import SMALL, Rule
from ekiden.frontend.common.converters import stablehlo as shared
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.slices import pad, window_at
from ekiden.frontend.common.value import Value, known
from ekiden.frontend.jax.dtype import extents_of
from ekiden.frontend.jax.node import (
    ComplexRule,
    Converter,
    Many,
    Node,
    Pair,
    Row,
    own,
    per_part,
)
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, as_attr, as_dim, equal, tidy
from ekiden.topi.dimensions import known as number_of

Dims = Sequence[Dim]


# Shapes.


def _stays(node: Node) -> bool:
    """Return whether a scalar stays a scalar: in a body evaluated on tensors, whatever
    their shape.
    """
    rank = len(extents_of(node.operation.operands[0].type))
    return rank == 0 and not node.out_extents()


def _broadcast(node: Node) -> Result:
    if _stays(node):
        return node.value(0)
    return shared.broadcast_in_dim(
        node, node.value(0), node.ints("broadcast_dimensions"), _declared(node)
    )


def _declared(node: Node) -> tuple[int, ...]:
    return node.static([-1 if d is None else d for d in node.out_extents()], "the output")


def _dynamic_broadcast(node: Node) -> Expr:
    return shared.broadcast_in_dim(
        node, node.value(0), node.ints("broadcast_dimensions"), node.sizes(1)
    )


def _broadcasted(node: Node) -> Rule:
    """Return the rule that broadcasts known elements to a known shape."""

    def rule(inputs: Sequence[Array]) -> Array | None:
        """Broadcast the array, its axis i at `broadcast_dimensions[i]`; return None where the
        result is large or its shape unknown.
        """
        shape = _numbers(node.out_extents())
        if shape is None or math.prod(map(int, shape)) > SMALL:
            return None
        wide = [1] * len(shape)
        axes = node.ints("broadcast_dimensions")
        for axis, extent in zip(axes, inputs[0].shape, strict=True):
            wide[axis] = extent
        data = inputs[0].transpose(np.argsort(axes)) if axes else inputs[0]
        return np.broadcast_to(data.reshape(wide), shape)

    return rule


def _numbers(extents: Sequence[int | None]) -> tuple[int, ...] | None:
    known_extents = tuple(e for e in extents if e is not None)
    return known_extents if len(known_extents) == len(extents) else None


def _reshape(node: Node) -> Result:
    if _stays(node):
        return node.value(0)
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
    return shared.iota(node, shape, axis, dtype)


def _complex_iota(convert: Converter) -> ComplexRule:
    """Return the complex rule of iota: positions with imaginary part 0."""

    def rule(node: Node) -> Pair:
        positions = convert(node)
        assert isinstance(positions, Value), "it gives one tensor"
        real = node.scope.expr(positions)
        return real, op.zeros_like(real)

    return rule


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
    """Convert real_dynamic_slice: bounds are inputs, whose distances are the extents, also where
    they are data.
    """
    steps = tuple(int(s) for s in node.numbers(3, "strides").ravel())
    first, last = node.partial(1), node.partial(2)
    begins, ends = (sizes.elements(node.scope, node.value(i)) for i in (1, 2))
    assert begins is not None and ends is not None, "bounds are vectors of known length"
    extents = [tidy(as_dim(e) - as_dim(b)) for b, e in zip(begins, ends, strict=True)]
    sliced, shape = node.expr(0), node.shape(0)
    for axis, (begin, end, extent) in enumerate(zip(first, last, extents, strict=True)):
        if begin is not None and end is not None:
            is_whole = number_of(begin) == 0 and equal(end, shape[axis]) and steps[axis] == 1
            if not is_whole:
                bounds = as_attr((begin,)), as_attr((end,))
                sliced = op.strided_slice(sliced, *bounds, strides=(steps[axis],), axes=(axis,))
        elif sizes.is_dim(extent) and steps[axis] == 1:
            start = op.take(op.cast(node.expr(1), "int64"), const(axis, "int64"), axis=0)
            sliced = window_at(sliced, start, extent, axis)
        else:
            node.needs(1, "the extent of a slice must follow from shapes")
    return sliced


def _dynamic_slice(node: Node) -> Expr:
    return shared.dynamic_slice(node, node.ints("slice_sizes"))


def _dynamic_update_slice(node: Node) -> Expr:
    return shared.dynamic_update_slice(node, [node.value(axis + 2) for axis in range(node.rank(0))])


# Padding.


def _pad(node: Node) -> Expr:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    low, high, inner = (node.ints(n) for n in names)
    return pad(node, node.value(0), node.expr(1), low, high, inner)


def _dynamic_pad(node: Node) -> Expr:
    inner = node.static(node.sizes(4), "interior padding")
    return pad(node, node.value(0), node.expr(1), _signed(node, 2), _signed(node, 3), inner)


def _signed(node: Node, index: int) -> list[Dim]:
    numbers = [as_attr((e,))[0] for e in node.partial(index) if e is not None]
    if len(numbers) < len(node.partial(index)):
        node.needs(index, "padding must follow from shapes")
    return numbers


def _static_iota(node: Node) -> Result:
    return _iota(node, _declared(node))


def _dynamic_iota(node: Node) -> Result:
    return _iota(node, node.sizes(0))


def _same(node: Node) -> Many:
    return list(node.whole)


def _shape_of(node: Node) -> Result:
    """Return the extents of a tensor, which CHLO operations read where they are symbolic."""
    return known(np.array(node.shape(0), object), node.out_dtype())


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
    Row("stablehlo.iota",                     _static_iota,       on_complex=_complex_iota),
    Row("stablehlo.dynamic_iota",             _dynamic_iota,      on_complex=_complex_iota),
    Row("shape.shape_of",                     _shape_of,          on_complex=own(_shape_of)),
    Row("stablehlo.slice",                    _slice,             _sliced,      True, per_part),
    Row("stablehlo.real_dynamic_slice",       _real_slice,        on_complex=per_part),
    Row("stablehlo.dynamic_slice",            _dynamic_slice,     on_complex=per_part),
    Row("stablehlo.dynamic_update_slice",     _dynamic_update_slice, on_complex=per_part),
    Row("stablehlo.pad",                      _pad,               on_complex=per_part),
    Row("stablehlo.dynamic_pad",              _dynamic_pad,       on_complex=per_part),
    Row("stablehlo.optimization_barrier",     _same,              on_complex=own(_same)),
)
# fmt: on
