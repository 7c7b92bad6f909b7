"""Experimental operators of ONNX's default domain that were removed before version 1.0, and that
ONNX Runtime still runs: Affine, Crop, ImageScaler, ParametricSoftplus, ScaledTanh.
"""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.functions import softplus
from ekiden.frontend.onnx.converters.elementwise import number
from ekiden.frontend.onnx.node import Node, Row
from ekiden.ir.prim import GE, binary
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import as_dim, known, tidy


def _affine(node: Node) -> Expr:
    scaled = op.multiply(node.expr(0), number(node, node.get_float("alpha", 1.0)))
    return op.add(scaled, number(node, node.get_float("beta", 0.0)))


def _scaled_tanh(node: Node) -> Expr:
    inner = op.multiply(node.expr(0), number(node, node.get_float("beta", 0.0)))
    return op.multiply(op.tanh(inner), number(node, node.get_float("alpha", 0.0)))


def _parametric_softplus(node: Node) -> Expr:
    inner = op.multiply(node.expr(0), number(node, node.get_float("beta", 0.0)))
    return op.multiply(softplus(inner, node.dtype(0)), number(node, node.get_float("alpha", 0.0)))


def _image_scaler(node: Node) -> Expr:
    """Return x * scale + a bias for each channel of [batch, channels, height, width]."""
    bias = np.array(node.get_floats("bias"), np.float32)
    channels = node.shape(0)[1]
    if known(channels) != len(bias):
        node.scope.same((channels,), (as_dim(len(bias)),))
    scaled = op.multiply(node.expr(0), number(node, node.get_float("scale", 1.0)))
    offset = const(bias.reshape(1, len(bias), 1, 1), "float32")
    return op.add(scaled, op.cast(offset, node.dtype(0)))


def _crop(node: Node) -> Expr:
    """Crop an image: `border` is left, top, right, bottom; `scale`, where present, is the height
    and width of the result, counted from the left and top border.
    """
    left_border, top_border, right_border, bottom_border = node.get_ints("border", (0, 0, 0, 0))
    height, width = node.shape(0)[2:]
    ends = [tidy(height - bottom_border), tidy(width - right_border)]
    if node.has("scale"):
        rows, columns = node.get_ints("scale")
        ends = [as_dim(top_border + rows), as_dim(left_border + columns)]
    if min(left_border, top_border, right_border, bottom_border) < 0:
        node.unsupported("'border' must be at least 0")
    for begin, end, extent in zip((top_border, left_border), ends, (height, width), strict=True):
        node.scope.require(binary(GE, extent, end))
        node.scope.require(binary(GE, end, begin))
        if known(extent) is not None and not begin <= (known(end) or 0) <= (known(extent) or 0):
            node.unsupported(f"'border' and 'scale' leave nothing of an extent of {extent!r}")
    return op.strided_slice(node.expr(0), begin=[top_border, left_border], end=ends, axes=[2, 3])


# fmt: off
ROWS = (
    Row("Affine",             _affine, attributes="alpha beta"),
    Row("Crop",               _crop, attributes="border scale"),
    Row("ImageScaler",        _image_scaler, attributes="bias scale"),
    Row("ParametricSoftplus", _parametric_softplus, attributes="alpha beta"),
    Row("ScaledTanh",         _scaled_tanh, attributes="alpha beta"),
)
# fmt: on
