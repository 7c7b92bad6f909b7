"""Decompositions of selection, ordering and placement operators, and of legacy linear algebra
names. Semantics: aten/src/ATen/native (PyTorch 2); arguments are those of the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ekiden.frontend.torch.overloads import overload_table


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """Return `aten::masked_select`: the elements where the mask is set."""
    data, where = broadcast_tensors(x, mask)
    return data[where]


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors broadcast to their common shape."""
    expanded: Sequence[Tensor] = torch.broadcast_tensors(*tensors)  # type: ignore[no-untyped-call]
    return tuple(expanded)


def _squeeze_dim(values: Tensor, indices: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    if keepdim:
        return values, indices
    return values.squeeze(dim), indices.squeeze(dim)


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return `aten::kthvalue`: the k-th smallest element, counted from 1, and its index."""
    if not x.dim():
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    ordered, indices = x.sort(dim=dim, stable=True)
    return _squeeze_dim(ordered.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1), dim, keepdim)


def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return `aten::mode`: the smallest of the most frequent elements, and its last index."""
    if not x.dim():
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    last = x.movedim(dim, -1)
    ordered = last.sort(dim=-1).values
    # Quadratic in the axis, but free of data-dependent shapes; of equal counts the smallest value
    # wins.
    often = (ordered.unsqueeze(-1) == ordered.unsqueeze(-2)).sum(-1)
    values = ordered.gather(-1, often.argmax(-1, keepdim=True))
    count = x.shape[dim]
    indices = torch.where(last == values, torch.arange(count), -1).amax(-1, keepdim=True)
    return _squeeze_dim(values.movedim(-1, dim), indices.movedim(-1, dim), dim, keepdim)


def nanmedian(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return `aten::nanmedian.dim`: the lower median of the elements that are not NaN, and its
    index.
    """
    if not x.dim():
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    ordered, indices = x.sort(dim=dim, stable=True)
    count = (x == x).sum(dim, keepdim=True)
    position = ((count - 1) // 2).clamp(min=0)
    return _squeeze_dim(ordered.gather(dim, position), indices.gather(dim, position), dim, keepdim)


def nanmedian_all(x: Tensor) -> Tensor:
    """Return `aten::nanmedian`, the lower median of all elements that are not NaN."""
    return nanmedian(x.flatten(), 0)[0]


def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:  # noqa: ANN401 - three tensors, or NotImplemented
    """Return `aten::unique_consecutive` of all elements or of a vector.

    Three tensors: the first element of each run, the run of each element, the length of each run.
    """
    if dim is not None and x.dim() != 1:
        return NotImplemented
    flat = x.flatten()
    is_first = torch.cat([flat[:1] == flat[:1], flat[1:] != flat[:-1]])
    starts = is_first.nonzero().flatten()
    ends = torch.cat([starts[1:], torch.full((1,), flat.shape[0])])
    which = is_first.to(torch.int64).cumsum(0) - 1
    return flat[starts], which.reshape(x.shape), ends - starts


def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """Return `aten::nonzero_static`: `size` rows of indices, padded with `fill_value`."""
    if not x.dim():
        return torch.zeros((size, 0), dtype=torch.int64)
    # The n-th element that is not 0 is at the first position whose running count reaches n.
    number = (x != 0).flatten().to(torch.int64).cumsum(0)
    ordinals = torch.arange(1, size + 1)
    position = torch.searchsorted(number, ordinals)
    columns = []
    for extent in reversed(x.shape):
        columns.append(position % extent)
        position = position // extent
    indices = torch.stack(columns[::-1], 1)
    return torch.where((ordinals <= number[-1]).unsqueeze(1), indices, fill_value)


def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Return `aten::index_reduce`: slices of the source reduced into the positions of the index."""
    if not x.dim():
        vector = index_reduce(
            x.reshape(1), 0, index.reshape(1), source.reshape(1), reduce, include_self=include_self
        )
        return vector.reshape(())
    shape = [1] * x.dim()
    shape[dim] = -1
    indices = index.reshape(shape).expand(source.shape)
    return x.scatter_reduce(dim, indices, source, reduce, include_self=include_self)


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Return `aten::put`: elements written or added at flat indices."""
    values = source.reshape(index.shape).flatten()
    return x.flatten().index_put((index.flatten(),), values, accumulate).reshape(x.shape)


def as_strided_scatter(
    x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Tensor:
    """Return `aten::as_strided_scatter`: the source written at the flat indices of a strided view.

    `x` is taken as contiguous. The gradient of such a view and of a global pooling use it.
    """
    flat_indices = torch.full((1,) * len(size), offset or 0)
    for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
        lies = [1] * len(size)
        lies[axis] = -1
        flat_indices = flat_indices + (torch.arange(extent) * step).reshape(lies)
    flat = x.flatten().index_put((flat_indices.flatten(),), source.flatten())
    return flat.reshape(x.shape)


def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """Return `aten::_pdist_forward`: the distance of each row to every later one."""
    rows, columns = torch.triu_indices(x.shape[0], x.shape[0], 1)
    distances: Tensor = torch.cdist(x, x, p)
    return distances[rows, columns]


def addbmm(
    x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Return `aten::addbmm`: beta * x + alpha * the sum over a batch of products."""
    return beta * x + alpha * torch.bmm(batch1, batch2).sum(0)


def hypot(a: Tensor, b: Tensor) -> Tensor:
    """Return `aten::hypot`; scaled by the larger side, so that no square overflows."""
    x, y = a.abs(), b.abs()
    large, small = torch.maximum(x, y), torch.minimum(x, y)
    # Scaled by the larger side, so that the squares neither overflow nor underflow.
    ratio = torch.where(large == 0, 0.0, small / large)
    length = large * (1 + ratio * ratio).sqrt()
    return torch.where(large.isinf() | x.isinf() | y.isinf(), torch.inf, length)


# Linear algebra by names that torch.linalg has others for.


def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """Return `aten::cholesky`."""
    factor: Tensor = torch.linalg.cholesky(x, upper=upper)
    return factor


def triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    """Return `aten::triangular_solve`: the solution, and a copy of the matrix."""
    turned, is_upper = (a.mT, not upper) if transpose else (a, upper)
    solution = _triangular(turned, b, upper=is_upper, unitriangular=unitriangular)
    return solution, a.clone()


def _row_permutation(pivots: Tensor, rows: int) -> Tensor:
    """Return the row permutation that LAPACK pivots encode."""
    rows_index = torch.arange(rows)
    order = rows_index.expand(*pivots.shape[:-1], rows)
    for step in range(pivots.shape[-1]):
        # LAPACK's pivots count from 1; the exchanges apply in order.
        pivot = pivots[..., step : step + 1].to(torch.int64) - 1
        step_order, pivot_order = order[..., step : step + 1], order.gather(-1, pivot)
        order = torch.where(rows_index == pivot, step_order, order)
        order = torch.where(rows_index == step, pivot_order, order)
    return order


def lu_unpack(
    packed: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `aten::lu_unpack`: P, L and U; those not requested are empty."""
    rows, columns = packed.shape[-2:]
    smaller = min(rows, columns)
    permutation = lower = upper = packed.new_empty(0)
    if unpack_pivots:
        order = _row_permutation(pivots, rows).unsqueeze(-2)
        permutation = (order == torch.arange(rows).unsqueeze(1)).to(packed.dtype)
    if unpack_data:
        ones = torch.eye(rows, smaller, dtype=packed.dtype)
        lower = packed[..., :smaller].tril(-1) + ones
        upper = packed[..., :smaller, :].triu()
    return permutation, lower, upper


def lu_solve(
    packed: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """Return `aten::linalg_lu_solve`: a x = b, a' x = b (`adjoint`), or x a = b (not `left`)."""
    if not left:
        # x a = b is a' x' = b'.
        return lu_solve(packed, pivots, b.mT, adjoint=not adjoint).mT
    order = _row_permutation(pivots, packed.shape[-1])
    row_order, right = broadcast_tensors(order.unsqueeze(-1), b)
    if not adjoint:
        half = _triangular(packed, right.gather(-2, row_order), upper=False, unitriangular=True)
        return _triangular(packed, half, upper=True)
    half = _triangular(packed.mT, right, upper=False)
    rows = _triangular(packed.mT, half, upper=True, unitriangular=True)
    return rows.gather(-2, row_order.argsort(-2))


_triangular: Callable[..., Tensor] = torch.linalg.solve_triangular


SELECTION_DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = overload_table(
    {
        "masked_select.default": masked_select,
        "kthvalue.default": kthvalue,
        "mode.default": mode,
        "nanmedian.dim": nanmedian,
        "nanmedian.default": nanmedian_all,
        "unique_consecutive.default": unique_consecutive,
        "nonzero_static.default": nonzero_static,
        "index_reduce.default": index_reduce,
        "put.default": put,
        "as_strided_scatter.default": as_strided_scatter,
        "_pdist_forward.default": pdist,
        "addbmm.default": addbmm,
        "hypot.default": hypot,
        "cholesky.default": cholesky,
        "triangular_solve.default": triangular_solve,
        "lu_unpack.default": lu_unpack,
        "linalg_lu_solve.default": lu_solve,
    }
)
"""Operator -> what it is made of."""
