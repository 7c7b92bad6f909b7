"""Detection models with their post-processing as ONNX files, random weights from a seed: those of
torchvision, small and whole, and a detector of YOLOv8's parts, which PyTorch alone exports.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import sys
from collections.abc import Callable, Mapping
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

Builder = Callable[[Any], nn.Module]
"""A model from the package torchvision.models.detection."""

_OPERATORS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height,"
    " SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
}
"""What torchvision's wheel has only for the PyTorch that it was built for."""


def _nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    order, kept = scores.argsort(descending=True, stable=True), []
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    while len(order):
        best, order = order[0], order[1:]
        kept.append(int(best))
        low = torch.maximum(boxes[best, :2], boxes[order, :2])
        high = torch.minimum(boxes[best, 2:], boxes[order, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        order = order[shared <= threshold * (area[best] + area[order] - shared)]
    return torch.tensor(kept, dtype=torch.int64)


def _middles(
    data: Tensor, rois: Tensor, scale: float, rows: int, columns: int, ratio: int, aligned: bool
) -> Tensor:
    """A part of each region by its nearest pixels: an exporter that traces needs some values."""
    n, starts, extents = rois[:, 0].long(), rois[:, 1:3] * scale, (rois[:, 3:] - rois[:, 1:3])
    steps = [(torch.arange(int(d)) + 0.5) / int(d) for d in (columns, rows)]
    x, y = (
        (starts[:, a, None] + extents[:, a, None] * scale * steps[a]).long().clamp(min=0)
        for a in (0, 1)
    )
    x, y = x.clamp(max=data.shape[3] - 1), y.clamp(max=data.shape[2] - 1)
    return data[n[:, None, None], :, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)


def _is_there() -> bool:
    return True


@functools.cache
def vision() -> Any:  # noqa: ANN401
    """torchvision.models.detection, beside whatever PyTorch there is; its operators can be traced
    and exported. Skips the test where the package is not installed.
    """
    for name in ("torchvision", "PIL"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"the package {name} is not installed")
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, signature in _OPERATORS.items():
        library.define(name + signature)
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", _middles, "CPU")
    _KEPT.append(library)
    detection = importlib.import_module("torchvision.models.detection")
    for name in ("torchvision.extension", "torchvision.ops.roi_align"):
        sys.modules[name]._has_ops = _is_there  # type: ignore[attr-defined]
    importlib.import_module("torchvision.ops._register_onnx_ops")._register_custom_op()
    return detection


_KEPT: list[object] = []
"""Declarations of operators end with the object that made them."""


class _Backbone(nn.Module):
    """Feature maps of so many levels, each half as large as the one before, the first a quarter."""

    def __init__(self, levels: int, channels: int) -> None:
        super().__init__()
        self.out_channels = channels
        self.first = nn.Conv2d(3, channels, 7, 4, 3)
        self.more = nn.ModuleList(nn.Conv2d(channels, channels, 3, 2, 1) for _ in range(levels - 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = [self.first(x).relu()]
        for layer in self.more:
            maps.append(layer(maps[-1]).relu())
        return {str(n): m for n, m in enumerate(maps)}


CLASSES = 4
_SIZES = {"min_size": 64, "max_size": 96}
_FEW = {"detections_per_img": 12}
_REGIONS = {
    **_SIZES, "box_detections_per_img": 12, "rpn_pre_nms_top_n_test": 60,
    "rpn_post_nms_top_n_test": 20,
}  # fmt: skip


def _anchors(levels: int, ratios: tuple[float, ...]) -> Any:  # noqa: ANN401
    utils = importlib.import_module("torchvision.models.detection.anchor_utils")
    return utils.AnchorGenerator(tuple((12 << n,) for n in range(levels)), (ratios,) * levels)


def _pooled(extent: int) -> Any:  # noqa: ANN401
    ops = importlib.import_module("torchvision.ops")
    return ops.MultiScaleRoIAlign(["0", "1"], extent, 2)


def _ssdlite(detection: Any) -> nn.Module:  # noqa: ANN401
    boxes = detection.anchor_utils.DefaultBoxGenerator([[2], [2, 3]], min_ratio=20, max_ratio=90)
    norm = functools.partial(nn.BatchNorm2d, eps=1e-3)
    head = detection.ssdlite.SSDLiteHead(
        [8, 8], boxes.num_anchors_per_location(), CLASSES, norm
    )  # fmt: skip
    return detection.ssd.SSD(  # type: ignore[no-any-return]
        _Backbone(2, 8), boxes, (64, 64), CLASSES, head=head, topk_candidates=30, **_FEW
    )


def _faster_rcnn(detection: Any) -> nn.Module:  # noqa: ANN401
    head = detection.faster_rcnn.TwoMLPHead(8 * 3 * 3, 16)
    predictor = detection.faster_rcnn.FastRCNNPredictor(16, CLASSES)
    return detection.FasterRCNN(  # type: ignore[no-any-return]
        _Backbone(2, 8), rpn_anchor_generator=_anchors(2, (0.5, 1.0)), box_roi_pool=_pooled(3),
        box_head=head, box_predictor=predictor, **_REGIONS,
    )  # fmt: skip


def _mask_rcnn(detection: Any) -> nn.Module:  # noqa: ANN401
    boxes = detection.faster_rcnn
    return detection.MaskRCNN(  # type: ignore[no-any-return]
        _Backbone(2, 8), rpn_anchor_generator=_anchors(2, (0.5, 1.0)), box_roi_pool=_pooled(3),
        box_head=boxes.TwoMLPHead(8 * 3 * 3, 16),
        box_predictor=boxes.FastRCNNPredictor(16, CLASSES), mask_roi_pool=_pooled(4),
        mask_head=detection.mask_rcnn.MaskRCNNHeads(8, (8,), 1),
        mask_predictor=detection.mask_rcnn.MaskRCNNPredictor(8, 8, CLASSES), **_REGIONS,
    )  # fmt: skip


def _retinanet(detection: Any) -> nn.Module:  # noqa: ANN401
    norm = functools.partial(nn.GroupNorm, 2)
    head = detection.retinanet.RetinaNetHead(8, 2, CLASSES, norm_layer=norm)
    return detection.RetinaNet(  # type: ignore[no-any-return]
        _Backbone(2, 8), CLASSES, anchor_generator=_anchors(2, (0.5, 1.0)), head=head,
        topk_candidates=30, **_SIZES, **_FEW,
    )  # fmt: skip


def _fcos(detection: Any) -> nn.Module:  # noqa: ANN401
    return detection.FCOS(  # type: ignore[no-any-return]
        _Backbone(2, 32), CLASSES, anchor_generator=_anchors(2, (1.0,)), topk_candidates=30,
        **_SIZES, **_FEW,
    )  # fmt: skip


SMALL: Mapping[str, Builder] = {
    "ssdlite": _ssdlite,
    "faster_rcnn": _faster_rcnn,
    "mask_rcnn": _mask_rcnn,
    "retinanet": _retinanet,
    "fcos": _fcos,
}
WHOLE = (
    "ssdlite320_mobilenet_v3_large",
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    "maskrcnn_resnet50_fpn",
    "retinanet_resnet50_fpn",
    "fcos_resnet50_fpn",
)
"""Names of functions of torchvision.models.detection."""


def small(name: str) -> nn.Module:
    """A small model of a kind, with random weights whose scores are apart from each other."""
    torch.manual_seed(3)
    model = SMALL[name](vision()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.2 if parameter.ndim < 2 else 1.5 / parameter[0].numel() ** 0.5
            parameter.copy_(torch.randn(parameter.shape) * spread)
    return model


def whole(name: str) -> nn.Module:
    """A model of torchvision as it is, without trained weights, for five classes. Those that are
    trained from scores of 0.01 on have random ones here, so that something is found."""
    torch.manual_seed(3)
    build = getattr(vision(), name)
    model = build(weights=None, weights_backbone=None, num_classes=5).eval()
    head = getattr(getattr(model, "head", None), "classification_head", None)
    with torch.no_grad():
        for item in (getattr(head, part, None) for part in ("cls_logits", "bbox_ctrness")):
            if isinstance(item, nn.Conv2d):
                item.weight.normal_(std=0.5 / item.weight[0].numel() ** 0.5)
                item.bias.zero_()
    return model  # type: ignore[no-any-return]


def exported(
    model: nn.Module, image: Tensor, dynamic: bool, listed: bool = True
) -> onnx.ModelProto:
    """The model as ONNX, by the exporter that traces; `dynamic`: of images of any size. Images are
    in a list (of one), unless they are not `listed`.
    """
    file = io.BytesIO()
    axes = {"x": {image.ndim - 2: "height", image.ndim - 1: "width"}} if dynamic else None
    torch.onnx.export(
        model, ([image],) if listed else (image,), file, dynamo=False, opset_version=17,
        input_names=["x"], dynamic_axes=axes,
    )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


# YOLOv8: convolutions with SiLU, blocks whose parts are joined, pooling of three reaches, a head
# that gives distributions of distances from points, which stand in the middle of each cell.


class _Conv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, size: int = 1, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False),
            nn.BatchNorm2d(outputs), nn.SiLU(),
        )  # fmt: skip


class _Block(nn.Module):
    """Halves, of which one goes through two convolutions and is added; all are joined."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.first, self.last = _Conv(channels, channels), _Conv(3 * half, channels)
        self.inner = nn.Sequential(_Conv(half, half, 3), _Conv(half, half, 3))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x).chunk(2, 1)
        return self.last(torch.cat((a, b, b + self.inner(b)), 1))  # type: ignore[no-any-return]


class _Reaches(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = _Conv(channels, channels // 2), _Conv(2 * channels, channels)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        many = [self.first(x)]
        for _ in range(3):
            many.append(self.pool(many[-1]))
        return self.last(torch.cat(many, 1))  # type: ignore[no-any-return]


class Yolo(nn.Module):
    """(N, 3, H, W) -> (N, 4 + classes, cells): boxes and scores, of two levels of strides 8, 16."""

    bins = 8

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(_Conv(3, channels, 3, 2), _Conv(channels, channels, 3, 2))
        self.fine = nn.Sequential(_Conv(channels, channels, 3, 2), _Block(channels))
        self.coarse = nn.Sequential(_Conv(channels, channels, 3, 2), _Reaches(channels))
        self.join = _Conv(2 * channels, channels)
        heads = (nn.Conv2d(channels, 4 * self.bins + CLASSES, 1) for _ in range(2))
        self.heads = nn.ModuleList(heads)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(self.stem(x))
        coarse = self.coarse(fine)
        wide = nn.functional.interpolate(coarse, scale_factor=2.0, mode="nearest")
        maps = [self.heads[0](self.join(torch.cat((wide, fine), 1))), self.heads[1](coarse)]
        flat = torch.cat([m.flatten(2) for m in maps], 2)
        spread, scores = flat.split((4 * self.bins, CLASSES), 1)
        spread = spread.view(x.shape[0], 4, self.bins, -1).softmax(2)
        apart = (spread * torch.arange(self.bins).float().view(1, 1, -1, 1)).sum(2)
        points, strides = self.points(maps)
        low, high = points - apart[:, :2], points + apart[:, 2:]
        boxes = torch.cat(((low + high) / 2, high - low), 1) * strides
        return torch.cat((boxes, scores.sigmoid()), 1)

    def points(self, maps: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The middles of cells as (x, y), and their strides."""
        points, strides = [], []
        for n, item in enumerate(maps):
            height, width = item.shape[2:]
            y, x = (torch.arange(end=d).float() + 0.5 for d in (height, width))
            y, x = torch.meshgrid(y, x, indexing="ij")
            points.append(torch.stack((x, y)).view(2, -1))
            strides.append(torch.full((1, height * width), 8.0 * 2**n))
        return torch.cat(points, 1), torch.cat(strides, 1)


def yolo(channels: int = 16) -> nn.Module:
    """The detector above, with random weights."""
    torch.manual_seed(3)
    return Yolo(channels).eval()
