"""Object detection operators: box filtering, NMS, anchors, ROI pooling. Where the number of boxes
depends on data, results are padded and a count is returned.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import OpPattern
from ekiden.relay.expr import Call, Expr, const
from ekiden.relay.op._declare import call_op, lookup_layout
from ekiden.relay.op._declare_topi import declare_topi_op
from ekiden.relay.op._window import WindowAttrs

Floats = tuple[float, ...]


@node("relay.attrs.GetValidCountsAttrs")
class GetValidCountsAttrs(Attrs):
    """Attributes of get_valid_counts: indices of class (negative: none) and score in a box."""

    id_index: int = 0
    score_index: int = 1


@node("relay.attrs.NonMaximumSuppressionAttrs")
class NonMaximumSuppressionAttrs(Attrs):
    """Attributes of non_max_suppression: suppression across classes, top_k, field indices."""

    force_suppress: bool = False
    top_k: int = -1
    coord_start: int = 2
    score_index: int = 1
    id_index: int = 0
    return_indices: bool = True
    invalid_to_bottom: bool = False


@node("relay.attrs.AllClassNonMaximumSuppressionAttrs")
class AllClassNonMaximumSuppressionAttrs(Attrs):
    """Attributes of all_class_non_max_suppression: output format "onnx" or "tensorflow"."""

    output_format: str = "onnx"


@node("relay.attrs.MultiBoxPriorAttrs")
class MultiBoxPriorAttrs(Attrs):
    """Attributes of multibox_prior: anchor sizes and ratios, steps, offsets, clip."""

    sizes: Floats = (1.0,)
    ratios: Floats = (1.0,)
    steps: Floats = (-1.0, -1.0)
    offsets: Floats = (0.5, 0.5)
    clip: bool = False


@node("relay.attrs.MultiBoxTransformLocAttrs")
class MultiBoxTransformLocAttrs(Attrs):
    """Attributes of multibox_transform_loc: clip, score threshold, variances, background class."""

    clip: bool = True
    threshold: float = 0.01
    variances: Floats = (0.1, 0.1, 0.2, 0.2)
    keep_background: bool = False


@node("relay.attrs.ROIAlignAttrs")
class ROIAlignAttrs(WindowAttrs):
    """Attributes of roi_align: pooled size, spatial scale, sampling ratio, layout, mode."""

    pooled_size: tuple[int, ...] = (1, 1)
    spatial_scale: float = 1.0
    sample_ratio: int = -1
    layout: str = "NCHW"
    mode: str = "avg"
    aligned: bool = False


@node("relay.attrs.ROIPoolAttrs")
class ROIPoolAttrs(WindowAttrs):
    """Attributes of roi_pool: pooled size and spatial scale; the layout is NCHW."""

    pooled_size: tuple[int, ...] = (1, 1)
    spatial_scale: float = 1.0
    layout: str = "NCHW"


@node("relay.attrs.ProposalAttrs")
class ProposalAttrs(Attrs):
    """Attributes of proposal: anchors, NMS threshold, numbers of boxes before and after NMS."""

    scales: Floats = ()
    ratios: Floats = ()
    feature_stride: int = 16
    threshold: float = 0.7
    rpn_pre_nms_top_n: int = 6000
    rpn_post_nms_top_n: int = 300
    rpn_min_size: int = 16
    iou_loss: bool = False


@node("relay.attrs.YoloReorgAttrs")
class YoloReorgAttrs(Attrs):
    """Attributes of yolo_reorg: the stride."""

    stride: int = 1


declare_topi_op(
    "vision.get_valid_counts",
    ("data", "score_threshold"),
    lambda attrs, data, score: topi.vision.get_valid_counts(
        data, score, attrs.id_index, attrs.score_index
    ),
    "a tuple: how many boxes count, the boxes, where they were",
    GetValidCountsAttrs,
    fields=3,
)
declare_topi_op(
    "vision.non_max_suppression",
    ("data", "valid_count", "indices", "max_output_size", "iou_threshold"),
    lambda attrs, data, valid_count, indices, max_boxes, overlap: topi.vision.non_max_suppression(
        data,
        valid_count,
        indices,
        max_boxes,
        overlap,
        attrs.force_suppress,
        attrs.top_k,
        attrs.coord_start,
        attrs.score_index,
        attrs.id_index,
        attrs.return_indices,
        attrs.invalid_to_bottom,
    ),
    "a tuple of positions and their number, or the boxes",
    NonMaximumSuppressionAttrs,
    fields=2,
)
declare_topi_op(
    "vision.all_class_non_max_suppression",
    ("boxes", "scores", "max_output_boxes_per_class", "iou_threshold", "score_threshold"),
    lambda attrs, boxes, scores, max_boxes, overlap, score: (
        topi.vision.all_class_non_max_suppression(
            boxes, scores, max_boxes, overlap, score, attrs.output_format
        )
    ),
    "a tuple of (batch, class, box) rows and their number, or per batch with scores",
    AllClassNonMaximumSuppressionAttrs,
    fields=lambda attrs: 2 if getattr(attrs, "output_format", "") == "onnx" else 3,
)
declare_topi_op(
    "vision.multibox_prior",
    ("data",),
    lambda attrs, data: topi.vision.multibox_prior(
        data, attrs.sizes, attrs.ratios, attrs.steps, attrs.offsets, attrs.clip
    ),
    "(1, anchors, 4), with the dtype of data",
    MultiBoxPriorAttrs,
    OpPattern.INJECTIVE,
)
declare_topi_op(
    "vision.multibox_transform_loc",
    ("cls_prob", "loc_pred", "anchor"),
    lambda attrs, cls_prob, loc_pred, anchor: topi.vision.multibox_transform_loc(
        cls_prob,
        loc_pred,
        anchor,
        attrs.clip,
        attrs.threshold,
        attrs.variances,
        attrs.keep_background,
    ),
    "a tuple: (batch, anchors, 6) of class, score and box, and how many count",
    MultiBoxTransformLocAttrs,
    fields=2,
)
declare_topi_op(
    "vision.roi_align",
    ("data", "rois"),
    lambda attrs, data, rois: lookup_layout(
        attrs.layout, {"NCHW": topi.vision.roi_align_nchw, "NHWC": topi.vision.roi_align_nhwc}
    )(
        data,
        rois,
        attrs.pooled_size,
        attrs.spatial_scale,
        attrs.mode,
        attrs.sample_ratio,
        attrs.aligned,
    ),
    "a region per row of rois, with `pooled_size`",
    ROIAlignAttrs,
    refuses=True,
    layout="layout",
)
declare_topi_op(
    "vision.roi_pool",
    ("data", "rois"),
    lambda attrs, data, rois: lookup_layout(attrs.layout, {"NCHW": topi.vision.roi_pool_nchw})(
        data, rois, attrs.pooled_size, attrs.spatial_scale
    ),
    "a region per row of rois, with `pooled_size`",
    ROIPoolAttrs,
    refuses=True,
)
declare_topi_op(
    "vision.proposal",
    ("cls_prob", "bbox_pred", "im_info"),
    lambda attrs, cls_prob, bbox_pred, im_info: topi.vision.proposal(
        cls_prob,
        bbox_pred,
        im_info,
        attrs.scales,
        attrs.ratios,
        attrs.feature_stride,
        attrs.threshold,
        attrs.rpn_pre_nms_top_n,
        attrs.rpn_post_nms_top_n,
        attrs.rpn_min_size,
        attrs.iou_loss,
    ),
    "(batch * rpn_post_nms_top_n, 5)",
    ProposalAttrs,
)
declare_topi_op(
    "vision.yolo_reorg",
    ("data",),
    lambda attrs, data: topi.vision.reorg(data, attrs.stride),
    "stride**2 times the channels, extents divided by stride",
    YoloReorgAttrs,
    OpPattern.INJECTIVE,
)


def _scalar_expr(value: Expr | float, dtype: str) -> Expr:
    return value if isinstance(value, Expr) else const(value, dtype)


def get_valid_counts(
    data: Expr, score_threshold: Expr | float, id_index: int = 0, score_index: int = 1
) -> Call:
    """Return the number of boxes above the score threshold, the boxes and their indices.

    The boxes that count come first in each batch; the positions are those that they had.
    """
    attrs = GetValidCountsAttrs(id_index, score_index)
    return call_op(
        "vision.get_valid_counts", data, _scalar_expr(score_threshold, "float32"), attrs=attrs
    )


def non_max_suppression(
    data: Expr,
    valid_count: Expr,
    indices: Expr,
    max_output_size: Expr | int = -1,
    iou_threshold: Expr | float = 0.5,
    force_suppress: bool = False,
    top_k: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = 0,
    return_indices: bool = True,
    invalid_to_bottom: bool = False,
) -> Call:
    """Return the boxes that survive greedy non-maximum suppression, by descending score."""
    attrs = NonMaximumSuppressionAttrs(
        force_suppress, top_k, coord_start, score_index, id_index, return_indices, invalid_to_bottom
    )
    max_boxes, overlap = (
        _scalar_expr(max_output_size, "int32"),
        _scalar_expr(iou_threshold, "float32"),
    )
    name = "vision.non_max_suppression"
    return call_op(name, data, valid_count, indices, max_boxes, overlap, attrs=attrs)


def all_class_non_max_suppression(
    boxes: Expr,
    scores: Expr,
    max_output_boxes_per_class: Expr | int = -1,
    iou_threshold: Expr | float = -1.0,
    score_threshold: Expr | float = -1.0,
    output_format: str = "onnx",
) -> Call:
    """Return the boxes that survive non-maximum suppression per class."""
    attrs = AllClassNonMaximumSuppressionAttrs(output_format)
    bounds = (_scalar_expr(v, "float32") for v in (iou_threshold, score_threshold))
    max_boxes = _scalar_expr(max_output_boxes_per_class, "int64")
    name = "vision.all_class_non_max_suppression"
    return call_op(name, boxes, scores, max_boxes, *bounds, attrs=attrs)


def multibox_prior(
    data: Expr,
    sizes: Sequence[float] = (1.0,),
    ratios: Sequence[float] = (1.0,),
    steps: Sequence[float] = (-1.0, -1.0),
    offsets: Sequence[float] = (0.5, 0.5),
    clip: bool = False,
) -> Call:
    """Return SSD prior (anchor) boxes around every pixel."""
    size, ratio, step, offset = (tuple(map(float, v)) for v in (sizes, ratios, steps, offsets))
    attrs = MultiBoxPriorAttrs(size, ratio, step, offset, clip)
    return call_op("vision.multibox_prior", data, attrs=attrs)


def multibox_transform_loc(
    cls_prob: Expr,
    loc_pred: Expr,
    anchor: Expr,
    clip: bool = True,
    threshold: float = 0.01,
    variances: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    keep_background: bool = False,
) -> Call:
    """Decode SSD predictions: class, score and box of detections, and their number."""
    attrs = MultiBoxTransformLocAttrs(clip, threshold, tuple(variances), keep_background)
    return call_op("vision.multibox_transform_loc", cls_prob, loc_pred, anchor, attrs=attrs)


def roi_align(
    data: Expr,
    rois: Expr,
    pooled_size: Sequence[int],
    spatial_scale: float,
    sample_ratio: int = -1,
    layout: str = "NCHW",
    mode: str = "avg",
    aligned: bool = False,
) -> Call:
    """Pool regions by bilinear sampling (ROI align)."""
    size = tuple(pooled_size)
    attrs = ROIAlignAttrs(size, spatial_scale, sample_ratio, layout, mode, aligned)
    return call_op("vision.roi_align", data, rois, attrs=attrs)


def roi_pool(
    data: Expr, rois: Expr, pooled_size: Sequence[int], spatial_scale: float, layout: str = "NCHW"
) -> Call:
    """Pool regions by the maximum of their bins (ROI pooling)."""
    attrs = ROIPoolAttrs(tuple(pooled_size), spatial_scale, layout)
    return call_op("vision.roi_pool", data, rois, attrs=attrs)


def proposal(
    cls_prob: Expr,
    bbox_pred: Expr,
    im_info: Expr,
    scales: Sequence[float],
    ratios: Sequence[float],
    feature_stride: int,
    threshold: float,
    rpn_pre_nms_top_n: int,
    rpn_post_nms_top_n: int,
    rpn_min_size: int,
    iou_loss: bool,
) -> Call:
    """Return region proposals of a two-stage detector (Faster R-CNN)."""
    attrs = ProposalAttrs(
        tuple(map(float, scales)), tuple(map(float, ratios)), feature_stride, threshold,
        rpn_pre_nms_top_n, rpn_post_nms_top_n, rpn_min_size, iou_loss,
    )  # fmt: skip
    return call_op("vision.proposal", cls_prob, bbox_pred, im_info, attrs=attrs)


def yolo_reorg(data: Expr, stride: int) -> Call:
    """Rearrange pixels `stride` apart into channels, in Darknet's order."""
    return call_op("vision.yolo_reorg", data, attrs=YoloReorgAttrs(stride))


__all__ = [
    "all_class_non_max_suppression", "get_valid_counts", "multibox_prior",
    "multibox_transform_loc", "non_max_suppression", "proposal", "roi_align", "roi_pool",
    "yolo_reorg",
]  # fmt: skip
