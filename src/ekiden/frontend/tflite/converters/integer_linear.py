"""Matrix products, convolutions and pooling of quantized tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ekiden.frontend.common.converters import window as shared
from ekiden.frontend.tflite.converters.flatten_leading_axes import (
    flatten_rows,
    restore_leading_axes,
)
from ekiden.frontend.tflite.converters.window_geometry import (
    ConvGeometry,
    read_pool_window,
    require_static_padding,
)
from ekiden.frontend.tflite.integer_arithmetic import (
    quant_params,
    quantization_of,
    rescale,
    rescale_by_q15,
    rescale_by_q31,
    rescale_single_rounding,
    store_quantized,
    subtract_zero_point,
)
from ekiden.frontend.tflite.node import TfliteNode
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn import op as qnn
from ekiden.relay.qnn.int8_lowering import product_in_float32
from ekiden.relay.qnn.scale_conversion import round_half_away

ScaledProduct = Callable[[Expr, Array], Expr]
"""Sums, what they are multiplied by -> int32."""
SINGLE_ROUNDING = rescale_single_rounding, rescale_by_q31


def _qnn_params(node: TfliteNode, data: int, weight: int) -> tuple[Expr, Expr, Expr, Expr]:
    """Return zero points and scales of data and weights as qnn operators take them."""
    quantization = quantization_of(node, node.ins[weight])
    if len(set(quantization.zero_point)) > 1:
        node.reject(f"{node.ins[weight]} has several zero points")
    source = quant_params(node, node.ins[data])
    points = const(np.int32(source.zero_point)), const(np.int32(quantization.zero_point[0]))
    return *points, const(source.scale), const(np.float32(1))


def _requantize_multiplier(node: TfliteNode, data: int = 0, weight: int = 1) -> Array:
    """Return the requantization multiplier of accumulated sums: per tensor in float32, per channel
    in float64, as the kernels do.
    """
    source, result = quant_params(node, node.ins[data]), quant_params(node, node.outs[0])
    scales = np.array(quantization_of(node, node.ins[weight]).scale, np.float32)
    tensor = node.ins[weight]
    is_float = node.operation.code == "FULLY_CONNECTED" and source.dtype != "int16"
    # LiteRT multiplies these scales in float32 and others in float64; the multiplier differs in its
    # last bits.
    if is_float or (tensor and tensor.dtype == "uint8"):
        product = (source.scale * scales).astype(np.float64)
    else:
        product = np.float64(source.scale) * scales.astype(np.float64)
    quotient = product / np.float64(result.scale)
    return quotient.reshape(()) if quotient.size == 1 else quotient


def _requantize_sums(
    node: TfliteNode, sums: Expr, bias: int, multiplier: Array,
    scales: tuple[ScaledProduct, ScaledProduct] = (rescale, rescale_by_q15),
) -> Expr:  # fmt: skip
    """Add the bias to accumulated sums, requantize and store them.

    Sums of int16 are int64, unless a bias has another dtype. scales: of int32, of int64.
    """
    kind = node.tensor_type_of(sums).dtype
    if node.optional_value(bias) is not None:
        kind = node.dtype(bias)
        sums = op.add(op.cast(sums, kind), node.expr(bias))
    return store_quantized(node, scales[kind == "int64"](sums, multiplier))


def _accumulate_products(
    node: TfliteNode, data: Expr, index: int, product: Callable[[Expr], Expr]
) -> Expr:
    """Accumulate products with int8 weights; int16 data are split into two bytes, and the sums are
    int64.
    """
    if node.dtype(index) != "int16":
        return product(data)
    # x = 256 * high + low with a signed high and an unsigned low byte, so both use the 8-bit
    # kernels.
    upper = op.cast(op.right_shift(data, const(np.int16(8))), "int8")
    lower = op.cast(op.bitwise_and(data, const(np.int16(255))), "uint8")
    high, low = (op.cast(product(byte_data), "int64") for byte_data in (upper, lower))
    # The int16 kernels accumulate in int64: 2**15 * 2**7 overflows int32 after 512 products.
    return op.add(op.left_shift(high, const(np.int64(8))), low)


def convert_integer_convolution(node: TfliteNode, at: ConvGeometry) -> Expr:
    """Convert a convolution over NHWC: plain, grouped or depthwise."""
    weight, points = op.transpose(node.expr(1), at.weight_permutation), _qnn_params(node, 0, 1)
    window, sides = at.window, require_static_padding(node, at.window)

    def conv_8bit(data: Expr) -> Expr:
        """Return the convolution of 8-bit data."""
        return qnn.conv2d(
            data, weight, *points, window.static_extents, at.channels, window.strides, sides,
            window.dilations, at.groups, "NHWC", "HWIO",
        )  # fmt: skip

    return _requantize_sums(
        node,
        _accumulate_products(node, node.expr(0), 0, conv_8bit),
        2,
        _requantize_multiplier(node),
    )


def convert_integer_transpose_conv(node: TfliteNode, product: Callable[[Expr, Expr], Expr]) -> Expr:
    """Convert TRANSPOSE_CONV of data less zero points, in floats where they are exact."""
    points = _qnn_params(node, 2, 1)[:2]

    def transpose_conv_8bit(data: Expr) -> Expr:
        """Return the transposed convolution of 8-bit data."""
        float_product = product_in_float32(data, node.expr(1), points, (3, 3, 0), product)
        if float_product is not None:
            return float_product
        weight = op.subtract(op.cast(node.expr(1), "int32"), points[1])
        return product(op.subtract(op.cast(data, "int32"), points[0]), weight)

    return _requantize_sums(node, _accumulate_products(node, node.expr(2), 2, transpose_conv_8bit),
        3,
                            _requantize_multiplier(node, 2, 1))  # fmt: skip


def convert_integer_fully_connected(node: TfliteNode) -> Expr:
    """Convert FULLY_CONNECTED, whose kernel rounds once."""
    points = _qnn_params(node, 0, 1)
    sums = _accumulate_products(
        node, flatten_rows(node), 0, lambda data: qnn.dense(data, node.expr(1), *points)
    )
    return restore_leading_axes(
        node, _requantize_sums(node, sums, 2, _requantize_multiplier(node), SINGLE_ROUNDING)
    )


def convert_integer_average_pool(node: TfliteNode) -> Expr:
    """Convert AVERAGE_POOL_2D through float arithmetic.

    Sums of up to 65,536 bytes are exact in float32, and so is the rounding; those of int16 in
    float64.
    """
    if quant_params(node, node.ins[0]).scale != quant_params(node, node.outs[0]).scale:
        node.reject(f"{node.ins[0]} and {node.outs[0]} have different scales")
    point = quant_params(node, node.ins[0]).zero_point
    # Sums of 8-bit levels over a window are exact in float32 up to 2**24, of int16 only in float64.
    real = "float64" if node.dtype(0) == "int16" else "float32"
    data = op.cast(node.expr(0), real)
    mean = shared.emit_average_pool(node, data, read_pool_window(node), "NHWC")
    steps = op.cast(round_half_away(mean, real), "int32")
    return store_quantized(node, op.subtract(steps, const(np.int32(point))))


def convert_integer_max_pool(node: TfliteNode) -> Expr:
    """Convert MAX_POOL_2D, clipped to the fused activation's limits."""
    # Quantisation is monotonic, so the maximum of the stored numbers is that of the real ones.
    maxima = shared.emit_max_pool(node, node.expr(0), read_pool_window(node), "NHWC")
    return store_quantized(
        node, subtract_zero_point(maxima, quant_params(node, node.ins[0]).zero_point)
    )


def quantized_matmul(node: TfliteNode, multiplied: Callable[[Expr, Expr], Expr]) -> Expr:
    """Emit the requantized product of tensors less their zero points; int16 sums are int64."""
    wide = node.dtype(0) == "int16"
    sides = [
        subtract_zero_point(node.expr(i), quant_params(node, node.ins[i]).zero_point)
        for i in (0, 1)
    ]
    sums = multiplied(*(op.cast(s, "int64") if wide else s for s in sides))
    lhs, rhs, result = (quant_params(node, t) for t in (*node.ins[:2], node.outs[0]))
    factor = np.float64(lhs.scale * rhs.scale) / np.float64(result.scale)
    return store_quantized(node, (rescale_by_q15 if wide else rescale)(sums, factor))
