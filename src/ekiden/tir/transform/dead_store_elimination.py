"""Dead store elimination: remove stores whose elements are all overwritten before they are read.

    for i in 16: a[i] = 1       ->   for i in 16: a[i] = 2
    for i in 16: a[i] = 2

A store is compared with the later statements of its sequence: loops, at most one condition, and one
store whose indices are loop variables, each of one axis, or equal to the earlier store's index.
"""

from __future__ import annotations

from ekiden.arith import Analyzer
from ekiden.ir.intrinsic import find_intrinsic
from ekiden.ir.prim import GE, LT, Intrinsic, PrimExpr, Var, cast, const, logical_and
from ekiden.ir.prim_visitor import post_order, substitute
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad
from ekiden.tir.stmt import BufferStore, Evaluate, For, ForKind, IfThenElse, SeqStmt, Stmt
from ekiden.tir.visitor import NO_OP, StmtMutator, all_exprs, flatten_seq, pre_order_stmts


@dataclass(frozen=True, slots=True)
class _StoreNest:
    """A single store with the loops and conditions around it."""

    store: BufferStore
    loops: tuple[For, ...]
    conditions: tuple[PrimExpr, ...]


def _match_store_nest(stmt: Stmt) -> _StoreNest | None:
    """Return a statement as a single store under loops and conditions, or None."""
    loops: list[For] = []
    conditions: list[PrimExpr] = []
    while not isinstance(stmt, BufferStore):
        if isinstance(stmt, For) and stmt.kind is not ForKind.THREAD_BINDING:
            loops.append(stmt)
            stmt = stmt.body
        elif isinstance(stmt, IfThenElse) and stmt.else_case is None:
            conditions.append(stmt.condition)
            stmt = stmt.then_case
        else:
            return None
    # A masked store writes some lanes only, so it overwrites nothing for certain.
    return None if stmt.predicate is not None else _StoreNest(stmt, tuple(loops), tuple(conditions))


def _has_opaque_reads(stmt: Stmt) -> bool:
    """Return whether a statement may read memory that it does not name."""
    return any(
        isinstance(e, Intrinsic) and find_intrinsic(e.op).has_effects
        for root in all_exprs(stmt)
        for e in post_order(root)
    )


def _buffers_possibly_read(stmt: Stmt) -> set[Buffer]:
    """Return the buffers that a statement reads or passes to calls."""
    return {
        e.buffer
        for root in all_exprs(stmt)
        for e in post_order(root)
        if isinstance(e, (BufferLoad, BufferAddress))
    }


def _overwrites(later: _StoreNest, earlier: _StoreNest) -> bool:
    """Return whether one store provably writes every element that another writes."""
    analyzer = Analyzer()
    for loop in earlier.loops:
        analyzer.bind(loop.loop_var, loop.min, loop.extent)
    later_loops = {loop.loop_var: loop for loop in later.loops}
    values: dict[Var, PrimExpr] = {}
    obligations: list[PrimExpr] = []
    for index, earlier_index in zip(later.store.indices, earlier.store.indices, strict=True):
        if isinstance(index, Var) and index in later_loops and index not in values:
            values[index] = cast(earlier_index, index.dtype)
            loop = later_loops[index]
            index_value, low = cast(earlier_index, "int64"), cast(loop.min, "int64")
            obligations += [GE(index_value, low), LT(index_value, low + cast(loop.extent, "int64"))]
        elif any(v in later_loops for v in post_order(index)) or not _prove_equal(
            index, earlier_index, analyzer
        ):
            return False
    if len(values) < len(later_loops):  # a loop over what is no axis: it must run at least once
        obligations += [
            LT(const(0), cast(loop.extent, "int64"))
            for v, loop in later_loops.items()
            if v not in values
        ]
    # The later store must happen wherever the earlier one did; the earlier one's conditions may be
    # assumed.
    obligations += later.conditions
    precondition = const(True)
    for condition in earlier.conditions:
        precondition = logical_and(precondition, condition)
    # A condition read from memory may change between the two stores.
    if any(isinstance(e, BufferLoad) for c in (*obligations, precondition) for e in post_order(c)):
        return False
    with analyzer.constraint_scope(precondition):
        return all(analyzer.can_prove(substitute(c, values)) for c in obligations)


def _prove_equal(a: PrimExpr, b: PrimExpr, analyzer: Analyzer) -> bool:
    return a.dtype == b.dtype and analyzer.can_prove_equal(a, b)


class _DeadStoreRemover(StmtMutator):
    def visit_seq(self, stmt: SeqStmt) -> Stmt:
        """Eliminate dead stores from last to first: fills that no statement in between reads are
        pending.
        """
        remaining: list[Stmt] = []
        pending: list[_StoreNest] = []
        # A backward pass: `pending` holds the later stores that no statement in between reads.
        for child in reversed(stmt.seq):
            new = self.visit(child)
            fill = _match_store_nest(new)
            if fill is not None and any(
                f.store.buffer is fill.store.buffer and _overwrites(f, fill) for f in pending
            ):
                # The store is dead; calls with effects in its value still happen, as often as
                # before.
                value = fill.store.value
                new = _rebuild_nest(fill, Evaluate(value)) if _has_opaque_reads(new) else NO_OP
                fill = None
            read = _buffers_possibly_read(new)
            # An opaque call may read any memory; a load keeps the earlier stores to its buffer
            # alive.
            pending = (
                [] if _has_opaque_reads(new) else [f for f in pending if f.store.buffer not in read]
            )
            if fill is not None and fill.store.buffer not in read:
                pending.append(fill)
            elif fill is None and any(
                not isinstance(s, _TRANSPARENT_STMTS) for s in pre_order_stmts(new)
            ):
                pending = []
            remaining.append(new)
        return flatten_seq(*reversed(remaining))


_TRANSPARENT_STMTS = (BufferStore, For, IfThenElse, SeqStmt, Evaluate)
"""Types of statements that name all memory they access."""


def _rebuild_nest(fill: _StoreNest, inner: Stmt) -> Stmt:
    """Return the loops and conditions of a fill around another statement."""
    for condition in reversed(fill.conditions):
        inner = IfThenElse(condition, inner, None)
    for loop in reversed(fill.loops):
        inner = loop.with_fields(body=inner)
    return inner


def remove_dead_stores(body: Stmt) -> Stmt:
    """Return the statements without dead stores."""
    return _DeadStoreRemover().visit(body)
