"""TFLite_Detection_PostProcess: box decoding and non-maximum suppression of SSD detectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flatbuffers import flexbuffers

from ekiden.frontend.tflite.node import TfliteNode, TfliteRow
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import known_int


def _flexbuffer_options(node: TfliteNode) -> Mapping[str, Any]:
    try:
        options: Mapping[str, Any] = flexbuffers.Loads(node.operation.custom_options)
    except Exception as error:  # flexbuffers raises whatever the bytes lead it to
        node.reject(f"its options cannot be read: {error}")
    return options


def _split_columns(data: Expr, axis: int) -> list[Expr]:
    return [op.take(data, const(np.int32(i)), axis=axis) for i in range(4)]


def _decode_boxes(node: TfliteNode, options: Mapping[str, Any]) -> Expr:
    """Decode box offsets relative to their anchors: [boxes, (top, left, bottom, right)]."""
    y, x, height, width = _split_columns(op.reshape(node.expr(0), (-1, 4)), 1)
    at_y, at_x, tall, wide = _split_columns(op.reshape(node.expr(2), (-1, 4)), 1)
    sides = []
    for offset, size, middle, extent, name, length in (
        (y, height, at_y, tall, "y_scale", "h_scale"),
        (x, width, at_x, wide, "x_scale", "w_scale"),
    ):
        centre = op.multiply(op.divide(offset, _f32(options[name])), extent)
        centre = op.add(centre, middle)
        # SSD's box coding: sizes are logarithms of the ratio to the anchor (Liu et al. 2016).
        half = op.multiply(op.exp(op.divide(size, _f32(options[length]))), extent)
        half = op.multiply(half, _f32(0.5))
        sides.append((op.subtract(centre, half), op.add(centre, half)))
    (top, bottom), (left_edge, right) = sides
    return op.stack([top, left_edge, bottom, right], axis=1)


def _f32(value: float) -> Expr:
    return const(np.float32(value))


def _detection_postprocess(node: TfliteNode) -> list[Expr]:
    """Convert the operator to boxes [1, n, 4], classes [1, n], scores [1, n] and count [1],
    zero-padded.
    """
    options = _flexbuffer_options(node)
    count, max_detections = known_int(node.shape(0)[1]), int(options["max_detections"])
    classes, width = int(options["num_classes"]), known_int(node.shape(1)[2])
    if count is None or width is None:
        node.reject(f"{node.ins[0]} and {node.ins[1]} must have known extents")
    by_class = bool(options.get("use_regular_nms", False))
    if not by_class and int(options["max_classes_per_detection"]) != 1:
        node.reject("several classes for a detection are not supported")
    if by_class and int(options.get("detections_per_class", 100)) < max_detections:
        node.reject("'detections_per_class' below 'max_detections' is not supported")
    boxes = _decode_boxes(node, options)
    scores = op.reshape(node.expr(1), (count, width))
    # Column 0 may be the background class, which is no detection.
    scores = op.strided_slice(scores, (0, width - classes), (count, width))
    rows = (_all_class_candidates if by_class else _best_class_candidates)(
        boxes, scores, count, classes
    )
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
    is_there = op.greater_equal(op.take(selected, const(np.int32(0)), axis=2), _f32(0))
    held = op.where(op.expand_dims(is_there, axis=2), selected, op.zeros_like(selected))
    number = op.sum(op.cast(is_there, "float32"), axis=1)
    return [
        op.strided_slice(held, (0, 0, 2), (1, max_detections, 6)),
        op.take(held, const(np.int32(0)), axis=2),
        op.where(is_there, score, op.zeros_like(score)),
        number,
    ]


def _best_class_candidates(boxes: Expr, scores: Expr, count: int, classes: int) -> Expr:
    """Return candidates [boxes, (class, score, corners)], one per box, of its best class."""
    best = op.cast(op.argmax(scores, axis=1, keepdims=True), "float32")
    return op.concatenate([best, op.max(scores, axis=1, keepdims=True), boxes], axis=1)


def _all_class_candidates(boxes: Expr, scores: Expr, count: int, classes: int) -> Expr:
    """Return candidates [boxes * classes, (class, score, corners)], class by class."""
    # Suppression works within a class: every box is listed once per class.
    names = np.repeat(np.arange(classes, dtype=np.float32), count)[:, None]
    flat = op.reshape(op.transpose(scores), (count * classes, 1))
    return op.concatenate([const(names), flat, op.tile(boxes, (classes, 1))], axis=1)


ROWS = (TfliteRow("CUSTOM TFLite_Detection_PostProcess", _detection_postprocess),)
