"""Statements of extern operations, moved to other buffers."""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.prim import PrimExpr
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import Stmt
from ekiden.tir.visitor import ExprRewriter


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
