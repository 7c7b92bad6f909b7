"""Virtual thread injection, which interleaves the statements of all virtual threads.

    for v in thread_binding(2, "vthread"):        t = alloc((2, 8))
        t = alloc((8,))                     ->    for i in 8: t[0, i] = a[0, i]; t[1, i] = a[1, i]
        for i in 8: t[i] = a[v, i]                for i in 8: b[0, i] = t[0, i]; b[1, i] = t[1, i]
        for i in 8: b[v, i] = t[i]

Threads are independent, so their statements may be interleaved in any order. On a GPU the
interleaved accesses hide each other's latency.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import IntImm, PrimExpr, Var, const
from ekiden.ir.prim_visitor import free_vars
from ekiden.runtime.errors import ScheduleError
from ekiden.tir.alpha_renaming import distinct
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import (
    Allocate,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Prefetch,
    PrimFunc,
    SeqStmt,
    Stmt,
)
from ekiden.tir.visitor import ExprRewriter, StmtMutator, flatten_seq, pre_order_stmts, substitute


def is_virtual_thread_loop(stmt: Stmt) -> bool:
    """Return whether a statement is a loop over virtual threads."""
    if not isinstance(stmt, For) or stmt.kind is not ForKind.THREAD_BINDING:
        return False
    return str((stmt.annotations or {}).get("thread", "")).startswith("vthread")


class _PerThreadRewriter(ExprRewriter):
    """A rewriter of a thread's buffer to that of all threads: t[i] -> t[v, i]."""

    def __init__(self, old: Buffer, new: Buffer, thread: Var) -> None:
        super().__init__(self._rewrite_load)
        self._old, self._new, self._thread = old, new, thread

    def _prepend_thread_index(self, indices: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
        return (self._thread, *indices)

    def _rewrite_load(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferLoad) and e.buffer is self._old:
            return e.with_fields(buffer=self._new, indices=self._prepend_thread_index(e.indices))
        return e

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Rewrite t[i] = v to t[thread, i] = v."""
        new = super().visit_store(stmt)
        assert isinstance(new, BufferStore)
        if stmt.buffer is not self._old:
            return new
        return new.with_fields(buffer=self._new, indices=self._prepend_thread_index(new.indices))

    def visit_prefetch(self, stmt: Prefetch) -> Stmt:
        """Rewrite a prefetch of t[i] to t[thread, i]."""
        new = super().visit_prefetch(stmt)
        assert isinstance(new, Prefetch)
        if stmt.buffer is not self._old:
            return new
        return new.with_fields(buffer=self._new, indices=self._prepend_thread_index(new.indices))


class _VirtualThreadInjector(StmtMutator):
    def visit_for(self, stmt: For) -> Stmt:
        """Expand nested virtual threads to all combinations."""
        new = super().visit_for(stmt)
        if not is_virtual_thread_loop(new):
            return new
        assert isinstance(new, For)
        if not isinstance(new.extent, IntImm):
            raise ScheduleError(
                f"virtual threads of {new.loop_var.name!r}: their number must be a constant, got "
                f"{new.extent!r}"
            )
        return _replicate_per_thread(new.body, new.loop_var, new.min, new.extent.value)


def _replicate_per_thread(s: Stmt, thread: Var, first: PrimExpr, count: int) -> Stmt:
    """Return the statement for every thread, pushed as deep inside as control flow common to all
    threads allows.
    """
    match s:
        case SeqStmt():
            return flatten_seq(
                *(_replicate_per_thread(child, thread, first, count) for child in s.seq)
            )
        case For() if thread not in free_vars(s.min, s.extent) and s.kind is ForKind.SERIAL:
            return s.with_fields(body=_replicate_per_thread(s.body, thread, first, count))
        case IfThenElse() if s.else_case is None and thread not in free_vars(s.condition):
            return s.with_fields(then_case=_replicate_per_thread(s.then_case, thread, first, count))
        # A buffer with strides would need one more for the new axis.
        case Allocate() if not s.buffer.strides:
            wide = s.buffer.with_fields(shape=(const(count), *s.buffer.shape))
            body = _PerThreadRewriter(s.buffer, wide, thread).visit(s.body)
            return Allocate(wide, _replicate_per_thread(body, thread, first, count))
        case LetStmt() if thread not in free_vars(s.value):
            return s.with_fields(body=_replicate_per_thread(s.body, thread, first, count))
    return flatten_seq(*(substitute(s, {thread: first + n}) for n in range(count)))


def inject_virtual_threads(func: PrimFunc) -> PrimFunc:
    """Return the function without loops over virtual threads. Blocks must have been lowered."""
    if not any(is_virtual_thread_loop(s) for s in pre_order_stmts(func.body)):
        return func
    # The copies of several threads bind the same variables.
    return distinct(func.with_fields(body=_VirtualThreadInjector().visit(func.body)))
