"""Statements of extern operations, moved to other buffers and names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ekiden.ir.prim import PrimExpr
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import BlockRealize, Stmt
from ekiden.tir.visitor import ExprRewriter, StmtMutator


def replace_buffers(body: Stmt, new: Mapping[Buffer, Buffer]) -> Stmt:
    """The statement over other buffers; expressions that name a buffer (loads, addresses) too."""

    class _Rename(ExprRewriter):
        def buffer(self, buffer: Buffer) -> Buffer:
            return new.get(buffer, buffer)

    def change(e: PrimExpr) -> PrimExpr:
        """An expression that names a replaced buffer names the new one."""
        buffer: Buffer | None = getattr(e, "buffer", None)
        moved = None if buffer is None else new.get(buffer)
        return e if moved is None else e.with_fields(buffer=moved)

    return _Rename(change).visit(body)


def rename_blocks(body: Stmt, new: Callable[[str], str]) -> Stmt:
    """The statement with other names of its blocks."""

    class _Rename(StmtMutator):
        def visit_realize(self, stmt: BlockRealize) -> Stmt:
            """A block under its new name, and those inside it."""
            name = new(stmt.block.name)
            made = super().visit_realize(stmt)
            assert isinstance(made, BlockRealize)
            return made.with_fields(block=made.block.with_fields(name=name))

    return _Rename().visit(body)
