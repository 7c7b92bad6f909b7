"""Lower T.tvm_thread_allreduce: threads of a block combine a value each, and all get the result.

    with T.attr(T.comm_reducer(lambda x, y: x + y, [0]), "reduce_scope", ...):
        T.tvm_thread_allreduce(T.uint32(1), a[k], k < n, total[0], k)
    ->
    own = if k < n: a[k] else 0
    ...                                                   # see thread_group: own of all threads
    total[0] = combined                                   # in every thread

TVM: LowerThreadAllreduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, Var, const, is_const
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.tir.alpha_renaming import distinct
from ekiden.tir.comm_reducer import REDUCE_SCOPE, CommReducer
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad
from ekiden.tir.reduction import Elements, decompose_reducer
from ekiden.tir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    PrimFunc,
    Stmt,
    seq,
)
from ekiden.tir.stmt_summary import summarize_stmt
from ekiden.tir.transform.thread_group import group_threads, kernel_thread_axes, thread_axis_of
from ekiden.tir.visitor import StmtMutator

ALLREDUCE = "tvm_thread_allreduce"
_ZERO_INDEX = (const(0),)


class _ThreadAllreduceLowerer(StmtMutator):
    def __init__(self, func: PrimFunc, target: Target | None) -> None:
        self._name, self._target = func.name, target
        self._enclosing_thread_loops: list[For] = []
        self._thread_axes: set[str] = set()
        """Axes of the threads within a block of the kernel around the current statement."""
        self._reducers: list[CommReducer] = []
        """Reducers of the attributes around the current statement."""

    def visit_for(self, stmt: For) -> Stmt:
        """Track loops over threads."""
        if not thread_axis_of(stmt):
            return super().visit_for(stmt)
        if not self._enclosing_thread_loops:
            self._thread_axes = kernel_thread_axes(stmt)
        self._enclosing_thread_loops.append(stmt)
        visited = super().visit_for(stmt)
        self._enclosing_thread_loops.pop()
        return visited

    def visit_attr(self, stmt: AttrStmt) -> Stmt:
        """Replace a reducer's attribute by its lowered body."""
        if stmt.attr_key != REDUCE_SCOPE or not isinstance(stmt.node, CommReducer):
            return super().visit_attr(stmt)
        self._reducers.append(stmt.node)
        body = self.visit(stmt.body)
        self._reducers.pop()
        return body

    def visit_evaluate(self, stmt: Evaluate) -> Stmt:
        """Lower a combination of threads."""
        call = stmt.value
        if not isinstance(call, Intrinsic) or call.op != ALLREDUCE:
            return super().visit_evaluate(stmt)
        if not self._reducers:
            self._refuse('no T.attr(T.comm_reducer(...), "reduce_scope", ...) is around it')
        return self._lower_call(self._reducers[-1], call.args)

    def _refuse(self, why: str) -> NoReturn:
        raise CompileError(f"{self._name!r}: T.{ALLREDUCE}: {why}")

    def _lower_call(self, reducer: CommReducer, args: Sequence[PrimExpr]) -> Stmt:
        """Emit own = value or identity, the combination of threads, the stores of the results."""
        count = len(reducer.lhs)
        if not args or not is_const(args[0], count) or len(args) < 2 * count + 2:
            self._refuse(
                f"the reducer combines {count} values: expected (T.uint32({count}), values,"
                f" condition, results, threads), got {len(args)} arguments"
            )
        values, condition = args[1 : count + 1], args[count + 1]
        results = self._result_elements(args[count + 2 : 2 * count + 2])
        own = [
            Buffer(f"own_{b.name}", (const(1),), v.dtype, "local")
            for (b, _), v in zip(results, values, strict=True)
        ]
        group = group_threads(
            self._enclosing_thread_loops,
            self._reducing_threads(args[2 * count + 2 :]),
            self._thread_axes,
            self._target,
            self._refuse,
        )
        combined = group.emit_combination(decompose_reducer(reducer), own, everywhere=True)
        # A thread without a value contributes the identity: all threads must reach the barriers.
        begin = [
            BufferStore(b, _where(condition, v, start), _ZERO_INDEX)
            for b, v, start in zip(own, values, reducer.identity_element, strict=True)
        ]
        stores = [
            BufferStore(b, v, indices)
            for (b, indices), v in zip(results, combined.values, strict=True)
        ]
        body: Stmt = seq(*begin, *combined.statements, *stores)
        for buffer in (*own, *combined.local, *combined.shared):
            body = Allocate(buffer, body)
        return body

    def _result_elements(self, results: Sequence[PrimExpr]) -> Elements:
        """Return the elements that results name: `total[0]`, or `total.data` for the first."""
        elements: list[tuple[Buffer, tuple[PrimExpr, ...]]] = []
        for result in results:
            if isinstance(result, BufferLoad):
                elements.append((result.buffer, tuple(result.indices)))
            elif isinstance(result, BufferAddress):
                elements.append((result.buffer, _ZERO_INDEX * len(result.buffer.shape)))
            else:
                self._refuse(f"a result is an element of a buffer, got {result}")
        return elements

    def _reducing_threads(self, threads: Sequence[PrimExpr]) -> list[Var]:
        """Return the variables of the threads that combine; 0 stands for the only thread of an
        axis."""
        enclosing = [loop.loop_var for loop in self._enclosing_thread_loops]
        reducing: list[Var] = []
        for thread in threads:
            if isinstance(thread, Var) and thread in enclosing:
                reducing.append(thread)
            elif not (isinstance(thread, IntImm) and thread.value == 0):
                self._refuse(f"{thread} is no thread of a loop around it")
        return reducing


def _where(condition: PrimExpr, value: PrimExpr, otherwise: PrimExpr) -> PrimExpr:
    return value if is_const(condition, True) else if_then_else(condition, value, otherwise)


def lower_thread_allreduce(func: PrimFunc, target: Target | None = None) -> PrimFunc:
    """Return the function with its T.tvm_thread_allreduce as code of each thread.

    Threads exchange registers by warp shuffles where the target (default: the current one) supports
    them. Raises CompileError for threads that cannot combine.
    """
    if ALLREDUCE not in summarize_stmt(func.body).intrinsics:
        return func
    lowering = _ThreadAllreduceLowerer(func, target or Target.current())
    return distinct(func.with_fields(body=lowering.visit(func.body)))


__all__ = ["lower_thread_allreduce"]
