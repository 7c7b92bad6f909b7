"""Loop-invariant code motion.

    for i in range(64):                     value = cast(c, "float32")
        for j in range(768):          ->    for i in range(64):
            B[i * 768 + j] =                    base = i * 768
                A[i * 768 + j]                  for j in range(768):
                * cast(c, "float32")                B[base + j] = A[base + j] * value

Sums of indices are reassociated first, so that the part that belongs to outer loops is one
variable. Each loop names its invariants, from the outermost loop in: what is invariant in two loops
is named before the outer one, and is a variable when the inner one is processed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ekiden.arith import Analyzer
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import INTRINSICS, if_then_else
from ekiden.ir.prim import Add, BinaryExpr, FloatImm, IntImm, Intrinsic, PrimExpr, Sub, Var, const
from ekiden.ir.prim_visitor import (
    children,
    has_nonconstant_divisor,
    post_order,
    rebuild,
    unvisited_post_order,
)
from ekiden.tir.expr import Broadcast, BufferAddress, BufferLoad, Ramp, broadcast
from ekiden.tir.stmt import Allocate, For, IfThenElse, LetStmt, PrimFunc, Stmt, While
from ekiden.tir.visitor import StmtMutator, buffers_written, conditional_nodes, pre_order_stmts


class _InvariantNamer(StmtMutator):
    """A mutator that names, within one loop, the invariants: expressions without variables of the
    loop or of its inside, and without buffers written there.

    A guarded expression is only evaluated where its condition holds, so it may be hoisted only
    where evaluating it anywhere is harmless (`_is_speculatable`).
    """

    def __init__(self, loop: For) -> None:
        inside = list(pre_order_stmts(loop))
        self._variant_symbols: set[object] = {s.loop_var for s in inside if isinstance(s, For)}
        self._variant_symbols |= {s.var for s in inside if isinstance(s, LetStmt)}
        self._variant_symbols |= set(buffers_written(loop))
        self._variant_symbols |= {s.buffer for s in inside if isinstance(s, Allocate)}
        # by id of an expression; `_keepalive` keeps an id from being given to another one meanwhile
        self._invariant: dict[int, bool] = {}
        self._memo: dict[int, PrimExpr] = {}
        self._keepalive: list[PrimExpr] = []
        self._sum_cache: dict[tuple[tuple[int, int], ...], PrimExpr] = {}
        self.invariant_vars: dict[PrimExpr, Var] = {}
        self._conditional = 0

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """Mark both branches as conditional: what is in them may be hoisted only if it is safe
        anywhere.
        """
        condition = self.rewrite_expr(stmt.condition)
        self._conditional += 1
        else_case = None if stmt.else_case is None else self.visit(stmt.else_case)
        new = stmt.with_fields(
            condition=condition, then_case=self.visit(stmt.then_case), else_case=else_case
        )
        self._conditional -= 1
        return new

    def visit_while(self, stmt: While) -> Stmt:
        """Mark the body as conditional: the loop may have no iterations."""
        condition = self.rewrite_expr(stmt.condition)
        self._conditional += 1
        body = self.visit(stmt.body)
        self._conditional -= 1
        return stmt.with_fields(condition=condition, body=body)

    def visit_for(self, stmt: For) -> Stmt:
        """Mark the body of a loop that may have no iterations as conditional."""
        low, extent = self.rewrite_expr(stmt.min), self.rewrite_expr(stmt.extent)
        # The bounds are evaluated in any case, the body only where there is an iteration.
        self._conditional += not _has_iterations(stmt)
        body = self.visit(stmt.body)
        self._conditional -= not _has_iterations(stmt)
        return stmt.with_fields(min=low, extent=extent, body=body)

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Return the expression with its loop invariants replaced by names."""
        if isinstance(expr, (IntImm, FloatImm, Var)):
            return expr
        self._keepalive.append(expr)
        order = unvisited_post_order((expr,), self._memo)
        guarded = self._conditional_nodes(expr, order)
        for node in order:
            self._invariant[id(node)] = self._is_invariant(node)
            self._memo[id(node)] = self._rebuild_variant(node, guarded)
        return self._rewrite_root(expr, id(expr) in guarded)

    def _conditional_nodes(self, root: PrimExpr, order: list[PrimExpr]) -> set[int]:
        """Return the ids of the nodes, among those of `order` and their children, that are
        evaluated conditionally; children may have been visited before, unconditionally.
        """
        near = [root, *order, *(c for e in order for c in children(e))]
        if self._conditional:
            return {id(e) for e in near}
        has_guard = any(isinstance(e, Intrinsic) and e.op == "if_then_else" for e in order)
        return conditional_nodes(root, near) if has_guard else set()

    # A load is invariant if nothing inside writes its buffer: two buffers count as two memories.
    def _is_invariant(self, e: PrimExpr) -> bool:
        if isinstance(e, Var):
            return e not in self._variant_symbols
        if isinstance(e, BufferLoad) and (
            e.buffer in self._variant_symbols or e.buffer.scope == "register"
        ):
            return False
        if isinstance(e, BufferAddress) or (isinstance(e, Intrinsic) and _has_effects(e)):
            return False
        return all(self._invariant[id(c)] for c in children(e))

    def _rebuild_variant(self, e: PrimExpr, guarded: set[int]) -> PrimExpr:
        """Rebuild a variant node over names of invariants; an invariant node is returned as it is,
        for its consumer to name.
        """
        if self._invariant[id(e)]:
            return e
        if isinstance(e, (Add, Sub)) and e.dtype == "int64":
            return self._reassociate_sum(e)
        return rebuild(e, [self._rewrite_root(c, id(c) in guarded) for c in children(e)])

    def _rewrite_root(self, e: PrimExpr, guarded: bool) -> PrimExpr:
        if (
            not self._invariant[id(e)]
            or not _is_worth_hoisting(e)
            or (guarded and not _is_speculatable(e))
        ):
            return self._memo[id(e)]
        return self._name_invariant(e)

    def _name_invariant(self, e: PrimExpr) -> PrimExpr:
        if e not in self.invariant_vars:
            self.invariant_vars[e] = Var("base" if e.dtype == "int64" else "value", e.dtype)
            self._keepalive.append(e)
        return self.invariant_vars[e]

    # Regrouping sums of int64 keeps their value, as addition of whole numbers modulo 2^64 is
    # associative and commutative; of floats it would not, so they are left.
    def _reassociate_sum(self, e: PrimExpr) -> PrimExpr:
        """Return a sum reassociated as (invariant terms, named) + (the others) + constant."""
        fixed: list[tuple[PrimExpr, int]] = []
        moving: PrimExpr | None = None
        offset = 0
        # Integer addition wraps and is associative, so reassociation is exact: the invariant part
        # is computed once, outside the loop.
        for term, sign in _split_summands(e):
            if isinstance(term, IntImm):
                offset += sign * term.value
            elif self._invariant[id(term)] and _is_speculatable(term):
                fixed.append((term, sign))
            else:
                moving = _add_term(moving, self._memo[id(term)], sign)
        assert moving is not None
        if fixed:
            total = self._sum_of_invariants(fixed)
            moving = (self._name_invariant(total) if _is_worth_hoisting(total) else total) + moving
        return moving + offset if offset >= 0 else moving - -offset

    def _sum_of_invariants(self, terms: list[tuple[PrimExpr, int]]) -> PrimExpr:
        """Return the sum of invariant terms, one object per set of terms."""
        key = tuple((id(term), sign) for term, sign in terms)
        if key not in self._sum_cache:
            total: PrimExpr | None = None
            for term, sign in terms:
                total = _add_term(total, term, sign)
            assert total is not None
            self._sum_cache[key] = total
        return self._sum_cache[key]


def _has_effects(e: Intrinsic) -> bool:
    row = INTRINSICS.get(e.op)
    return row is not None and row.has_effects


def _add_term(total: PrimExpr | None, term: PrimExpr, sign: int) -> PrimExpr:
    if total is None:
        return term if sign > 0 else -term
    return total + term if sign > 0 else total - term


def _split_summands(root: PrimExpr) -> list[tuple[PrimExpr, int]]:
    """Return the summands of a sum with their signs, left to right."""
    terms: list[tuple[PrimExpr, int]] = []
    stack = [(root, 1)]
    while stack:
        e, sign = stack.pop()
        if isinstance(e, (Add, Sub)) and e.dtype == "int64":
            stack.append((e.b, -sign if isinstance(e, Sub) else sign))
            stack.append((e.a, sign))
        else:
            terms.append((e, sign))
    return terms


def _is_speculatable(e: PrimExpr) -> bool:
    """Return whether a node may be evaluated speculatively: no load, no division by a
    possible 0.
    """
    if not children(e):
        return True
    return not any(isinstance(x, BufferLoad) or has_nonconstant_divisor(x) for x in post_order(e))


def _is_worth_hoisting(e: PrimExpr) -> bool:
    if isinstance(e, (Var, IntImm, FloatImm)) or e.dtype.startswith(("bool", "handle")):
        return False
    if isinstance(e, Broadcast):
        return not isinstance(e.value, (IntImm, FloatImm))
    if isinstance(e, Ramp):
        return False
    if isinstance(e, BinaryExpr) and isinstance(e.b, IntImm) and isinstance(e, (Add, Sub)):
        return not isinstance(e.a, Var)
    return True


def _has_iterations(loop: For) -> bool:
    """Return whether a loop provably has an iteration."""
    return isinstance(loop.extent, IntImm) and loop.extent.value > 0


# Before a loop that takes no step, a load that only its steps made sure of may be out of range.
def _guarded_invariant(value: PrimExpr, loop: For, scope: Sequence[For | LetStmt]) -> PrimExpr:
    """Return the value to evaluate before a loop; 0 where the loop has no iterations, if a load
    might be out of range then.
    """
    loads = [e for e in post_order(value) if isinstance(e, BufferLoad)]
    if not loads or _has_iterations(loop):
        return value
    analyzer = _scope_analyzer(scope)
    if all(_is_load_in_bounds(e, analyzer) for e in loads):
        return value
    zero = broadcast(const(0, dt.element_dtype(value.dtype)), dt.lanes(value.dtype))
    return if_then_else(loop.extent > 0, value, zero)


def _is_load_in_bounds(load: BufferLoad, analyzer: Analyzer) -> bool:
    """Return whether a load is in range for all values of the enclosing loops."""
    size = 1
    for extent in load.buffer.shape:
        if not isinstance(extent, IntImm):
            return False
        size *= extent.value
    index: PrimExpr = load.indices[0]
    last = 0
    if isinstance(index, Ramp) and isinstance(index.stride, IntImm) and index.stride.value > 0:
        last = (dt.lanes(index.dtype) - 1) * index.stride.value
        index = index.base
    # Bounds are those of scalars: a gather counts as possibly out of range.
    if dt.lanes(index.dtype) > 1:
        return False
    # A speculative load must be in range for every iteration, including iterations that a condition
    # would have excluded.
    low, high = analyzer.const_int_bound(index)
    return low >= 0 and high + last < size


class _InvariantHoister(StmtMutator):
    def __init__(self) -> None:
        self._scope: list[For | LetStmt] = []

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Track the enclosing lets, whose variables restrict hoisting."""
        self._scope.append(stmt)
        new = super().visit_let(stmt)
        self._scope.pop()
        return new

    def visit_for(self, stmt: For) -> Stmt:
        """Reassociate sums so that their invariant parts are adjacent, and name those before the
        loop, or before the outermost enclosing loop in which they are invariant.
        """
        regroup = _InvariantNamer(stmt)
        body = regroup.visit(stmt.body)
        self._scope.append(stmt)
        new: Stmt = stmt.with_fields(body=self.visit(body))
        self._scope.pop()
        for value, var in reversed(regroup.invariant_vars.items()):
            new = LetStmt(var, _guarded_invariant(value, stmt, self._scope), new)
        return new


def _scope_analyzer(scope: Sequence[For | LetStmt]) -> Analyzer:
    """Return an analyzer with the bounds of the variables of loops and lets."""
    analyzer = Analyzer()
    for binder in scope:
        if isinstance(binder, For):
            analyzer.bind(binder.loop_var, binder.min, binder.extent)
        elif binder.var.dtype == "int64":
            low, high = analyzer.const_int_bound(binder.value)
            if not math.isinf(low) and not math.isinf(high):
                analyzer.bind(binder.var, const(int(low)), const(int(high - low) + 1))
    return analyzer


def hoist_invariants(func: PrimFunc) -> PrimFunc:
    """Return the function with invariants named before the outermost loop in which they do not
    change.
    """
    return func.with_fields(body=_InvariantHoister().visit(func.body))
