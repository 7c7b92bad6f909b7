"""Gradient of grid sampling, which PyTorch does not decompose. A sample is a sum over taps, whose
weights are products over the axes. Semantics: aten/src/ATen/native/GridSampler (PyTorch 2).
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


class SampleTap(NamedTuple):
    """Element read along an axis: its index, its weight, and the weight's derivative by the
    coordinate.
    """

    element_index: Tensor
    weight: Tensor
    weight_derivative: Tensor


class SampledAxis(NamedTuple):
    """Sampled axis of `size` elements with its padding mode."""

    size: int
    padding: int
    align_corners: bool

    def elements_per_unit(self) -> float:
        """Return the elements that a unit step of the coordinate, in [-1, 1], moves."""
        return (self.size - 1) / 2 if self.align_corners else self.size / 2

    def unnormalize(self, coordinate: Tensor) -> Tensor:
        """Return the position, in elements, of a coordinate in [-1, 1]."""
        return coordinate * self.elements_per_unit() + (self.size - 1) / 2

    def apply_padding_mode(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the padding mode to a position; return it and its derivative, 1, 0 or -1."""
        slope = torch.ones_like(position)
        if self.padding == ZEROS:
            return position, slope
        if self.padding == REFLECTION:
            position, slope = self._reflect_position(position)
        # Clamped positions do not move with the grid, so their gradient is 0.
        outside = (position <= 0) | (position >= self.size - 1)
        return position.clamp(0, self.size - 1), torch.where(outside, 0.0, slope)

    def _reflect_position(self, position: Tensor) -> tuple[Tensor, Tensor]:
        first, span = (0.0, self.size - 1) if self.align_corners else (-0.5, self.size)
        if not span:
            return torch.zeros_like(position), torch.zeros_like(position)
        away = position - first
        sign = torch.where(away < 0, -1.0, 1.0)
        # Reflection has the period 2 * span; the second half runs backwards.
        folded = torch.remainder(away.abs(), 2 * span)
        is_back = folded >= span
        return torch.where(is_back, 2 * span - folded, folded) + first, torch.where(
            is_back, -sign, sign
        )

    def sample_taps(self, coordinate: Tensor, mode: int) -> list[SampleTap]:
        """Return the taps of a sample, with slopes by the coordinate."""
        position, scale = self.unnormalize(coordinate), self.elements_per_unit()
        if mode == BICUBIC:
            low = position.floor()
            return [
                # Bicubic sampling pads each tap by itself, the other modes the position.
                SampleTap(
                    self.apply_padding_mode(low + step)[0],
                    *_cubic_weight(position - low - step, scale),
                )
                for step in range(-1, 3)
            ]
        position, slope = self.apply_padding_mode(position)
        if mode == NEAREST:
            return [
                SampleTap(position.round(), torch.ones_like(position), torch.zeros_like(position))
            ]
        low, slope = position.floor(), slope * scale
        return [
            SampleTap(low, low + 1 - position, -slope),
            SampleTap(low + 1, position - low, slope),
        ]


def _cubic_weight(away: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return Keys' cubic kernel with a = -3/4 at a distance below 2, and its slope."""
    size, a = away.abs(), -0.75
    near = ((a + 2) * size - (a + 3)) * size * size + 1
    far = ((a * size - 5 * a) * size + 8 * a) * size - 4 * a
    near_slope = (3 * (a + 2) * size - 2 * (a + 3)) * size
    far_slope = (3 * a * size - 10 * a) * size + 8 * a
    slope = torch.where(size <= 1, near_slope, far_slope) * away.sign()
    return torch.where(size <= 1, near, far), slope * scale


def grid_sample_backward(
    grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool,
    mask: Sequence[bool],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return `aten::grid_sampler_{2,3}d_backward`: the gradients of data and grid.

    The data are (N, C, sizes), the grid (N, positions, coordinates, the last axis first). `mask`
    tells which gradients are used; both are computed.
    """
    sizes = x.shape[2:]
    axes = [SampledAxis(n, padding, align_corners) for n in sizes]
    taps = [axis.sample_taps(grid[..., -1 - d], mode) for d, axis in enumerate(axes)]
    flat, flat_grad = x.flatten(2), grad.flatten(2)
    of_data = torch.zeros_like(flat)
    of_grid = [torch.zeros_like(grid[..., 0]) for _ in axes]
    for chosen in product(*taps):
        pairs = list(zip(chosen, sizes, strict=True))
        inside = reduce(
            and_, [(tap.element_index >= 0) & (tap.element_index < size) for tap, size in pairs]
        )
        position = reduce(
            lambda joined, pair: joined * pair[1] + pair[0].element_index,
            pairs[1:],
            chosen[0].element_index,
        )
        index = torch.where(inside, position, 0.0).to(torch.int64).flatten(1).unsqueeze(1)
        index = index.expand(flat_grad.shape)
        met = (flat_grad * flat.gather(2, index)).sum(1).reshape(inside.shape)
        met = torch.where(inside, met, 0.0)
        weight = torch.where(inside, reduce(mul, [tap.weight for tap in chosen]), 0.0)
        of_data = of_data.scatter_add(2, index, flat_grad * weight.flatten(1).unsqueeze(1))
        for d, tap in enumerate(chosen):
            other_weights = [other_tap.weight for other_tap in chosen if other_tap is not tap]
            of_grid[d] = of_grid[d] + met * reduce(mul, other_weights, tap.weight_derivative)
    return of_data.reshape(x.shape), torch.stack(of_grid[::-1], -1)
