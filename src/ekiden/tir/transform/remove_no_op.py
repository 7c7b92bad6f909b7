"""Drop what has no effect: variables and buffers nobody reads, loops and branches with nothing in
them, values evaluated for nothing.

    t = alloc(4); x = i * 2              ->   b[i] = 1.0
    b[i] = 1.0;  for j in 8: pass

`tir.RemoveNoOp={"use_dataflow_analysis": True}` also drops stores that are overwritten unread.
"""

from __future__ import annotations

from ekiden.ir.intrinsic import row_of
from ekiden.ir.pass_context import REMOVE_NO_OP, PassContext
from ekiden.ir.prim import IntImm, Intrinsic, Not, PrimExpr, Var
from ekiden.ir.prim_visitor import post_order, same
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
from ekiden.tir.transform.overwritten import remove_overwritten
from ekiden.tir.visitor import NOTHING, StmtMutator, expressions, is_nothing, sequence


def has_effects(value: PrimExpr) -> bool:
    """Whether evaluating an expression does more than give its value."""
    return any(isinstance(e, Intrinsic) and row_of(e.op).effects for e in post_order(value))


class _Remove(StmtMutator):
    """Goes through statements from the last to the first, so that a use is seen before what it
    uses.
    """

    def __init__(self) -> None:
        self._read: set[Var | Buffer] = set()

    def visit(self, stmt: Stmt) -> Stmt:
        """What a statement reads or writes is noted when those after it have been seen."""
        new = super().visit(stmt)
        for e in post_order(*expressions(new)):
            if isinstance(e, Var):
                self._read.add(e)
            elif isinstance(e, (BufferLoad, BufferAddress)):
                self._read.add(e.buffer)
        if isinstance(new, (BufferStore, Prefetch)):
            self._read.add(new.buffer)
        return new

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """let x = v: s  ->  s, where nothing reads x and v does nothing else."""
        body = self.visit(stmt.body)
        if stmt.var not in self._read:
            return sequence(Evaluate(stmt.value), body) if has_effects(stmt.value) else body
        return stmt.with_fields(body=body)

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """A buffer that nothing inside uses goes."""
        body = self.visit(stmt.body)
        if is_nothing(body) or stmt.buffer not in self._read:
            return body
        return stmt.with_fields(body=body)

    def visit_decl(self, stmt: DeclBuffer) -> Stmt:
        """A view that nothing inside uses goes."""
        body = self.visit(stmt.body)
        if is_nothing(body) or stmt.buffer not in self._read:
            return body
        self._read.add(stmt.source)
        return stmt.with_fields(body=body)

    def visit_for(self, stmt: For) -> Stmt:
        """A loop without statements, or without turns, goes."""
        if isinstance(stmt.extent, IntImm) and stmt.extent.value <= 0:
            return NOTHING
        body = self.visit(stmt.body)
        return NOTHING if is_nothing(body) else stmt.with_fields(body=body)

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """a[i] = a[i]  ->  nothing"""
        return NOTHING if stores_itself(stmt) else super().visit_store(stmt)

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """A condition without statements goes, unless asking it has an effect."""
        then = self.visit(stmt.then_case)
        other = None if stmt.else_case is None else self.visit(stmt.else_case)
        other = None if other is None or is_nothing(other) else other
        if is_nothing(then) and other is None and not has_effects(stmt.condition):
            return NOTHING
        if is_nothing(then) and other is not None:
            return stmt.with_fields(condition=Not(stmt.condition), then_case=other, else_case=None)
        return stmt.with_fields(then_case=then, else_case=other)

    def visit_evaluate(self, stmt: Evaluate) -> Stmt:
        return stmt if has_effects(stmt.value) else NOTHING


def stores_itself(stmt: BufferStore) -> bool:
    """a[i] = a[i]"""
    value = stmt.value
    if not isinstance(value, BufferLoad) or value.buffer is not stmt.buffer:
        return False
    here, there = value.indices, stmt.indices
    return len(here) == len(there) and all(map(same, here, there))


def remove_no_op(func: PrimFunc) -> PrimFunc:
    """The function without statements that have no effect. Blocks must have been lowered."""
    options = PassContext.current().fields(REMOVE_NO_OP)
    body = remove_overwritten(func.body) if options["use_dataflow_analysis"] else func.body
    return func.with_fields(body=_Remove().visit(body))
