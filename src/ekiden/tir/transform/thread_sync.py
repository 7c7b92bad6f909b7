"""Threads of a block wait for each other where one reads what another wrote.

    for k in 4:                          for k in 4:
        a_shared[tx] = a[k, tx]              wait                        # until all have read
        c[tx] += sum(a_shared)     ->        a_shared[tx] = a[k, tx]
                                             wait                        # until all have written
                                             c[tx] += sum(a_shared)

Memory of scope "shared" alone; a buffer counts as a whole. Barriers that stand there count.

One walk from the inside out. Of each statement it keeps what it does before threads first wait
in it, what after they last did, and whether they do: so the end of a loop's turn meets the begin of
the next without a second visit, and where an inner loop waits in each of its turns, outer ones need
not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field

from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, StringImm, Var
from ekiden.ir.prim_visitor import free_vars
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import (
    Block,
    BufferStore,
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
    expressions,
    sub_statements,
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
    if not _shared(buffers_read(func.body)) and not _shared(buffers_written(func.body)):
        return func
    return func.with_fields(body=_Sync(func.name).visit(func.body))


def _shared(buffers: Iterable[Buffer]) -> list[Buffer]:
    return [b for b in buffers if b.scope in SHARED]


def _is_tuple_store(stmt: Stmt) -> bool:
    """Whether a statement stores values that are all computed before: as one store, whose elements
    are each thread's."""
    if not isinstance(stmt, LetStmt):
        return False
    while isinstance(stmt, LetStmt):
        stmt = stmt.body
    parts = stmt.seq if isinstance(stmt, SeqStmt) else (stmt,)
    return all(isinstance(s, BufferStore) and not buffers_read(s) for s in parts)


@dataclass(slots=True)
class _Open:
    """What is read and written without a barrier between."""

    reads: set[Buffer] = field(default_factory=set)
    writes: dict[Buffer, Stmt | None] = field(default_factory=dict)
    """By which statement; None: by several."""

    @staticmethod
    def of(stmt: Stmt) -> _Open:
        """What a statement with nothing inside does to memory of a block."""
        written = _shared(buffers_written(stmt))
        return _Open(set(_shared(buffers_read(stmt))), dict.fromkeys(written, stmt))

    def add(self, other: _Open) -> None:
        """What else there is, or may be."""
        self.reads |= other.reads
        for buffer, by in other.writes.items():
            self.writes[buffer] = by if self.writes.get(buffer, by) is by else None

    # Read after write, write after read, write after write: the three hazards of a pipeline, here
    # between threads. That two threads read needs no order.
    def spoils(self, following: _Open) -> bool:
        """Whether threads must wait before what follows. One statement in several turns of a loop
        writes elements of its own."""
        if not self.reads.isdisjoint(following.writes):
            return True
        if not following.reads.isdisjoint(self.writes):
            return True
        return any(
            b in self.writes and (by is None or self.writes[b] is not by)
            for b, by in following.writes.items()
        )


@dataclass(slots=True)
class _Uses:
    """What a statement does before threads first wait in it, and after they last did; whether they
    wait whatever happens."""

    before: _Open = field(default_factory=_Open)
    after: _Open = field(default_factory=_Open)
    waits: bool = False

    @staticmethod
    def of(stmt: Stmt) -> _Uses:
        """Of one with nothing inside."""
        if is_barrier(stmt):
            return _Uses(waits=True)
        does = _Open.of(stmt)
        return _Uses(does, does)

    def wait(self) -> None:
        """Threads wait at its end."""
        self.after, self.waits = _Open(), True

    def then(self, other: _Uses) -> None:
        """Another after this."""
        if not self.waits:
            self.before.add(other.before)
        if other.waits:
            self.after = _Open()
        self.after.add(other.after)
        self.waits = self.waits or other.waits

    def either(self, other: _Uses) -> None:
        """Another instead of this."""
        self.before.add(other.before)
        self.after.add(other.after)
        self.waits = self.waits and other.waits


_Part = tuple[Stmt, _Uses]
"""A statement with barriers inside, and what it does."""


class _Sync(StmtMutator):
    """Puts barriers where they are needed, innermost statements first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._uses = _Uses()
        """Of the last statement that was visited."""
        self._own: set[Var] = set()
        """Variables of which each thread has its own value."""
        self._bound: set[str] = set()
        """Axes whose threads are here."""
        self._added = 0

    def visit(self, stmt: Stmt) -> Stmt:
        """With barriers between its parts."""
        if sub_statements(stmt) and not _is_tuple_store(stmt):
            return super().visit(stmt)
        self._uses = _Uses.of(stmt)
        return stmt

    def _part(self, stmt: Stmt) -> _Part:
        return self.visit(stmt), self._uses

    def _in_order(self, parts: Sequence[_Part], waiting: int | None = None) -> list[Stmt]:
        """Parts with barriers where what follows needs one, and before the one of that number."""
        whole, made = _Uses(), []
        for n, (stmt, uses) in enumerate(parts):
            if n == waiting or whole.after.spoils(uses.before):
                stmt = seq(BARRIER, stmt)
                whole.wait()
                self._added += 1
            made.append(stmt)
            whole.then(uses)
        self._uses = whole
        return made

    def _differs(self, value: PrimExpr) -> bool:
        """Whether threads of a block may have other values of it."""
        return not self._own.isdisjoint(free_vars(value)) or bool(buffers_read(Evaluate(value)))

    def visit_seq(self, stmt: SeqStmt) -> Stmt:
        """One after another."""
        parts = [self._part(s) for s in stmt.seq]
        made = self._in_order(parts)
        same = all(a is b for a, b in zip(made, stmt.seq, strict=True))
        return stmt if same else seq(*made)

    def visit_block(self, stmt: Block) -> Stmt:
        """Its first part, where it has one, then its body."""
        made = self._in_order([self._part(s) for s in sub_statements(stmt)])
        return stmt.with_fields(body=made[-1], init=made[0] if len(made) > 1 else None)

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """A name of each thread's, if its value is."""
        if self._differs(stmt.value):
            self._own.add(stmt.var)
        value: _Part = stmt, _Uses.of(Evaluate(stmt.value))
        body = self._in_order([value, self._part(stmt.body)])[1]
        return stmt.with_fields(body=body)

    def visit_for(self, stmt: For) -> Stmt:
        """A loop over threads once, another as often as it may run."""
        if is_thread_loop(stmt):
            return self._threads(stmt)
        if self._differs(stmt.extent) or self._differs(stmt.min):
            self._own.add(stmt.loop_var)
            return self._by_some(self._again, stmt)
        made = self._again(stmt)
        runs = isinstance(stmt.extent, IntImm) and stmt.extent.value > 0
        self._uses.waits = self._uses.waits and runs
        return made

    def _threads(self, stmt: For) -> Stmt:
        axis = str((stmt.annotations or {})["thread"])
        if not axis.startswith("blockIdx"):
            self._own.add(stmt.loop_var)
        if axis in self._bound:  # of as many threads as come here, or fewer
            return self._by_some(super().visit_for, stmt)
        self._bound.add(axis)
        made = super().visit_for(stmt)
        self._bound.discard(axis)
        return made

    def visit_while(self, stmt: While) -> Stmt:
        """As a loop that may not run."""
        if self._differs(stmt.condition):
            return self._by_some(self._again, stmt)
        made = self._again(stmt)
        self._uses.waits = False
        return made

    def _again(self, stmt: Stmt) -> Stmt:
        """A loop: what ends a turn meets what begins the next, and waits before the first part that
        needs it."""
        assert isinstance(stmt, (For, While)), stmt
        inside = stmt.body.seq if isinstance(stmt.body, SeqStmt) else (stmt.body,)
        parts, added = [self._part(s) for s in inside], self._added
        made = self._in_order(parts)
        turn = self._uses
        if turn.after.spoils(turn.before):
            self._added = added
            waiting = next(n for n, (_, uses) in enumerate(parts) if turn.after.spoils(uses.before))
            made = self._in_order(parts, waiting)
        same = all(a is b for a, b in zip(made, inside, strict=True))
        return stmt if same else stmt.with_fields(body=seq(*made))

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """Either part follows what was before."""
        if self._differs(stmt.condition):
            return self._by_some(self._sides, stmt)
        return self._sides(stmt)

    def _sides(self, stmt: Stmt) -> Stmt:
        assert isinstance(stmt, IfThenElse), stmt
        then, whole = self._part(stmt.then_case)
        other, uses = (None, _Uses()) if stmt.else_case is None else self._part(stmt.else_case)
        self._uses = _Uses()
        self._uses.waits = True
        self._uses.either(whole)
        self._uses.either(uses)
        return stmt.with_fields(then_case=then, else_case=other)

    # A barrier that not all threads of a block come to hangs the device, or worse, lets some
    # through.
    def _by_some(self, visit: Callable[..., Stmt], stmt: Stmt) -> Stmt:
        """What not all threads do, or not as often: they wait before it, never inside."""
        added = self._added
        made = visit(stmt)
        asked = _Open()
        for value in expressions(stmt):
            asked.add(_Open.of(Evaluate(value)))
        is_asked_again = isinstance(stmt, While) and self._uses.after.spoils(asked)
        if self._added != added or is_asked_again:
            names = ", ".join(sorted({repr(b.name) for b in _shared(buffers_written(stmt))}))
            raise CompileError(
                f"kernel {self._name!r}: threads would have to wait for each other between uses of"
                f" {names} where not all of them come: in a condition or a loop that depends on the"
                " thread"
            )
        uses, self._uses = self._uses, _Uses(waits=False)
        self._uses.then(_Uses(asked, asked))
        self._uses.then(uses)
        self._uses.waits = False
        return made


__all__ = ["thread_sync"]
