"""Threads of a block wait for each other where one reads what another wrote.

    for k in 4:                          for k in 4:
        a_shared[tx] = a[k, tx]              wait                        # until all have read
        c[tx] += sum(a_shared)     ->        a_shared[tx] = a[k, tx]
                                             wait                        # until all have written
                                             c[tx] += sum(a_shared)

Memory of scope "shared" alone; a buffer counts as a whole. Barriers that stand there count.
"""

from __future__ import annotations

from dataclasses import dataclass

from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Intrinsic, PrimExpr, StringImm, Var
from ekiden.ir.prim_visitor import free_vars
from ekiden.runtime.errors import CompileError
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import (
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    PrimFunc,
    SeqStmt,
    Stmt,
    While,
    seq,
)
from ekiden.tir.visitor import (
    StmtMutator,
    buffers_read,
    buffers_written,
    sub_statements,
    walk,
)

BARRIER: Stmt = Evaluate(call_intrin("tvm_storage_sync", StringImm("shared"), dtype="int32"))
"""Waits for all threads of a block."""
SHARED = ("shared", "shared.dyn")


def is_barrier(stmt: Stmt) -> bool:
    """Whether threads wait for each other at a statement."""
    value = stmt.value if isinstance(stmt, Evaluate) else None
    return isinstance(value, Intrinsic) and value.op == "tvm_storage_sync"


def is_thread_loop(stmt: Stmt) -> bool:
    """Whether a statement is done once by each thread of an axis."""
    return isinstance(stmt, For) and stmt.kind is ForKind.THREAD_BINDING


def thread_sync(func: PrimFunc) -> PrimFunc:
    """The function with barriers. Raises CompileError where some threads alone would wait."""
    if _Open.of(func.body) == _Open():
        return func
    return func.with_fields(body=_Sync(func.name).visit(func.body))


@dataclass(frozen=True, slots=True)
class _Open:
    """What was read and written since threads last waited, and by which statement."""

    reads: frozenset[Buffer] = frozenset()
    writes: frozenset[tuple[Buffer, Stmt]] = frozenset()

    @staticmethod
    def of(stmt: Stmt) -> _Open:
        """What a statement does to memory of a block."""
        reads = frozenset(b for b in buffers_read(stmt) if b.scope in SHARED)
        leaves = [s for s in walk(stmt) if not sub_statements(s)]
        writes = {(b, s) for s in leaves for b in buffers_written(s) if b.scope in SHARED}
        return _Open(reads, frozenset(writes))

    def then(self, other: _Open) -> _Open:
        """With what follows, or what else may have been."""
        return _Open(self.reads | other.reads, self.writes | other.writes)

    def spoils(self, following: _Open) -> bool:
        """Whether threads must wait before what follows. One statement in several turns of a loop
        writes elements of its own."""
        written = {b for b, _ in following.writes}
        if not self.reads.isdisjoint(written):
            return True
        return any(
            b in following.reads or any(b is other and by is not s for other, s in following.writes)
            for b, by in self.writes
        )


class _Sync(StmtMutator):
    """Goes through statements in the order they run in."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open = _Open()
        self._own: set[Var] = set()
        """Variables of which each thread has its own value."""
        self._bound: set[str] = set()
        """Axes whose threads are here."""
        self._added = 0

    def visit(self, stmt: Stmt) -> Stmt:
        """What is inside first; what has nothing inside may have to wait."""
        if is_barrier(stmt):
            self._open = _Open()
            return stmt
        if isinstance(stmt, SeqStmt):
            return seq(*map(self.visit, stmt.seq))
        if sub_statements(stmt):
            return super().visit(stmt)
        return self._after_barrier(stmt, _Open.of(stmt))

    def _after_barrier(self, stmt: Stmt, does: _Open) -> Stmt:
        if not self._open.spoils(does):
            self._open = self._open.then(does)
            return stmt
        self._open = does
        self._added += 1
        return seq(BARRIER, stmt)

    def _differs(self, value: PrimExpr) -> bool:
        """Whether threads of a block may have other values of it."""
        return not self._own.isdisjoint(free_vars(value)) or bool(buffers_read(Evaluate(value)))

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """A name of each thread's, if its value is."""
        if self._differs(stmt.value):
            self._own.add(stmt.var)
        first = self._after_barrier(stmt, _Open.of(Evaluate(stmt.value)))
        body = self.visit(stmt.body)
        made = stmt if body is stmt.body else stmt.with_fields(body=body)
        return made if first is stmt else seq(BARRIER, made)

    def visit_for(self, stmt: For) -> Stmt:
        """A loop over threads once; another as often as it may run, so that what ends a turn meets
        what begins the next."""
        if is_thread_loop(stmt):
            axis = str((stmt.annotations or {})["thread"])
            if not axis.startswith("blockIdx"):
                self._own.add(stmt.loop_var)
            if axis in self._bound:  # of as many threads as come here, or fewer
                return self._by_some(stmt)
            self._bound.add(axis)
            made = super().visit_for(stmt)
            self._bound.discard(axis)
            return made
        if self._differs(stmt.extent) or self._differs(stmt.min):
            self._own.add(stmt.loop_var)
            return self._by_some(stmt)
        return self._again(stmt)

    def visit_while(self, stmt: While) -> Stmt:
        """As a loop."""
        return self._by_some(stmt) if self._differs(stmt.condition) else self._again(stmt)

    def _again(self, stmt: For | While) -> Stmt:
        """What came before is waited for outside, so that not every turn does."""
        does = _Open.of(stmt)
        if does == _Open():
            return stmt
        waits = self._open.spoils(does)
        if waits:
            self._open = _Open()
            self._added += 1
        before, added = self._open, self._added
        self.visit(stmt.body)
        self._open, self._added = before.then(self._open), added
        made = stmt.with_fields(body=self.visit(stmt.body))
        self._open = before.then(self._open)
        return seq(BARRIER, made) if waits else made

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """Either part follows what was before."""
        if self._differs(stmt.condition):
            return self._by_some(stmt)
        before = self._open
        then = self.visit(stmt.then_case)
        after, self._open = self._open, before
        other = None if stmt.else_case is None else self.visit(stmt.else_case)
        self._open = after.then(self._open)
        return stmt.with_fields(then_case=then, else_case=other)

    def _by_some(self, stmt: Stmt) -> Stmt:
        """What not all threads do, or not as often: they wait before it, never inside."""
        inside = _Sync(self._name)
        inside._own, inside._bound = self._own, self._bound
        for each in sub_statements(stmt):
            turn = inside.visit(each)
            if isinstance(stmt, (For, While)) and not is_thread_loop(stmt):
                turn = inside.visit(turn)
            inside._open = _Open() if isinstance(stmt, IfThenElse) else inside._open
        does = _Open.of(stmt)
        if inside._added:
            names = ", ".join(sorted({repr(b.name) for b, _ in does.writes}))
            raise CompileError(
                f"kernel {self._name!r}: threads would have to wait for each other between uses of"
                f" {names} where not all of them come: in a condition or a loop that depends on the"
                " thread"
            )
        return self._after_barrier(stmt, does)


__all__ = ["thread_sync"]
