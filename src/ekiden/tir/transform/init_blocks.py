"""Lower a block's init to a condition in its body.

    with T.init(): B[i] = 0.0        if k == 0: B[i] = 0.0
    B[i] = B[i] + A[i, k]        ->  B[i] = B[i] + A[i, k]

It runs where all reduction axes are at their start. TVM: LowerInitBlock.
"""

from __future__ import annotations

from ekiden.ir.prim import EQ, PrimExpr, const, fold_binary, is_const, logical_and
from ekiden.tir.stmt import Block, IfThenElse, IterKind, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator, flatten_seq, with_body


class _InitBlockLowerer(StmtMutator):
    def visit_block(self, stmt: Block) -> Stmt:
        """Place a block's init before its body, where all reduction iterators are 0; without
        reduction iterators unconditionally.
        """
        visited = super().visit_block(stmt)
        assert isinstance(visited, Block)
        if visited.init is None:
            return visited
        first: PrimExpr = const(True)
        for iter_var in visited.iter_vars:
            if iter_var.kind is IterKind.REDUCE:
                first = logical_and(first, fold_binary(EQ, iter_var.var, 0))
        init = visited.init if is_const(first, True) else IfThenElse(first, visited.init)
        return visited.with_fields(init=None, body=flatten_seq(init, visited.body))


def lower_init_block(func: PrimFunc) -> PrimFunc:
    """Return the function with blocks without init."""
    return with_body(func, _InitBlockLowerer().visit(func.body))


__all__ = ["lower_init_block"]
