"""Compute indices in 32 bits where all their values fit: on processors with registers of 32 bits,
each of 64 takes two and every sum several instructions.

for (i: int64) in 10: a[i * 4] = b[i]    ->    for (i: int32) in 10: a[i * 4] = b[i]

Only variables of loops, and what is computed of them and of constants, become narrower; data of 64
bits stays so. Extents must be constants.
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
    binary,
    cast,
)
from ekiden.ir.prim_visitor import children, post_order, rebuild
from ekiden.tir.distinct import distinct
from ekiden.tir.expr import Broadcast, BufferAddress, BufferLoad, Ramp
from ekiden.tir.stmt import BufferStore, For, LetStmt, Prefetch, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator, with_body

Bound: TypeAlias = tuple[int, int]
"""The lowest value of a narrow expression, and the highest."""
WIDE, NARROW = "int64", "int32"
LOW, HIGH = -(1 << 31), (1 << 31) - 1


def _bound(kind: type[BinaryExpr], a: Bound, b: Bound) -> Bound | None:
    """The values of an operation on integers; None where they are not known."""
    if kind is Add:
        return a[0] + b[0], a[1] + b[1]
    if kind is Sub:
        return a[0] - b[1], a[1] - b[0]
    if kind is Mul:
        ends = [x * y for x in a for y in b]
        return min(ends), max(ends)
    if kind is Min:
        return min(a[0], b[0]), min(a[1], b[1])
    if kind is Max:
        return max(a[0], b[0]), max(a[1], b[1])
    if kind is FloorDiv and b[0] > 0:
        ends = [x // y for x in a for y in b]
        return min(ends), max(ends)
    if kind is FloorMod and b[0] > 0:
        return 0, b[1] - 1
    return None


class _Narrow(StmtMutator):
    """Keeps, for each expression that became narrow, the values it may have."""

    def __init__(self) -> None:
        self.variables: dict[Var, tuple[Var, Bound]] = {}
        self._memo: dict[int, PrimExpr] = {}
        self._alive: list[PrimExpr] = []
        self._bounds: dict[int, Bound] = {}
        """Identity of a new expression -> its values."""

    def expr(self, expr: PrimExpr) -> PrimExpr:
        """The expression in its own dtype, its parts narrow where they can be."""
        return self._wide(self.narrowed(expr), expr.dtype)

    def narrowed(self, expr: PrimExpr) -> PrimExpr:
        """The expression, itself narrow where it can be."""
        self._alive.append(expr)
        for each in post_order(expr):
            if id(each) not in self._memo:
                new = self._memo[id(each)] = self._node(each)
                self._alive.append(new)
        return self._memo[id(expr)]

    @staticmethod
    def _wide(new: PrimExpr, dtype: str) -> PrimExpr:
        return new if new.dtype == dtype else cast(new, dtype)

    def bound(self, new: PrimExpr) -> Bound | None:
        """The values of a new expression that is narrow."""
        return self._bounds.get(id(new))

    def _kept(self, new: PrimExpr, bound: Bound) -> PrimExpr:
        self._alive.append(new)
        self._bounds[id(new)] = bound
        return new

    def _node(self, e: PrimExpr) -> PrimExpr:
        """A node whose parts have been seen to."""
        parts = [self._memo[id(c)] for c in children(e)]
        if dt.element(e.dtype) == WIDE:
            found = self._narrow_node(e, parts)
            if found is not None and found[1][0] >= LOW and found[1][1] <= HIGH:
                return self._kept(*found)
        takes_any = isinstance(e, (BufferLoad, BufferAddress)) or (
            isinstance(e, BinaryExpr)
            and dt.element(e.dtype) == "bool"
            and all(self.bound(p) is not None for p in parts)
        )
        if takes_any and not isinstance(e, BufferAddress):
            return rebuild(e, parts)
        before = children(e)
        return rebuild(e, [self._wide(p, c.dtype) for p, c in zip(parts, before, strict=True)])

    # Sound by induction: a part that is narrow has its exact values in `_bounds`, and a node
    # becomes narrow only if all of its own fit. Intervals treat i - i as two variables: they are
    # too wide, and an index may stay wide for that.
    def _narrow_node(self, e: PrimExpr, parts: list[PrimExpr]) -> tuple[PrimExpr, Bound] | None:
        """The node in 32 bits and its values; None where it stays as it is."""
        bounds = [self.bound(p) for p in parts]
        known = [b for b in bounds if b is not None]
        match e:
            case IntImm():
                return IntImm(e.value, NARROW), (e.value, e.value)
            case Var():
                return self.variables.get(e)
            case BinaryExpr() if len(known) == 2:
                values = _bound(type(e), known[0], known[1])
                return None if values is None else (binary(type(e), *parts), values)
            case Select() if len(known) == 2:
                low, high = min(b[0] for b in known), max(b[1] for b in known)
                return Select(parts[0], parts[1], parts[2]), (low, high)
            case Intrinsic(op="if_then_else") if len(known) == 2:
                low, high = min(b[0] for b in known), max(b[1] for b in known)
                return Intrinsic(e.op, tuple(parts), parts[1].dtype), (low, high)
            case Broadcast() if known:
                return Broadcast(parts[0], e.lanes), known[0]
            case Ramp(lanes=int(lanes)) if len(known) == 2:
                last = [s * (lanes - 1) for s in known[1]]
                values = known[0][0] + min(0, *last), known[0][1] + max(0, *last)
                return Ramp(parts[0], parts[1], e.lanes), values
        return None

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Indices may be narrow, what is stored has the type of the buffer."""
        return stmt.with_fields(
            value=self.expr(stmt.value),
            indices=tuple(map(self.narrowed, stmt.indices)),
            predicate=None if stmt.predicate is None else self.expr(stmt.predicate),
        )

    def visit_prefetch(self, stmt: Prefetch) -> Stmt:
        """As of stores."""
        return stmt.with_fields(indices=tuple(map(self.narrowed, stmt.indices)))

    def visit_for(self, stmt: For) -> Stmt:
        """The variable becomes narrow where its ends are."""
        low, extent = self.narrowed(stmt.min), self.narrowed(stmt.extent)
        first, count = self.bound(low), self.bound(extent)
        if first is None or count is None or first[1] + count[1] > HIGH:
            return super().visit_for(stmt)
        var = Var(stmt.loop_var.name, NARROW)
        self.variables[stmt.loop_var] = var, (first[0], first[1] + max(count[1] - 1, 0))
        body = self.visit(stmt.body)
        return stmt.with_fields(loop_var=var, min=low, extent=extent, body=body)

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Let-chains are long: they are gone through in a loop."""
        made: list[tuple[Var, PrimExpr]] = []
        inner: Stmt = stmt
        while isinstance(inner, LetStmt):
            value = self.narrowed(inner.value)
            bound = self.bound(value)
            if bound is None:
                made.append((inner.var, self._wide(value, inner.value.dtype)))
            else:
                var = Var(inner.var.name, value.dtype)
                self.variables[inner.var] = var, bound
                made.append((var, value))
            inner = inner.body
        body = self.visit(inner)
        for var, value in reversed(made):
            body = LetStmt(var, value, body)
        return body


def narrow_data_type(func: PrimFunc) -> PrimFunc:
    """The lowered function with indices of 32 bits where they fit; buffers stay the same."""
    alone = distinct(func)  # a variable of two loops would have two ranges
    return with_body(alone, _Narrow().visit(alone.body))


__all__ = ["narrow_data_type"]
