"""Data movement: shapes, slices, concatenation, padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ekiden.frontend.common import arithmetic, data_dependent_dims
from ekiden.frontend.common.arithmetic import MAX_FOLDED_ELEMENTS, Rule
from ekiden.frontend.common.converters import stablehlo as shared
from ekiden.frontend.common.dynamic_slices import pad, take_window
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value, known
from ekiden.frontend.jax.dtype import static_extents
from ekiden.frontend.jax.node import (
    ComplexRule,
    Converter,
    Many,
    Pair,
    StablehloNode,
    StablehloRow,
    complex_rule,
    per_part,
)
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, are_equal_dims, as_attr, as_dim, simplify_dim
from ekiden.topi.dimensions import known_int as number_of

Dims = Sequence[Dim]


# Shapes.


def _is_scalar_identity(node: StablehloNode) -> bool:
    """Return whether a scalar stays a scalar: in a body evaluated on tensors it keeps the tensors'
    shape.
    """
    rank = len(static_extents(node.operation.operands[0].type))
    return rank == 0 and not node.out_extents()


def _broadcast(node: StablehloNode) -> Result:
    if _is_scalar_identity(node):
        return node.value(0)
    return shared.broadcast_in_dim(
        node, node.value(0), node.ints("broadcast_dimensions"), _static_output_shape(node)
    )


def _static_output_shape(node: StablehloNode) -> tuple[int, ...]:
    return node.static_dims([-1 if d is None else d for d in node.out_extents()], "the output")


def _dynamic_broadcast(node: StablehloNode) -> Expr:
    return shared.broadcast_in_dim(
        node, node.value(0), node.ints("broadcast_dimensions"), node.sizes(1)
    )


def _broadcast_rule(node: StablehloNode) -> Rule:
    """Return the rule that broadcasts known elements to a known shape."""

    def rule(inputs: Sequence[Array]) -> Array | None:
        """Broadcast known elements along `broadcast_dimensions`; return None where the result is
        large or its shape unknown.
        """
        shape = _static_shape(node.out_extents())
        # Bounds import memory: a program can broadcast one number to any declared size.
        if shape is None or math.prod(map(int, shape)) > MAX_FOLDED_ELEMENTS:
            return None
        wide = [1] * len(shape)
        axes = node.ints("broadcast_dimensions")
        for axis, extent in zip(axes, inputs[0].shape, strict=True):
            wide[axis] = extent
        data = inputs[0].transpose(np.argsort(axes)) if axes else inputs[0]
        return np.broadcast_to(data.reshape(wide), shape)

    return rule


def _static_shape(extents: Sequence[int | None]) -> tuple[int, ...] | None:
    known_extents = tuple(e for e in extents if e is not None)
    return known_extents if len(known_extents) == len(extents) else None


def _reshape(node: StablehloNode) -> Result:
    if _is_scalar_identity(node):
        return node.value(0)
    return op.reshape(node.expr(0), _static_output_shape(node), allowzero=True)


def _reshape_rule(node: StablehloNode) -> Rule:
    def rule(inputs: Sequence[Array]) -> Array | None:
        shape = _static_shape(node.out_extents())
        return None if shape is None else inputs[0].reshape(shape)

    return rule


def _dynamic_reshape(node: StablehloNode) -> Expr:
    return op.reshape(node.expr(0), node.sizes(1), allowzero=True)


def _transpose(node: StablehloNode) -> Expr:
    return op.transpose(node.expr(0), node.ints("permutation"))


def _transpose_rule(node: StablehloNode) -> Rule:
    return lambda inputs: inputs[0].transpose(node.ints("permutation"))


def _reverse(node: StablehloNode) -> Expr:
    return op.reverse(node.expr(0), node.ints("dimensions"))


def _concatenate(node: StablehloNode) -> Expr:
    return op.concatenate(node.exprs(), axis=node.integer("dimension"))


def _concatenate_rule(node: StablehloNode) -> Rule:
    return partial(arithmetic.concat_elements, axis=node.integer("dimension"))


def _get_dimension_size(node: StablehloNode) -> Result:
    dim = node.shape(0)[node.integer("dimension")]
    return known(np.array(dim, object), node.out_dtype())


def _iota(node: StablehloNode, shape: Dims) -> Result:
    axis, dtype = node.integer("iota_dimension"), node.out_dtype()
    return shared.iota(node, shape, axis, dtype)


def _complex_iota(convert: Converter) -> ComplexRule:
    """Return the complex rule of iota, with imaginary part 0."""

    def rule(node: StablehloNode) -> Pair:
        positions = convert(node)
        assert isinstance(positions, Value), "it gives one tensor"
        real = node.scope.expr(positions)
        return real, op.zeros_like(real)

    return rule


# Slices.


def _slice(node: StablehloNode) -> Expr:
    return op.strided_slice(
        node.expr(0),
        node.ints("start_indices"),
        node.ints("limit_indices"),
        strides=node.ints("strides"),
    )


def _slice_rule(node: StablehloNode) -> Rule:
    bounds = (node.ints(n) for n in ("start_indices", "limit_indices", "strides"))
    cut = tuple(slice(*b) for b in zip(*bounds, strict=True))
    return lambda inputs: inputs[0][cut]


def _real_dynamic_slice(node: StablehloNode) -> Expr:
    """Convert real_dynamic_slice, whose bounds are inputs; extents are the differences of the
    bounds, even where these are data.
    """
    steps = tuple(int(s) for s in node.numbers(3, "strides").ravel())
    first, last = node.partial(1), node.partial(2)
    begins, ends = (data_dependent_dims.elements(node.scope, node.value(i)) for i in (1, 2))
    assert begins is not None and ends is not None, "bounds are vectors of known length"
    extents = [simplify_dim(as_dim(e) - as_dim(b)) for b, e in zip(begins, ends, strict=True)]
    sliced, shape = node.expr(0), node.shape(0)
    for axis, (begin, end, extent) in enumerate(zip(first, last, extents, strict=True)):
        if begin is not None and end is not None:
            is_whole = (
                number_of(begin) == 0 and are_equal_dims(end, shape[axis]) and steps[axis] == 1
            )
            if not is_whole:
                bounds = as_attr((begin,)), as_attr((end,))
                sliced = op.strided_slice(sliced, *bounds, strides=(steps[axis],), axes=(axis,))
        elif data_dependent_dims.is_dim(extent) and steps[axis] == 1:
            start = op.take(op.cast(node.expr(1), "int64"), const(axis, "int64"), axis=0)
            sliced = take_window(sliced, start, extent, axis)
        else:
            node.needs(1, "the extent of a slice must follow from shapes")
    return sliced


def _dynamic_slice(node: StablehloNode) -> Expr:
    return shared.dynamic_slice(node, node.ints("slice_sizes"))


def _dynamic_update_slice(node: StablehloNode) -> Expr:
    return shared.dynamic_update_slice(node, [node.value(axis + 2) for axis in range(node.rank(0))])


# Padding.


def _pad(node: StablehloNode) -> Expr:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    low, high, inner = (node.ints(n) for n in names)
    return pad(node, node.value(0), node.expr(1), low, high, inner)


def _dynamic_pad(node: StablehloNode) -> Expr:
    inner = node.static_dims(node.sizes(4), "interior padding")
    return pad(
        node, node.value(0), node.expr(1), _padding_dims(node, 2), _padding_dims(node, 3), inner
    )


def _padding_dims(node: StablehloNode, index: int) -> list[Dim]:
    numbers = [as_attr((e,))[0] for e in node.partial(index) if e is not None]
    if len(numbers) < len(node.partial(index)):
        node.needs(index, "padding must follow from shapes")
    return numbers


def _static_iota(node: StablehloNode) -> Result:
    return _iota(node, _static_output_shape(node))


def _dynamic_iota(node: StablehloNode) -> Result:
    return _iota(node, node.sizes(0))


def _identity(node: StablehloNode) -> Many:
    return list(node.whole)


def _shape_of(node: StablehloNode) -> Result:
    """Return the extents of a tensor (shape.shape_of), which CHLO operations read where they are
    symbolic.
    """
    return known(np.array(node.shape(0), object), node.out_dtype())


# fmt: off
ROWS: tuple[StablehloRow, ...] = (
    StablehloRow("stablehlo.broadcast_in_dim",         _broadcast, _broadcast_rule, True, per_part),
    StablehloRow("stablehlo.dynamic_broadcast_in_dim", _dynamic_broadcast, _broadcast_rule,   True,
        per_part),
    StablehloRow("stablehlo.reshape",                  _reshape, _reshape_rule, True, per_part),
    StablehloRow("stablehlo.dynamic_reshape", _dynamic_reshape, _reshape_rule, True, per_part),
    StablehloRow("stablehlo.transpose",                _transpose, _transpose_rule, True, per_part),
    StablehloRow("stablehlo.reverse",                  _reverse, on_complex=per_part),
    StablehloRow("stablehlo.concatenate", _concatenate, _concatenate_rule, False, per_part),
    StablehloRow("stablehlo.get_dimension_size",       _get_dimension_size,
        on_complex=complex_rule(_get_dimension_size)),
    StablehloRow("stablehlo.iota",                     _static_iota, on_complex=_complex_iota),
    StablehloRow("stablehlo.dynamic_iota",             _dynamic_iota, on_complex=_complex_iota),
    StablehloRow("shape.shape_of", _shape_of, on_complex=complex_rule(_shape_of)),
    StablehloRow("stablehlo.slice",                    _slice, _slice_rule, True, per_part),
    StablehloRow("stablehlo.real_dynamic_slice",       _real_dynamic_slice, on_complex=per_part),
    StablehloRow("stablehlo.dynamic_slice",            _dynamic_slice, on_complex=per_part),
    StablehloRow("stablehlo.dynamic_update_slice",     _dynamic_update_slice, on_complex=per_part),
    StablehloRow("stablehlo.pad",                      _pad, on_complex=per_part),
    StablehloRow("stablehlo.dynamic_pad",              _dynamic_pad, on_complex=per_part),
    StablehloRow("stablehlo.optimization_barrier", _identity, on_complex=complex_rule(_identity)),
)
# fmt: on
