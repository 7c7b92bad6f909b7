"""Adjoints (gradients) of pooling, resizing, padding and distances, which PyTorch does not
decompose. Each is linear along every axis by itself: element o of a result is the sum of
`weights[o, k]` times element `places[o, k]`, so the gradient of an element is the sum of where it
went. Meanings after aten/src/ATen/native (PyTorch 2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ekiden.frontend.torch.grid_sample_backward import grid_sample_backward
from ekiden.frontend.torch.overloads import overload_table


class SparseAxisMap(NamedTuple):
    """Sparse linear map along an axis: indices and weights of its terms, both [results, terms]."""

    indices: Tensor
    weights: Tensor


def apply_adjoint(grad: Tensor, sizes: Sequence[int], maps: Sequence[SparseAxisMap]) -> Tensor:
    """Return the gradient of an input whose last axes, of `sizes`, passed through linear maps."""
    first = grad.dim() - len(maps)
    for index, (size, (indices, weights)) in enumerate(zip(sizes, maps, strict=True)):
        axis = first + index
        shape = [*indices.shape, *[1] * (len(maps) - 1 - index)]
        terms = grad.unsqueeze(axis + 1) * weights.to(grad.dtype).reshape(shape)
        zeros = grad.new_zeros((*grad.shape[:axis], size, *grad.shape[axis + 1 :]))
        # The transpose of a gather is an accumulating scatter: an element read by several results
        # receives the sum of their gradients.
        grad = zeros.index_add(axis, indices.flatten(), terms.flatten(axis, axis + 1))
    return grad


def _mask_out_of_bounds_indices(indices: Tensor, size: int, weights: Tensor) -> SparseAxisMap:
    """Return the map with indices clamped to the axis and the weights of outside ones set to 0."""
    # Clamped with weight 0 instead of dropped: index_add needs a rectangular index.
    inside = (indices >= 0) & (indices < size)
    return SparseAxisMap(indices.clamp(0, size - 1), torch.where(inside, weights, 0.0))


def _per_axis(values: Sequence[int], rank: int, default: Sequence[int] = ()) -> Sequence[int]:
    per_axis = list(values) or list(default)
    return per_axis * rank if len(per_axis) == 1 else per_axis


def _avg_pool_backward(
    rank: int, grad: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, count_include_pad: bool, divisor: int | None,
) -> Tensor:  # fmt: skip
    """Return `aten::avg_pool{2,3}d_backward` over the last `rank` axes."""
    sizes = x.shape[-rank:]
    windows = _per_axis(kernel, rank)
    maps = []
    for size, out, window, step, side in zip(
        sizes, grad.shape[-rank:], windows,
        _per_axis(stride, rank, windows), _per_axis(padding, rank), strict=True,
    ):  # fmt: skip
        starts = torch.arange(out).unsqueeze(1) * step - side
        indices = starts + torch.arange(window)
        # count_include_pad counts explicit padding in the divisor, but never elements beyond it
        # that ceil_mode adds.
        low, high = (0, size) if not count_include_pad else (-side, size + side)
        count = ((indices >= low) & (indices < high)).sum(1, keepdim=True).clamp(min=1)
        weights = torch.ones_like(count, dtype=torch.float64) / (1 if divisor else count)
        maps.append(_mask_out_of_bounds_indices(indices, size, weights.expand(indices.shape)))
    return apply_adjoint(grad / divisor if divisor else grad, sizes, maps)


def _adaptive_avg_pool_backward(rank: int, grad: Tensor, x: Tensor) -> Tensor:
    """Return `aten::_adaptive_avg_pool{2,3}d_backward`, whose bins differ in length."""
    sizes, maps = x.shape[-rank:], []
    for size, out in zip(sizes, grad.shape[-rank:], strict=True):
        position = torch.arange(out).unsqueeze(1)
        start, end = position * size // out, ((position + 1) * size + out - 1) // out
        # A bin spans at most size // out + 2 elements, as both of its ends are rounded outward.
        indices = start + torch.arange(size // out + 2)
        weights = (indices < end) / (end - start).double()
        maps.append(_mask_out_of_bounds_indices(indices, size, weights))
    return apply_adjoint(grad, sizes, maps)


def _index_map(indices: Tensor) -> SparseAxisMap:
    column = indices.unsqueeze(1)
    return SparseAxisMap(column, torch.ones_like(column, dtype=torch.float64))


def _make_nearest_backward(center: float) -> Callable[..., Tensor]:
    """Return the backward function of nearest-neighbour resizing; output i reads floor((i + center)
    * scale).
    """

    def backward(
        grad: Tensor, output_size: Sequence[int], input_size: Sequence[int],
        *scales: float | None, **named: float | None,
    ) -> Tensor:  # fmt: skip
        """Return the sum of the gradients of all output pixels that read each input pixel."""
        maps = []
        factors = [*scales, *named.values()]
        for index, (size, out) in enumerate(zip(input_size[2:], output_size, strict=True)):
            factor = factors[index] if index < len(factors) else None
            scale = 1 / factor if factor else size / out
            # The forward rule of ATen: floor(i * scale), or floor((i + 0.5) * scale) for the exact
            # variant.
            indices = ((torch.arange(out) + center) * scale).floor().to(torch.int64)
            maps.append(_index_map(indices.clamp(max=size - 1)))
        return apply_adjoint(grad, input_size[2:], maps)

    return backward


def _replication_pad_backward(grad: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
    """Return `aten::replication_pad{1,2,3}d_backward`; `padding` lists the last axis first."""
    rank = len(padding) // 2
    sizes = x.shape[-rank:]
    # PyTorch lists paddings from the last axis to the first.
    befores = [padding[2 * (rank - 1 - position)] for position in range(rank)]
    maps = [
        _index_map((torch.arange(out) - before).clamp(0, size - 1))
        for size, out, before in zip(sizes, grad.shape[-rank:], befores, strict=True)
    ]
    return apply_adjoint(grad, sizes, maps)


def make_antialias_backward(weights: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the backward function of a separable resizing by matrices `weights(size, out,
    align_corners, scale)`.
    """

    def backward(
        grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], align_corners: bool,
        scales_h: float | None = None, scales_w: float | None = None,
    ) -> Tensor:  # fmt: skip
        """Return rows' grad columns, the transpose of rows x columns'."""
        settings = zip(input_size[2:], output_size, (scales_h, scales_w), strict=True)
        rows, columns = (weights(s, o, align_corners, f).to(grad.dtype) for s, o, f in settings)
        return torch.matmul(rows.T, torch.matmul(grad, columns))

    return backward


def cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, distances: Tensor) -> Tensor:
    """Return `aten::_cdist_backward` with respect to x1; it is 0 where two points coincide."""
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    size, far = apart.abs(), distances.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(x1)
    if p == 1:
        # d|x| / dx is the sign; at 0 the subgradient 0 is taken, as in ATen.
        slopes = apart.sign()
    elif p == float("inf"):
        slopes = apart.sign() * (size == far)
    else:
        powers = apart if p == 2 else apart.sign() * size.pow(p - 1)
        slopes = torch.where(far == 0, 0.0, powers / far.pow(p - 1))
    return (grad.unsqueeze(-1) * slopes).sum(-2)


ADJOINTS: dict[torch._ops.OpOverload, Callable[..., Any]] = overload_table(
    {
        "avg_pool2d_backward.default": partial(_avg_pool_backward, 2),
        "avg_pool3d_backward.default": partial(_avg_pool_backward, 3),
        "_adaptive_avg_pool2d_backward.default": partial(_adaptive_avg_pool_backward, 2),
        "_adaptive_avg_pool3d_backward.default": partial(_adaptive_avg_pool_backward, 3),
        "upsample_nearest1d_backward.default": _make_nearest_backward(0.0),
        "upsample_nearest2d_backward.default": _make_nearest_backward(0.0),
        "upsample_nearest3d_backward.default": _make_nearest_backward(0.0),
        "_upsample_nearest_exact1d_backward.default": _make_nearest_backward(0.5),
        "_upsample_nearest_exact2d_backward.default": _make_nearest_backward(0.5),
        "_upsample_nearest_exact3d_backward.default": _make_nearest_backward(0.5),
        "replication_pad1d_backward.default": _replication_pad_backward,
        "replication_pad2d_backward.default": _replication_pad_backward,
        "replication_pad3d_backward.default": _replication_pad_backward,
        "_cdist_backward.default": cdist_backward,
        "grid_sampler_2d_backward.default": grid_sample_backward,
        "grid_sampler_3d_backward.default": grid_sample_backward,
    }
)
"""Operator -> what it is made of."""
