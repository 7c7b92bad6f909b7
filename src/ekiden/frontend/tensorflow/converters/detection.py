"""Non-maximum suppression of detectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.converters.data_movement import convert_non_max_suppression
from ekiden.frontend.common.matmul import batched_take
from ekiden.frontend.common.non_max_suppression import non_max_suppression_indices
from ekiden.frontend.tensorflow.node import TensorflowNode, TensorflowRow
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import known_int


def _non_max_suppression(node: TensorflowNode) -> Expr:
    """Convert NonMaxSuppression up to V3: the indices of the selected boxes, whose number depends
    on data.
    """
    overlap = (
        node.expr(3) if len(node.inputs) > 3 else const(node.float_attribute("iou_threshold", 0.5))
    )
    score_threshold = node.expr(4) if len(node.inputs) > 4 else const(-np.inf, node.dtype(1))
    max_boxes = op.reshape(node.expr(2), ())
    return non_max_suppression_indices(
        node, node.expr(0), node.expr(1), max_boxes, overlap, score_threshold
    )


def _non_max_suppression_v4(node: TensorflowNode) -> Sequence[Expr]:
    """Convert NonMaxSuppression V4 and V5; the results are zero-padded if
    `pad_to_max_output_size`.
    """
    return convert_non_max_suppression(
        node, node.op.endswith("V5"), node.bool_attribute("pad_to_max_output_size")
    )


def _combined_non_max_suppression(node: TensorflowNode) -> list[Expr]:
    """Convert CombinedNonMaxSuppression to (boxes, scores, classes, number of boxes per image).

    Inputs: boxes [batch, n, 1, 4], scores [batch, n, classes], limit per class, limit per image,
    IoU threshold, score threshold.
    """
    (quota,), (total,) = (
        node.constant_ints(2, "max_output_size_per_class"),
        node.constant_ints(3, "max_total_size"),
    )
    count, sides, classes = (
        known_int(node.shape(0)[1]),
        known_int(node.shape(0)[2]),
        known_int(node.shape(1)[2]),
    )
    if sides != 1 or count is None or classes is None:
        node.reject("boxes must be of all classes, their number and that of classes known")
    boxes = op.squeeze(node.expr(0), axis=[2])
    scores = op.transpose(node.expr(1), (0, 2, 1))
    overlap, score_threshold = (op.reshape(node.expr(i), ()) for i in (4, 5))
    selected = op.vision.all_class_non_max_suppression(
        boxes, scores, const(quota, "int64"), overlap, score_threshold, "tensorflow"
    )
    pairs, values, number = (TupleGetItem(selected, i) for i in range(3))
    is_there = op.less(op.arange(0, count * classes, 1, "int64"), op.expand_dims(number, 1))
    ranked = op.where(is_there, values, op.full_like(values, const(-np.inf, node.dtype(1))))
    limit = min(total, quota * classes) if node.bool_attribute("pad_per_class") else total
    top = op.topk(ranked, min(limit, count * classes), axis=-1, ret_type="both", dtype="int64")
    best, ranks = TupleGetItem(top, 0), TupleGetItem(top, 1)
    label, box = (op.gather(op.take(pairs, const(np.int32(i)), axis=2), 1, ranks) for i in (0, 1))
    corners = batched_take(node, boxes, box, 1, 1)
    if not node.has_attribute("clip_boxes") or node.bool_attribute("clip_boxes"):
        corners = op.clip(corners, 0.0, 1.0)
    holds = op.greater(best, const(-np.inf, node.dtype(1)))
    corners = op.where(op.expand_dims(holds, 2), corners, op.zeros_like(corners))
    score = op.where(holds, best, op.zeros_like(best))
    label = op.where(holds, op.cast(label, node.dtype(1)), op.zeros_like(score))
    # topk cannot return more than there are candidates; TensorFlow still pads to the limit.
    missing = max(limit - count * classes, 0)
    padded_outputs: list[Expr] = [
        op.nn.pad(corners, ((0, 0), (0, missing), (0, 0))) if missing else corners,
        *(op.nn.pad(e, ((0, 0), (0, missing))) if missing else e for e in (score, label)),
    ]
    return [*padded_outputs, op.sum(op.cast(holds, "int32"), axis=[1])]


# fmt: off
ROWS = (
    *(TensorflowRow(f"NonMaxSuppression{v}", _non_max_suppression) for v in ("", "V2", "V3")),
    *(TensorflowRow(f"NonMaxSuppression{v}", _non_max_suppression_v4)   for v in ("V4", "V5")),
    TensorflowRow("CombinedNonMaxSuppression", _combined_non_max_suppression),
)
# fmt: on
