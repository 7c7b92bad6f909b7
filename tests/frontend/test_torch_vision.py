"""torchvision's operators, of which the schemas alone are needed: an installed torchvision has
them, else they are declared here."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ekiden
from ekiden.frontend.torch.grid_sample_backward import grid_sample_backward

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt "
    "pooled_width, int sampling_ratio, bool aligned) -> Tensor",
    "deform_conv2d": "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, "
    "SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor",
}


def _nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    kept: list[int] = []
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for at in scores.argsort(descending=True).tolist():
        sides = [
            torch.minimum(boxes[at, 2:], boxes[k, 2:]) - torch.maximum(boxes[at, :2], boxes[k, :2])
            for k in kept
        ]
        shared = [s.clamp(min=0).prod() for s in sides]
        if all(
            s / (areas[at] + areas[k] - s) <= threshold for s, k in zip(shared, kept, strict=True)
        ):
            kept.append(at)
    return torch.tensor(kept)


@pytest.fixture(scope="module")
def library() -> object:
    """The operators, as far as nobody has them."""
    result = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            result.define(name + schema)
    if not torch._C._dispatch_has_kernel_for_dispatch_key("torchvision::nms", "Meta"):

        @torch.library.register_fake("torchvision::nms", lib=result)
        def _(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
            return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)

        @torch.library.register_fake("torchvision::roi_align", lib=result)
        def _(x: Tensor, rois: Tensor, scale: float, height: int, width: int, *_: object) -> Tensor:
            return x.new_empty(rois.shape[0], x.shape[1], height, width)

        @torch.library.register_fake("torchvision::deform_conv2d", lib=result)
        def _(x: Tensor, weight: Tensor, offset: Tensor, *_: object) -> Tensor:
            return x.new_empty(x.shape[0], weight.shape[0], *offset.shape[2:])

    return result


class Detector(nn.Module):
    """Boxes that stay, what is seen there, and a deformable convolution that deforms nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, padding=1, groups=2)

    def forward(self, x: Tensor, boxes: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        ops = torch.ops.torchvision
        kept = ops.nms(boxes, scores, 0.3)
        rois = torch.cat([torch.zeros_like(boxes[:, :1]), boxes], 1)[kept]
        seen = ops.roi_align(x, rois, 0.5, 2, 3, 2, True)
        offset = x.new_zeros(x.shape[0], 18, *x.shape[2:])
        mask = x.new_ones(x.shape[0], 9, *x.shape[2:])
        result = ops.deform_conv2d(x, self.conv.weight, offset, mask, self.conv.bias, 1, 1, 1, 1, 1,
                                 1, 2, 1, True)  # fmt: skip
        return kept, seen, result


def test_detector_operators_match_torchvision(library: object) -> None:
    torch.manual_seed(0)
    model = Detector().eval()
    x, low = torch.randn(1, 4, 12, 12), torch.rand(20, 2) * 12
    boxes, scores = torch.cat([low, low + 2 + torch.rand(20, 2) * 9], 1), torch.rand(20)
    exe = ekiden.compile(model, (x, boxes, scores))
    kept, seen, result = (torch.from_dlpack(item) for item in exe(x, boxes, scores))
    expected = _nms(boxes, scores, 0.3)
    assert 1 < len(expected) < 20
    torch.testing.assert_close(kept, expected)
    torch.testing.assert_close(result, model.conv(x), rtol=1e-4, atol=1e-5)
    # two samples along each side of a bin, between pixels as of a grid
    low, high = boxes[expected, :2] * 0.5 - 0.5, boxes[expected, 2:] * 0.5 - 0.5
    at = [(torch.arange(2 * n) + 0.5) / (2 * n) for n in (3, 2)]
    columns, rows = (low[:, i : i + 1] + (high - low)[:, i : i + 1] * at[i] for i in (0, 1))
    grid = torch.stack(
        [columns[:, None].expand(-1, 4, 6), rows[:, :, None].expand(-1, 4, 6)], -1
    ).clamp(0, 11)
    sampled = F.grid_sample(
        x.expand(len(expected), -1, -1, -1), grid / 11 * 2 - 1, align_corners=True
    )
    torch.testing.assert_close(seen, F.avg_pool2d(sampled, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("mode", "sizes"),
    [
        ("bilinear", (5, 4)),
        ("nearest", (5, 4)),
        ("bicubic", (5, 4)),
        ("bilinear", (3, 5, 4)),
        ("nearest", (3, 5, 4)),
    ],
)
def test_gradient_of_sampling_at_a_grid(mode: str, padding: str, sizes: tuple[int]) -> None:
    """Ours, by plain operators, and PyTorch's own, at places outside too."""
    places = torch.rand(2, *(2,) * len(sizes), len(sizes), dtype=torch.float64) * 2.6 - 1.3
    x, grid = torch.randn(2, 3, *sizes, dtype=torch.float64).requires_grad_(), places
    grid.requires_grad_()
    for align_corners in (False, True):
        argument = F.grid_sample(x, grid, mode, padding, align_corners)
        grad = torch.randn_like(argument)
        expected = torch.autograd.grad(argument, (x, grid), grad)
        kinds = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
        numbers = [names.index(name) for names, name in zip(kinds, (mode, padding), strict=True)]
        actual = grid_sample_backward(
            grad, x.detach(), grid.detach(), *numbers, align_corners, (True, True)
        )
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
