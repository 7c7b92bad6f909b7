"""Double buffering: fill a buffer for the next iteration while the current one reads it.

A block with the annotation `double_buffer_scope` fills a buffer that one iteration of a loop uses.
With two copies of the buffer, the copy for the next iteration is filled first, so that its loads
overlap the computation (lower_blocks marks the fill by a loop of one iteration, annotated
`double_buffer`):

    for i in n:                                t = alloc((2, m))
        t = alloc((m,))                        if n > 0: fill t[0] for step 0
        fill t for step i                ->    for i in n:
        use t                                      if i + 1 < n: fill t[(i + 1) % 2] for step i + 1
                                                   use t[i % 2]
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import PrimExpr, const, is_const
from ekiden.tir.alpha_renaming import distinct
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, PrimFunc, SeqStmt, Stmt
from ekiden.tir.visitor import (
    ExprRewriter,
    StmtMutator,
    buffers_read,
    buffers_written,
    flatten_seq,
    pre_order_stmts,
    substitute,
)

DOUBLE_BUFFER_ANNOTATION = "double_buffer"
"""Annotation of the single-iteration loop around the statements that fill a double buffer."""


def _is_double_buffer_mark(s: Stmt) -> bool:
    return isinstance(s, For) and bool((s.annotations or {}).get(DOUBLE_BUFFER_ANNOTATION))


class _SlotRewriter(ExprRewriter):
    """A rewriter of t[i] to t[slot, i]."""

    def __init__(self, old: Buffer, new: Buffer, slot: PrimExpr) -> None:
        super().__init__(self._index_slot)
        self._old, self._new, self._slot = old, new, slot

    def _index_slot(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferLoad) and e.buffer is self._old:
            return e.with_fields(buffer=self._new, indices=(self._slot, *e.indices))
        return e

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Rewrite t[i] = v to t[slot, i] = v."""
        new = super().visit_store(stmt)
        assert isinstance(new, BufferStore)
        if stmt.buffer is not self._old:
            return new
        return new.with_fields(buffer=self._new, indices=(self._slot, *new.indices))


class _DoubleBufferInjector(StmtMutator):
    def visit_for(self, stmt: For) -> Stmt:
        """Pipeline a loop whose iterations allocate, fill and use a marked buffer; elsewhere drop
        the mark.
        """
        if _is_double_buffer_mark(stmt):
            return self.visit(substitute(stmt.body, {stmt.loop_var: stmt.min}))
        body = stmt.body
        # The slot is the iteration modulo 2, so iterations must be counted from 0.
        ready = isinstance(body, Allocate) and not body.buffer.strides and is_const(stmt.min, 0)
        if ready and stmt.kind is ForKind.SERIAL and isinstance(body, Allocate):
            fill_and_uses = _split_fill_and_uses(body)
            if fill_and_uses is not None:
                return self.visit(_pipeline_loop(stmt, body.buffer, *fill_and_uses))
        return super().visit_for(stmt)


def _split_fill_and_uses(allocation: Allocate) -> tuple[Stmt, Sequence[Stmt]] | None:
    """Return (fill, uses) if the fill may run before the previous iteration's uses: it reads
    nothing that they write. Else None.
    """
    body = allocation.body
    if not isinstance(body, SeqStmt) or not _is_double_buffer_mark(body.seq[0]):
        return None
    fill, uses = body.seq[0], body.seq[1:]
    if buffers_written(fill) != [allocation.buffer]:
        return None
    changed = {b for s in uses for b in buffers_written(s)}
    return None if changed.intersection([*buffers_read(fill), allocation.buffer]) else (fill, uses)


def _pipeline_loop(loop: For, buffer: Buffer, fill: Stmt, uses: Sequence[Stmt]) -> Stmt:
    double_buffer = buffer.with_fields(shape=(const(2), *buffer.shape))
    step = loop.loop_var
    first = _SlotRewriter(buffer, double_buffer, const(0)).visit(substitute(fill, {step: const(0)}))
    after = _SlotRewriter(buffer, double_buffer, (step + 1) % 2).visit(
        substitute(fill, {step: step + 1})
    )
    current = _SlotRewriter(buffer, double_buffer, step % 2).visit(flatten_seq(*uses))
    # The last iteration has no successor: filling for one could read out of range.
    ahead = IfThenElse(step + 1 < loop.extent, after)
    main = loop.with_fields(body=flatten_seq(ahead, current))
    # Without iterations the first fill could read out of range.
    return Allocate(double_buffer, flatten_seq(IfThenElse(loop.extent > 0, first), main))


def inject_double_buffer(func: PrimFunc) -> PrimFunc:
    """Return the function with marked buffers doubled. Blocks must have been lowered."""
    if not any(_is_double_buffer_mark(s) for s in pre_order_stmts(func.body)):
        return func
    return distinct(func.with_fields(body=_DoubleBufferInjector().visit(func.body)))
