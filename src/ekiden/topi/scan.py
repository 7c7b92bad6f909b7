"""Running sums, as statements: each element needs the one before."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Var, cast, const
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import BufferStore, For, ForKind, Stmt
from ekiden.topi.shape import as_dim


def cumsum(x: Tensor, axis: int, dtype: str, exclusive: bool) -> Tensor:
    """Running sums along an axis; `exclusive` leaves out the element itself."""

    def build(inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
        indices = [Var(f"i{n}") for n in range(x.ndim)]
        stmt = _store(inputs[0], outputs[0], indices, axis, exclusive)
        for index, dim in reversed(list(zip(indices, x.shape, strict=True))):
            stmt = For(index, as_dim(0), dim, ForKind.SERIAL, stmt)
        return stmt

    return te.extern_op([x.shape], [x], build, [dtype], name="cumsum")[0]


def _store(
    source: Buffer, target: Buffer, indices: Sequence[Var], axis: int, exclusive: bool
) -> Stmt:
    """target[k] = target[k - 1] + source[k], or + source[k - 1] if exclusive."""
    here = tuple(indices)
    before: tuple[PrimExpr, ...] = (*here[:axis], here[axis] - 1, *here[axis + 1 :])
    added = cast(source[before if exclusive else here], target.dtype)
    first = const(0, target.dtype) if exclusive else added
    value = if_then_else(here[axis] > 0, target[before] + added, first)
    return BufferStore(target, value, here)
