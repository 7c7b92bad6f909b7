"""Substitute bindings for block iterators, leaving opaque blocks.

    vi = T.axis.spatial(16, i)
    B[vi] = A[vi]                ->  B[i] = A[i]

TVM: ConvertBlocksToOpaque.
"""

from __future__ import annotations

from ekiden.runtime.errors import ScheduleError
from ekiden.tir.stmt import Block, BlockRealize, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator, substitute, with_body


class _OpaqueBlockConverter(StmtMutator):
    def visit_realize(self, stmt: BlockRealize) -> Stmt:
        """Convert outer blocks first, so that bindings of inner ones are over loops."""
        block = stmt.block
        if block.init is not None:
            raise ScheduleError(f"block {block.name!r}: its init must be lowered first")
        pairs = zip(block.iter_vars, stmt.iter_values, strict=True)
        body = substitute(block.body, {i.var: value for i, value in pairs})
        opaque = Block(block.name, (), self.visit(body), None, block.annotations)
        return BlockRealize((), self.rewrite_expr(stmt.predicate), opaque)


def convert_blocks_to_opaque(func: PrimFunc) -> PrimFunc:
    """Return the function with blocks without iterators. Raises ScheduleError for a block with an
    init (see `lower_init_block`).
    """
    return with_body(func, _OpaqueBlockConverter().visit(func.body))


__all__ = ["convert_blocks_to_opaque"]
