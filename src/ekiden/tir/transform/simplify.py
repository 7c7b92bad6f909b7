"""Simplify every expression under the ranges of the loops around it; loops of one step become their
body.
"""

from __future__ import annotations

from ekiden.arith import Analyzer
from ekiden.ir.prim import IntImm, PrimExpr, Var
from ekiden.ir.prim_visitor import substitute
from ekiden.tir.stmt import For, IfThenElse, PrimFunc, Stmt
from ekiden.tir.visitor import NOTHING, StmtMutator, is_nothing


class Simplifier(StmtMutator):
    """Also shares equal expressions: afterwards equal means the same object."""

    def __init__(self) -> None:
        self.analyzer = Analyzer()
        self.values: dict[Var, PrimExpr] = {}

    def expr(self, expr: PrimExpr) -> PrimExpr:
        """The simplest form."""
        return self.analyzer.simplify(substitute(expr, self.values))

    def replace(self, var: Var, value: PrimExpr) -> None:
        """Put a value in the place of a variable from here on."""
        self.values[var] = value

    def visit_for(self, stmt: For) -> Stmt:
        """for i in range(a, a + 1): s  ->  s[i := a];  for i in range(a, a): s  ->  nothing"""
        low, extent = self.expr(stmt.min), self.expr(stmt.extent)
        if isinstance(extent, IntImm) and extent.value <= 0:
            return NOTHING
        if isinstance(extent, IntImm) and extent.value == 1:
            self.replace(stmt.loop_var, low)
            return self.visit(stmt.body)
        self.analyzer.bind(stmt.loop_var, low, extent)
        body = self.visit(stmt.body)
        return body if is_nothing(body) else stmt.with_fields(min=low, extent=extent, body=body)

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """A branch with nothing in it vanishes."""
        new = super().visit_if(stmt)
        if isinstance(new, IfThenElse) and is_nothing(new.then_case) and new.else_case is None:
            return NOTHING
        return new


def simplify(func: PrimFunc) -> PrimFunc:
    """The function with simple expressions."""
    return func.with_fields(body=Simplifier().visit(func.body))
