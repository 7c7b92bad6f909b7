"""Products and convolutions of float data with weights of bytes."""

from __future__ import annotations

import numpy as np

from ekiden.frontend.tflite.converters.rows import biased, rows_of, shaped
from ekiden.frontend.tflite.converters.window import Window, strides
from ekiden.frontend.tflite.hybrid import quantized, weight_scales, weight_sums
from ekiden.frontend.tflite.node import Node
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn import op as qnn

_NONE = const(np.int32(0)), const(np.int32(0)), const(np.float32(1)), const(np.float32(1))
"""Zero points and scales, which are applied to sums."""


def convolution(node: Node, window: Window, asymmetric: bool) -> Expr:
    """A convolution over NHWC. The data have a border of zeros before they are quantised: their
    zero points are not one number."""
    top, left, bottom, right = window.padding
    data = node.expr(0)
    if any(window.padding):
        data = op.nn.pad(data, ((0, 0), (top, bottom), (left, right), (0, 0)))
    rows = quantized(data, 4, asymmetric)
    weight = op.transpose(node.expr(1), window.order)
    sums = qnn.conv2d(
        rows.levels, weight, *_NONE, window.size, window.channels, strides(node), (0, 0),
        window.dilation, window.groups, "NHWC", "HWIO",
    )  # fmt: skip
    made = rows.numbers(sums, weight_sums(weight, (0, 1, 2)), weight_scales(node, 1))
    return biased(node, made)


def plain_convolution(node: Node, window: Window) -> Expr:
    """CONV_2D: its kernel for weights of one scale quantises symmetrically."""
    tensor = node.ins[1]
    assert tensor is not None
    many = tensor.quantization is not None and len(tensor.quantization.scale) > 1
    return convolution(node, window, many)


def fully_connected(node: Node) -> Expr:
    """FULLY_CONNECTED, which says itself whether its rows have zero points."""
    rows = quantized(rows_of(node), 2, bool(node.option("AsymmetricQuantizeInputs")))
    sums = qnn.dense(rows.levels, node.expr(1), *_NONE)
    made = rows.numbers(sums, weight_sums(node.expr(1), (1,)), weight_scales(node, 1))
    return biased(node, shaped(node, made))
