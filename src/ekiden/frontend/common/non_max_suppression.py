"""Non-maximum suppression with TensorFlow's semantics."""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.node import Node
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const


def non_max_suppression(
    node: Node, boxes: Expr, scores: Expr, max_output: Expr, overlap: Expr, score_threshold: Expr
) -> tuple[Expr, Expr]:
    """Emit non-maximum suppression: the selected box indices int32 [n] and their count int64 [1].

    boxes: [n, 4]; scores: [n], highest first in the result; the limits are scalars.
    """
    suppressed = op.vision.all_class_non_max_suppression(
        op.expand_dims(boxes, 0),
        op.expand_dims(op.expand_dims(scores, 0), 0),
        op.cast(max_output, "int64"),
        overlap,
        score_threshold,
    )
    rows = op.take(TupleGetItem(suppressed, 0), const(np.int32(2)), axis=1)
    return op.cast(rows, "int32"), op.cast(TupleGetItem(suppressed, 1), "int64")


def non_max_suppression_indices(
    node: Node, boxes: Expr, scores: Expr, max_output: Expr, overlap: Expr, score_threshold: Expr
) -> Expr:
    """Emit the indices of the selected boxes alone, as many as there are."""
    rows, count = non_max_suppression(node, boxes, scores, max_output, overlap, score_threshold)
    return op.strided_slice(rows, const(np.zeros(1, np.int64)), count, axes=[0])


def pad_selected(node: Node, rows: Expr, count: Expr, max_output: int) -> tuple[Expr, Expr]:
    """Emit the first `max_output` indices, zero-padded, and the mask of valid ones."""
    wide = op.strided_slice(op.nn.pad(rows, ((0, max_output),)), (0,), (max_output,))
    is_there = op.less(op.arange(0, max_output, 1, "int64"), count)
    return op.where(is_there, wide, op.zeros_like(wide)), is_there
