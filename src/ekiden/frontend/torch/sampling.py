"""The gradient of sampling at places of a grid, for which PyTorch has no definition by plain
operators. A sample is a sum over taps, the products of those of each axis. Meanings after
aten/src/ATen/native/GridSampler (PyTorch 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from operator import and_, mul
from typing import NamedTuple

import torch
from torch import Tensor

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


class Tap(NamedTuple):
    """An element along an axis: where it is, what it counts, how that changes with the place."""

    at: Tensor
    weight: Tensor
    slope: Tensor


class Axis(NamedTuple):
    """How an axis of `size` elements is read."""

    size: int
    padding: int
    align_corners: bool

    def scale(self) -> float:
        """Elements that a place moves with its coordinate, which goes from -1 to 1."""
        return (self.size - 1) / 2 if self.align_corners else self.size / 2

    def place(self, coordinate: Tensor) -> Tensor:
        """In elements."""
        return coordinate * self.scale() + (self.size - 1) / 2

    def kept(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """A place as the padding moves it, and how fast it moves there: 1, 0 or -1."""
        turn = torch.ones_like(place)
        if self.padding == ZEROS:
            return place, turn
        if self.padding == REFLECTION:
            place, turn = self._reflected(place)
        outside = (place <= 0) | (place >= self.size - 1)
        return place.clamp(0, self.size - 1), torch.where(outside, 0.0, turn)

    def _reflected(self, place: Tensor) -> tuple[Tensor, Tensor]:
        first, span = (0.0, self.size - 1) if self.align_corners else (-0.5, self.size)
        if not span:
            return torch.zeros_like(place), torch.zeros_like(place)
        away = place - first
        sign = torch.where(away < 0, -1.0, 1.0)
        rest = torch.remainder(away.abs(), 2 * span)
        is_back = rest >= span
        return torch.where(is_back, 2 * span - rest, rest) + first, torch.where(
            is_back, -sign, sign
        )

    def taps(self, coordinate: Tensor, mode: int) -> list[Tap]:
        """What a sample is made of, slopes by the coordinate."""
        place, scale = self.place(coordinate), self.scale()
        if mode == BICUBIC:
            low = place.floor()
            return [
                Tap(self.kept(low + step)[0], *_cubic(place - low - step, scale))
                for step in range(-1, 3)
            ]
        place, turn = self.kept(place)
        if mode == NEAREST:
            return [Tap(place.round(), torch.ones_like(place), torch.zeros_like(place))]
        low, turn = place.floor(), turn * scale
        return [Tap(low, low + 1 - place, -turn), Tap(low + 1, place - low, turn)]


def _cubic(away: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Keys' kernel with a = -3/4 at a distance below 2, and its slope."""
    size, a = away.abs(), -0.75
    near = ((a + 2) * size - (a + 3)) * size * size + 1
    far = ((a * size - 5 * a) * size + 8 * a) * size - 4 * a
    near_slope = (3 * (a + 2) * size - 2 * (a + 3)) * size
    far_slope = (3 * a * size - 10 * a) * size + 8 * a
    slope = torch.where(size <= 1, near_slope, far_slope) * away.sign()
    return torch.where(size <= 1, near, far), slope * scale


def grid_sample(
    grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool,
    mask: Sequence[bool],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`aten::grid_sampler_2d_backward` and that of 3-D: of the data (N, C, sizes), and of the grid
    (N, places, coordinates, the last size's first). `mask` says which is used."""
    sizes = x.shape[2:]
    axes = [Axis(n, padding, align_corners) for n in sizes]
    taps = [each.taps(grid[..., -1 - d], mode) for d, each in enumerate(axes)]
    flat, given = x.flatten(2), grad.flatten(2)
    of_data = torch.zeros_like(flat)
    of_grid = [torch.zeros_like(grid[..., 0]) for _ in axes]
    for chosen in product(*taps):
        pairs = list(zip(chosen, sizes, strict=True))
        inside = reduce(and_, [(tap.at >= 0) & (tap.at < size) for tap, size in pairs])
        at = reduce(lambda whole, pair: whole * pair[1] + pair[0].at, pairs[1:], chosen[0].at)
        index = torch.where(inside, at, 0.0).to(torch.int64).flatten(1).unsqueeze(1)
        index = index.expand(given.shape)
        met = (given * flat.gather(2, index)).sum(1).reshape(inside.shape)
        met = torch.where(inside, met, 0.0)
        weight = torch.where(inside, reduce(mul, [tap.weight for tap in chosen]), 0.0)
        of_data = of_data.scatter_add(2, index, given * weight.flatten(1).unsqueeze(1))
        for d, tap in enumerate(chosen):
            others = [other.weight for other in chosen if other is not tap]
            of_grid[d] = of_grid[d] + met * reduce(mul, others, tap.slope)
    return of_data.reshape(x.shape), torch.stack(of_grid[::-1], -1)
