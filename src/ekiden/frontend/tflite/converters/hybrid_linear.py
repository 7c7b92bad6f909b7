"""Hybrid matrix products and convolutions: float activations, int8 weights."""

from __future__ import annotations

from collections.abc import Callable

from ekiden.frontend.common.sliding_window import pad_window
from ekiden.frontend.tflite.converters.flatten_leading_axes import (
    add_bias_and_activate,
    flatten_rows,
    restore_leading_axes,
)
from ekiden.frontend.tflite.converters.window_geometry import ConvGeometry
from ekiden.frontend.tflite.hybrid_quantization import (
    UNIT_QUANTIZATION,
    HybridOperand,
    QuantizedRows,
    quantize_rows,
    weight_scales,
    weight_sums,
)
from ekiden.frontend.tflite.node import TfliteNode
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.relay.qnn import op as qnn


def convert_hybrid_convolution(node: TfliteNode, at: ConvGeometry, asymmetric: bool) -> Expr:
    """Convert a hybrid convolution of NHWC data.

    The data are zero-padded before they are quantised: their zero points differ by image.
    """
    data, window = node.expr(0), at.window
    if window.padding is None or any(window.padding):
        # Padding precedes quantization: a zero is then stored as each row's own zero point.
        data = pad_window(node, data, window, 0, 1)
    rows = quantize_rows(data, 4, asymmetric)
    weight = op.transpose(node.expr(1), at.weight_permutation)
    sums = qnn.conv2d(
        rows.levels, weight, *UNIT_QUANTIZATION, window.static_extents, at.channels, window.strides,
        (0, 0),
        window.dilations, at.groups, "NHWC", "HWIO",
    )  # fmt: skip
    products = rows.dequantize_sums(sums, weight_sums(weight, (0, 1, 2)), weight_scales(node, 1))
    return add_bias_and_activate(node, products)


def convert_hybrid_conv2d(node: TfliteNode, at: ConvGeometry) -> Expr:
    """Convert hybrid CONV_2D, whose kernel for per-tensor weights quantizes the data
    symmetrically.
    """
    tensor = node.ins[1]
    assert tensor is not None
    is_per_channel = tensor.quantization is not None and len(tensor.quantization.scale) > 1
    return convert_hybrid_convolution(node, at, is_per_channel)


def convert_hybrid_fully_connected(node: TfliteNode) -> Expr:
    """Convert hybrid FULLY_CONNECTED; its options state whether data rows have zero points."""
    return add_bias_and_activate(
        node,
        restore_leading_axes(node, HybridOperand(node, flatten_rows(node)).multiply_by_weight(1)),
    )


def convert_hybrid_batch_matmul(
    node: TfliteNode, product: Callable[[Expr, Expr], Expr], sides: tuple[Expr, Expr]
) -> Expr:
    """Convert hybrid BATCH_MATMUL; each row of each matrix is quantized by itself.

    sides: [.., m, k], [.., k, n]; product: of int32.
    """
    data, weight = sides
    shape = node.tensor_type_of(data).shape
    is_asymmetric = bool(node.read_option("AsymmetricQuantizeInputs"))
    rows = quantize_rows(op.reshape(data, (-1, shape[-1]), allowzero=True), 2, is_asymmetric)
    levels, scale = (
        op.reshape(row_data, (*shape[:-1], size), allowzero=True)
        for row_data, size in ((rows.levels, shape[-1]), (rows.scale, 1))
    )
    point = rows.zero_point
    if is_asymmetric:
        point = op.reshape(point, (*shape[:-1], 1), allowzero=True)
    wide = op.cast(weight, "int32")
    sums = product(op.cast(levels, "int32"), wide)
    totals = op.sum(wide, axis=[-2], keepdims=True)
    return QuantizedRows(levels, scale, point).dequantize_sums(sums, totals, weight_scales(node, 1))
