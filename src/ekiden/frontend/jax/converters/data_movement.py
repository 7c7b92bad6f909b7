"""Data movement: shapes, slices, concatenation, padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ekiden.frontend.common import constant_folding, data_dependent_dims
from ekiden.frontend.common.constant_folding import MAX_FOLDED_ELEMENTS, Rule
from ekiden.frontend.common.converters import stablehlo as shared
from ekiden.frontend.common.dynamic_slices import dynamic_slice_axis, xla_pad
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value, known_value
from ekiden.frontend.jax.dtype import static_extents
from ekiden.frontend.jax.node import (
    ComplexPair,
    ComplexRule,
    Converter,
    ImportedValues,
    StablehloNode,
    StablehloRow,
    custom_complex_rule,
    per_part_rule,
)
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, are_equal_dims, as_dim, simplify_dim, to_attr_dims
from ekiden.topi.dimensions import known_int as number_of

Dims = Sequence[Dim]


# Shapes.


def _is_scalar_identity(node: StablehloNode) -> bool:
    """Return whether a scalar stays a scalar: in a body evaluated on tensors it keeps the tensors'
    shape.
    """
    rank = len(static_extents(node.operation.operands[0].type))
    return rank == 0 and not node.static_output_extents()


def _broadcast(node: StablehloNode) -> Result:
    if _is_scalar_identity(node):
        return node.value(0)
    return shared.broadcast_in_dim(
        node,
        node.value(0),
        node.int_array_attribute("broadcast_dimensions"),
        _static_output_shape(node),
    )


def _static_output_shape(node: StablehloNode) -> tuple[int, ...]:
    return node.static_dims(
        [-1 if d is None else d for d in node.static_output_extents()], "the output"
    )


def _dynamic_broadcast(node: StablehloNode) -> Expr:
    return shared.broadcast_in_dim(
        node, node.value(0), node.int_array_attribute("broadcast_dimensions"), node.sizes(1)
    )


def _broadcast_rule(node: StablehloNode) -> Rule:
    """Return the rule that broadcasts known elements to a known shape."""

    def rule(inputs: Sequence[Array]) -> Array | None:
        """Broadcast known elements along `broadcast_dimensions`; return None where the result is
        large or its shape unknown.
        """
        shape = _static_shape(node.static_output_extents())
        # Bounds import memory: a program can broadcast one number to any declared size.
        if shape is None or math.prod(map(int, shape)) > MAX_FOLDED_ELEMENTS:
            return None
        wide = [1] * len(shape)
        axes = node.int_array_attribute("broadcast_dimensions")
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
        shape = _static_shape(node.static_output_extents())
        return None if shape is None else inputs[0].reshape(shape)

    return rule


def _dynamic_reshape(node: StablehloNode) -> Expr:
    return op.reshape(node.expr(0), node.sizes(1), allowzero=True)


def _transpose(node: StablehloNode) -> Expr:
    return op.transpose(node.expr(0), node.int_array_attribute("permutation"))


def _transpose_rule(node: StablehloNode) -> Rule:
    return lambda inputs: inputs[0].transpose(node.int_array_attribute("permutation"))


def _reverse(node: StablehloNode) -> Expr:
    return op.reverse(node.expr(0), node.int_array_attribute("dimensions"))


def _concatenate(node: StablehloNode) -> Expr:
    return op.concatenate(node.exprs(), axis=node.int_attribute("dimension"))


def _concatenate_rule(node: StablehloNode) -> Rule:
    return partial(constant_folding.concat_elements, axis=node.int_attribute("dimension"))


def _get_dimension_size(node: StablehloNode) -> Result:
    dim = node.shape(0)[node.int_attribute("dimension")]
    return known_value(np.array(dim, object), node.out_dtype())


def _iota(node: StablehloNode, shape: Dims) -> Result:
    axis, dtype = node.int_attribute("iota_dimension"), node.out_dtype()
    return shared.emit_iota(node, shape, axis, dtype)


def _complex_iota(convert: Converter) -> ComplexRule:
    """Return the complex rule of iota, with imaginary part 0."""

    def rule(node: StablehloNode) -> ComplexPair:
        """Return the real result with zero imaginary parts."""
        positions = convert(node)
        assert isinstance(positions, Value), "it gives one tensor"
        real = node.scope.expr(positions)
        return real, op.zeros_like(real)

    return rule


# Slices.


def _slice(node: StablehloNode) -> Expr:
    return op.strided_slice(
        node.expr(0),
        node.int_array_attribute("start_indices"),
        node.int_array_attribute("limit_indices"),
        strides=node.int_array_attribute("strides"),
    )


def _slice_rule(node: StablehloNode) -> Rule:
    bounds = (node.int_array_attribute(n) for n in ("start_indices", "limit_indices", "strides"))
    cut = tuple(slice(*b) for b in zip(*bounds, strict=True))
    return lambda inputs: inputs[0][cut]


def _real_dynamic_slice(node: StablehloNode) -> Expr:
    """Convert real_dynamic_slice, whose bounds are inputs; extents are the differences of the
    bounds, even where these are data.
    """
    steps = tuple(int(s) for s in node.constant_array(3, "strides").ravel())
    first, last = node.partial_elements(1), node.partial_elements(2)
    begins, ends = (data_dependent_dims.tracked_elements(node.scope, node.value(i)) for i in (1, 2))
    assert begins is not None and ends is not None, "bounds are vectors of known length"
    extents = [simplify_dim(as_dim(e) - as_dim(b)) for b, e in zip(begins, ends, strict=True)]
    sliced, shape = node.expr(0), node.shape(0)
    for axis, (begin, end, extent) in enumerate(zip(first, last, extents, strict=True)):
        if begin is not None and end is not None:
            is_whole = (
                number_of(begin) == 0 and are_equal_dims(end, shape[axis]) and steps[axis] == 1
            )
            if not is_whole:
                bounds = to_attr_dims((begin,)), to_attr_dims((end,))
                sliced = op.strided_slice(sliced, *bounds, strides=(steps[axis],), axes=(axis,))
        elif data_dependent_dims.is_dim(extent) and steps[axis] == 1:
            start = op.take(op.cast(node.expr(1), "int64"), const(axis, "int64"), axis=0)
            sliced = dynamic_slice_axis(sliced, start, extent, axis)
        else:
            node.reject_dynamic_input(1, "the extent of a slice must follow from shapes")
    return sliced


def _dynamic_slice(node: StablehloNode) -> Expr:
    return shared.dynamic_slice(node, node.int_array_attribute("slice_sizes"))


def _dynamic_update_slice(node: StablehloNode) -> Expr:
    return shared.dynamic_update_slice(node, [node.value(axis + 2) for axis in range(node.rank(0))])


# Padding.


def _pad(node: StablehloNode) -> Expr:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    low, high, inner = (node.int_array_attribute(n) for n in names)
    return xla_pad(node, node.value(0), node.expr(1), low, high, inner)


def _dynamic_pad(node: StablehloNode) -> Expr:
    inner = node.static_dims(node.sizes(4), "interior padding")
    return xla_pad(
        node, node.value(0), node.expr(1), _padding_dims(node, 2), _padding_dims(node, 3), inner
    )


def _padding_dims(node: StablehloNode, index: int) -> list[Dim]:
    numbers = [to_attr_dims((e,))[0] for e in node.partial_elements(index) if e is not None]
    if len(numbers) < len(node.partial_elements(index)):
        node.reject_dynamic_input(index, "padding must follow from shapes")
    return numbers


def _static_iota(node: StablehloNode) -> Result:
    return _iota(node, _static_output_shape(node))


def _dynamic_iota(node: StablehloNode) -> Result:
    return _iota(node, node.sizes(0))


def _identity(node: StablehloNode) -> ImportedValues:
    return list(node.whole)


def _shape_of(node: StablehloNode) -> Result:
    """Return the extents of a tensor (shape.shape_of), which CHLO operations read where they are
    symbolic.
    """
    return known_value(np.array(node.shape(0), object), node.out_dtype())


# fmt: off
ROWS: tuple[StablehloRow, ...] = (
    StablehloRow("stablehlo.broadcast_in_dim",         _broadcast, _broadcast_rule, True,
        per_part_rule),
    StablehloRow("stablehlo.dynamic_broadcast_in_dim", _dynamic_broadcast, _broadcast_rule,   True,
        per_part_rule),
    StablehloRow("stablehlo.reshape",                  _reshape, _reshape_rule, True,
        per_part_rule),
    StablehloRow("stablehlo.dynamic_reshape", _dynamic_reshape, _reshape_rule, True, per_part_rule),
    StablehloRow("stablehlo.transpose",                _transpose, _transpose_rule, True,
        per_part_rule),
    StablehloRow("stablehlo.reverse",                  _reverse, make_complex_rule=per_part_rule),
    StablehloRow("stablehlo.concatenate", _concatenate, _concatenate_rule, False, per_part_rule),
    StablehloRow("stablehlo.get_dimension_size",       _get_dimension_size,
        make_complex_rule=custom_complex_rule(_get_dimension_size)),
    StablehloRow("stablehlo.iota",                     _static_iota,
        make_complex_rule=_complex_iota),
    StablehloRow("stablehlo.dynamic_iota",             _dynamic_iota,
        make_complex_rule=_complex_iota),
    StablehloRow("shape.shape_of", _shape_of, make_complex_rule=custom_complex_rule(_shape_of)),
    StablehloRow("stablehlo.slice",                    _slice, _slice_rule, True, per_part_rule),
    StablehloRow("stablehlo.real_dynamic_slice",       _real_dynamic_slice,
        make_complex_rule=per_part_rule),
    StablehloRow("stablehlo.dynamic_slice",            _dynamic_slice,
        make_complex_rule=per_part_rule),
    StablehloRow("stablehlo.dynamic_update_slice",     _dynamic_update_slice,
        make_complex_rule=per_part_rule),
    StablehloRow("stablehlo.pad",                      _pad, make_complex_rule=per_part_rule),
    StablehloRow("stablehlo.dynamic_pad",              _dynamic_pad,
        make_complex_rule=per_part_rule),
    StablehloRow("stablehlo.optimization_barrier", _identity,
        make_complex_rule=custom_complex_rule(_identity)),
)
# fmt: on
