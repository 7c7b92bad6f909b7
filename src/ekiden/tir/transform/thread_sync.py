"""Insert barriers between threads of a block where one reads what another wrote.

    for k in 4:                          for k in 4:
        a_shared[tx] = a[k, tx]              wait                        # until all have read
        c[tx] += sum(a_shared)     ->        a_shared[tx] = a[k, tx]
                                             wait                        # until all have written
                                             c[tx] += sum(a_shared)

Only memory of scope "shared" counts, a buffer as a whole; existing barriers are taken into account.
One walk from the inside out: for each statement it records the accesses before its first barrier,
those after its last, and whether it has one. So the end of a loop's iteration is compared with the
begin of the next without a second visit, and where an inner loop waits in each iteration, outer
ones need not.
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
    stmt_exprs,
    sub_statements,
)

STORAGE_SYNC: Stmt = Evaluate(call_intrin("tvm_storage_sync", StringImm("shared"), dtype="int32"))
"""Barrier intrinsic of all threads of a block."""
SHARED_SCOPES = ("shared", "shared.dyn")


def is_barrier(stmt: Stmt) -> bool:
    """Return whether a statement is a barrier."""
    value = stmt.value if isinstance(stmt, Evaluate) else None
    return isinstance(value, Intrinsic) and value.op == "tvm_storage_sync"


def is_thread_loop(stmt: Stmt) -> bool:
    """Return whether a statement runs once per thread of an axis."""
    return isinstance(stmt, For) and stmt.kind is ForKind.THREAD_BINDING


def thread_sync(func: PrimFunc) -> PrimFunc:
    """Return the function with barriers. Raises CompileError where a barrier would be reached by
    some threads only.
    """
    if not _in_shared_memory(buffers_read(func.body)) and not _in_shared_memory(
        buffers_written(func.body)
    ):
        return func
    return func.with_fields(body=_BarrierInserter(func.name).visit(func.body))


def _in_shared_memory(buffers: Iterable[Buffer]) -> list[Buffer]:
    return [b for b in buffers if b.scope in SHARED_SCOPES]


def _is_tuple_store(stmt: Stmt) -> bool:
    """Return whether a statement stores values that were all computed before, so that it acts as
    one store of per-thread elements.
    """
    if not isinstance(stmt, LetStmt):
        return False
    while isinstance(stmt, LetStmt):
        stmt = stmt.body
    stores = stmt.seq if isinstance(stmt, SeqStmt) else (stmt,)
    return all(isinstance(s, BufferStore) and not buffers_read(s) for s in stores)


@dataclass(slots=True)
class _UnsyncedAccesses:
    """The reads and writes without a barrier in between."""

    reads: set[Buffer] = field(default_factory=set)
    writes: dict[Buffer, Stmt | None] = field(default_factory=dict)
    """Statement that writes each buffer; None for several."""

    @staticmethod
    def from_stmt(stmt: Stmt) -> _UnsyncedAccesses:
        """Return the accesses of a leaf statement to shared memory."""
        written = _in_shared_memory(buffers_written(stmt))
        return _UnsyncedAccesses(
            set(_in_shared_memory(buffers_read(stmt))), dict.fromkeys(written, stmt)
        )

    def add(self, accesses: _UnsyncedAccesses) -> None:
        """Merge further accesses."""
        self.reads |= accesses.reads
        for buffer, by in accesses.writes.items():
            self.writes[buffer] = by if self.writes.get(buffer, by) is by else None

    # Read after write, write after read, write after write: the three hazards of a pipeline, here
    # between threads. That two threads read needs no order.
    def conflicts_with(self, following: _UnsyncedAccesses) -> bool:
        """Return whether a barrier is needed before the following accesses. One statement in
        several iterations of a loop writes distinct elements.
        """
        if not self.reads.isdisjoint(following.writes):
            return True
        if not following.reads.isdisjoint(self.writes):
            return True
        return any(
            b in self.writes and (by is None or self.writes[b] is not by)
            for b, by in following.writes.items()
        )


@dataclass(slots=True)
class _BarrierSummary:
    """The accesses of a statement before its first barrier and after its last, and whether it
    always waits.
    """

    before: _UnsyncedAccesses = field(default_factory=_UnsyncedAccesses)
    after: _UnsyncedAccesses = field(default_factory=_UnsyncedAccesses)
    waits: bool = False

    @staticmethod
    def from_stmt(stmt: Stmt) -> _BarrierSummary:
        """Return the accesses of a leaf statement."""
        if is_barrier(stmt):
            return _BarrierSummary(waits=True)
        does = _UnsyncedAccesses.from_stmt(stmt)
        return _BarrierSummary(does, does)

    def add_barrier(self) -> None:
        """Record a barrier at the end."""
        self.after, self.waits = _UnsyncedAccesses(), True

    def append(self, following: _BarrierSummary) -> None:
        """Append the accesses of a following statement."""
        if not self.waits:
            self.before.add(following.before)
        if following.waits:
            self.after = _UnsyncedAccesses()
        self.after.add(following.after)
        self.waits = self.waits or following.waits

    def merge_branch(self, alternative: _BarrierSummary) -> None:
        """Merge the accesses of an alternative branch."""
        self.before.add(alternative.before)
        self.after.add(alternative.after)
        self.waits = self.waits and alternative.waits


_SyncedStmt = tuple[Stmt, _BarrierSummary]
"""Statement with its barriers, and its access summary."""


class _BarrierInserter(StmtMutator):
    """A mutator that inserts the necessary barriers, innermost statements first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last_summary = _BarrierSummary()
        """Summary of the statement visited last."""
        self._thread_local_vars: set[Var] = set()
        """Variables with a value per thread."""
        self._bound_axes: set[str] = set()
        """Thread axes bound around the current statement."""
        self._num_barriers = 0

    def visit(self, stmt: Stmt) -> Stmt:
        """Visit a statement and insert barriers between its children."""
        if sub_statements(stmt) and not _is_tuple_store(stmt):
            return super().visit(stmt)
        self._last_summary = _BarrierSummary.from_stmt(stmt)
        return stmt

    def _visit_child(self, stmt: Stmt) -> _SyncedStmt:
        return self.visit(stmt), self._last_summary

    def _insert_barriers(
        self, synced: Sequence[_SyncedStmt], waiting: int | None = None
    ) -> list[Stmt]:
        """Return statements with barriers where the next one requires it, and before the one with
        index `waiting`.
        """
        accumulated, statements = _BarrierSummary(), []
        for n, (stmt, uses) in enumerate(synced):
            if n == waiting or accumulated.after.conflicts_with(uses.before):
                stmt = seq(STORAGE_SYNC, stmt)
                accumulated.add_barrier()
                self._num_barriers += 1
            statements.append(stmt)
            accumulated.append(uses)
        self._last_summary = accumulated
        return statements

    def _is_divergent(self, value: PrimExpr) -> bool:
        """Return whether a value may differ between threads of a block."""
        return not self._thread_local_vars.isdisjoint(free_vars(value)) or bool(
            buffers_read(Evaluate(value))
        )

    def visit_seq(self, stmt: SeqStmt) -> Stmt:
        """Insert barriers into a sequence."""
        synced = [self._visit_child(s) for s in stmt.seq]
        statements = self._insert_barriers(synced)
        same = all(a is b for a, b in zip(statements, stmt.seq, strict=True))
        return stmt if same else seq(*statements)

    def visit_block(self, stmt: Block) -> Stmt:
        """Insert barriers between a block's init and its body."""
        statements = self._insert_barriers([self._visit_child(s) for s in sub_statements(stmt)])
        return stmt.with_fields(
            body=statements[-1], init=statements[0] if len(statements) > 1 else None
        )

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Record a variable as per-thread if its value is divergent."""
        if self._is_divergent(stmt.value):
            self._thread_local_vars.add(stmt.var)
        value: _SyncedStmt = stmt, _BarrierSummary.from_stmt(Evaluate(stmt.value))
        body = self._insert_barriers([value, self._visit_child(stmt.body)])[1]
        return stmt.with_fields(body=body)

    def visit_for(self, stmt: For) -> Stmt:
        """Visit a loop over threads once, another one as iterated."""
        if is_thread_loop(stmt):
            return self._visit_thread_loop(stmt)
        if self._is_divergent(stmt.extent) or self._is_divergent(stmt.min):
            self._thread_local_vars.add(stmt.loop_var)
            return self._visit_divergent(self._visit_iterated, stmt)
        visited = self._visit_iterated(stmt)
        # A loop that may have no iterations is no barrier for what follows.
        runs = isinstance(stmt.extent, IntImm) and stmt.extent.value > 0
        self._last_summary.waits = self._last_summary.waits and runs
        return visited

    def _visit_thread_loop(self, stmt: For) -> Stmt:
        axis = str((stmt.annotations or {})["thread"])
        # All threads of a block have the same block index.
        if not axis.startswith("blockIdx"):
            self._thread_local_vars.add(stmt.loop_var)
        if (
            axis in self._bound_axes
        ):  # a nested loop over a bound axis runs in at most as many threads
            return self._visit_divergent(super().visit_for, stmt)
        self._bound_axes.add(axis)
        visited = super().visit_for(stmt)
        self._bound_axes.discard(axis)
        return visited

    def visit_while(self, stmt: While) -> Stmt:
        """Visit a while loop, which may have no iterations."""
        if self._is_divergent(stmt.condition):
            return self._visit_divergent(self._visit_iterated, stmt)
        visited = self._visit_iterated(stmt)
        self._last_summary.waits = False
        return visited

    def _visit_iterated(self, stmt: Stmt) -> Stmt:
        """Visit a loop: the end of an iteration precedes the begin of the next, with a barrier
        before the first statement that needs it.
        """
        assert isinstance(stmt, (For, While)), stmt
        inside = stmt.body.seq if isinstance(stmt.body, SeqStmt) else (stmt.body,)
        synced, added = [self._visit_child(s) for s in inside], self._num_barriers
        statements = self._insert_barriers(synced)
        iteration = self._last_summary
        # The loop's back edge: the last accesses of an iteration meet the first ones of the next.
        if iteration.after.conflicts_with(iteration.before):
            # The barriers are inserted anew: those of the first attempt do not count.
            self._num_barriers = added
            waiting = next(
                n
                for n, (_, uses) in enumerate(synced)
                if iteration.after.conflicts_with(uses.before)
            )
            statements = self._insert_barriers(synced, waiting)
        same = all(a is b for a, b in zip(statements, inside, strict=True))
        return stmt if same else stmt.with_fields(body=seq(*statements))

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """Visit a branch: either side follows what was before."""
        if self._is_divergent(stmt.condition):
            return self._visit_divergent(self._visit_uniform_branch, stmt)
        return self._visit_uniform_branch(stmt)

    def _visit_uniform_branch(self, stmt: Stmt) -> Stmt:
        assert isinstance(stmt, IfThenElse), stmt
        then_case, then_uses = self._visit_child(stmt.then_case)
        else_case, uses = (
            (None, _BarrierSummary())
            if stmt.else_case is None
            else self._visit_child(stmt.else_case)
        )
        self._last_summary = _BarrierSummary()
        # The neutral element of merging: the branch waits only if both sides do.
        self._last_summary.waits = True
        self._last_summary.merge_branch(then_uses)
        self._last_summary.merge_branch(uses)
        return stmt.with_fields(then_case=then_case, else_case=else_case)

    # A barrier that not all threads of a block come to hangs the device, or worse, lets some
    # through.
    def _visit_divergent(self, visit: Callable[..., Stmt], stmt: Stmt) -> Stmt:
        """Visit a statement that not all threads execute equally often: barriers go before it,
        never inside.
        """
        added = self._num_barriers
        visited = visit(stmt)
        condition_accesses = _UnsyncedAccesses()
        for value in stmt_exprs(stmt):
            condition_accesses.add(_UnsyncedAccesses.from_stmt(Evaluate(value)))
        is_asked_again = isinstance(stmt, While) and self._last_summary.after.conflicts_with(
            condition_accesses
        )
        # A barrier that only some threads reach is undefined behaviour (a deadlock in practice), so
        # this is an error rather than a fix.
        if self._num_barriers != added or is_asked_again:
            names = ", ".join(
                sorted({repr(b.name) for b in _in_shared_memory(buffers_written(stmt))})
            )
            raise CompileError(
                f"kernel {self._name!r}: threads would have to wait for each other between uses of"
                f" {names} where not all of them come: in a condition or a loop that depends on the"
                " thread"
            )
        uses, self._last_summary = self._last_summary, _BarrierSummary(waits=False)
        # All threads evaluate the condition, before what only some of them execute.
        self._last_summary.append(_BarrierSummary(condition_accesses, condition_accesses))
        self._last_summary.append(uses)
        self._last_summary.waits = False
        return visited


__all__ = ["thread_sync"]
