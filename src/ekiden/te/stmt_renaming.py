"""Rename buffers and blocks in statements of extern operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ekiden.ir.prim import PrimExpr
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import BlockRealize, Stmt
from ekiden.tir.visitor import ExprRewriter, StmtMutator


def replace_buffers(body: Stmt, new: Mapping[Buffer, Buffer]) -> Stmt:
    """Return the statement with buffers replaced, in expressions (loads, addresses) too."""

    class _BufferReplacer(ExprRewriter):
        def rewrite_buffer(self, buffer: Buffer) -> Buffer:
            return new.get(buffer, buffer)

    def replace_in_expr(e: PrimExpr) -> PrimExpr:
        """Replace the buffer of an expression."""
        buffer: Buffer | None = getattr(e, "buffer", None)
        moved = None if buffer is None else new.get(buffer)
        return e if moved is None else e.with_fields(buffer=moved)

    return _BufferReplacer(replace_in_expr).visit(body)


def rename_blocks(body: Stmt, new: Callable[[str], str]) -> Stmt:
    """Return the statement with its blocks renamed."""

    class _BlockRenamer(StmtMutator):
        def visit_realize(self, stmt: BlockRealize) -> Stmt:
            """Rename a block and those inside it."""
            name = new(stmt.block.name)
            visited = super().visit_realize(stmt)
            assert isinstance(visited, BlockRealize)
            return visited.with_fields(block=visited.block.with_fields(name=name))

    return _BlockRenamer().visit(body)
