"""Quantised operators: integers (or small floats) that represent real numbers by a scale and a zero
point, per tensor, per axis, or per block of an axis.

    quantize    q = clip(round(x / s) + z, limits of the dtype)  halves to even
    dequantize  x = (q - z) s                                    in float32, then the scale's dtype
    products    sum (a - za)(b - zb), exactly in int32; requantised by one factor sa sb / sc

8-bit kernels are used where operands suit them (byte_products); the code here is the general form,
for any dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.frontend.common.formulas import append_axes
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.converters.byte_products import (
    Convolution,
    Levels,
    dense,
    is_convolution,
    suits,
)
from ekiden.frontend.onnx.converters.cast import saturated
from ekiden.frontend.onnx.converters.convolution import convolve
from ekiden.frontend.onnx.converters.linear import multiply_matrices
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.node import Node, Row
from ekiden.ir.dtype import SCALAR_BITS, SMALL_FLOATS, is_unsigned
from ekiden.ir.prim import AnyDim, PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.dimensions import known


def limits(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest integer of a dtype."""
    half = 1 << (SCALAR_BITS[dtype] - 1)
    return (0, 2 * half - 1) if is_unsigned(dtype) else (-half, half - 1)


def _check_length(node: Node, value: Value, extent: PrimExpr) -> None:
    """Note that a scale or zero point has an element for each of an axis of `extent`: where the
    axis has one alone, the data would be broadcast instead.
    """
    length = value.type.shape[0]
    numbers = known(length), known(extent)
    if None not in numbers and numbers[0] != numbers[1]:
        text = "a scale or zero point of an axis must have {1} elements, got {0}"
        node.unsupported(text.format(*numbers))
    node.scope.same((length,), (extent,))


def _spread(node: Node, value: Value) -> Expr:
    """Return a scale or zero point in a shape that broadcasts over the first input."""
    shape, parameter = value.type.shape, node.scope.expr(value)
    if not shape or (len(shape) == 1 and known(shape[0]) == 1):
        return op.reshape(parameter, ()) if shape else parameter
    rank = node.rank(0)
    axis = node.axis(node.get_int("axis", 1), rank)
    if len(shape) == 1:
        _check_length(node, value, node.shape(0)[axis])
        return append_axes(parameter, rank - axis - 1)
    block = node.get_int("block_size", 0)
    if not block:
        node.unsupported("attribute 'block_size' must be positive where the scale has axes")
    # Blocked quantisation (opset 21): a scale for each block; the last block may be partial.
    extent = node.shape(0)[axis]
    if isinstance(extent, AnyDim):
        node.unsupported("the blocked axis must have a known extent")
    repeated = op.repeat(parameter, block, axis)
    return op.strided_slice(repeated, begin=[0], end=[extent], axes=[axis])


def _target(node: Node) -> str:
    """Return the dtype to quantise to: that of the zero point, or `output_dtype`, or uint8."""
    zero = node.optional(2)
    if zero is not None:
        return zero.type.dtype
    stated = node.get_int("output_dtype", 0)
    return from_onnx_dtype(stated) if stated else "uint8"


def quantize(node: Node) -> Expr:
    """Convert QuantizeLinear: data, scale, zero point."""
    dtype = _target(node)
    stated = node.get_int("precision", 0)
    wide = from_onnx_dtype(stated) if stated else node.dtype(1)
    # A small float cannot hold the quotient, so the division is in float32.
    wide = "float32" if wide in SMALL_FLOATS else wide
    data, scale = op.cast(node.expr(0), wide), op.cast(_spread(node, node.value(1)), wide)
    scaled = op.divide(data, scale)
    if dtype in SMALL_FLOATS:
        return _narrowed(node, scaled, dtype)
    zero = node.optional(2)
    rounded = op.round(scaled)
    if zero is not None:
        rounded = op.add(rounded, op.cast(_spread(node, zero), wide))
    return op.cast(op.clip(rounded, *limits(dtype)), dtype)


def _narrowed(node: Node, scaled: Expr, dtype: str) -> Expr:
    return saturated(node, scaled, dtype) if node.get_int("saturate", 1) else op.cast(scaled, dtype)


def dequantize(node: Node) -> Expr:
    """Convert DequantizeLinear: data, scale, zero point."""
    scale = _spread(node, node.value(1))
    stated = node.get_int("output_dtype", 0)
    dtype = from_onnx_dtype(stated) if stated else node.dtype(1)
    zero = node.optional(2)
    if node.dtype(0) in SMALL_FLOATS:
        data: Expr = op.cast(node.expr(0), "float32")
    else:
        data = op.cast(node.expr(0), "int32")
        if zero is not None:
            data = op.subtract(data, op.cast(_spread(node, zero), "int32"))
        data = op.cast(data, "float32")
    return op.cast(op.multiply(data, op.cast(scale, "float32")), dtype)


# Products of integers.


def _check_point(node: Node, index: int, extent: PrimExpr) -> None:
    """Note that a zero point that is there, and is more than one number, has one for each of an
    axis."""
    point = node.peek(index)
    if point is not None and len(point.type.shape) == 1 and known(point.type.shape[0]) != 1:
        _check_length(node, point, extent)


def _shifted(node: Node, data: int, zero: int, rows: bool = False) -> Expr:
    """Return an input as int32 with its zero point subtracted. A vector of zero points has one for
    each row (`rows`), or column, of a matrix.
    """
    wide = op.cast(node.expr(data), "int32")
    point = node.optional(zero)
    if point is None:
        return wide
    shift = op.cast(node.scope.expr(point), "int32")
    if len(point.type.shape) == 1:
        if known(point.type.shape[0]) == 1:
            shift = op.reshape(shift, ())
        elif rows:
            shift = op.expand_dims(shift, axis=1)
    return op.subtract(wide, shift)


def _kernel(node: Node, data: int, zero: int) -> Expr:
    """Return a convolution's weight as int32 with its zero points, one for each output channel,
    subtracted.
    """
    wide = op.cast(node.expr(data), "int32")
    point = node.optional(zero)
    if point is None:
        return wide
    shift: Expr = op.cast(node.scope.expr(point), "int32")
    if point.type.shape:
        shift = append_axes(shift, node.rank(data) - 1)
    return op.subtract(wide, shift)


def _inner(node: Node, inputs: list[Value | None], convert: Callable[[Node], Expr]) -> Expr:
    """Apply a converter to other inputs, with the attributes of this node."""
    return convert(node.with_inputs(inputs))


def integer_product(node: Node) -> Expr:
    """Convert MatMulInteger: inputs 2 and 3 are the zero points of 0 and 1."""
    for index, axis in ((0, -2), (1, -1)):
        if node.rank(index) >= -axis:
            _check_point(node, index + 2, node.shape(index)[axis])
    left_operand, right_operand = (Levels(node.value(i), node.optional(i + 2)) for i in (0, 1))
    weight = node.value(1).array
    if (
        suits(left_operand, right_operand)
        and weight is not None
        and weight.ndim == 2
        and node.rank(0) > 0
    ):
        node.scope.same(node.shape(0)[-1:], node.shape(1)[:1])
        return dense(node, left_operand, right_operand, np.ascontiguousarray(weight.T))
    # MatMulInteger accumulates in int32: with 8-bit operands that is exact for up to 33,000
    # products of 255 * 255.
    a = node.value_of(_shifted(node, 0, 2, rows=True))
    b = node.value_of(_shifted(node, 1, 3))
    return _inner(node, [a, b], multiply_matrices)


def _integer_conv(node: Node, inputs: Sequence[int], bias: Value | None = None) -> Expr:
    """Return the int32 convolution of inputs (data, weight, their zero points)."""
    data, weight, point, kernel_point = inputs
    _check_point(node, kernel_point, node.shape(weight)[0])
    sides = [
        Levels(node.value(i), node.optional(p)) for i, p in zip(inputs[:2], inputs[2:], strict=True)
    ]
    if is_convolution(node, *sides):
        inner = node.with_inputs([*(s.value for s in sides), bias])
        return convolve(inner, Convolution(node, *sides))
    wide = node.value_of(_shifted(node, data, point))
    flat = node.value_of(_kernel(node, weight, kernel_point))
    return _inner(node, [wide, flat, bias], convolve)


def _conv_integer(node: Node) -> Expr:
    return _integer_conv(node, (0, 1, 2, 3))


def _requantized(node: Node, total: Expr, factor: Expr, zero: int) -> Expr:
    """Return round(total * factor) + zero point, saturated, in the zero point's dtype."""
    dtype = node.dtype(zero)
    rounded = op.round(op.multiply(op.cast(total, "float32"), factor))
    shifted = op.add(rounded, op.cast(op.reshape(node.expr(zero), ()), "float32"))
    return op.cast(op.clip(shifted, *limits(dtype)), dtype)


def _factor(
    node: Node, left_scale: int, right_scale: int, result_scale: int, spread: Callable[[int], Expr]
) -> Expr:
    a, b, c = (op.cast(spread(i), "float32") for i in (left_scale, right_scale, result_scale))
    return op.divide(op.multiply(a, b), c)


def scalar_input(node: Node, index: int) -> Expr:
    """Return an input of one element as a scalar."""
    return op.reshape(node.expr(index), ()) if node.rank(index) else node.expr(index)


def _q_linear_mat_mul(node: Node) -> Expr:
    sides = [node.value(0), node.value(3), node.optional(2), node.optional(5)]
    total = integer_product(node.with_inputs(sides))

    def spread(index: int) -> Expr:
        """Return a scale or zero point that broadcasts with the product: one for each row of the
        left matrix, or each column of the right one.
        """
        shape = node.shape(index)
        if not shape or known(shape[0]) == 1:
            return scalar_input(node, index)
        if index in (1, 4):
            matrix, axis = (0, -2) if index == 1 else (3, -1)
            _check_length(node, node.value(index), node.shape(matrix)[axis])
        return op.expand_dims(node.expr(index), axis=1) if index == 1 else node.expr(index)

    return _requantized(node, total, _factor(node, 1, 4, 6, spread), 7)


def quantized_conv(node: Node) -> Expr:
    """Convert QLinearConv."""
    total = _integer_conv(node, (0, 3, 2, 5), node.optional(8))

    def spread(index: int) -> Expr:
        """Return a scale or zero point of the output channels, with an axis of 1 for each of the
        window.
        """
        shape = node.shape(index)
        if not shape or known(shape[0]) == 1:
            return scalar_input(node, index)
        _check_length(node, node.value(index), node.shape(3)[0])
        return op.expand_dims(node.expr(index), axis=1, num_newaxis=node.rank(0) - 2)

    return _requantized(node, total, _factor(node, 1, 4, 6, spread), 7)


_CONV = "auto_pad dilations group kernel_shape pads strides"

# fmt: off
ROWS = (
    Row("QuantizeLinear",   quantize, since=10,
        attributes="axis block_size output_dtype precision saturate"),
    Row("DequantizeLinear", dequantize, since=10, attributes="axis block_size output_dtype",
        stays=True),  # the numbers of a weight say no more that they were bytes
    Row("MatMulInteger",    integer_product, since=10),
    Row("ConvInteger",      _conv_integer, since=10, attributes=_CONV),
    Row("QLinearMatMul",    _q_linear_mat_mul, since=10),
    Row("QLinearConv",      quantized_conv, since=10, attributes=_CONV),
)
# fmt: on
