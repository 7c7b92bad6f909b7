"""Run every parallel loop on one thread.

for i in T.parallel(8):   ->   for i in range(8):

TVM: ConvertForLoopsToSerial.
"""

from __future__ import annotations

from ekiden.tir.stmt import For, ForKind, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator, with_body


class _Serial(StmtMutator):
    def visit_for(self, stmt: For) -> Stmt:
        """A parallel loop becomes a serial one; vectors, threads and unrolled loops stay."""
        found = super().visit_for(stmt)
        is_parallel = isinstance(found, For) and found.kind is ForKind.PARALLEL
        return found.with_fields(kind=ForKind.SERIAL) if is_parallel else found


def convert_loops_to_serial(func: PrimFunc) -> PrimFunc:
    """The function without parallel loops."""
    return with_body(func, _Serial().visit(func.body))


__all__ = ["convert_loops_to_serial"]
