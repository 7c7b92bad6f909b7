"""Anchor boxes of SSD and region proposal networks, and the decoding of predicted boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Select, Var, cast, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.dimensions import (
    as_dim,
    require_min_extent,
    require_positive,
    require_shape,
    simplify_dim,
)
from ekiden.topi.sorting import sorted_rows
from ekiden.topi.vision.nms import box_iou, emit_greedy_nms, non_max_suppression


def _select_constant(index: PrimExpr, values: Sequence[float], dtype: str) -> PrimExpr:
    """Return values[index] for constant values."""
    chosen = const(values[-1], dtype)
    for n in range(len(values) - 2, -1, -1):
        chosen = Select(index.equal(n), const(values[n], dtype), chosen, dtype)
    return chosen


def multibox_prior(
    data: Tensor,
    sizes: Sequence[float] = (1,),
    ratios: Sequence[float] = (1,),
    steps: Sequence[float] = (-1, -1),
    offsets: Sequence[float] = (0.5, 0.5),
    clip: bool = False,
) -> Tensor:
    """Return anchor boxes (left, top, right, bottom) around every pixel of [N, C, H, W]: [1, H * W
    * k, 4], as fractions of the image (SSD). k = sizes + ratios - 1: a square of every size,
    then the first size with all ratios but the first, which stands for the squares.

    Args:
        data: the feature map.
        sizes: box sizes.
        ratios: aspect ratios.
        steps: distance of pixels; below 0 the inverse of their number.
        offsets: centre within a pixel.
        clip: clamp boxes to the image.

    Returns:
        The anchors.
    """
    height, width = data.shape[2:]
    dtype, boxes_per_pixel = data.dtype, len(sizes) + len(ratios) - 1
    kinds = [(s, 1.0) for s in sizes] + [(sizes[0], r) for r in ratios[1:]]
    halves = [(s * math.sqrt(r) / 2, s / math.sqrt(r) / 2) for s, r in kinds]

    def box_side(_: Var, n: Var, side: Var) -> PrimExpr:
        """Return left, top, right or bottom (`side` 0 to 3) of box n."""
        pixel, kind = n // boxes_per_pixel, n % boxes_per_pixel
        y, x = cast(pixel // width, dtype), cast(pixel % width, dtype)
        step_y = 1.0 / cast(height, dtype) if steps[0] <= 0 else const(steps[0], dtype)
        step_x = 1.0 / cast(width, dtype) if steps[1] <= 0 else const(steps[1], dtype)
        middle = Select(
            (side % 2).equal(0), (x + offsets[1]) * step_x, (y + offsets[0]) * step_y, dtype
        )
        # A share of the height for both: squares stay squares in images that are not.
        shape = cast(height, dtype) / cast(width, dtype)
        half_x = _select_constant(kind, [w for w, _ in halves], dtype) * shape
        half = Select(
            (side % 2).equal(0),
            half_x,
            _select_constant(kind, [h for _, h in halves], dtype),
            dtype,
        )
        value = middle + Select(side < 2, -half, half, dtype)
        return te.max(te.min(value, 1.0), 0.0) if clip else value

    shape = (1, simplify_dim(height * width * boxes_per_pixel), 4)
    return te.compute(shape, box_side, name="multibox_prior", tag="injective")


def multibox_transform_loc(
    cls_prob: Tensor,
    loc_pred: Tensor,
    anchor: Tensor,
    clip: bool = True,
    threshold: float = 0.01,
    variances: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    keep_background: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return rows of (class, score, box) [batch, n, 6], valid ones first, and their number [batch].
    cls_prob [batch, classes, n] (class 0 is the background), loc_pred [batch, n * 4] are offsets
    of the anchors [1, n, 4] in units of the variances. A box is valid if its best class reaches
    the threshold. Raises ValueError for another number of variances than 4.
    """
    name = "multibox_transform_loc"
    batch, classes, count = cls_prob.shape
    require_shape(name, "loc_pred", loc_pred.shape, (batch, simplify_dim(count * 4)))
    require_shape(name, "anchor", anchor.shape, (1, count, 4))
    if len(variances) != 4:
        raise ValueError(f"{name}: expected 4 variances, got {len(variances)}")
    dtype = cls_prob.dtype

    def emit_transform_loc(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit batches in parallel: detections in order, the remaining rows -1."""
        ib = IRBuilder()
        probability, moves, anchors = map(ib.buffer_ptr, ins)
        rows, valid = map(ib.buffer_ptr, outs)
        with ib.for_range(0, batch, "b", kind="parallel") as b:
            number = ib.allocate("int64", 1, "number", "local")
            number[0] = 0
            with ib.for_range(0, count, "n") as n:
                for field in range(6):
                    rows[b, n, field] = -1.0
            with ib.for_range(0, count, "n") as n:
                best = ib.allocate("int64", 1, "best", "local")
                score = ib.allocate(dtype, 1, "score", "local")
                best[0] = 0
                score[0] = -1.0
                with ib.for_range(0 if keep_background else 1, classes, "c") as c:
                    value = ib.let("value", probability[b, c, n])
                    with ib.if_scope(value > score[0]):
                        score[0] = value
                        best[0] = c
                enough = score[0] >= threshold
                # Class 0 is the background, which is no detection.
                keep = enough if keep_background else te.all(best[0] > 0, enough)
                with ib.if_scope(keep):
                    slot = ib.let("slot", number[0])
                    box = _decode_box(
                        [anchors[0, n, k] for k in range(4)],
                        [moves[b, n * 4 + k] for k in range(4)],
                        variances,
                    )
                    # Detections count the classes without the background.
                    rows[b, slot, 0] = cast(best[0] - (0 if keep_background else 1), dtype)
                    rows[b, slot, 1] = score[0]
                    for k, edge in enumerate(box):
                        rows[b, slot, 2 + k] = te.max(te.min(edge, 1.0), 0.0) if clip else edge
                    number[0] = slot + 1
            valid[b] = number[0]
        return ib.get()

    shapes = [(batch, count, as_dim(6)), (batch,)]
    outputs = te.extern_op(
        shapes,
        [cls_prob, loc_pred, anchor],
        emit_transform_loc,
        [dtype, "int32"],
        name="multibox_transform",
    )
    return outputs[0], outputs[1]


def _decode_box(
    anchor: Sequence[PrimExpr], move: Sequence[PrimExpr], variances: Sequence[float]
) -> list[PrimExpr]:
    """Decode an anchor (left, top, right, bottom) by predicted offsets."""
    wide, high = anchor[2] - anchor[0], anchor[3] - anchor[1]
    x = move[0] * variances[0] * wide + (anchor[0] + anchor[2]) * 0.5
    y = move[1] * variances[1] * high + (anchor[1] + anchor[3]) * 0.5
    half_x = call_intrin("exp", move[2] * variances[2]) * wide * 0.5
    half_y = call_intrin("exp", move[3] * variances[3]) * high * 0.5
    return [x - half_x, y - half_y, x + half_x, y + half_y]


def multibox_detection(
    cls_prob: Tensor,
    loc_pred: Tensor,
    anchor: Tensor,
    clip: bool = True,
    threshold: float = 0.01,
    nms_threshold: float = 0.5,
    force_suppress: bool = False,
    variances: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    nms_topk: int = -1,
) -> Tensor:
    """Return the boxes of `multibox_transform_loc` after non-maximum suppression: [batch, n, 6],
    others -1.
    """
    rows, valid = multibox_transform_loc(cls_prob, loc_pred, anchor, clip, threshold, variances)
    positions = te.compute(
        rows.shape[:2], lambda b, n: cast(n, "int32"), name="places", tag="injective"
    )
    detections = non_max_suppression(
        rows, valid, positions, -1, nms_threshold, force_suppress, nms_topk, return_indices=False
    )
    assert isinstance(detections, Tensor)
    return detections


def _base_anchors(
    scales: Sequence[float], ratios: Sequence[float], stride: int
) -> list[tuple[float, float, float, float]]:
    """Return the anchors around the first pixel: every ratio with every scale, sides rounded, as in
    Faster R-CNN.
    """
    anchors = []
    middle = (stride - 1) / 2
    for ratio in ratios:
        side = math.floor(math.sqrt(math.floor(stride * stride / ratio)) + 0.5)
        height_side = math.floor(side * ratio + 0.5)
        for scale in scales:
            wide, high = (side * scale - 1) / 2, (height_side * scale - 1) / 2
            anchors.append((middle - wide, middle - high, middle + wide, middle + high))
    return anchors


@dataclass(frozen=True, slots=True)
class _ProposalRegions:
    """Anchors of all pixels decoded by a network's predictions; inputs as of `proposal`."""

    cls_prob: Tensor
    bbox_pred: Tensor
    im_info: Tensor
    anchors: Sequence[tuple[float, float, float, float]]
    stride: int
    """Image pixels per feature-map pixel."""
    min_size: int
    iou_loss: bool
    """Whether predictions are pixel distances, not fractions and logarithms of the anchor's
    extents.
    """

    def box_field(self, b: Var, n: Var, k: Var) -> PrimExpr:
        """Return component k of (score, left, top, right, bottom) of box n."""
        corners, score = self.clamped_box(b, n)
        value = score
        for side in range(4):
            value = Select(k.equal(side + 1), corners[side], value, "float32")
        return value

    def clamped_box(self, b: PrimExpr, n: PrimExpr) -> tuple[list[PrimExpr], PrimExpr]:
        """Return the decoded box of anchor n, clamped to the image, and its score; -1 for boxes
        that are too small or in the batch's padding.
        """
        kinds, width = len(self.anchors), self.cls_prob.shape[3]
        kind, pixel = n % kinds, n // kinds
        y, x = pixel // width, pixel % width
        inside = self._decode_anchor(b, kind, y, x)
        min_extent = self.im_info[b, 2] * float(self.min_size)
        wide, high = (inside[2 + k] - inside[k] + 1.0 for k in (0, 1))
        small = te.any(wide < min_extent, high < min_extent)
        rows, columns = (cast(self.im_info[b, k] / float(self.stride), "int64") for k in (0, 1))
        outside = te.any(small, y >= rows, x >= columns)
        score = Select(outside, const(-1.0), self.cls_prob[b, kinds + kind, y, x], "float32")
        more = Select(small, min_extent * 0.5, const(0.0, "float32"), "float32")
        return [v + more if side > 1 else v - more for side, v in enumerate(inside)], score

    def _decode_anchor(
        self, b: PrimExpr, kind: PrimExpr, y: PrimExpr, x: PrimExpr
    ) -> list[PrimExpr]:
        """Return an anchor moved and clamped to the image."""
        shift = [cast(p * self.stride, "float32") for p in (x, y, x, y)]
        corner = [
            _select_constant(kind, [a[side] for a in self.anchors], "float32") + shift[side]
            for side in range(4)
        ]
        move = [self.bbox_pred[b, kind * 4 + k, y, x] for k in range(4)]
        limits = [self.im_info[b, 1] - 1.0, self.im_info[b, 0] - 1.0]
        if self.iou_loss:
            moved = [c + m for c, m in zip(corner, move, strict=True)]
        else:
            moved = _apply_deltas(corner, move)
        return [te.max(te.min(v, limits[side % 2]), 0.0) for side, v in enumerate(moved)]


def proposal(
    cls_prob: Tensor,
    bbox_pred: Tensor,
    im_info: Tensor,
    scales: Sequence[float],
    ratios: Sequence[float],
    feature_stride: int,
    threshold: float,
    rpn_pre_nms_top_n: int,
    rpn_post_nms_top_n: int,
    rpn_min_size: int,
    iou_loss: bool,
) -> Tensor:
    """Return regions [batch * rpn_post_nms_top_n, (batch, left, top, right, bottom)] for the second
    stage of a detector. cls_prob [batch, 2 * anchors, H, W], bbox_pred [batch, 4 * anchors, H,
    W], im_info [batch, (height, width, scale)]. Boxes below the minimum size grow by half of it
    on each side and score -1, as do those of pixels outside of the image. Where fewer remain,
    the first are repeated.
    """
    batch, _, height, width = cls_prob.shape
    anchors = _base_anchors(scales, ratios, feature_stride)
    kinds = len(anchors)
    count = simplify_dim(height * width * kinds)
    require_positive("proposal", rpn_post_nms_top_n=rpn_post_nms_top_n)
    require_min_extent("proposal", "cls_prob", cls_prob.shape, (None, 2 * kinds, 1, 1))
    require_shape("proposal", "bbox_pred", bbox_pred.shape, (batch, 4 * kinds, height, width))
    require_shape("proposal", "im_info", im_info.shape, (batch, 3))
    regions = _ProposalRegions(
        cls_prob, bbox_pred, im_info, anchors, feature_stride, rpn_min_size, iou_loss
    )
    rows = te.compute((batch, count, 5), regions.box_field, name="proposals", tag="proposals")
    scores = te.compute((batch, count), lambda b, n: rows[b, n, 0], name="scores", tag="injective")
    (order,) = sorted_rows(scores, 1, False, count, [("indices", "int32")], None, "proposal_order")
    before = count if rpn_pre_nms_top_n <= 0 else te.min(count, as_dim(rpn_pre_nms_top_n))
    room = as_dim(rpn_post_nms_top_n)

    def emit_proposal(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit batches in parallel: greedy suppression in order of scores; the kept boxes are
        repeated if they are too few.
        """
        ib = IRBuilder()
        source, rank = map(ib.buffer_ptr, ins)
        out = ib.buffer_ptr(outs[0])
        with ib.for_range(0, batch, "b", kind="parallel") as b:

            def box_corner(which: PrimExpr, side: int) -> PrimExpr:
                """Return a side of a box; right and bottom ones are behind the pixel."""
                edge = source[b, which, side + 1]
                return edge + 1.0 if side > 1 else edge  # pixels have an extent

            kept_boxes, number = emit_greedy_nms(
                ib,
                (before, room),
                room,
                lambda n: cast(rank[b, n], "int64"),
                lambda box, kept_box: box_iou(box_corner, box, kept_box) > threshold,
            )
            with ib.for_range(0, room, "n") as n:
                # At least 1, so that the modulus is never 0.
                which = ib.let("which", kept_boxes[n % te.max(number[0], 1)])
                row = b * room + n
                out[row, 0] = cast(b, "float32")
                for side in range(1, 5):
                    out[row, side] = source[b, which, side]
        return ib.get()

    shape = (simplify_dim(batch * rpn_post_nms_top_n), as_dim(5))
    return te.extern_op([shape], [rows, order], emit_proposal, ["float32"], name="proposal")[0]


def _apply_deltas(corner: Sequence[PrimExpr], move: Sequence[PrimExpr]) -> list[PrimExpr]:
    """Decode a pixel box by predicted centre shifts and log scales."""
    wide, high = (corner[2 + k] - corner[k] + 1.0 for k in (0, 1))
    x = corner[0] + (wide - 1.0) * 0.5 + move[0] * wide
    y = corner[1] + (high - 1.0) * 0.5 + move[1] * high
    half_x = (call_intrin("exp", move[2]) * wide - 1.0) * 0.5
    half_y = (call_intrin("exp", move[3]) * high - 1.0) * 0.5
    return [x - half_x, y - half_y, x + half_x, y + half_y]


__all__ = ["multibox_detection", "multibox_prior", "multibox_transform_loc", "proposal"]
