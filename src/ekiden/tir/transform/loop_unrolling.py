"""Unroll loops marked so, whose extents are constants, and short serial ones where the option
`tir.UnrollLoop` requests it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.pass_context import UNROLL_LOOP_OPTION, PassContext
from ekiden.ir.prim import IntImm
from ekiden.tir.stmt import BufferStore, Evaluate, For, ForKind, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator, flatten_seq, is_no_op, pre_order_stmts, substitute


class _LoopUnroller(StmtMutator):
    """A mutator that unrolls from the inside out."""

    def __init__(self, options: Mapping[str, int]) -> None:
        super().__init__()
        self.options = options
        self.depth = 0
        """Number of nested unrolled loops in the statement visited last."""

    def visit_for(self, stmt: For) -> Stmt:
        """Rewrite for i in unrolled(2): s to s[i := 0]; s[i := 1]."""
        around, self.depth = self.depth, 0
        body = self.visit(stmt.body)
        inside = self.depth
        is_asked = stmt.kind is ForKind.UNROLLED
        if is_asked and not isinstance(stmt.extent, IntImm):
            raise ValueError(
                f"unroll {stmt.loop_var.name!r}: the extent must be a constant, got {stmt.extent!r}"
            )
        if not isinstance(stmt.extent, IntImm) or not (
            is_asked or self._should_auto_unroll(stmt, body)
        ):
            self.depth = max(around, inside)
            return body if is_no_op(body) else stmt.with_fields(body=body)
        self.depth = max(around, inside + 1)
        return flatten_seq(
            *(substitute(body, {stmt.loop_var: stmt.min + n}) for n in range(stmt.extent.value))
        )

    def _should_auto_unroll(self, loop: For, body: Stmt) -> bool:
        """Return whether the options request unrolling a serial innermost loop."""
        steps, extent = self.options["auto_max_step"], self.options["auto_max_extent"]
        if loop.kind is not ForKind.SERIAL or not (steps or extent):
            return False
        assert isinstance(loop.extent, IntImm)
        inside = list(pre_order_stmts(body))
        if self.depth > self.options["auto_max_depth"] or any(isinstance(s, For) for s in inside):
            return False
        count = sum(isinstance(s, (BufferStore, Evaluate)) for s in inside)
        return loop.extent.value * count <= steps or loop.extent.value <= extent


def unroll_loops(func: PrimFunc) -> PrimFunc:
    """Return the function without unrolled loops, as the option `tir.UnrollLoop` of the current
    PassContext says.
    """
    options = PassContext.current().fields(UNROLL_LOOP_OPTION)
    if not (options["auto_max_step"] or options["auto_max_extent"]) and not any(
        isinstance(s, For) and s.kind is ForKind.UNROLLED for s in pre_order_stmts(func.body)
    ):
        return func
    return func.with_fields(body=_LoopUnroller(options).visit(func.body))
