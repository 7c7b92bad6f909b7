"""The boxes with the highest scores that do not overlap, as TensorFlow counts them."""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.node import Node
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const


def kept_boxes(
    node: Node, boxes: Expr, scores: Expr, most: Expr, overlap: Expr, least: Expr
) -> tuple[Expr, Expr]:
    """(positions int32 [n], how many of them there are int64 [1]) of boxes [n, 4] and scores [n],
    highest first; the limits are scalars."""
    found = op.vision.all_class_non_max_suppression(
        op.expand_dims(boxes, 0),
        op.expand_dims(op.expand_dims(scores, 0), 0),
        op.cast(most, "int64"),
        overlap,
        least,
    )
    rows = op.take(TupleGetItem(found, 0), const(np.int32(2)), axis=1)
    return op.cast(rows, "int32"), op.cast(TupleGetItem(found, 1), "int64")


def selected_boxes(
    node: Node, boxes: Expr, scores: Expr, most: Expr, overlap: Expr, least: Expr
) -> Expr:
    """Return the positions of `kept_boxes`, as many as there are."""
    rows, count = kept_boxes(node, boxes, scores, most, overlap, least)
    return op.strided_slice(rows, const(np.zeros(1, np.int64)), count, axes=[0])


def padded_to(node: Node, rows: Expr, count: Expr, most: int) -> tuple[Expr, Expr]:
    """(the first `most`, with 0 behind those there are; whether each is there)."""
    wide = op.strided_slice(op.nn.pad(rows, ((0, most),)), (0,), (most,))
    is_there = op.less(op.arange(0, most, 1, "int64"), count)
    return op.where(is_there, wide, op.zeros_like(wide)), is_there
