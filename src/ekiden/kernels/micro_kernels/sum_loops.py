"""Loops of the sums of a tile, from the first to the last term that exists.

for ky in range(begin, begin + extent):          a condition on a loop is its range
  kx = 0: <the terms of rows 1, 2, 3>            one on a loop and on rows lists the rows
  kx = 1, 2: <the terms of all rows>             of each iteration; those of equal rows are a loop
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeAlias

from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.runtime.errors import ScheduleError
from ekiden.tir.stmt import For, ForKind, Stmt, seq
from ekiden.tir.tensor_intrin.micro import SumLoop

EmitTerms: TypeAlias = Callable[[Sequence[PrimExpr], Sequence[int]], Stmt]
"""Function (values of the loops' variables, rows that have a term) -> statement."""


def emit_sum_loops(
    loops: Sequence[SumLoop], num_rows: int, emit_terms: EmitTerms, has_inner_loop: bool = False
) -> Stmt:
    """Emit loops, outermost first, around the terms of their iterations.

    Args:
        loops: The loops.
        num_rows: The rows of the tile.
        emit_terms: Emits the terms of one iteration of all loops.
        has_inner_loop: Whether these are a loop themselves, beside which one more costs nothing and
            a copy is as long.

    Raises:
        ScheduleError: If rows are listed for more than one loop.
    """
    variables = [Var(f"k{n}") for n in range(len(loops))]
    listed = [n for n, s in enumerate(loops) if s.rows is not None]
    if len(listed) > 1:
        raise ScheduleError("conditions of rows on more than one loop of the sum")
    # The listed loop is unrolled around a copy of those inside of it for each of its iterations.
    begin, *_ = (*listed, len(loops))
    outer: list[PrimExpr] = list(variables[:begin])

    def wrap(first: int, end: int, body: Stmt) -> Stmt:
        """Wrap a statement in the loops from the first-th to that before the end-th."""
        for var, s in zip(reversed(variables[first:end]), reversed(loops[first:end]), strict=True):
            body = For(var, s.begin, s.extent, ForKind.SERIAL, body)
        return body

    def emit_inner(values: Sequence[PrimExpr], rows: Sequence[int]) -> Stmt:
        """Emit the loops behind those whose values are given."""
        first = len(values)
        body = emit_terms([*values, *variables[first:]], rows)
        return wrap(first, len(loops), body)

    if not listed:
        return emit_inner([], range(num_rows))
    per_iteration = loops[begin].rows
    assert per_iteration is not None

    def emit_run(iterations: Sequence[int], rows: Sequence[int]) -> list[Stmt]:
        """Emit neighbouring iterations of the listed loop whose terms are of the same rows."""
        low, count = loops[begin].begin + iterations[0], len(iterations)
        if not has_inner_loop or count == 1:
            return [emit_inner([*outer, low + n], rows) for n in range(count)]
        step = Var(variables[begin].name)
        body = emit_inner([*outer, low + step], rows)
        return [For(step, const(0), const(count), ForKind.SERIAL, body)]

    runs = groupby(range(len(per_iteration)), key=lambda k: per_iteration[k])
    copies = [stmt for rows, run in runs if rows for stmt in emit_run(list(run), rows)]
    return wrap(0, begin, seq(*copies))


__all__ = ["emit_sum_loops"]
