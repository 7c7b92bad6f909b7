"""Computations whose indices are data. Every index is brought into range, so that no input can read
outside."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.prim import EQ, PrimExpr, Select, Var, binary, cast, maximum, minimum
from ekiden.te import Tensor
from ekiden.topi.shape import as_dim, product
from ekiden.topi.transform import unravel


def _clipped(index: PrimExpr, size: PrimExpr) -> PrimExpr:
    return maximum(minimum(cast(index, "int64"), size - 1), 0)


def _wrapped(index: PrimExpr, size: PrimExpr) -> PrimExpr:
    """Modulo the extent (1 for an empty axis, of which nothing can be read anyway)."""
    return cast(index, "int64") % maximum(size, 1)


def from_either_end(index: PrimExpr, size: PrimExpr) -> PrimExpr:
    """Negative indices count from the end."""
    wide = cast(index, "int64")
    return _clipped(Select(wide < 0, wide + size, wide, "int64"), size)


def take(x: Tensor, indices: Tensor, axis: int | None, mode: str) -> Tensor:
    """Slices of `x` at `indices` along an axis (None: of the flattened data); indices count modulo
    or are clipped."""
    bring = _wrapped if mode == "wrap" else _clipped
    if axis is None:
        count = product(x.shape)
        return te.compute(
            indices.shape,
            lambda *i: x[unravel(bring(indices[i], count), x.shape)],
            name="take",
            tag="injective",
        )
    at, rank = axis, indices.ndim
    shape = (*x.shape[:at], *indices.shape, *x.shape[at + 1 :])

    def body(*i: Var) -> PrimExpr:
        index = bring(indices[i[at : at + rank]], x.shape[at])
        return x[(*i[:at], index, *i[at + rank :])]

    return te.compute(shape, body, name="take", tag="injective")


def gather(x: Tensor, axis: int, indices: Tensor) -> Tensor:
    """One index along `axis` for each element of the result."""

    def body(*i: Var) -> PrimExpr:
        return x[(*i[:axis], from_either_end(indices[i], x.shape[axis]), *i[axis + 1 :])]

    return te.compute(indices.shape, body, name="gather", tag="injective")


def gather_nd(x: Tensor, indices: Tensor, batch_dims: int, count: int) -> Tensor:
    """Slices of `x` at `count` coordinates, which lie along the first axis of `indices`."""
    rest = indices.ndim - 1
    shape = (*indices.shape[1:], *x.shape[batch_dims + count :])

    def body(*i: Var) -> PrimExpr:
        at: list[PrimExpr] = list(i[:batch_dims])
        for n in range(count):
            at.append(from_either_end(indices[(as_dim(n), *i[:rest])], x.shape[batch_dims + n]))
        return x[(*at, *i[rest:])]

    return te.compute(shape, body, name="gather_nd", tag="injective")


def one_hot(
    indices: Tensor, on_value: Tensor, off_value: Tensor, depth: PrimExpr, axis: int
) -> Tensor:
    """`on_value` where the position along a new axis is the index, `off_value` elsewhere."""
    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])

    def body(*i: Var) -> PrimExpr:
        index = cast(indices[_without(i, axis)], "int64")
        return Select(binary(EQ, index, i[axis]), on_value[()], off_value[()], on_value.dtype)

    return te.compute(shape, body, name="one_hot", tag="injective")


def _without(values: Sequence[Var], axis: int) -> tuple[Var, ...]:
    return (*values[:axis], *values[axis + 1 :])
