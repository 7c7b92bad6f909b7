"""Gradients of poolings, resizings and borders, for which PyTorch has no definition by plain
operators. Each is linear along every axis by itself: element o of a result is the sum of
`weights[o, k]` times element `places[o, k]`, so the gradient of an element is the sum of where it
went. Meanings after aten/src/ATen/native (PyTorch 2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ekiden.frontend.torch.sampling import grid_sample


class Along(NamedTuple):
    """What the results along an axis are made of, both (results, terms)."""

    places: Tensor
    weights: Tensor


def adjoint(grad: Tensor, sizes: Sequence[int], maps: Sequence[Along]) -> Tensor:
    """The gradient of an input whose last axes, of `sizes`, went through `maps`."""
    first = grad.dim() - len(maps)
    for at, (size, (places, weights)) in enumerate(zip(sizes, maps, strict=True)):
        axis = first + at
        shape = [*places.shape, *[1] * (len(maps) - 1 - at)]
        parts = grad.unsqueeze(axis + 1) * weights.to(grad.dtype).reshape(shape)
        zeros = grad.new_zeros((*grad.shape[:axis], size, *grad.shape[axis + 1 :]))
        grad = zeros.index_add(axis, places.flatten(), parts.flatten(axis, axis + 1))
    return grad


def _within(places: Tensor, size: int, weights: Tensor) -> Along:
    """Without the places that are outside of the axis."""
    inside = (places >= 0) & (places < size)
    return Along(places.clamp(0, size - 1), torch.where(inside, weights, 0.0))


def _every(values: Sequence[int], rank: int, default: Sequence[int] = ()) -> Sequence[int]:
    given = list(values) or list(default)
    return given * rank if len(given) == 1 else given


def _average(
    rank: int, grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, count_include_pad: bool, divisor: int | None,
) -> Tensor:  # fmt: skip
    """`aten::avg_pool2d_backward`, `aten::avg_pool3d_backward`: what `rank` says."""
    sizes = x.shape[-rank:]
    windows = _every(kernel, rank)
    maps = []
    for size, out, window, step, side in zip(
        sizes, grad.shape[-rank:], windows, _every(stride, rank, windows), _every(padding, rank),
        strict=True,
    ):  # fmt: skip
        starts = torch.arange(out).unsqueeze(1) * step - side
        places = starts + torch.arange(window)
        low, high = (0, size) if not count_include_pad else (-side, size + side)
        count = ((places >= low) & (places < high)).sum(1, keepdim=True).clamp(min=1)
        weights = torch.ones_like(count, dtype=torch.float64) / (1 if divisor else count)
        maps.append(_within(places, size, weights.expand(places.shape)))
    return adjoint(grad / divisor if divisor else grad, sizes, maps)


def _adaptive_average(rank: int, grad: Tensor, x: Tensor) -> Tensor:
    """`aten::_adaptive_avg_pool2d_backward` and that over three axes: windows of any lengths."""
    sizes, maps = x.shape[-rank:], []
    for size, out in zip(sizes, grad.shape[-rank:], strict=True):
        at = torch.arange(out).unsqueeze(1)
        start, end = at * size // out, ((at + 1) * size + out - 1) // out
        places = start + torch.arange(size // out + 2)
        weights = (places < end) / (end - start).double()
        maps.append(_within(places, size, weights))
    return adjoint(grad, sizes, maps)


def _picked(places: Tensor) -> Along:
    column = places.unsqueeze(1)
    return Along(column, torch.ones_like(column, dtype=torch.float64))


def _nearest(center: float) -> Callable[..., Tensor]:
    """Each pixel from one: that at floor((i + center) * scale)."""

    def backward(
        grad: Tensor, output_size: Sequence[int], input_size: Sequence[int],
        *scales: float | None, **named: float | None,
    ) -> Tensor:  # fmt: skip
        """The sum of the gradients of all pixels that were made from a pixel: two products with
        matrices of zeros and ones.
        """
        maps = []
        given = [*scales, *named.values()]
        for at, (size, out) in enumerate(zip(input_size[2:], output_size, strict=True)):
            factor = given[at] if at < len(given) else None
            scale = 1 / factor if factor else size / out
            places = ((torch.arange(out) + center) * scale).floor().to(torch.int64)
            maps.append(_picked(places.clamp(max=size - 1)))
        return adjoint(grad, input_size[2:], maps)

    return backward


def _replicated(grad: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
    """`aten::replication_pad2d_backward` and its kin: the last axis is the first in `padding`."""
    rank = len(padding) // 2
    sizes = x.shape[-rank:]
    befores = [padding[2 * (rank - 1 - at)] for at in range(rank)]
    maps = [
        _picked((torch.arange(out) - before).clamp(0, size - 1))
        for size, out, before in zip(sizes, grad.shape[-rank:], befores, strict=True)
    ]
    return adjoint(grad, sizes, maps)


def antialiased(weights: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """That of a resizing by matrices, `weights(size, out, align_corners, scale)`: their products
    the other way."""

    def backward(
        grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], align_corners: bool,
        scales_h: float | None = None, scales_w: float | None = None,
    ) -> Tensor:  # fmt: skip
        """rows' @ grad @ columns, the transpose of rows @ x @ columns'."""
        given = zip(input_size[2:], output_size, (scales_h, scales_w), strict=True)
        rows, columns = (weights(s, o, align_corners, f).to(grad.dtype) for s, o, f in given)
        return torch.matmul(rows.T, torch.matmul(grad, columns))

    return backward


def cdist(grad: Tensor, x1: Tensor, x2: Tensor, p: float, distances: Tensor) -> Tensor:
    """`aten::_cdist_backward`, of x1; 0 where points are one."""
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    size, far = apart.abs(), distances.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(x1)
    if p == 1:
        slopes = apart.sign()
    elif p == float("inf"):
        slopes = apart.sign() * (size == far)
    else:
        powers = apart if p == 2 else apart.sign() * size.pow(p - 1)
        slopes = torch.where(far == 0, 0.0, powers / far.pow(p - 1))
    return (grad.unsqueeze(-1) * slopes).sum(-2)


aten = torch.ops.aten
ADJOINTS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten.avg_pool2d_backward.default: partial(_average, 2),
    aten.avg_pool3d_backward.default: partial(_average, 3),
    aten._adaptive_avg_pool2d_backward.default: partial(_adaptive_average, 2),
    aten._adaptive_avg_pool3d_backward.default: partial(_adaptive_average, 3),
    aten.upsample_nearest1d_backward.default: _nearest(0.0),
    aten.upsample_nearest2d_backward.default: _nearest(0.0),
    aten.upsample_nearest3d_backward.default: _nearest(0.0),
    aten._upsample_nearest_exact1d_backward.default: _nearest(0.5),
    aten._upsample_nearest_exact2d_backward.default: _nearest(0.5),
    aten._upsample_nearest_exact3d_backward.default: _nearest(0.5),
    aten.replication_pad1d_backward.default: _replicated,
    aten.replication_pad2d_backward.default: _replicated,
    aten.replication_pad3d_backward.default: _replicated,
    aten._cdist_backward.default: cdist,
    aten.grid_sampler_2d_backward.default: grid_sample,
    aten.grid_sampler_3d_backward.default: grid_sample,
}
"""Operator -> what it is made of."""
