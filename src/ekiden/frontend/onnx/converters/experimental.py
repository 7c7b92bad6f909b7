"""Experimental ONNX operators that ONNX Runtime still runs: Affine, Crop, ImageScaler,
ParametricSoftplus, ScaledTanh.
"""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.float_functions import softplus
from ekiden.frontend.onnx.converters.elementwise import const_like_input
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.ir.prim import GE, fold_binary
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import as_dim, known_int, simplify_dim


def _affine(node: OnnxNode) -> Expr:
    """Convert Affine: alpha * x + beta."""
    scaled = op.multiply(node.expr(0), const_like_input(node, node.get_float("alpha", 1.0)))
    return op.add(scaled, const_like_input(node, node.get_float("beta", 0.0)))


def _scaled_tanh(node: OnnxNode) -> Expr:
    """Convert ScaledTanh: alpha * tanh(beta * x)."""
    inner = op.multiply(node.expr(0), const_like_input(node, node.get_float("beta", 0.0)))
    return op.multiply(op.tanh(inner), const_like_input(node, node.get_float("alpha", 0.0)))


def _parametric_softplus(node: OnnxNode) -> Expr:
    """Convert ParametricSoftplus: alpha * softplus(beta * x)."""
    inner = op.multiply(node.expr(0), const_like_input(node, node.get_float("beta", 0.0)))
    return op.multiply(
        softplus(inner, node.dtype(0)), const_like_input(node, node.get_float("alpha", 0.0))
    )


def _image_scaler(node: OnnxNode) -> Expr:
    """Convert ImageScaler: x * scale + one bias per channel, on [batch, channels, height,
    width].
    """
    bias = np.array(node.get_floats("bias"), np.float32)
    channels = node.shape(0)[1]
    if known_int(channels) != len(bias):
        node.scope.require_equal_dims((channels,), (as_dim(len(bias)),))
    scaled = op.multiply(node.expr(0), const_like_input(node, node.get_float("scale", 1.0)))
    offset = const(bias.reshape(1, len(bias), 1, 1), "float32")
    return op.add(scaled, op.cast(offset, node.dtype(0)))


def _crop(node: OnnxNode) -> Expr:
    """Convert Crop by `border` (left, top, right, bottom) or to the size `scale`."""
    left_border, top_border, right_border, bottom_border = node.get_ints("border", (0, 0, 0, 0))
    height, width = node.shape(0)[2:]
    ends = [simplify_dim(height - bottom_border), simplify_dim(width - right_border)]
    if node.has("scale"):
        rows, columns = node.get_ints("scale")
        ends = [as_dim(top_border + rows), as_dim(left_border + columns)]
    if min(left_border, top_border, right_border, bottom_border) < 0:
        node.reject("'border' must be at least 0")
    for begin, end, extent in zip((top_border, left_border), ends, (height, width), strict=True):
        # Symbolic extents are checked when the model runs.
        node.scope.require_condition(fold_binary(GE, extent, end))
        node.scope.require_condition(fold_binary(GE, end, begin))
        if known_int(extent) is not None and not begin <= (known_int(end) or 0) <= (
            known_int(extent) or 0
        ):
            node.reject(f"'border' and 'scale' leave nothing of an extent of {extent!r}")
    return op.strided_slice(node.expr(0), begin=[top_border, left_border], end=ends, axes=[2, 3])


# fmt: off
ROWS = (
    OnnxRow("Affine",             _affine, attributes="alpha beta"),
    OnnxRow("Crop",               _crop, attributes="border scale"),
    OnnxRow("ImageScaler",        _image_scaler, attributes="bias scale"),
    OnnxRow("ParametricSoftplus", _parametric_softplus, attributes="alpha beta"),
    OnnxRow("ScaledTanh",         _scaled_tanh, attributes="alpha beta"),
)
# fmt: on
