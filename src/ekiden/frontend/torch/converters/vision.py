"""Operators of torchvision, which exported detectors contain."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from ekiden.frontend.common.non_max_suppression import non_max_suppression_indices
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.node import ConverterRow, FxNode
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import known_int

Size: TypeAlias = object
"""A size of an argument: see `Node.size`."""


def _nms(node: FxNode, boxes: Value, scores: Value, threshold: float) -> Expr:
    """Convert torchvision::nms: the indices of the surviving boxes, by descending score."""
    max_boxes = node.scope.emit_dim(boxes.type.shape[0])
    limits = max_boxes, const(threshold, "float32"), const(-np.inf, "float32")
    indices = non_max_suppression_indices(
        node, node.to_expr(boxes, "float32"), node.to_expr(scores, "float32"), *limits
    )
    return op.cast(indices, "int64")


def _pooled_size(node: FxNode, height: Size, width: Size) -> tuple[int, int]:
    first, second = node.static_shape(node.to_dims([height, width]), "the regions")  # type: ignore[arg-type]
    return first, second


def _roi_align(
    node: FxNode, x: Value, rois: Value, scale: float, height: Size, width: Size, ratio: int,
    aligned: bool,
) -> Expr:  # fmt: skip
    return op.vision.roi_align(
        node.to_expr(x), node.to_expr(rois, x.type.dtype), _pooled_size(node, height, width), scale,
        sample_ratio=ratio if ratio > 0 else -1, aligned=aligned,
    )  # fmt: skip


def _roi_pool(
    node: FxNode, x: Value, rois: Value, scale: float, height: Size, width: Size
) -> list[Expr | Value | None]:
    """Convert roi_pool; the indices of the maxima, which only gradients read, are not computed."""
    size = _pooled_size(node, height, width)
    return [
        op.vision.roi_pool(node.to_expr(x), node.to_expr(rois, x.type.dtype), size, scale),
        None,
    ]


def _deform_conv2d(
    node: FxNode, x: Value, weight: Value, offset: Value, mask: Value, bias: Value,
    stride_h: int, stride_w: int, pad_h: int, pad_w: int, dilation_h: int, dilation_w: int,
    groups: int, offset_groups: int, use_mask: bool,
) -> Expr:  # fmt: skip
    convolved = op.nn.deformable_conv2d(
        node.to_expr(x),
        node.to_expr(offset),
        node.to_expr(weight),
        mask=node.to_expr(mask) if use_mask else None,
        strides=(stride_h, stride_w),
        padding=(pad_h, pad_w, pad_h, pad_w),
        dilation=(dilation_h, dilation_w),
        deformable_groups=offset_groups,
        groups=groups,
        channels=known_int(weight.type.shape[0]),
        kernel_size=node.static_shape(weight.type.shape[2:], "the kernel"),
        border="zeros",
    )
    return op.nn.bias_add(convolved, node.to_expr(bias), axis=1)


# fmt: off
ROWS: tuple[ConverterRow, ...] = (
    ("torchvision::nms", _nms),
    ("torchvision::roi_align", _roi_align),
    ("torchvision::roi_pool", _roi_pool),
    ("torchvision::deform_conv2d", _deform_conv2d),
)
# fmt: on
