"""Removal of attribute statements (AttrStmt), which no later pass reads.

with attr(A, "pragma_unroll", 1): B[0] = A[0]   ->   B[0] = A[0]
"""

from __future__ import annotations

from ekiden.tir.stmt import AttrStmt, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator, pre_order_stmts


class _AttributeDropper(StmtMutator):
    def visit_attr(self, stmt: AttrStmt) -> Stmt:
        """Rewrite attr { s } to s."""
        return self.visit(stmt.body)


def drop_attributes(func: PrimFunc) -> PrimFunc:
    """Return the function without AttrStmts."""
    if not any(isinstance(s, AttrStmt) for s in pre_order_stmts(func.body)):
        return func
    return func.with_fields(body=_AttributeDropper().visit(func.body))
