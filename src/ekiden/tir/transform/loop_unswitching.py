"""Unswitch loops: test loop-invariant conditions once, before the loop.

    for i in n:                          if c:
        if c: s  else: t           ->        for i in n: s
                                         else:
                                             for i in n: t

`tir.HoistIfThenElse={"support_block_scope_hosting": True}`: also for loops over GPU threads.
"""

from __future__ import annotations

from ekiden.ir.intrinsic import find_intrinsic
from ekiden.ir.pass_context import HOIST_IF_OPTION, PassContext
from ekiden.ir.prim import Intrinsic, PrimExpr
from ekiden.ir.prim_visitor import has_nonconstant_divisor, post_order
from ekiden.tir.alpha_renaming import distinct
from ekiden.tir.expr import BufferLoad
from ekiden.tir.stmt import For, ForKind, IfThenElse, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator, pre_order_stmts

UNSWITCHED_LOOP_KINDS = (ForKind.SERIAL, ForKind.PARALLEL)


class _LoopUnswitcher(StmtMutator):
    def __init__(self, kinds: tuple[ForKind, ...]) -> None:
        self.kinds = kinds
        self.has_unswitched = False

    def visit_for(self, stmt: For) -> Stmt:
        """Rewrite for i: if c: s to if c: for i: s, where c is loop-invariant."""
        new = super().visit_for(stmt)
        if not isinstance(new, For) or new.kind not in self.kinds:
            return new
        branch = new.body
        if not isinstance(branch, IfThenElse) or not is_hoistable_from(branch.condition, new):
            return new
        self.has_unswitched |= branch.else_case is not None
        else_loop = None if branch.else_case is None else new.with_fields(body=branch.else_case)
        return branch.with_fields(
            then_case=new.with_fields(body=branch.then_case), else_case=else_loop
        )


def is_hoistable_from(condition: PrimExpr, loop: For) -> bool:
    """Return whether a condition is loop-invariant and safe to evaluate if the loop has no
    iterations.
    """
    for e in post_order(condition):
        # The loop may change memory, and without iterations the load might be out of range.
        if e is loop.loop_var or isinstance(e, BufferLoad):
            return False
        # A division by 0 would happen even where the loop has no iterations.
        if has_nonconstant_divisor(e):
            return False
        if isinstance(e, Intrinsic) and find_intrinsic(e.op).has_effects:
            return False
    return True


def hoist_conditions(func: PrimFunc) -> PrimFunc:
    """Return the function with loop-invariant conditions outside their loops."""
    if not any(
        isinstance(s, For) and isinstance(s.body, IfThenElse) for s in pre_order_stmts(func.body)
    ):
        return func
    options = PassContext.current().fields(HOIST_IF_OPTION)
    threads = (ForKind.THREAD_BINDING,) if options["support_block_scope_hosting"] else ()
    hoist = _LoopUnswitcher((*UNSWITCHED_LOOP_KINDS, *threads))
    new = func.with_fields(body=hoist.visit(func.body))
    # An else branch duplicates the loop: both copies would bind the same variable.
    return distinct(new) if hoist.has_unswitched else new
