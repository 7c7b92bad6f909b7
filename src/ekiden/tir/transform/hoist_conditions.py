"""Ask once, before a loop, what does not change in it.

for i in n:                          if c:
    if c: s  else: t           ->        for i in n: s
                                     else:
                                         for i in n: t

`tir.HoistIfThenElse={"support_block_scope_hosting": True}`: also of loops over a device's threads.
"""

from __future__ import annotations

from ekiden.ir.intrinsic import row_of
from ekiden.ir.pass_context import HOIST_IF, PassContext
from ekiden.ir.prim import Intrinsic, PrimExpr
from ekiden.ir.prim_visitor import divides_by_unknown, post_order
from ekiden.tir.distinct import distinct
from ekiden.tir.expr import BufferLoad
from ekiden.tir.stmt import For, ForKind, IfThenElse, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator, walk

KINDS = (ForKind.SERIAL, ForKind.PARALLEL)


class _Hoist(StmtMutator):
    def __init__(self, kinds: tuple[ForKind, ...]) -> None:
        self.kinds = kinds
        self.has_copied = False

    def visit_for(self, stmt: For) -> Stmt:
        """for i: if c: s  ->  if c: for i: s, where c is the same in all steps."""
        new = super().visit_for(stmt)
        if not isinstance(new, For) or new.kind not in self.kinds:
            return new
        branch = new.body
        if not isinstance(branch, IfThenElse) or not is_free_of(branch.condition, new):
            return new
        self.has_copied |= branch.else_case is not None
        other = None if branch.else_case is None else new.with_fields(body=branch.else_case)
        return branch.with_fields(then_case=new.with_fields(body=branch.then_case), else_case=other)


def is_free_of(condition: PrimExpr, loop: For) -> bool:
    """Whether a condition is the same in all steps of a loop, and safe to ask if there are none."""
    for e in post_order(condition):
        if e is loop.loop_var or isinstance(e, BufferLoad):
            return False
        if divides_by_unknown(e):
            return False
        if isinstance(e, Intrinsic) and row_of(e.op).effects:
            return False
    return True


def hoist_conditions(func: PrimFunc) -> PrimFunc:
    """The function with conditions outside the loops they do not change in."""
    if not any(isinstance(s, For) and isinstance(s.body, IfThenElse) for s in walk(func.body)):
        return func
    options = PassContext.current().fields(HOIST_IF)
    threads = (ForKind.THREAD_BINDING,) if options["support_block_scope_hosting"] else ()
    hoist = _Hoist((*KINDS, *threads))
    new = func.with_fields(body=hoist.visit(func.body))
    return distinct(new) if hoist.has_copied else new
