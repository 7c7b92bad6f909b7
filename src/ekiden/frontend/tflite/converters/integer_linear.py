"""Products, convolutions and pools of quantised tensors."""

from __future__ import annotations

import numpy as np

from ekiden.frontend.tflite.converters.rows import rows_of, shaped
from ekiden.frontend.tflite.converters.window import Window, padding, strides, window_of
from ekiden.frontend.tflite.integer import centred, levels, scaled, scaled_once, steps_of, stored
from ekiden.frontend.tflite.node import Node
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn import op as qnn
from ekiden.relay.qnn.rescale import away


def _points(node: Node, data: int, weight: int) -> tuple[Expr, Expr, Expr, Expr]:
    """Zero points and scales of data and weights, as qnn takes them."""
    found = steps_of(node, node.ins[weight])
    if len(set(found.zero_point)) > 1:
        node.unsupported(f"{node.ins[weight]} has several zero points")
    source = levels(node, node.ins[data])
    points = const(np.int32(source.point)), const(np.int32(found.zero_point[0]))
    return *points, const(source.scale), const(np.float32(1))


def _multiplier(node: Node, data: int = 0, weight: int = 1) -> Array:
    """What sums are multiplied by: of one scale as floats, of several in double precision, as the
    kernels have it.
    """
    source, result = levels(node, node.ins[data]), levels(node, node.outs[0])
    scales = np.array(steps_of(node, node.ins[weight]).scale, np.float32)
    tensor = node.ins[weight]
    if (tensor and tensor.dtype == "uint8") or node.operation.code == "FULLY_CONNECTED":
        product = (source.scale * scales).astype(np.float64)
    else:
        product = np.float64(source.scale) * scales.astype(np.float64)
    quotient = product / np.float64(result.scale)
    return quotient.reshape(()) if quotient.size == 1 else quotient


def _finished(node: Node, sums: Expr, bias: int, multiplier: Array) -> Expr:
    if node.optional(bias) is not None:
        sums = op.add(sums, node.expr(bias))
    return stored(node, scaled(sums, multiplier))


def convolution(node: Node, window: Window) -> Expr:
    """A convolution over NHWC, plain, in groups or of each channel."""
    made = qnn.conv2d(
        node.expr(0), op.transpose(node.expr(1), window.order), *_points(node, 0, 1), window.size,
        window.channels, strides(node), window.padding, window.dilation, window.groups,
        "NHWC", "HWIO",
    )  # fmt: skip
    return _finished(node, made, 2, _multiplier(node))


def transpose_conv(node: Node, made: Expr) -> Expr:
    """`made` of int32: the transposed convolution of centred numbers."""
    return _finished(node, made, 3, _multiplier(node, 2, 1))


def fully_connected(node: Node) -> Expr:
    """FULLY_CONNECTED: its sums are rounded once."""
    made: Expr = qnn.dense(rows_of(node), node.expr(1), *_points(node, 0, 1))
    if node.optional(2) is not None:
        made = op.add(made, node.expr(2))
    return shaped(node, stored(node, scaled_once(made, _multiplier(node))))


def average_pool(node: Node) -> Expr:
    """Sums of up to 65,536 numbers are exact as floats, and so is which integer is nearest."""
    if levels(node, node.ins[0]).scale != levels(node, node.outs[0]).scale:
        node.unsupported(f"{node.ins[0]} and {node.outs[0]} have different scales")
    size = window_of(node)
    point = levels(node, node.ins[0]).point
    data = op.cast(node.expr(0), "float32")
    mean = op.nn.avg_pool2d(
        data, size, strides(node), padding=padding(node, size, (1, 1)), layout="NHWC"
    )
    steps = op.cast(away(mean, "float32"), "int32")
    return stored(node, op.subtract(steps, const(np.int32(point))))


def max_pool(node: Node) -> Expr:
    """The largest number of each window, between the limits of the activation."""
    size = window_of(node)
    made = op.nn.max_pool2d(
        node.expr(0), size, strides(node), padding=padding(node, size, (1, 1)), layout="NHWC"
    )
    return stored(node, centred(made, levels(node, node.ins[0]).point))


def rescaled_product(node: Node, made: Expr) -> Expr:
    """A product of centred numbers as the output's numbers."""
    left, right, result = (levels(node, t) for t in (*node.ins[:2], node.outs[0]))
    product = np.float64(left.scale * right.scale) / np.float64(result.scale)
    return stored(node, scaled(made, product))
