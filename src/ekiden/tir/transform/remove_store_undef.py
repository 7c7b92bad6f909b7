"""Drop stores of `T.undef()`: values that nobody reads need not be written.

    x = T.undef(dtype="int32")       ->    (nothing)
    a[i] = x + 1

Raises CompileError where an undefined value would decide something: an index, a condition, a loop.
TVM: RemoveStoreUndef.
"""

from __future__ import annotations

from ekiden.ir.prim import Intrinsic, PrimExpr, Var
from ekiden.ir.prim_visitor import post_order
from ekiden.runtime.errors import CompileError
from ekiden.tir.expr import BufferLoad
from ekiden.tir.stmt import BufferStore, For, LetStmt, PrimFunc, Stmt
from ekiden.tir.visitor import NOTHING, StmtMutator, is_nothing, with_body


class _Remove(StmtMutator):
    def __init__(self) -> None:
        self.undefined: set[Var] = set()
        self.seen = False

    def _is_undefined(self, expr: PrimExpr) -> bool:
        return any(
            e in self.undefined if isinstance(e, Var) else _is_undef(e) for e in post_order(expr)
        )

    def expr(self, expr: PrimExpr) -> PrimExpr:
        """What is not stored: nothing undefined may stand in it."""
        if self._is_undefined(expr):
            raise CompileError(f"remove store undef: T.undef may only be stored, got {expr}")
        return expr

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """a[i] = undefined  ->  nothing"""
        self.exprs(stmt.indices)
        for e in post_order(stmt.value):
            if isinstance(e, BufferLoad):
                self.exprs(e.indices)
        if not self._is_undefined(stmt.value):
            return stmt
        self.seen = True
        return NOTHING

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """let x = undefined: s  ->  s, which may only store x."""
        if not self._is_undefined(stmt.value):
            return super().visit_let(stmt)
        self.seen = True
        self.undefined.add(stmt.var)
        return self.visit(stmt.body)

    def visit_for(self, stmt: For) -> Stmt:
        """A loop of such stores vanishes."""
        new = super().visit_for(stmt)
        return NOTHING if isinstance(new, For) and is_nothing(new.body) else new


def _is_undef(e: PrimExpr) -> bool:
    return isinstance(e, Intrinsic) and e.op == "undef"


def remove_store_undef(func: PrimFunc) -> PrimFunc:
    """The function without stores of undefined values; one that has none stays as it is."""
    remove = _Remove()
    body = remove.visit(func.body)
    return with_body(func, body) if remove.seen else func


__all__ = ["remove_store_undef"]
