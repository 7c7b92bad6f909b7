"""Repeat the bodies of unrolled loops, whose extents are constants."""

from __future__ import annotations

from ekiden.ir.prim import IntImm
from ekiden.tir.stmt import For, ForKind, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator, sequence, substitute


class _Unroll(StmtMutator):
    def visit_for(self, stmt: For) -> Stmt:
        """for i in unrolled(2): s  ->  s[i := 0]; s[i := 1]"""
        if stmt.kind is not ForKind.UNROLLED:
            return super().visit_for(stmt)
        if not isinstance(stmt.extent, IntImm):
            raise ValueError(
                f"unroll {stmt.loop_var.name!r}: the extent must be a constant, got {stmt.extent!r}"
            )
        body = self.visit(stmt.body)
        return sequence(
            *(substitute(body, {stmt.loop_var: stmt.min + n}) for n in range(stmt.extent.value))
        )


def unroll_loops(func: PrimFunc) -> PrimFunc:
    """The function without unrolled loops."""
    return func.with_fields(body=_Unroll().visit(func.body))
