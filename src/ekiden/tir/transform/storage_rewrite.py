"""Let buffers that are never needed at the same time share memory.

a = alloc(64); b = alloc(64)                 a = alloc(64)
a[..] = ..; c[..] = a[..]              ->    a[..] = ..; c[..] = a[..]
b[..] = ..; d[..] = b[..]                    a[..] = ..; d[..] = a[..]

Of the buffers that are allocated directly inside each other, each one's life is from the first to
the last statement of the sequence below that touches it. In the order of their beginnings a buffer
takes over the first memory that is free by then, and large enough; registers are the code
generator's to give.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import prove_equal
from ekiden.ir.pass_context import NO_SHARING, PassContext
from ekiden.ir.prim import IntImm, PrimExpr, const
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad
from ekiden.tir.stmt import Allocate, BufferStore, Prefetch, PrimFunc, SeqStmt, Stmt
from ekiden.tir.visitor import ExprRewriter, StmtMutator, all_expressions, walk


class _Rename(ExprRewriter):
    def __init__(self, names: dict[Buffer, Buffer]) -> None:
        super().__init__(self._load)
        self._names = names

    def _load(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, (BufferLoad, BufferAddress)) and e.buffer in self._names:
            return e.with_fields(buffer=self._names[e.buffer])
        return e

    def buffer(self, buffer: Buffer) -> Buffer:
        return self._names.get(buffer, buffer)


class _Share(StmtMutator):
    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """Allocations directly inside each other are considered together."""
        buffers: list[Buffer] = []
        inner: Stmt = stmt
        while isinstance(inner, Allocate):
            buffers.append(inner.buffer)
            inner = inner.body
        body = self.visit(inner)
        names = _shared(buffers, body.seq) if isinstance(body, SeqStmt) else {}
        if names:
            body = _Rename(names).visit(body)
        for buffer in reversed(buffers):
            if buffer not in names:
                body = Allocate(buffer, body)
        return body


def _touched(s: Stmt) -> set[Buffer]:
    found = {e.buffer for e in all_expressions(s) if isinstance(e, (BufferLoad, BufferAddress))}
    return found | {x.buffer for x in walk(s) if isinstance(x, (BufferStore, Prefetch))}


def _shared(buffers: Sequence[Buffer], statements: Sequence[Stmt]) -> dict[Buffer, Buffer]:
    """Buffer -> the one whose memory it takes over, by first and last use, in their order."""
    touched = [_touched(s) for s in statements]
    lives = {b: [n for n, each in enumerate(touched) if b in each] for b in buffers}
    free_from: dict[Buffer, int] = {}
    names: dict[Buffer, Buffer] = {}
    for buffer in sorted((b for b in buffers if lives[b]), key=lambda b: lives[b][0]):
        first, last = lives[buffer][0], lives[buffer][-1]
        home = next(
            (h for h, free in free_from.items() if free < first and _fits(buffer, h)), buffer
        )
        free_from[home] = last
        if home is not buffer:
            names[buffer] = home
    return names


def _fits(buffer: Buffer, home: Buffer) -> bool:
    """Whether a buffer's elements fit in another's memory."""
    if (buffer.dtype, buffer.scope) != (home.dtype, home.scope) or buffer.scope == "register":
        return False
    needed, given = _size(buffer), _size(home)
    if isinstance(needed, IntImm) and isinstance(given, IntImm):
        return needed.value <= given.value
    return prove_equal(needed, given)


def _size(buffer: Buffer) -> PrimExpr:
    total: PrimExpr = const(1)
    for extent in buffer.shape:
        total = total * extent
    return total


def storage_rewrite(func: PrimFunc) -> PrimFunc:
    """The function with fewer allocations. Buffers must have been flattened. The option
    `tir.disable_storage_rewrite` leaves it as it is.
    """
    if PassContext.current().option(NO_SHARING):
        return func
    allocations = sum(isinstance(s, Allocate) for s in walk(func.body))
    return func if allocations < 2 else func.with_fields(body=_Share().visit(func.body))
