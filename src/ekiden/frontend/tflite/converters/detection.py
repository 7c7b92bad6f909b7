"""TFLite_Detection_PostProcess: decoding of a detector's boxes, and non-maximum suppression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flatbuffers import flexbuffers

from ekiden.frontend.tflite.node import Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import known


def _options(node: Node) -> Mapping[str, Any]:
    try:
        options: Mapping[str, Any] = flexbuffers.Loads(node.operation.custom)
    except Exception as error:  # flexbuffers raises whatever the bytes lead it to
        node.unsupported(f"its options cannot be read: {error}")
    return options


def _columns(data: Expr, axis: int) -> list[Expr]:
    return [op.take(data, const(np.int32(i)), axis=axis) for i in range(4)]


def _boxes(node: Node, options: Mapping[str, Any]) -> Expr:
    """Decode box offsets from anchors, in units of these: [boxes, (top, left, bottom, right)]."""
    y, x, height, width = _columns(op.reshape(node.expr(0), (-1, 4)), 1)
    at_y, at_x, tall, wide = _columns(op.reshape(node.expr(2), (-1, 4)), 1)
    sides = []
    for offset, size, middle, extent, name, length in (
        (y, height, at_y, tall, "y_scale", "h_scale"),
        (x, width, at_x, wide, "x_scale", "w_scale"),
    ):
        centre = op.multiply(op.divide(offset, _float(options[name])), extent)
        centre = op.add(centre, middle)
        half = op.multiply(op.exp(op.divide(size, _float(options[length]))), extent)
        half = op.multiply(half, _float(0.5))
        sides.append((op.subtract(centre, half), op.add(centre, half)))
    (top, bottom), (left_edge, right) = sides
    return op.stack([top, left_edge, bottom, right], axis=1)


def _float(value: float) -> Expr:
    return const(np.float32(value))


def _detection(node: Node) -> list[Expr]:
    """Convert the operator: return boxes [1, n, 4], classes [1, n], scores [1, n] and count [1],
    zero-padded.
    """
    options = _options(node)
    count, max_detections = known(node.shape(0)[1]), int(options["max_detections"])
    classes, width = int(options["num_classes"]), known(node.shape(1)[2])
    if count is None or width is None:
        node.unsupported(f"{node.ins[0]} and {node.ins[1]} must have known extents")
    by_class = bool(options.get("use_regular_nms", False))
    if not by_class and int(options["max_classes_per_detection"]) != 1:
        node.unsupported("several classes for a detection are not supported")
    if by_class and int(options.get("detections_per_class", 100)) < max_detections:
        node.unsupported("'detections_per_class' below 'max_detections' is not supported")
    boxes = _boxes(node, options)
    scores = op.reshape(node.expr(1), (count, width))
    scores = op.strided_slice(scores, (0, width - classes), (count, width))
    rows = (_each_class if by_class else _best_class)(boxes, scores, count, classes)
    # a score at the threshold stays, where Relay's must be above it
    score_threshold = float(
        np.nextafter(np.float32(options["nms_score_threshold"]), np.float32(-np.inf))
    )
    valid = op.vision.get_valid_counts(op.expand_dims(rows, axis=0), score_threshold, 0, 1)
    selected = op.vision.non_max_suppression(
        TupleGetItem(valid, 1), TupleGetItem(valid, 0), TupleGetItem(valid, 2), max_detections,
        float(options["nms_iou_threshold"]), not by_class, -1, 2, 1, 0, False, True,
    )  # fmt: skip
    total = count * classes if by_class else count
    selected = op.strided_slice(selected, (0, 0, 0), (1, min(max_detections, total), 6))
    if total < max_detections:
        selected = op.nn.pad(selected, ((0, 0), (0, max_detections - total), (0, 0)), -1.0)
    score = op.take(selected, const(np.int32(1)), axis=2)
    is_there = op.greater_equal(op.take(selected, const(np.int32(0)), axis=2), _float(0))
    held = op.where(op.expand_dims(is_there, axis=2), selected, op.zeros_like(selected))
    number = op.sum(op.cast(is_there, "float32"), axis=1)
    return [
        op.strided_slice(held, (0, 0, 2), (1, max_detections, 6)),
        op.take(held, const(np.int32(0)), axis=2),
        op.where(is_there, score, op.zeros_like(score)),
        number,
    ]


def _best_class(boxes: Expr, scores: Expr, count: int, classes: int) -> Expr:
    """Return candidates [boxes, (class, score, corners)] of each box's best class."""
    best = op.cast(op.argmax(scores, axis=1, keepdims=True), "float32")
    return op.concatenate([best, op.max(scores, axis=1, keepdims=True), boxes], axis=1)


def _each_class(boxes: Expr, scores: Expr, count: int, classes: int) -> Expr:
    """Return candidates [boxes * classes, (class, score, corners)], class by class."""
    names = np.repeat(np.arange(classes, dtype=np.float32), count)[:, None]
    flat = op.reshape(op.transpose(scores), (count * classes, 1))
    return op.concatenate([const(names), flat, op.tile(boxes, (classes, 1))], axis=1)


ROWS = (Row("CUSTOM TFLite_Detection_PostProcess", _detection),)
