"""Remove dead code: unused variables and buffers, empty loops and branches, values evaluated
without effects.

    t = alloc(4); x = i * 2              ->   b[i] = 1.0
    b[i] = 1.0;  for j in 8: pass

`tir.RemoveNoOp={"use_dataflow_analysis": True}` also eliminates dead stores.
"""

from __future__ import annotations

from ekiden.ir.intrinsic import find_intrinsic
from ekiden.ir.pass_context import REMOVE_NO_OP_OPTION, PassContext
from ekiden.ir.prim import IntImm, Intrinsic, Not, PrimExpr, Var
from ekiden.ir.prim_visitor import is_same_expr, post_order
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad
from ekiden.tir.stmt import (
    Allocate,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    Prefetch,
    PrimFunc,
    Stmt,
)
from ekiden.tir.transform.dead_store_elimination import remove_dead_stores
from ekiden.tir.visitor import NO_OP, StmtMutator, flatten_seq, is_no_op, stmt_exprs


def has_effects(value: PrimExpr) -> bool:
    """Return whether evaluating an expression has side effects."""
    return any(
        isinstance(e, Intrinsic) and find_intrinsic(e.op).has_effects for e in post_order(value)
    )


class _DeadCodeRemover(StmtMutator):
    """A mutator that visits statements from last to first, so that uses are seen before
    definitions.
    """

    def __init__(self) -> None:
        self._used_symbols: set[Var | Buffer] = set()

    def visit(self, stmt: Stmt) -> Stmt:
        """Record what a statement reads or writes, after the statements behind it."""
        new = super().visit(stmt)
        for e in post_order(*stmt_exprs(new)):
            if isinstance(e, Var):
                self._used_symbols.add(e)
            elif isinstance(e, (BufferLoad, BufferAddress)):
                self._used_symbols.add(e.buffer)
        # A store keeps its buffer: whether it is dead is for the data-flow analysis to decide.
        if isinstance(new, (BufferStore, Prefetch)):
            self._used_symbols.add(new.buffer)
        return new

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Rewrite let x = v: s to s, where nothing reads x and v has no effects."""
        body = self.visit(stmt.body)
        if stmt.var not in self._used_symbols:
            # A value with effects is still evaluated; only its name is removed.
            return flatten_seq(Evaluate(stmt.value), body) if has_effects(stmt.value) else body
        return stmt.with_fields(body=body)

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """Remove an unused buffer."""
        body = self.visit(stmt.body)
        if is_no_op(body) or stmt.buffer not in self._used_symbols:
            return body
        return stmt.with_fields(body=body)

    def visit_decl(self, stmt: DeclBuffer) -> Stmt:
        """Remove an unused view."""
        body = self.visit(stmt.body)
        if is_no_op(body) or stmt.buffer not in self._used_symbols:
            return body
        # The view is used, so the memory behind it must stay allocated.
        self._used_symbols.add(stmt.source)
        return stmt.with_fields(body=body)

    def visit_for(self, stmt: For) -> Stmt:
        """Remove a loop without statements or without iterations."""
        if isinstance(stmt.extent, IntImm) and stmt.extent.value <= 0:
            return NO_OP
        body = self.visit(stmt.body)
        return NO_OP if is_no_op(body) else stmt.with_fields(body=body)

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Rewrite a[i] = a[i] to nothing."""
        return NO_OP if is_self_store(stmt) else super().visit_store(stmt)

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """Remove a branch without statements, unless its condition has effects."""
        then_case = self.visit(stmt.then_case)
        else_case = None if stmt.else_case is None else self.visit(stmt.else_case)
        else_case = None if else_case is None or is_no_op(else_case) else else_case
        if is_no_op(then_case) and else_case is None and not has_effects(stmt.condition):
            return NO_OP
        if is_no_op(then_case) and else_case is not None:
            return stmt.with_fields(
                condition=Not(stmt.condition), then_case=else_case, else_case=None
            )
        return stmt.with_fields(then_case=then_case, else_case=else_case)

    def visit_evaluate(self, stmt: Evaluate) -> Stmt:
        return stmt if has_effects(stmt.value) else NO_OP


def is_self_store(stmt: BufferStore) -> bool:
    """Return whether a store is a[i] = a[i]."""
    value = stmt.value
    if not isinstance(value, BufferLoad) or value.buffer is not stmt.buffer:
        return False
    load_indices, store_indices = value.indices, stmt.indices
    return len(load_indices) == len(store_indices) and all(
        map(is_same_expr, load_indices, store_indices)
    )


def remove_no_op(func: PrimFunc) -> PrimFunc:
    """Return the function without dead code. Blocks must have been lowered."""
    options = PassContext.current().fields(REMOVE_NO_OP_OPTION)
    # Dead stores are removed first, because any store keeps its buffer alive.
    body = remove_dead_stores(func.body) if options["use_dataflow_analysis"] else func.body
    return func.with_fields(body=_DeadCodeRemover().visit(body))
