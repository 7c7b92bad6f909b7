"""Decompositions of ATen operators that PyTorch does not decompose.

Semantics follow aten/src/ATen/native (PyTorch 2); the arguments are those of the operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ekiden.frontend.torch import special_functions
from ekiden.frontend.torch.adjoints import ADJOINTS, make_antialias_backward
from ekiden.frontend.torch.incomplete_gamma import igamma, igammac
from ekiden.frontend.torch.meta_kernels import is_vector_rhs
from ekiden.frontend.torch.overloads import overload_table
from ekiden.frontend.torch.selection_decompositions import (
    SELECTION_DECOMPOSITIONS,
    broadcast_tensors,
)
from ekiden.frontend.torch.transformer_decompositions import (
    multi_head_attention,
    transformer_encoder_layer,
)

SUM, MEAN, MAX = range(3)
"""What an embedding bag makes of its rows."""


def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    """Return `aten::_cdist_forward`: distances (..., rows of x1, rows of x2) by the norm of order
    p.
    """
    apart = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).abs()
    if p == 0:
        return (apart != 0).to(apart.dtype).sum(-1)
    if p == 1:
        return apart.sum(-1)
    if p == 2:
        # Differences are squared directly: the expansion by products cancels for close rows.
        return (apart * apart).sum(-1).sqrt()
    return apart.amax(-1) if math.isinf(p) else apart.pow(p).sum(-1).pow(1 / p)


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return `aten::_embedding_bag`: sums, means or maxima of rows per bag; the bag of each index,
    bag sizes, and argmax rows.
    """
    begins = offsets[:-1] if include_last_offset else offsets
    count, columns = begins.shape[0], weight.shape[1]
    # An index belongs to the last bag that begins at or before it; empty bags have equal begins.
    bag = torch.searchsorted(begins, torch.arange(indices.shape[0]), right=True) - 1
    rows, is_counted = weight[indices], torch.ones_like(indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    if padding_idx >= 0:
        is_counted = (indices != padding_idx).to(indices.dtype)
    sizes = torch.zeros(count, dtype=indices.dtype).index_add(0, bag, is_counted)
    # Rows at padding_idx count neither in the reduction nor in the bag's size.
    hidden = (is_counted == 0).unsqueeze(1)
    if mode == MAX:
        largest, from_rows = _bag_maxima(rows, indices, bag, sizes, hidden)
        return largest, bag, sizes, from_rows
    bags = rows.new_zeros((count, columns)).index_add(0, bag, rows.masked_fill(hidden, 0.0))
    if mode == MEAN:
        bags = bags / sizes.clamp(min=1).unsqueeze(1)
    return bags, bag, sizes, torch.zeros_like(sizes)


def _bag_maxima(
    rows: Tensor, indices: Tensor, bag: Tensor, sizes: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the maxima of each bag and the index of the first row that has each; 0 for
    empty bags.
    """
    shape = sizes.shape[0], rows.shape[1]
    is_empty = (sizes == 0).unsqueeze(1)
    bag_index = bag.unsqueeze(1).expand(-1, shape[1])
    low = rows.masked_fill(hidden, float("-inf"))
    largest = rows.new_full(shape, float("-inf")).scatter_reduce(0, bag_index, low, "amax")
    is_largest = (low == largest[bag]) & ~hidden
    last = max(rows.shape[0] - 1, 0)
    positions = torch.arange(rows.shape[0]).unsqueeze(1).expand_as(rows)
    # ATen reports the first row that attains the maximum: the minimum over the positions of all
    # ties.
    positions = torch.where(is_largest, positions, last)
    first = indices.new_full(shape, last).scatter_reduce(0, bag_index, positions, "amin")
    from_rows = indices[first].masked_fill(is_empty, 0)
    return largest.masked_fill(is_empty, 0.0), from_rows


def embedding_bag_dense_backward(
    grad: Tensor,
    indices: Tensor,
    bag: Tensor,
    sizes: Tensor,
    from_rows: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """Return `aten::_embedding_bag_dense_backward`: [num_weights, columns]."""
    zeros = grad.new_zeros((num_weights, grad.shape[1]))
    if mode == MAX:
        filled = grad.masked_fill((sizes == 0).unsqueeze(1), 0.0)
        return zeros.scatter_add(0, from_rows, filled)
    row_grads = grad[bag]
    if mode == MEAN:
        row_grads = row_grads / sizes[bag].clamp(min=1).unsqueeze(1)
    if per_sample_weights is not None:
        row_grads = row_grads * per_sample_weights.unsqueeze(1)
    if scale_grad_by_freq:
        # scale_grad_by_freq divides a row's gradient by how often the row occurs in the batch.
        counts = indices.new_zeros(num_weights).index_add(0, indices, torch.ones_like(indices))
        row_grads = row_grads / counts[indices].unsqueeze(1)
    if padding_idx >= 0:
        row_grads = row_grads.masked_fill((indices == padding_idx).unsqueeze(1), 0.0)
    return zeros.index_add(0, indices, row_grads)


def embedding_bag_backward_dispatch(
    grad: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, sizes: Tensor, from_rows: Tensor,
    num_weights: int, scale_grad_by_freq: bool, mode: int, sparse: bool,
    per_sample_weights: Tensor | None, padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    """Return `aten::_embedding_bag_backward`, for dense gradients; sparse ones and those scaled by
    frequency are left to PyTorch.
    """
    if sparse or scale_grad_by_freq:
        return NotImplemented  # type: ignore[no-any-return]  # as a decomposition refuses
    return embedding_bag_dense_backward(
        grad, indices, bag, sizes, from_rows, num_weights, scale_grad_by_freq, mode,
        per_sample_weights, padding_idx,
    )  # fmt: skip


def per_sample_weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, mode: int,
    padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    """Return `aten::_embedding_bag_per_sample_weights_backward`: [indices]."""
    products = (grad[bag] * weight[indices]).sum(1)
    return products.masked_fill(indices == padding_idx, 0.0) if padding_idx >= 0 else products


def lstsq(
    a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, ...]:
    """Return `aten::linalg_lstsq` by SVD: the minimum-norm least-squares solution.

    Residuals, rank and singular values are empty for drivers that do not return them.
    """
    rows, columns = a.shape[-2:]
    right = b.unsqueeze(-1) if is_vector_rhs(a, b) else b
    left_vectors, values, turned = torch.linalg.svd(a, full_matrices=False)
    # The default rcond of torch.linalg.lstsq: machine epsilon times the larger dimension.
    limit = torch.finfo(a.dtype).eps * max(rows, columns) if rcond is None else rcond
    is_kept = values > limit * values.amax(-1, keepdim=True)
    inverse = torch.where(is_kept, 1 / values, 0.0).unsqueeze(-1)
    minimum_norm = turned.mT @ (inverse * (left_vectors.mT @ right))
    none = a.new_zeros((0,))
    residuals = (right - a @ minimum_norm).square().sum(-2)
    rank = is_kept.sum(-1)
    solution = minimum_norm.squeeze(-1) if right is not b else minimum_norm
    # Each LAPACK driver returns another subset of residuals, rank and singular values.
    if driver == "gels":
        return solution, residuals if rows > columns else none, none.to(torch.int64), none
    return solution, none, rank, none if driver in (None, "gelsy") else values


def unfold_backward(
    grad: Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int
) -> Tensor:
    """Return `aten::unfold_backward`: overlapping windows accumulated at their positions."""
    axis = dim % len(input_sizes) if input_sizes else 0
    positions = (torch.arange(grad.shape[axis]) * step).unsqueeze(1) + torch.arange(size)
    together = grad.movedim(-1, axis + 1).flatten(axis, axis + 1)
    return grad.new_zeros(input_sizes).index_add(axis, positions.flatten(), together)


def median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return `aten::median.dim`: the lower median and its index; NaN if any element is NaN."""
    if not x.dim():
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    ordered, indices = x.sort(dim=dim, stable=True)
    middle = (x.shape[dim] - 1) // 2
    if x.dtype.is_floating_point:
        # Sorting puts NaN last, so the first of them is at size - count.
        count = x.isnan().sum(dim, keepdim=True)
        position = torch.where(count > 0, x.shape[dim] - count, middle)
    else:
        position = torch.full_like(ordered.narrow(dim, 0, 1), middle, dtype=torch.int64)
    values, where = ordered.gather(dim, position), indices.gather(dim, position)
    return (values, where) if keepdim else (values.squeeze(dim), where.squeeze(dim))


def median_all(x: Tensor) -> Tensor:
    """Return `aten::median`, the lower median of all elements."""
    return median(x.flatten(), 0)[0]


def lcm(x: Tensor, y: Tensor) -> Tensor:
    """Return `aten::lcm`, |x / gcd(x, y) * y|; 0 where either is 0."""
    common = torch.gcd(x, y)
    # Division before the product keeps it from overflowing; the clamp avoids 0 / 0 for lcm(0, 0).
    return (torch.div(x, common.clamp(min=1), rounding_mode="trunc") * y).abs()


def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return `aten::frexp`: (mantissa in [0.5, 1), exponent as int32); exponent 0 for 0, infinities
    and NaN.
    """
    wide = x.double()
    plain = (wide != 0) & wide.isfinite()
    size = torch.where(plain, wide.abs(), 1.0)
    power = size.log2().floor() + 1
    # log2 rounds near powers of two: correct the exponent by one in either direction.
    power = torch.where(size * torch.exp2(-power) >= 1, power + 1, power)
    power = torch.where(size * torch.exp2(-power) < 0.5, power - 1, power)
    mantissa = torch.where(plain, wide * torch.exp2(-power), wide)
    return mantissa.to(x.dtype), torch.where(plain, power, 0.0).to(torch.int32)


def uniform(x: Tensor, low: float = 0.0, high: float = 1.0, generator: object = None) -> Tensor:
    """Return `aten::uniform`: uniform random numbers in [low, high) with the shape and dtype of
    `x`.
    """
    return torch.rand_like(x) * (high - low) + low


def normal(x: Tensor, mean: float = 0.0, std: float = 1.0, generator: object = None) -> Tensor:
    """Return `aten::normal_functional`: normal random numbers with the shape and dtype of `x`."""
    return torch.randn_like(x) * std + mean


def normal_tensor(
    mean: Tensor | float, std: Tensor | float = 1.0, generator: object = None
) -> Tensor:
    """Return `aten::normal` with a tensor as mean or standard deviation."""
    sizes = [v for v in (mean, std) if isinstance(v, Tensor)]
    like = broadcast_tensors(*sizes)[0]
    return torch.randn_like(like) * std + mean


def normal_float(
    mean: float, std: float, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: object
) -> Tensor:
    """Return `aten::normal.float_float`: normal random numbers of shape `size`."""
    return torch.randn(size, dtype=dtype) * std + mean


def _linear_kernel(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _keys_cubic_kernel(x: Tensor) -> Tensor:
    """Return Keys' cubic kernel with a = -1/2, the one of antialiased resizing."""
    size = x.abs()
    # Keys (1981), "Cubic convolution interpolation for digital image processing".
    near = (1.5 * size - 2.5) * size * size + 1
    far = ((-0.5 * size + 2.5) * size - 4) * size + 2
    return torch.where(size < 1, near, torch.where(size < 2, far, torch.zeros_like(size)))


def _antialias_weights(
    kernel: Callable[[Tensor], Tensor], reach: float, size: int, out: int, align_corners: bool,
    scale_factor: float | None,
) -> Tensor:  # fmt: skip
    """Return the [out, size] resampling matrix of an antialiasing kernel, which shrinking
    widens.
    """
    if align_corners:
        scale = (size - 1) / (out - 1) if out > 1 else 0.0
    else:
        scale = 1 / scale_factor if scale_factor else size / out
    # The kernel is widened only when shrinking; enlarging uses it as it is, without antialiasing.
    wide = max(scale, 1.0)
    # Half-pixel centers, as in Pillow, whose filters ATen reproduces.
    center = (scale * (torch.arange(out) + 0.5)).unsqueeze(1)
    positions = torch.arange(size).unsqueeze(0)
    first = (center - reach * wide + 0.5).clamp(min=0).floor()
    last = (center + reach * wide + 0.5).floor()
    weights = kernel((positions - center + 0.5) / wide)
    weights = weights * ((positions >= first) & (positions < last))
    return weights / weights.sum(1, keepdim=True)


def _make_antialiased_resize(weights: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def resize(
        x: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        """Resize [N, C, height, width] separably, each axis by its matrix."""
        rows, columns = (
            weights(size, out, align_corners, scale).to(x.dtype)
            for size, out, scale in zip(x.shape[2:], output_size, (scales_h, scales_w), strict=True)
        )
        return torch.matmul(rows, torch.matmul(x, columns.T))

    return resize


_BILINEAR_WEIGHTS = partial(_antialias_weights, _linear_kernel, 1.0)
_BICUBIC_WEIGHTS = partial(_antialias_weights, _keys_cubic_kernel, 2.0)

DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    **overload_table(
        {
            "_native_multi_head_attention.default": multi_head_attention,
            "_transformer_encoder_layer_fwd.default": transformer_encoder_layer,
            "_cdist_forward.default": cdist,
            "_embedding_bag.default": embedding_bag,
            "_embedding_bag_forward_only.default": embedding_bag,
            "_embedding_bag_backward.default": embedding_bag_backward_dispatch,
            "_embedding_bag_dense_backward.default": embedding_bag_dense_backward,
            "_embedding_bag_per_sample_weights_backward.default": per_sample_weights_backward,
            "_upsample_bilinear2d_aa.default": _make_antialiased_resize(_BILINEAR_WEIGHTS),
            "_upsample_bicubic2d_aa.default": _make_antialiased_resize(_BICUBIC_WEIGHTS),
            "_upsample_bilinear2d_aa_backward.default": make_antialias_backward(_BILINEAR_WEIGHTS),
            "_upsample_bicubic2d_aa_backward.default": make_antialias_backward(_BICUBIC_WEIGHTS),
            "unfold_backward.default": unfold_backward,
            "linalg_lstsq.default": lstsq,
            "median.default": median_all,
            "median.dim": median,
            "frexp.Tensor": frexp,
            "lcm.default": lcm,
            "lgamma.default": special_functions.lgamma,
            "digamma.default": special_functions.digamma,
            "erfc.default": special_functions.erfc,
            "special_erfcx.default": special_functions.erfcx,
            "special_ndtri.default": special_functions.ndtri,
            "igamma.default": igamma,
            "igammac.default": igammac,
            "erfinv.default": special_functions.erfinv,
            "polygamma.default": special_functions.polygamma,
            "special_zeta.default": special_functions.zeta,
            "special_zeta.self_scalar": special_functions.zeta,
            "special_zeta.other_scalar": special_functions.zeta,
            "i0.default": special_functions.i0,
            "special_i0e.default": special_functions.i0e,
            "special_i1.default": special_functions.i1,
            "special_i1e.default": special_functions.i1e,
            "special_modified_bessel_i0.default": special_functions.i0,
            "special_modified_bessel_i1.default": special_functions.i1,
            "special_modified_bessel_k0.default": special_functions.k0,
            "special_modified_bessel_k1.default": special_functions.k1,
            "special_scaled_modified_bessel_k0.default": special_functions.k0e,
            "special_scaled_modified_bessel_k1.default": special_functions.k1e,
            "special_spherical_bessel_j0.default": special_functions.spherical_j0,
            "logcumsumexp.default": special_functions.logcumsumexp,
            "uniform.default": uniform,
            "normal_functional.default": normal,
            "normal.float_float": normal_float,
            "normal.Tensor_float": normal_tensor,
            "normal.float_Tensor": normal_tensor,
            "normal.Tensor_Tensor": normal_tensor,
            "__rshift__.Scalar": torch.bitwise_right_shift,
            "__rshift__.Tensor": torch.bitwise_right_shift,
            "__lshift__.Scalar": torch.bitwise_left_shift,
            "__lshift__.Tensor": torch.bitwise_left_shift,
        }
    ),
    **ADJOINTS,
    **SELECTION_DECOMPOSITIONS,
}
"""Operator -> what it is made of."""

__all__ = ["DECOMPOSITIONS", "cdist", "embedding_bag"]
