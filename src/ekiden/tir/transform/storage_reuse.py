"""Share memory between buffers with disjoint live ranges.

    a = alloc(64); b = alloc(64)                 a = alloc(64)
    a[..] = ..; c[..] = a[..]              ->    a[..] = ..; c[..] = a[..]
    b[..] = ..; d[..] = b[..]                    a[..] = ..; d[..] = a[..]

Among directly nested allocations, a live range spans the first to the last statement of the
sequence below that touches the buffer. In order of their starts (linear scan) a buffer takes the
first memory that is free and large enough; registers are left to the code generator.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import prove_equal
from ekiden.ir.pass_context import DISABLE_STORAGE_REWRITE_OPTION, PassContext
from ekiden.ir.prim import IntImm, PrimExpr, const
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad
from ekiden.tir.stmt import Allocate, BufferStore, Prefetch, PrimFunc, SeqStmt, Stmt
from ekiden.tir.visitor import ExprRewriter, StmtMutator, all_exprs, pre_order_stmts


class _BufferReplacer(ExprRewriter):
    def __init__(self, names: dict[Buffer, Buffer]) -> None:
        super().__init__(self._replace_load)
        self._names = names

    def _replace_load(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, (BufferLoad, BufferAddress)) and e.buffer in self._names:
            return e.with_fields(buffer=self._names[e.buffer])
        return e

    def rewrite_buffer(self, buffer: Buffer) -> Buffer:
        return self._names.get(buffer, buffer)


class _StorageSharer(StmtMutator):
    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """Process directly nested allocations together."""
        buffers: list[Buffer] = []
        inner: Stmt = stmt
        while isinstance(inner, Allocate):
            buffers.append(inner.buffer)
            inner = inner.body
        body = self.visit(inner)
        names = _assign_storage(buffers, body.seq) if isinstance(body, SeqStmt) else {}
        if names:
            body = _BufferReplacer(names).visit(body)
        for buffer in reversed(buffers):
            if buffer not in names:
                body = Allocate(buffer, body)
        return body


def _accessed_buffers(s: Stmt) -> set[Buffer]:
    accessed = {e.buffer for e in all_exprs(s) if isinstance(e, (BufferLoad, BufferAddress))}
    return accessed | {
        x.buffer for x in pre_order_stmts(s) if isinstance(x, (BufferStore, Prefetch))
    }


def _assign_storage(buffers: Sequence[Buffer], statements: Sequence[Stmt]) -> dict[Buffer, Buffer]:
    """Return buffer -> the buffer whose memory it takes over, by linear scan over live ranges."""
    touched = [_accessed_buffers(s) for s in statements]
    lives = {
        b: [n for n, buffers_of_stmt in enumerate(touched) if b in buffers_of_stmt] for b in buffers
    }
    free_from: dict[Buffer, int] = {}
    names: dict[Buffer, Buffer] = {}
    for buffer in sorted((b for b in buffers if lives[b]), key=lambda b: lives[b][0]):
        # Live ranges in units of statements of the sequence; two buffers may share memory only if
        # no statement touches both.
        first, last = lives[buffer][0], lives[buffer][-1]
        host = next(
            (h for h, free in free_from.items() if free < first and _fits_in(buffer, h)), buffer
        )
        free_from[host] = last
        if host is not buffer:
            names[buffer] = host
    return names


def _fits_in(buffer: Buffer, host: Buffer) -> bool:
    """Return whether a buffer's elements fit in another's memory."""
    if (buffer.dtype, buffer.scope) != (host.dtype, host.scope) or buffer.scope == "register":
        return False
    needed, available = _num_elements(buffer), _num_elements(host)
    if isinstance(needed, IntImm) and isinstance(available, IntImm):
        return needed.value <= available.value
    # Symbolic sizes share only where they are equal: their order is not known.
    return prove_equal(needed, available)


def _num_elements(buffer: Buffer) -> PrimExpr:
    total: PrimExpr = const(1)
    for extent in buffer.shape:
        total = total * extent
    return total


def storage_rewrite(func: PrimFunc) -> PrimFunc:
    """Return the function with fewer allocations. Buffers must have been flattened. The option
    `tir.disable_storage_rewrite` disables the pass.
    """
    if PassContext.current().option(DISABLE_STORAGE_REWRITE_OPTION):
        return func
    allocations = sum(isinstance(s, Allocate) for s in pre_order_stmts(func.body))
    return func if allocations < 2 else func.with_fields(body=_StorageSharer().visit(func.body))
