"""Removal of stores of `T.undef()`, whose values nobody reads.

    x = T.undef(dtype="int32")       ->    (nothing)
    a[i] = x + 1

Raises CompileError where an undefined value would determine an index, a condition or a loop. TVM:
RemoveStoreUndef.
"""

from __future__ import annotations

from ekiden.ir.prim import Intrinsic, PrimExpr, Var
from ekiden.ir.prim_visitor import post_order
from ekiden.runtime.errors import CompileError
from ekiden.tir.expr import BufferLoad
from ekiden.tir.stmt import BufferStore, For, LetStmt, PrimFunc, Stmt
from ekiden.tir.visitor import NO_OP, StmtMutator, is_no_op, with_body


class _UndefStoreRemover(StmtMutator):
    def __init__(self) -> None:
        self.undefined: set[Var] = set()
        self.has_undefined = False

    def _is_undefined(self, expr: PrimExpr) -> bool:
        return any(
            e in self.undefined if isinstance(e, Var) else _is_undef(e) for e in post_order(expr)
        )

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Check an expression that is not stored: it must not contain undefined values."""
        if self._is_undefined(expr):
            raise CompileError(f"remove store undef: T.undef may only be stored, got {expr}")
        return expr

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Rewrite a[i] = undefined to nothing."""
        self.exprs(stmt.indices)
        # The stored value may be undefined, an index inside it may not.
        for e in post_order(stmt.value):
            if isinstance(e, BufferLoad):
                self.exprs(e.indices)
        if not self._is_undefined(stmt.value):
            return stmt
        self.has_undefined = True
        return NO_OP

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Rewrite let x = undefined: s to s, which may only store x."""
        if not self._is_undefined(stmt.value):
            return super().visit_let(stmt)
        self.has_undefined = True
        self.undefined.add(stmt.var)
        return self.visit(stmt.body)

    def visit_for(self, stmt: For) -> Stmt:
        """Remove a loop left empty."""
        new = super().visit_for(stmt)
        return NO_OP if isinstance(new, For) and is_no_op(new.body) else new


def _is_undef(e: PrimExpr) -> bool:
    return isinstance(e, Intrinsic) and e.op == "undef"


def remove_store_undef(func: PrimFunc) -> PrimFunc:
    """Return the function without stores of undefined values; the same object if it has none."""
    remove = _UndefStoreRemover()
    body = remove.visit(func.body)
    return with_body(func, body) if remove.has_undefined else func


__all__ = ["remove_store_undef"]
