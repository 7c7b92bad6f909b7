"""Use and removal of `T.assume`: code generators see no assumptions.

    T.assume(n == 0)                 T.assume(n == 0)
    if n == 0: s      -> Simplify -> s                 -> RemoveAssume ->   s

An assumption holds from its position to the end of the enclosing statements. Assumptions about
memory are not used. TVM: RemoveAssume.
"""

from __future__ import annotations

from ekiden.ir.prim import PrimExpr
from ekiden.tir.stmt import Evaluate, For, IfThenElse, PrimFunc, Stmt
from ekiden.tir.transform.dead_code_elimination import has_effects
from ekiden.tir.transform.simplification import assumed_condition, simplify
from ekiden.tir.visitor import NO_OP, StmtMutator, is_no_op, pre_order_stmts, with_body


class _AssumeRemover(StmtMutator):
    def __init__(self) -> None:
        self.has_assumptions = False

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Return the expression unchanged: only statements assume."""
        return expr

    def visit_evaluate(self, stmt: Evaluate) -> Stmt:
        """Rewrite T.assume(c) to nothing."""
        if assumed_condition(stmt) is None:
            return stmt
        self.has_assumptions = True
        return NO_OP

    def visit_for(self, stmt: For) -> Stmt:
        """Remove a loop left empty."""
        new = super().visit_for(stmt)
        return NO_OP if isinstance(new, For) and is_no_op(new.body) else new

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """Remove a branch left empty, unless its condition has effects."""
        new = super().visit_if(stmt)
        if isinstance(new, IfThenElse) and is_no_op(new.then_case) and new.else_case is None:
            return new if has_effects(new.condition) else NO_OP
        return new


def remove_assume(func: PrimFunc) -> PrimFunc:
    """Return the function without assumptions; the same object if it has none."""
    if not any(isinstance(s, Evaluate) for s in pre_order_stmts(func.body)):
        return func
    remove = _AssumeRemover()
    body = remove.visit(func.body)
    return with_body(func, body) if remove.has_assumptions else func


def use_assumptions(func: PrimFunc) -> PrimFunc:
    """Return the function simplified by its assumptions and then without them; the same object if
    it has none.
    """
    without = remove_assume(func)
    return func if without is func else remove_assume(simplify(func))


__all__ = ["remove_assume", "use_assumptions"]
