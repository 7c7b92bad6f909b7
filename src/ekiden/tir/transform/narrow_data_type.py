"""Narrow index computations to 32 bits where all values fit: with 32-bit registers a 64-bit index
takes two registers and every sum several instructions.

    for (i: int64) in 10: a[i * 4] = b[i]    ->    for (i: int32) in 10: a[i * 4] = b[i]

Only loop variables, and what is computed from them and constants, are narrowed; 64-bit data is not.
Extents must be constants.
"""

from __future__ import annotations

from typing import TypeAlias

from ekiden.ir import dtype as dt
from ekiden.ir.prim import (
    Add,
    BinaryExpr,
    FloorDiv,
    FloorMod,
    IntImm,
    Intrinsic,
    Max,
    Min,
    Mul,
    PrimExpr,
    Select,
    Sub,
    Var,
    cast,
    fold_binary,
)
from ekiden.ir.prim_visitor import children, post_order, rebuild
from ekiden.tir.alpha_renaming import distinct
from ekiden.tir.expr import Broadcast, BufferAddress, BufferLoad, Ramp
from ekiden.tir.stmt import BufferStore, For, LetStmt, Prefetch, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator, with_body

Interval: TypeAlias = tuple[int, int]
"""Lowest and highest value of a narrowed expression."""
WIDE_DTYPE, NARROW_DTYPE = "int64", "int32"
INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1


def _interval_of(kind: type[BinaryExpr], a: Interval, b: Interval) -> Interval | None:
    """Return the interval of an integer operation, or None where it is unknown."""
    if kind is Add:
        return a[0] + b[0], a[1] + b[1]
    if kind is Sub:
        return a[0] - b[1], a[1] - b[0]
    if kind is Mul:
        # A product is monotone in each factor: its extremes are at the corners.
        ends = [x * y for x in a for y in b]
        return min(ends), max(ends)
    if kind is Min:
        return min(a[0], b[0]), min(a[1], b[1])
    if kind is Max:
        return max(a[0], b[0]), max(a[1], b[1])
    if kind is FloorDiv and b[0] > 0:
        # For divisors above 0 the quotient is monotone in each operand: extremes are at the
        # corners.
        ends = [x // y for x in a for y in b]
        return min(ends), max(ends)
    # The remainder of a floor division by a positive number is never negative, whatever the
    # dividend.
    if kind is FloorMod and b[0] > 0:
        return 0, b[1] - 1
    return None


class _Int32Narrower(StmtMutator):
    """A mutator that narrows expressions and records the interval of each narrow one."""

    def __init__(self) -> None:
        self.variables: dict[Var, tuple[Var, Interval]] = {}
        self._memo: dict[int, PrimExpr] = {}
        self._keepalive: list[PrimExpr] = []
        self._bounds: dict[int, Interval] = {}
        """Interval by the identity of a new expression."""

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Return the expression in its own dtype, with narrow sub-expressions where possible."""
        return self._widen_to(self.narrow(expr), expr.dtype)

    def narrow(self, expr: PrimExpr) -> PrimExpr:
        """Return the expression, itself narrow where possible."""
        self._keepalive.append(expr)
        for node in post_order(expr):
            if id(node) not in self._memo:
                new = self._memo[id(node)] = self._rebuild_node(node)
                self._keepalive.append(new)
        return self._memo[id(expr)]

    @staticmethod
    def _widen_to(new: PrimExpr, dtype: str) -> PrimExpr:
        return new if new.dtype == dtype else cast(new, dtype)

    def interval_of(self, new: PrimExpr) -> Interval | None:
        """Return the interval of a new expression if it is narrow, else None."""
        return self._bounds.get(id(new))

    def _record_narrow(self, new: PrimExpr, bound: Interval) -> PrimExpr:
        self._keepalive.append(new)
        self._bounds[id(new)] = bound
        return new

    def _rebuild_node(self, e: PrimExpr) -> PrimExpr:
        """Rebuild a node from its narrowed children."""
        operands = [self._memo[id(c)] for c in children(e)]
        if dt.element_dtype(e.dtype) == WIDE_DTYPE:
            narrow_and_interval = self._narrow_node(e, operands)
            if (
                narrow_and_interval is not None
                and narrow_and_interval[1][0] >= INT32_MIN
                and narrow_and_interval[1][1] <= INT32_MAX
            ):
                return self._record_narrow(*narrow_and_interval)
        # Loads accept indices of either width; a comparison may be narrow if both sides are.
        takes_any = isinstance(e, (BufferLoad, BufferAddress)) or (
            isinstance(e, BinaryExpr)
            and dt.element_dtype(e.dtype) == "bool"
            and all(self.interval_of(p) is not None for p in operands)
        )
        if takes_any and not isinstance(e, BufferAddress):
            return rebuild(e, operands)
        before = children(e)
        return rebuild(
            e, [self._widen_to(p, c.dtype) for p, c in zip(operands, before, strict=True)]
        )

    # Sound by induction: a part that is narrow has its exact values in `_bounds`, and a node
    # becomes narrow only if all of its own fit. Intervals treat i - i as two variables: they are
    # too wide, and an index may stay wide for that.
    def _narrow_node(
        self, e: PrimExpr, operands: list[PrimExpr]
    ) -> tuple[PrimExpr, Interval] | None:
        """Return the node in 32 bits with its interval; None where it stays wide."""
        bounds = [self.interval_of(p) for p in operands]
        known_bounds = [b for b in bounds if b is not None]
        match e:
            case IntImm():
                return IntImm(e.value, NARROW_DTYPE), (e.value, e.value)
            case Var():
                return self.variables.get(e)
            case BinaryExpr() if len(known_bounds) == 2:
                # Interval arithmetic over Python integers, which do not overflow: the check against
                # 32 bits is made on the exact bounds.
                values = _interval_of(type(e), known_bounds[0], known_bounds[1])
                return None if values is None else (fold_binary(type(e), *operands), values)
            case Select() if len(known_bounds) == 2:
                low, high = min(b[0] for b in known_bounds), max(b[1] for b in known_bounds)
                return Select(operands[0], operands[1], operands[2]), (low, high)
            case Intrinsic(op="if_then_else") if len(known_bounds) == 2:
                low, high = min(b[0] for b in known_bounds), max(b[1] for b in known_bounds)
                return Intrinsic(e.op, tuple(operands), operands[1].dtype), (low, high)
            case Broadcast() if known_bounds:
                return Broadcast(operands[0], e.lanes), known_bounds[0]
            case Ramp(lanes=int(lanes)) if len(known_bounds) == 2:
                # The sign of the stride is not known: the extremes are in lane 0 or in the last
                # one.
                last = [s * (lanes - 1) for s in known_bounds[1]]
                values = known_bounds[0][0] + min(0, *last), known_bounds[0][1] + max(0, *last)
                return Ramp(operands[0], operands[1], e.lanes), values
        return None

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Narrow the indices; the value keeps the buffer's dtype."""
        return stmt.with_fields(
            value=self.rewrite_expr(stmt.value),
            indices=tuple(map(self.narrow, stmt.indices)),
            predicate=None if stmt.predicate is None else self.rewrite_expr(stmt.predicate),
        )

    def visit_prefetch(self, stmt: Prefetch) -> Stmt:
        """Narrow the indices of a prefetch."""
        return stmt.with_fields(indices=tuple(map(self.narrow, stmt.indices)))

    def visit_for(self, stmt: For) -> Stmt:
        """Narrow the loop variable where its bounds fit."""
        low, extent = self.narrow(stmt.min), self.narrow(stmt.extent)
        first, count = self.interval_of(low), self.interval_of(extent)
        # The variable ends at first + count, one past the last iteration: that must fit as well.
        if first is None or count is None or first[1] + count[1] > INT32_MAX:
            return super().visit_for(stmt)
        var = Var(stmt.loop_var.name, NARROW_DTYPE)
        self.variables[stmt.loop_var] = var, (first[0], first[1] + max(count[1] - 1, 0))
        body = self.visit(stmt.body)
        return stmt.with_fields(loop_var=var, min=low, extent=extent, body=body)

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Narrow a chain of lets iteratively: such chains are long."""
        bindings: list[tuple[Var, PrimExpr]] = []
        inner: Stmt = stmt
        while isinstance(inner, LetStmt):
            value = self.narrow(inner.value)
            bound = self.interval_of(value)
            if bound is None:
                bindings.append((inner.var, self._widen_to(value, inner.value.dtype)))
            else:
                var = Var(inner.var.name, value.dtype)
                self.variables[inner.var] = var, bound
                bindings.append((var, value))
            inner = inner.body
        body = self.visit(inner)
        for var, value in reversed(bindings):
            body = LetStmt(var, value, body)
        return body


def narrow_data_type(func: PrimFunc) -> PrimFunc:
    """Return the lowered function with 32-bit indices where they fit; buffers stay the same."""
    alone = distinct(func)  # a variable of two loops would have two ranges
    return with_body(alone, _Int32Narrower().visit(alone.body))


__all__ = ["narrow_data_type"]
