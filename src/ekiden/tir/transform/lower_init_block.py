"""Write the init of a block as a condition in its body.

with T.init(): B[i] = 0.0        if k == 0: B[i] = 0.0
B[i] = B[i] + A[i, k]        ->  B[i] = B[i] + A[i, k]

It runs where all axes that reduce are at their start. TVM: LowerInitBlock.
"""

from __future__ import annotations

from ekiden.ir.prim import EQ, PrimExpr, binary, const, is_const, logical_and
from ekiden.tir.stmt import Block, IfThenElse, IterKind, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator, sequence, with_body


class _Lower(StmtMutator):
    def visit_block(self, stmt: Block) -> Stmt:
        """A block's init before its body, in the first step of its reduction: where all reduced
        iterators are 0. A block without reduced iterators has no condition.
        """
        found = super().visit_block(stmt)
        assert isinstance(found, Block)
        if found.init is None:
            return found
        first: PrimExpr = const(True)
        for each in found.iter_vars:
            if each.kind is IterKind.REDUCE:
                first = logical_and(first, binary(EQ, each.var, 0))
        init = found.init if is_const(first, True) else IfThenElse(first, found.init)
        return found.with_fields(init=None, body=sequence(init, found.body))


def lower_init_block(func: PrimFunc) -> PrimFunc:
    """The function whose blocks have no init."""
    return with_body(func, _Lower().visit(func.body))


__all__ = ["lower_init_block"]
