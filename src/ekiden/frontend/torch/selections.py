"""Operators that choose, order or place elements, and old names of linear algebra, as functions of
plain ones. Meanings after aten/src/ATen/native (PyTorch 2); arguments are those of the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """`aten::masked_select`: the elements where the mask holds."""
    data, where = broadcast(x, mask)
    return data[where]


def broadcast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors in their common shape."""
    found: Sequence[Tensor] = torch.broadcast_tensors(*tensors)  # type: ignore[no-untyped-call]
    return tuple(found)


def _kept(values: Tensor, places: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    if keepdim:
        return values, places
    return values.squeeze(dim), places.squeeze(dim)


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """`aten::kthvalue`: the k-th smallest, counted from 1, and its place."""
    if not x.dim():
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    ordered, places = x.sort(dim=dim, stable=True)
    return _kept(ordered.narrow(dim, k - 1, 1), places.narrow(dim, k - 1, 1), dim, keepdim)


def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """`aten::mode`: the smallest of the most frequent elements, and the last place of it."""
    if not x.dim():
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    last = x.movedim(dim, -1)
    ordered = last.sort(dim=-1).values
    often = (ordered.unsqueeze(-1) == ordered.unsqueeze(-2)).sum(-1)
    values = ordered.gather(-1, often.argmax(-1, keepdim=True))
    count = x.shape[dim]
    places = torch.where(last == values, torch.arange(count), -1).amax(-1, keepdim=True)
    return _kept(values.movedim(-1, dim), places.movedim(-1, dim), dim, keepdim)


def nanmedian(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """`aten::nanmedian.dim`: the lower of the two in the middle of those that are numbers."""
    if not x.dim():
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    ordered, places = x.sort(dim=dim, stable=True)
    count = (x == x).sum(dim, keepdim=True)
    at = ((count - 1) // 2).clamp(min=0)
    return _kept(ordered.gather(dim, at), places.gather(dim, at), dim, keepdim)


def nanmedian_of_all(x: Tensor) -> Tensor:
    """`aten::nanmedian`: that of all elements."""
    return nanmedian(x.flatten(), 0)[0]


def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:  # noqa: ANN401 - three tensors, or NotImplemented
    """`aten::unique_consecutive` of all elements or of a vector: the first of each run, which run
    each element is of, how long each is."""
    if dim is not None and x.dim() != 1:
        return NotImplemented
    flat = x.flatten()
    is_first = torch.cat([flat[:1] == flat[:1], flat[1:] != flat[:-1]])
    starts = is_first.nonzero().flatten()
    ends = torch.cat([starts[1:], torch.full((1,), flat.shape[0])])
    which = is_first.to(torch.int64).cumsum(0) - 1
    return flat[starts], which.reshape(x.shape), ends - starts


def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """`aten::nonzero_static`: as many rows as `size` says, those that are beyond filled."""
    if not x.dim():
        return torch.zeros((size, 0), dtype=torch.int64)
    number = (x != 0).flatten().to(torch.int64).cumsum(0)
    wanted = torch.arange(1, size + 1)
    at = torch.searchsorted(number, wanted)
    columns = []
    for extent in reversed(x.shape):
        columns.append(at % extent)
        at = at // extent
    found = torch.stack(columns[::-1], 1)
    return torch.where((wanted <= number[-1]).unsqueeze(1), found, fill_value)


def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`aten::index_reduce`: slices of the source put together where the index says."""
    if not x.dim():
        whole = index_reduce(
            x.reshape(1), 0, index.reshape(1), source.reshape(1), reduce, include_self=include_self
        )
        return whole.reshape(())
    shape = [1] * x.dim()
    shape[dim] = -1
    places = index.reshape(shape).expand(source.shape)
    return x.scatter_reduce(dim, places, source, reduce, include_self=include_self)


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """`aten::put`: elements at flat places."""
    values = source.reshape(index.shape).flatten()
    return x.flatten().index_put((index.flatten(),), values, accumulate).reshape(x.shape)


def as_strided_scatter(
    x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Tensor:
    """`aten::as_strided_scatter`: elements at the flat places of a view, as if `x` were
    contiguous: the gradient of such a view, and of a global pooling, is made by it."""
    places = torch.full((1,) * len(size), offset or 0)
    for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
        lies = [1] * len(size)
        lies[axis] = -1
        places = places + (torch.arange(extent) * step).reshape(lies)
    flat = x.flatten().index_put((places.flatten(),), source.flatten())
    return flat.reshape(x.shape)


def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """`aten::_pdist_forward`: the distance of each row to every later one."""
    rows, columns = torch.triu_indices(x.shape[0], x.shape[0], 1)
    distances: Tensor = torch.cdist(x, x, p)
    return distances[rows, columns]


def addbmm(
    x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """`aten::addbmm`: the sum of products."""
    return beta * x + alpha * torch.bmm(batch1, batch2).sum(0)


def hypot(a: Tensor, b: Tensor) -> Tensor:
    """`aten::hypot`, whose squares are of no more than 1."""
    x, y = a.abs(), b.abs()
    large, small = torch.maximum(x, y), torch.minimum(x, y)
    ratio = torch.where(large == 0, 0.0, small / large)
    found = large * (1 + ratio * ratio).sqrt()
    return torch.where(large.isinf() | x.isinf() | y.isinf(), torch.inf, found)


# Linear algebra by names that torch.linalg has others for.


def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """`aten::cholesky`."""
    found: Tensor = torch.linalg.cholesky(x, upper=upper)
    return found


def triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    """`aten::triangular_solve`: the solution, and the matrix."""
    turned, is_upper = (a.mT, not upper) if transpose else (a, upper)
    found = _triangular(turned, b, upper=is_upper, unitriangular=unitriangular)
    return found, a.clone()


def _order(pivots: Tensor, rows: int) -> Tensor:
    """The rows of a matrix as the exchanges of its LU decomposition leave them."""
    places = torch.arange(rows)
    order = places.expand(*pivots.shape[:-1], rows)
    for step in range(pivots.shape[-1]):
        other = pivots[..., step : step + 1].to(torch.int64) - 1
        mine, theirs = order[..., step : step + 1], order.gather(-1, other)
        order = torch.where(places == other, mine, order)
        order = torch.where(places == step, theirs, order)
    return order


def lu_unpack(
    packed: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """`aten::lu_unpack`: P, L and U; what is not wanted is empty."""
    rows, columns = packed.shape[-2:]
    least = min(rows, columns)
    permutation = lower = upper = packed.new_empty(0)
    if unpack_pivots:
        order = _order(pivots, rows).unsqueeze(-2)
        permutation = (order == torch.arange(rows).unsqueeze(1)).to(packed.dtype)
    if unpack_data:
        ones = torch.eye(rows, least, dtype=packed.dtype)
        lower = packed[..., :least].tril(-1) + ones
        upper = packed[..., :least, :].triu()
    return permutation, lower, upper


def lu_solve(
    packed: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """`aten::linalg_lu_solve`: of a x = b; of x a = b, which is a' x' = b'; of a' x = b."""
    if not left:
        return lu_solve(packed, pivots, b.mT, adjoint=not adjoint).mT
    order = _order(pivots, packed.shape[-1])
    places, right = broadcast(order.unsqueeze(-1), b)
    if not adjoint:
        half = _triangular(packed, right.gather(-2, places), upper=False, unitriangular=True)
        return _triangular(packed, half, upper=True)
    half = _triangular(packed.mT, right, upper=False)
    rows = _triangular(packed.mT, half, upper=True, unitriangular=True)
    return rows.gather(-2, places.argsort(-2))


_triangular: Callable[..., Tensor] = torch.linalg.solve_triangular


aten = torch.ops.aten
SELECTIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten.masked_select.default: masked_select,
    aten.kthvalue.default: kthvalue,
    aten.mode.default: mode,
    aten.nanmedian.dim: nanmedian,
    aten.nanmedian.default: nanmedian_of_all,
    aten.unique_consecutive.default: unique_consecutive,
    aten.nonzero_static.default: nonzero_static,
    aten.index_reduce.default: index_reduce,
    aten.put.default: put,
    aten.as_strided_scatter.default: as_strided_scatter,
    aten._pdist_forward.default: pdist,
    aten.addbmm.default: addbmm,
    aten.hypot.default: hypot,
    aten.cholesky.default: cholesky,
    aten.triangular_solve.default: triangular_solve,
    aten.lu_unpack.default: lu_unpack,
    aten.linalg_lu_solve.default: lu_solve,
}
"""Operator -> what it is made of."""
