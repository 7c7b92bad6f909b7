"""Scan parallelisation: each thread computes its elements for all time steps.

    for t: for i in thread_binding(n, ..): state[t, i] = state[t - 1, i] + x[t, i]
    -> for i in thread_binding(n, ..): for t: state[t, i] = state[t - 1, i] + x[t, i]

Where every element of the state is of one thread at all times: one launch for the whole scan. Where
a thread reads what another wrote at a time before, the host launches each step, behind the one
before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ekiden.ir.prim import PrimExpr, Var
from ekiden.ir.prim_visitor import free_vars
from ekiden.tir.reduction import is_same_expr
from ekiden.tir.schedule.disjoint_iterations import overlap_fault
from ekiden.tir.schedule.program import ScheduleProgram
from ekiden.tir.stmt import BlockRealize, For, ForKind, PrimFunc, SeqStmt, Stmt, seq
from ekiden.tir.visitor import StmtMutator, buffers_written, pre_order_stmts, substitute


def interchange_time_and_threads(func: PrimFunc, steps: Collection[str]) -> PrimFunc:
    """Move loops over the time of scans, whose blocks are `steps`, inside loops over threads, where
    that is proved to change nothing.
    """
    if not steps:
        return func
    interchange = _TimeThreadInterchange(func, frozenset(steps))
    return func.with_fields(body=interchange.visit(func.body))


class _TimeThreadInterchange(StmtMutator):
    def __init__(self, func: PrimFunc, steps: frozenset[str]) -> None:
        self._func, self._steps = func, steps

    def visit_for(self, stmt: For) -> Stmt:
        """Interchange the time loop of a scan, the outermost serial loop around its steps, with its
        thread loops.
        """
        inside = (s.block.name for s in pre_order_stmts(stmt) if isinstance(s, BlockRealize))
        if stmt.kind is not ForKind.SERIAL or self._steps.isdisjoint(inside):
            return super().visit_for(stmt)
        nests = [_collect_thread_loops(s, stmt) for s in _seq_statements(stmt.body)]
        threads = nests[0]
        # Steps on different threads would need a barrier between them in every time step.
        if not threads or not all(_have_same_threads(threads, nest) for nest in nests[1:]):
            return super().visit_for(stmt)
        bodies: list[Stmt] = []
        for loops in nests:
            names: dict[Var, PrimExpr] = {
                a.loop_var: b.loop_var for a, b in zip(loops, threads, strict=True)
            }
            bodies.append(substitute(loops[-1].body, names))
        body: Stmt = stmt.with_fields(body=seq(*bodies))
        chain: list[For] = []
        for loop in reversed(threads):
            body = loop.with_fields(body=body)
            chain.insert(0, body)
        thread_vars = {s.loop_var for s in threads}
        program = ScheduleProgram(self._func.with_fields(body=body))
        for buffer in buffers_written(body):
            # After the interchange each thread runs all time steps alone, which is valid only if no
            # thread reads what another one writes.
            if overlap_fault(program, chain[-1], buffer, thread_vars, chain) is not None:
                return super().visit_for(stmt)
        return body


def _seq_statements(body: Stmt) -> Sequence[Stmt]:
    return body.seq if isinstance(body, SeqStmt) else (body,)


def _collect_thread_loops(nest: Stmt, time: For) -> list[For]:
    """Return the loops of a nest, each alone in the one around, down to the last over threads;
    none where their ranges change with the time."""
    loops: list[For] = []
    while isinstance(nest, For):
        loops.append(nest)
        nest = nest.body
    while loops and loops[-1].kind is not ForKind.THREAD_BINDING:
        loops.pop()
    if any(time.loop_var in free_vars(s.min, s.extent) for s in loops):
        return []
    return loops


def _have_same_threads(ours: Sequence[For], theirs: Sequence[For]) -> bool:
    """Return whether the loops of two nests are bound to the same threads, in the same order."""
    return len(ours) == len(theirs) and all(
        a.kind is b.kind
        and a.annotations == b.annotations
        and is_same_expr(a.min, b.min)
        and is_same_expr(a.extent, b.extent)
        for a, b in zip(ours, theirs, strict=True)
    )


__all__ = ["interchange_time_and_threads"]
