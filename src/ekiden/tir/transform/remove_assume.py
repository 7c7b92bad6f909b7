"""What `T.assume` promises, used and then dropped: code generators see no assumptions.

    T.assume(n == 0)                 T.assume(n == 0)
    if n == 0: s      -> Simplify -> s                 -> RemoveAssume ->   s

An assumption holds from where it stands to the end of the statements it stands among. What it says
of memory is not used. TVM: RemoveAssume.
"""

from __future__ import annotations

from ekiden.ir.prim import PrimExpr
from ekiden.tir.stmt import Evaluate, For, IfThenElse, PrimFunc, Stmt
from ekiden.tir.transform.remove_no_op import has_effects
from ekiden.tir.transform.simplify import assumed, simplify
from ekiden.tir.visitor import NOTHING, StmtMutator, is_nothing, with_body


class _Remove(StmtMutator):
    def __init__(self) -> None:
        self.seen = False

    def expr(self, expr: PrimExpr) -> PrimExpr:
        """Only statements assume."""
        return expr

    def visit_evaluate(self, stmt: Evaluate) -> Stmt:
        """T.assume(c)  ->  nothing"""
        if assumed(stmt) is None:
            return stmt
        self.seen = True
        return NOTHING

    def visit_for(self, stmt: For) -> Stmt:
        """A loop that only assumed vanishes."""
        new = super().visit_for(stmt)
        return NOTHING if isinstance(new, For) and is_nothing(new.body) else new

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """As of loops, unless asking has an effect."""
        new = super().visit_if(stmt)
        if isinstance(new, IfThenElse) and is_nothing(new.then_case) and new.else_case is None:
            return new if has_effects(new.condition) else NOTHING
        return new


def remove_assume(func: PrimFunc) -> PrimFunc:
    """The function without assumptions; one that has none stays as it is."""
    remove = _Remove()
    body = remove.visit(func.body)
    return with_body(func, body) if remove.seen else func


def use_assumptions(func: PrimFunc) -> PrimFunc:
    """The function simplified by what it assumes, then without it; one that assumes nothing stays
    as it is."""
    without = remove_assume(func)
    return func if without is func else remove_assume(simplify(func))


__all__ = ["remove_assume", "use_assumptions"]
