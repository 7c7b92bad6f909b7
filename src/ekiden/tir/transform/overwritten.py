"""Drop stores whose elements are all written again before anything reads them.

    for i in 16: a[i] = 1       ->   for i in 16: a[i] = 2
    for i in 16: a[i] = 2

A store is compared with the later statements of its sequence: loops, at most one condition, and one
store whose indices are loop variables, each of one axis, or what the earlier store has there.
"""

from __future__ import annotations

from ekiden.arith import Analyzer
from ekiden.ir.intrinsic import row_of
from ekiden.ir.prim import GE, LT, Intrinsic, PrimExpr, Var, cast, const, logical_and
from ekiden.ir.prim_visitor import post_order, substitute
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad
from ekiden.tir.stmt import BufferStore, Evaluate, For, ForKind, IfThenElse, SeqStmt, Stmt
from ekiden.tir.visitor import NOTHING, StmtMutator, all_expressions, sequence, walk


@dataclass(frozen=True, slots=True)
class _Fill:
    """Loops and conditions around one store."""

    store: BufferStore
    loops: tuple[For, ...]
    conditions: tuple[PrimExpr, ...]


def _fill(stmt: Stmt) -> _Fill | None:
    """A statement that is nothing but one store under loops and conditions."""
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
    return None if stmt.predicate is not None else _Fill(stmt, tuple(loops), tuple(conditions))


def _is_opaque(stmt: Stmt) -> bool:
    """Whether a statement may read memory that it does not name."""
    return any(
        isinstance(e, Intrinsic) and row_of(e.op).effects
        for root in all_expressions(stmt)
        for e in post_order(root)
    )


def _read(stmt: Stmt) -> set[Buffer]:
    """The buffers that a statement reads, or hands on."""
    return {
        e.buffer
        for root in all_expressions(stmt)
        for e in post_order(root)
        if isinstance(e, (BufferLoad, BufferAddress))
    }


def _covers(later: _Fill, earlier: _Fill) -> bool:
    """Whether one store writes every element that another writes."""
    analyzer = Analyzer()
    for loop in earlier.loops:
        analyzer.bind(loop.loop_var, loop.min, loop.extent)
    own = {loop.loop_var: loop for loop in later.loops}
    values: dict[Var, PrimExpr] = {}
    wanted: list[PrimExpr] = []
    for index, there in zip(later.store.indices, earlier.store.indices, strict=True):
        if isinstance(index, Var) and index in own and index not in values:
            values[index] = cast(there, index.dtype)
            loop = own[index]
            at, low = cast(there, "int64"), cast(loop.min, "int64")
            wanted += [GE(at, low), LT(at, low + cast(loop.extent, "int64"))]
        elif any(v in own for v in post_order(index)) or not _equal(index, there, analyzer):
            return False
    if len(values) < len(own):  # a loop over what is no axis: it must run at least once
        wanted += [
            LT(const(0), cast(loop.extent, "int64")) for v, loop in own.items() if v not in values
        ]
    wanted += later.conditions
    known = const(True)
    for condition in earlier.conditions:
        known = logical_and(known, condition)
    if any(isinstance(e, BufferLoad) for c in (*wanted, known) for e in post_order(c)):
        return False
    with analyzer.constraint_scope(known):
        return all(analyzer.can_prove(substitute(c, values)) for c in wanted)


def _equal(a: PrimExpr, b: PrimExpr, analyzer: Analyzer) -> bool:
    return a.dtype == b.dtype and analyzer.can_prove_equal(a, b)


class _Remove(StmtMutator):
    def visit_seq(self, stmt: SeqStmt) -> Stmt:
        """From the last to the first: what is still to be overwritten, unread, is kept."""
        kept: list[Stmt] = []
        coming: list[_Fill] = []
        for each in reversed(stmt.seq):
            new = self.visit(each)
            fill = _fill(new)
            if fill is not None and any(
                f.store.buffer is fill.store.buffer and _covers(f, fill) for f in coming
            ):
                value = fill.store.value
                new = _with_store(fill, Evaluate(value)) if _is_opaque(new) else NOTHING
                fill = None
            read = _read(new)
            coming = [] if _is_opaque(new) else [f for f in coming if f.store.buffer not in read]
            if fill is not None and fill.store.buffer not in read:
                coming.append(fill)
            elif fill is None and any(not isinstance(s, _PLAIN) for s in walk(new)):
                coming = []
            kept.append(new)
        return sequence(*reversed(kept))


_PLAIN = (BufferStore, For, IfThenElse, SeqStmt, Evaluate)
"""Statements that name all memory they touch."""


def _with_store(fill: _Fill, inner: Stmt) -> Stmt:
    """The loops of a fill around another statement."""
    for condition in reversed(fill.conditions):
        inner = IfThenElse(condition, inner, None)
    for loop in reversed(fill.loops):
        inner = loop.with_fields(body=inner)
    return inner


def remove_overwritten(body: Stmt) -> Stmt:
    """The statements without stores that later ones make useless."""
    return _Remove().visit(body)
