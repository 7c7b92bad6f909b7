"""Fill a buffer for the next step of a loop while this step reads it.

A block with the annotation `double_buffer_scope` fills a buffer that one step of a loop uses. With
two copies of the buffer, the one for the step after is filled first, so that its loads run beside
the work (lower_blocks marks the filling by a loop of one step, annotated `double_buffer`):

    for i in n:                                t = alloc((2, m))
        t = alloc((m,))                        if n > 0: fill t[0] for step 0
        fill t for step i                ->    for i in n:
        use t                                      if i + 1 < n: fill t[(i + 1) % 2] for step i + 1
                                                   use t[i % 2]
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import PrimExpr, const, is_const
from ekiden.tir.distinct import distinct
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, PrimFunc, SeqStmt, Stmt
from ekiden.tir.visitor import (
    ExprRewriter,
    StmtMutator,
    buffers_read,
    buffers_written,
    sequence,
    substitute,
    walk,
)

MARK = "double_buffer"
"""The annotation of the one-step loop around what fills a double buffer."""


def _is_mark(s: Stmt) -> bool:
    return isinstance(s, For) and bool((s.annotations or {}).get(MARK))


class _Slot(ExprRewriter):
    """t[i] -> t[slot, i]"""

    def __init__(self, old: Buffer, new: Buffer, slot: PrimExpr) -> None:
        super().__init__(self._load)
        self._old, self._new, self._slot = old, new, slot

    def _load(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferLoad) and e.buffer is self._old:
            return e.with_fields(buffer=self._new, indices=(self._slot, *e.indices))
        return e

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """t[i] = v  ->  t[slot, i] = v"""
        new = super().visit_store(stmt)
        assert isinstance(new, BufferStore)
        if stmt.buffer is not self._old:
            return new
        return new.with_fields(buffer=self._new, indices=(self._slot, *new.indices))


class _Inject(StmtMutator):
    def visit_for(self, stmt: For) -> Stmt:
        """Where a step allocates, fills, and uses a marked buffer; elsewhere the mark goes."""
        if _is_mark(stmt):
            return self.visit(substitute(stmt.body, {stmt.loop_var: stmt.min}))
        body = stmt.body
        ready = isinstance(body, Allocate) and not body.buffer.strides and is_const(stmt.min, 0)
        if ready and stmt.kind is ForKind.SERIAL and isinstance(body, Allocate):
            parts = _parts(body)
            if parts is not None:
                return self.visit(_pipelined(stmt, body.buffer, *parts))
        return super().visit_for(stmt)


def _parts(allocation: Allocate) -> tuple[Stmt, Sequence[Stmt]] | None:
    """(what fills the buffer, what uses it), if the filling may run before the use of the step
    before: it reads nothing that the use writes.
    """
    body = allocation.body
    if not isinstance(body, SeqStmt) or not _is_mark(body.seq[0]):
        return None
    fill, uses = body.seq[0], body.seq[1:]
    if buffers_written(fill) != [allocation.buffer]:
        return None
    changed = {b for s in uses for b in buffers_written(s)}
    return None if changed.intersection([*buffers_read(fill), allocation.buffer]) else (fill, uses)


def _pipelined(loop: For, buffer: Buffer, fill: Stmt, uses: Sequence[Stmt]) -> Stmt:
    both = buffer.with_fields(shape=(const(2), *buffer.shape))
    step = loop.loop_var
    first = _Slot(buffer, both, const(0)).visit(substitute(fill, {step: const(0)}))
    after = _Slot(buffer, both, (step + 1) % 2).visit(substitute(fill, {step: step + 1}))
    current = _Slot(buffer, both, step % 2).visit(sequence(*uses))
    ahead = IfThenElse(step + 1 < loop.extent, after)
    main = loop.with_fields(body=sequence(ahead, current))
    return Allocate(both, sequence(IfThenElse(loop.extent > 0, first), main))


def inject_double_buffer(func: PrimFunc) -> PrimFunc:
    """The function with marked buffers doubled. Blocks must have been lowered."""
    if not any(_is_mark(s) for s in walk(func.body)):
        return func
    return distinct(func.with_fields(body=_Inject().visit(func.body)))
