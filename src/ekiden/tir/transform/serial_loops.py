"""Convert parallel loops to serial ones.

    for i in T.parallel(8):   ->   for i in range(8):

TVM: ConvertForLoopsToSerial.
"""

from __future__ import annotations

from ekiden.tir.stmt import For, ForKind, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator, with_body


class _SerialLoopConverter(StmtMutator):
    def visit_for(self, stmt: For) -> Stmt:
        """Convert a parallel loop to a serial one; vectors, threads and unrolled loops stay."""
        visited = super().visit_for(stmt)
        is_parallel = isinstance(visited, For) and visited.kind is ForKind.PARALLEL
        return visited.with_fields(kind=ForKind.SERIAL) if is_parallel else visited


def convert_loops_to_serial(func: PrimFunc) -> PrimFunc:
    """Return the function without parallel loops."""
    return with_body(func, _SerialLoopConverter().visit(func.body))


__all__ = ["convert_loops_to_serial"]
