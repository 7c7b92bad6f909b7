"""Flatten multi-dimensional accesses to one element offset, simplifying everything on the way.

    t: float32[64, 32]      t[i, 31 - j] = A[i, j]   ->   t[i * 32 - j + 31] = A[i * 32 + j]

An access with one index is flat already, whatever the buffer's shape: schedule rules may write flat
accesses directly.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir import dtype as dt
from ekiden.ir.prim import FloatImm, IntImm, Intrinsic, PrimExpr, Var, cast, const
from ekiden.ir.prim_visitor import rewrite
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad, Ramp, broadcast
from ekiden.tir.stmt import BufferStore, Prefetch, PrimFunc, Stmt
from ekiden.tir.transform.simplification import Simplifier


def flat_index(buffer: Buffer, indices: Sequence[PrimExpr]) -> PrimExpr:
    """Return the offset of an element: ((i0 * d1 + i1) * d2 + i2 ..., or by the buffer's
    strides.
    """
    if len(indices) == 1 and not buffer.strides:
        return indices[0]
    total: PrimExpr = const(0)
    if buffer.strides:
        for index, stride in zip(indices, buffer.strides, strict=True):
            total = _add_vector_offset(total, index * broadcast(stride, dt.lanes(index.dtype)))
        return total
    for index, extent in zip(indices, buffer.shape, strict=True):
        total = _add_vector_offset(total * broadcast(extent, dt.lanes(total.dtype)), index)
    return total


def _resolve_layout_query(e: Intrinsic) -> PrimExpr:
    """Return the value of region_offset or region_stride for a region with a flat address."""
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


def _add_vector_offset(total: PrimExpr, index: PrimExpr) -> PrimExpr:
    """Return a sum in which either side may be a vector."""
    if dt.lanes(total.dtype) > dt.lanes(index.dtype):
        total, index = index, total
    # Added to the base, the Ramp stays one: a contiguous access instead of a gather.
    if isinstance(index, Ramp) and dt.lanes(total.dtype) == 1:
        return index.with_fields(base=total + index.base)
    return broadcast(total, dt.lanes(index.dtype)) + index


class _BufferFlattener(Simplifier):
    def __init__(self) -> None:
        super().__init__()
        self._flat_buffers: dict[int, PrimExpr] = {}
        self._memoized: list[PrimExpr] = []

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Flatten loads, then simplify; variables are substituted in the same walk."""
        if isinstance(expr, (IntImm, FloatImm)):
            return expr
        # The memo is keyed by id: the expression stays referenced so that its id is not reused.
        self._memoized.append(expr)
        return self.analyzer.simplify(rewrite(expr, self._flatten_loads, self._flat_buffers))

    def replace(self, var: Var, value: PrimExpr) -> None:
        """Drop memoised results that used the variable's previous value."""
        super().replace(var, value)
        self._flat_buffers.clear()

    def _flatten_loads(self, expr: PrimExpr) -> PrimExpr:
        if isinstance(expr, Var):
            return self.var_values.get(expr, expr)
        if isinstance(expr, BufferLoad) and len(expr.indices) != 1:
            return expr.with_fields(indices=(flat_index(expr.buffer, expr.indices),))
        if isinstance(expr, Intrinsic) and expr.op in ("region_offset", "region_stride"):
            return _resolve_layout_query(expr)
        if isinstance(expr, BufferAddress) and len(expr.indices) > 1:
            return expr.with_fields(indices=(flat_index(expr.buffer, expr.indices),))
        return expr

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Flatten a store. A register update is flat and simplified already."""
        if _updates_register(stmt):
            return stmt
        return super().visit_store(
            stmt.with_fields(indices=(flat_index(stmt.buffer, stmt.indices),))
        )

    def visit_prefetch(self, stmt: Prefetch) -> Stmt:
        """Flatten a prefetch."""
        return super().visit_prefetch(
            stmt.with_fields(indices=(flat_index(stmt.buffer, stmt.indices),))
        )


def _updates_register(stmt: BufferStore) -> bool:
    """Return whether a store updates a register by an operation on names and registers, as in every
    step of a tile: it contains no index to simplify, and skipping it saves a fifth of the lowering
    time.
    """
    if stmt.buffer.scope != "register" or not isinstance(stmt.value, Intrinsic):
        return False
    return isinstance(stmt.indices[0], IntImm) and all(map(_is_simplified_operand, stmt.value.args))


def _is_simplified_operand(expr: PrimExpr) -> bool:
    """Return whether an operand is a vector variable, or a register element at a constant index."""
    if isinstance(expr, Var):
        return dt.lanes(expr.dtype) > 1
    is_load = isinstance(expr, BufferLoad) and expr.buffer.scope == "register"
    return is_load and isinstance(expr.indices[0], IntImm)  # type: ignore[attr-defined]


def flatten_buffers(func: PrimFunc) -> PrimFunc:
    """Return the function with one simplified index per access."""
    return func.with_fields(body=_BufferFlattener().visit(func.body))
