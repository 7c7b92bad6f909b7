"""ONNX quantisation: QuantizeLinear, DequantizeLinear, and integer products with scales per tensor,
axis or block.

    quantize    q = clip(round(x / s) + z, limits of the dtype)  halves to even
    dequantize  x = (q - z) s                                    in float32, then the scale's dtype
    products    sum (a - za)(b - zb), exactly in int32; requantised by one factor sa sb / sc

8-bit kernels are used where operands suit them (int8_products); the code here is the general form,
for any dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.frontend.common.composite_ops import append_unit_axes
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.converters.cast import saturating_cast
from ekiden.frontend.onnx.converters.convolution import convert_conv
from ekiden.frontend.onnx.converters.int8_products import (
    QuantizedConv2d,
    QuantizedTensor,
    is_int8_convolution,
    is_int8_product,
    quantized_dense,
)
from ekiden.frontend.onnx.converters.linear import convert_matmul
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.ir.dtype import SCALAR_BITS, SMALL_FLOATS, is_unsigned
from ekiden.ir.prim import AnyDim, PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.dimensions import known_int


def integer_limits(dtype: str) -> tuple[int, int]:
    """Return the smallest and largest integer of a dtype."""
    half = 1 << (SCALAR_BITS[dtype] - 1)
    return (0, 2 * half - 1) if is_unsigned(dtype) else (-half, half - 1)


def _constrain_length(node: OnnxNode, value: Value, extent: PrimExpr) -> None:
    """Constrain a scale or zero point of an axis to the axis's extent."""
    length = value.type.shape[0]
    numbers = known_int(length), known_int(extent)
    if None not in numbers and numbers[0] != numbers[1]:
        text = "a scale or zero point of an axis must have {1} elements, got {0}"
        node.reject(text.format(*numbers))
    node.scope.require_equal_dims((length,), (extent,))


def _broadcast_parameter(node: OnnxNode, value: Value) -> Expr:
    """Emit a scale or zero point in a shape that broadcasts with input 0."""
    shape, parameter = value.type.shape, node.scope.expr(value)
    if not shape or (len(shape) == 1 and known_int(shape[0]) == 1):
        return op.reshape(parameter, ()) if shape else parameter
    rank = node.rank(0)
    axis = node.axis(node.get_int("axis", 1), rank)
    if len(shape) == 1:
        _constrain_length(node, value, node.shape(0)[axis])
        return append_unit_axes(parameter, rank - axis - 1)
    block = node.get_int("block_size", 0)
    if not block:
        node.reject("attribute 'block_size' must be positive where the scale has axes")
    # Blocked quantisation (opset 21): a scale for each block; the last block may be partial.
    extent = node.shape(0)[axis]
    if isinstance(extent, AnyDim):
        node.reject("the blocked axis must have a known extent")
    repeated = op.repeat(parameter, block, axis)
    return op.strided_slice(repeated, begin=[0], end=[extent], axes=[axis])


def _quantized_dtype(node: OnnxNode) -> str:
    """Return the quantised dtype: the zero point's, `output_dtype`, or uint8."""
    zero = node.optional_value(2)
    if zero is not None:
        return zero.type.dtype
    stated = node.get_int("output_dtype", 0)
    return from_onnx_dtype(stated) if stated else "uint8"


def convert_quantize_linear(node: OnnxNode) -> Expr:
    """Convert QuantizeLinear."""
    dtype = _quantized_dtype(node)
    stated = node.get_int("precision", 0)
    wide = from_onnx_dtype(stated) if stated else node.dtype(1)
    # A small float cannot hold the quotient, so the division is in float32.
    wide = "float32" if wide in SMALL_FLOATS else wide
    data, scale = (
        op.cast(node.expr(0), wide),
        op.cast(_broadcast_parameter(node, node.value(1)), wide),
    )
    scaled = op.divide(data, scale)
    if dtype in SMALL_FLOATS:
        return _cast_small_float(node, scaled, dtype)
    zero = node.optional_value(2)
    # Half to even, as ONNX QuantizeLinear says.
    rounded = op.round(scaled)
    # An odd zero point before the rounding would change which halves round up.
    if zero is not None:
        rounded = op.add(rounded, op.cast(_broadcast_parameter(node, zero), wide))
    return op.cast(op.clip(rounded, *integer_limits(dtype)), dtype)


def _cast_small_float(node: OnnxNode, scaled: Expr, dtype: str) -> Expr:
    """Emit a cast to a small float, saturating by default."""
    return (
        saturating_cast(node, scaled, dtype)
        if node.get_int("saturate", 1)
        else op.cast(scaled, dtype)
    )


def convert_dequantize_linear(node: OnnxNode) -> Expr:
    """Convert DequantizeLinear."""
    scale = _broadcast_parameter(node, node.value(1))
    stated = node.get_int("output_dtype", 0)
    dtype = from_onnx_dtype(stated) if stated else node.dtype(1)
    zero = node.optional_value(2)
    if node.dtype(0) in SMALL_FLOATS:
        data: Expr = op.cast(node.expr(0), "float32")
    else:
        # The difference of two 8-bit levels needs 9 bits.
        data = op.cast(node.expr(0), "int32")
        if zero is not None:
            data = op.subtract(data, op.cast(_broadcast_parameter(node, zero), "int32"))
        data = op.cast(data, "float32")
    return op.cast(op.multiply(data, op.cast(scale, "float32")), dtype)


# Products of integers.


def _constrain_zero_point(node: OnnxNode, index: int, extent: PrimExpr) -> None:
    """Constrain a per-axis zero point to the axis's extent."""
    point = node.peek(index)
    if point is not None and len(point.type.shape) == 1 and known_int(point.type.shape[0]) != 1:
        _constrain_length(node, point, extent)


def _subtract_zero_point(node: OnnxNode, data: int, zero: int, rows: bool = False) -> Expr:
    """Emit an input as int32 minus its zero point. A vector of zero points has one for each row
    (`rows`), or column, of a matrix.
    """
    wide = op.cast(node.expr(data), "int32")
    point = node.optional_value(zero)
    if point is None:
        return wide
    shift = op.cast(node.scope.expr(point), "int32")
    if len(point.type.shape) == 1:
        if known_int(point.type.shape[0]) == 1:
            shift = op.reshape(shift, ())
        elif rows:
            shift = op.expand_dims(shift, axis=1)
    return op.subtract(wide, shift)


def _subtract_channel_zero_points(node: OnnxNode, data: int, zero: int) -> Expr:
    """Emit a convolution weight as int32 minus its zero point per output channel."""
    wide = op.cast(node.expr(data), "int32")
    point = node.optional_value(zero)
    if point is None:
        return wide
    shift: Expr = op.cast(node.scope.expr(point), "int32")
    if point.type.shape:
        shift = append_unit_axes(shift, node.rank(data) - 1)
    return op.subtract(wide, shift)


def _convert_with_inputs(
    node: OnnxNode, inputs: list[Value | None], convert: Callable[[OnnxNode], Expr]
) -> Expr:
    """Apply a converter to other inputs of this node."""
    return convert(node.with_inputs(inputs))


def convert_matmul_integer(node: OnnxNode) -> Expr:
    """Convert MatMulInteger; inputs 2 and 3 are zero points."""
    for index, axis in ((0, -2), (1, -1)):
        if node.rank(index) >= -axis:
            _constrain_zero_point(node, index + 2, node.shape(index)[axis])
    left_operand, right_operand = (
        QuantizedTensor(node.value(i), node.optional_value(i + 2)) for i in (0, 1)
    )
    weight = node.value(1).array
    if (
        is_int8_product(left_operand, right_operand)
        and weight is not None
        and weight.ndim == 2
        and node.rank(0) > 0
    ):
        node.scope.require_equal_dims(node.shape(0)[-1:], node.shape(1)[:1])
        return quantized_dense(node, left_operand, right_operand, np.ascontiguousarray(weight.T))
    # MatMulInteger accumulates in int32: with 8-bit operands that is exact for up to 33,000
    # products of 255 * 255.
    a = node.as_value(_subtract_zero_point(node, 0, 2, rows=True))
    b = node.as_value(_subtract_zero_point(node, 1, 3))
    return _convert_with_inputs(node, [a, b], convert_matmul)


def _integer_conv(node: OnnxNode, inputs: Sequence[int], bias: Value | None = None) -> Expr:
    """Emit the int32 convolution of inputs (data, weight, their zero points)."""
    data, weight, point, kernel_point = inputs
    _constrain_zero_point(node, kernel_point, node.shape(weight)[0])
    sides = [
        QuantizedTensor(node.value(i), node.optional_value(p))
        for i, p in zip(inputs[:2], inputs[2:], strict=True)
    ]
    if is_int8_convolution(node, *sides):
        inner = node.with_inputs([*(s.value for s in sides), bias])
        return convert_conv(inner, QuantizedConv2d(node, *sides))
    wide = node.as_value(_subtract_zero_point(node, data, point))
    flat = node.as_value(_subtract_channel_zero_points(node, weight, kernel_point))
    return _convert_with_inputs(node, [wide, flat, bias], convert_conv)


def _conv_integer(node: OnnxNode) -> Expr:
    return _integer_conv(node, (0, 1, 2, 3))


def _requantize(node: OnnxNode, total: Expr, factor: Expr, zero: int) -> Expr:
    """Emit round(total * factor) + zero point, saturated to the zero point's dtype."""
    dtype = node.dtype(zero)
    rounded = op.round(op.multiply(op.cast(total, "float32"), factor))
    shifted = op.add(rounded, op.cast(op.reshape(node.expr(zero), ()), "float32"))
    return op.cast(op.clip(shifted, *integer_limits(dtype)), dtype)


def _requantize_factor(
    node: OnnxNode,
    left_scale: int,
    right_scale: int,
    result_scale: int,
    spread: Callable[[int], Expr],
) -> Expr:
    """Emit the requantisation factor: left scale * right scale / result scale."""
    a, b, c = (op.cast(spread(i), "float32") for i in (left_scale, right_scale, result_scale))
    return op.divide(op.multiply(a, b), c)


def as_scalar_input(node: OnnxNode, index: int) -> Expr:
    """Return an input of one element as a scalar."""
    return op.reshape(node.expr(index), ()) if node.rank(index) else node.expr(index)


def _q_linear_mat_mul(node: OnnxNode) -> Expr:
    sides = [node.value(0), node.value(3), node.optional_value(2), node.optional_value(5)]
    total = convert_matmul_integer(node.with_inputs(sides))

    def broadcast_scale(index: int) -> Expr:
        """Emit a scale or zero point that broadcasts with the product."""
        shape = node.shape(index)
        if not shape or known_int(shape[0]) == 1:
            return as_scalar_input(node, index)
        if index in (1, 4):
            matrix, axis = (0, -2) if index == 1 else (3, -1)
            _constrain_length(node, node.value(index), node.shape(matrix)[axis])
        return op.expand_dims(node.expr(index), axis=1) if index == 1 else node.expr(index)

    return _requantize(node, total, _requantize_factor(node, 1, 4, 6, broadcast_scale), 7)


def convert_qlinear_conv(node: OnnxNode) -> Expr:
    """Convert QLinearConv."""
    total = _integer_conv(node, (0, 3, 2, 5), node.optional_value(8))

    def channel_scale(index: int) -> Expr:
        """Emit a scale or zero point per output channel, with unit axes for the window."""
        shape = node.shape(index)
        if not shape or known_int(shape[0]) == 1:
            return as_scalar_input(node, index)
        _constrain_length(node, node.value(index), node.shape(3)[0])
        return op.expand_dims(node.expr(index), axis=1, num_newaxis=node.rank(0) - 2)

    return _requantize(node, total, _requantize_factor(node, 1, 4, 6, channel_scale), 7)


_CONV_ATTRIBUTES = "auto_pad dilations group kernel_shape pads strides"

# fmt: off
ROWS = (
    OnnxRow("QuantizeLinear",   convert_quantize_linear, since_version=10,
        attributes="axis block_size output_dtype precision saturate"),
    OnnxRow("DequantizeLinear", convert_dequantize_linear, since_version=10,
        attributes="axis block_size output_dtype",
        is_unfoldable=True),  # the numbers of a weight say no more that they were bytes
    OnnxRow("MatMulInteger",    convert_matmul_integer, since_version=10),
    OnnxRow("ConvInteger",      _conv_integer, since_version=10, attributes=_CONV_ATTRIBUTES),
    OnnxRow("QLinearMatMul",    _q_linear_mat_mul, since_version=10),
    OnnxRow("QLinearConv",      convert_qlinear_conv, since_version=10,
        attributes=_CONV_ATTRIBUTES),
)
# fmt: on
