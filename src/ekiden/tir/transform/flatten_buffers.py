"""Index every buffer by one element offset.

t: float32[64, 32]      t[i, 31 - j] = A[i, j]   ->   t[i * 32 - j + 31] = A[i * 32 + j]

An access with one index is flat already, whatever the buffer's shape: schedule rules may write flat
accesses directly. Everything is simplified on the way.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir import dtype as dt
from ekiden.ir.prim import FloatImm, IntImm, Intrinsic, PrimExpr, Var, cast, const
from ekiden.ir.prim_visitor import rewrite
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad, Ramp, broadcast
from ekiden.tir.stmt import BufferStore, Prefetch, PrimFunc, Stmt
from ekiden.tir.transform.simplify import Simplifier


def flat_index(buffer: Buffer, indices: Sequence[PrimExpr]) -> PrimExpr:
    """The offset of an element: ((i0 * d1 + i1) * d2 + i2 ..., or by the buffer's strides."""
    if len(indices) == 1 and not buffer.strides:
        return indices[0]
    total: PrimExpr = const(0)
    if buffer.strides:
        for index, stride in zip(indices, buffer.strides, strict=True):
            total = _plus(total, index * broadcast(stride, dt.lanes(index.dtype)))
        return total
    for index, extent in zip(indices, buffer.shape, strict=True):
        total = _plus(total * broadcast(extent, dt.lanes(total.dtype)), index)
    return total


def _laid_out(e: Intrinsic) -> PrimExpr:
    """How a region lies, of which the address is flat: its first element, or a stride."""
    region = e.args[0]
    assert isinstance(region, BufferAddress), e
    if e.op == "region_offset":
        return cast(region.indices[0], e.dtype)
    axis, buffer = e.args[1], region.buffer
    assert isinstance(axis, IntImm), e
    if buffer.strides:
        return cast(buffer.strides[axis.value], e.dtype)
    size: PrimExpr = const(1, e.dtype)
    for extent in buffer.shape[axis.value + 1 :]:
        size = size * extent
    return size


def _plus(total: PrimExpr, index: PrimExpr) -> PrimExpr:
    """A sum in which either side may be a vector."""
    if dt.lanes(total.dtype) > dt.lanes(index.dtype):
        total, index = index, total
    if isinstance(index, Ramp) and dt.lanes(total.dtype) == 1:
        return index.with_fields(base=total + index.base)
    return broadcast(total, dt.lanes(index.dtype)) + index


class _Flatten(Simplifier):
    def __init__(self) -> None:
        super().__init__()
        self._flat: dict[int, PrimExpr] = {}
        self._kept: list[PrimExpr] = []

    def expr(self, expr: PrimExpr) -> PrimExpr:
        """Loads get one index each before they are simplified, in one walk with what is put in the
        place of variables."""
        if isinstance(expr, (IntImm, FloatImm)):
            return expr
        self._kept.append(expr)
        return self.analyzer.simplify(rewrite(expr, self._flatten, self._flat))

    def replace(self, var: Var, value: PrimExpr) -> None:
        """What was made with another value does not stand."""
        super().replace(var, value)
        self._flat.clear()

    def _flatten(self, expr: PrimExpr) -> PrimExpr:
        if isinstance(expr, Var):
            return self.values.get(expr, expr)
        if isinstance(expr, BufferLoad) and len(expr.indices) != 1:
            return expr.with_fields(indices=(flat_index(expr.buffer, expr.indices),))
        if isinstance(expr, Intrinsic) and expr.op in ("region_offset", "region_stride"):
            return _laid_out(expr)
        if isinstance(expr, BufferAddress) and len(expr.indices) > 1:
            return expr.with_fields(indices=(flat_index(expr.buffer, expr.indices),))
        return expr

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """One index for an element. What updates a register has one already, and nothing to
        simplify.
        """
        if _updates_register(stmt):
            return stmt
        return super().visit_store(
            stmt.with_fields(indices=(flat_index(stmt.buffer, stmt.indices),))
        )

    def visit_prefetch(self, stmt: Prefetch) -> Stmt:
        """One index for the place."""
        return super().visit_prefetch(
            stmt.with_fields(indices=(flat_index(stmt.buffer, stmt.indices),))
        )


def _updates_register(stmt: BufferStore) -> bool:
    """Whether a register gets what an operation makes of names and registers, as in every step of a
    tile: nothing in that is an index to be simplified (a fifth of the time of lowering).
    """
    if stmt.buffer.scope != "register" or not isinstance(stmt.value, Intrinsic):
        return False
    return isinstance(stmt.indices[0], IntImm) and all(map(_is_settled, stmt.value.args))


def _is_settled(expr: PrimExpr) -> bool:
    """Whether an operand is a vector by name, or an element of registers at a known place."""
    if isinstance(expr, Var):
        return dt.lanes(expr.dtype) > 1
    is_load = isinstance(expr, BufferLoad) and expr.buffer.scope == "register"
    return is_load and isinstance(expr.indices[0], IntImm)  # type: ignore[attr-defined]


def flatten_buffers(func: PrimFunc) -> PrimFunc:
    """The function with one simplified index per access."""
    return func.with_fields(body=_Flatten().visit(func.body))
