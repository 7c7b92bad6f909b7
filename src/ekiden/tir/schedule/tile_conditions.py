"""Conditions of the terms of a tile's sums, as the ranges of the loops that they sum over.

    sum over ky, kx of x[...] * w[ky, kx] if 0 <= y + ky - 1 < 56 and 0 <= row + kx - 1 else 0
    ->  ky from max(1 - y, 0) to min(57 - y, 3);  kx = 0 for rows 1, 2, ...,  kx = 1, 2 for all

A condition on one of the loops and on loops outside of the tile is a bound; one on a loop and on
the row has a list of rows for each iteration. A term that is left out is 0 as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ekiden.arith import Analyzer
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, maximum, minimum
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.tir.schedule.linear_conditions import LinearCondition, linear_condition
from ekiden.tir.schedule.program import refuse
from ekiden.tir.stmt import For

MAX_LISTED_ITERATIONS = 64
"""Maximum number of iterations of a loop whose rows are listed: each is a copy of the code."""
RowsPerIteration: TypeAlias = tuple[tuple[int, ...], ...]
LoopBounds: TypeAlias = tuple[PrimExpr, PrimExpr, RowsPerIteration | None]
"""Begin and extent of a loop, and the rows that have a term in each iteration; None for all."""


def bounds_of_sum_loops(
    conditions: Sequence[PrimExpr],
    first: Var,
    row: Var,
    rows: For,
    loops: Sequence[For],
    analyzer: Analyzer,
) -> list[LoopBounds]:
    """Return the bounds of a tile's loops that leave out terms whose conditions do not hold.

    Args:
        conditions: The conjuncts, in loop variables.
        first: The variable of the first row.
        row: The variable that counts rows from the first one.
        rows: The loop over the rows.
        loops: The loops that the tile sums over.
        analyzer: What is known of the loops around the tile.
    """
    begins = [s.min for s in loops]
    ends = [s.min + s.extent for s in loops]
    listed: list[list[LinearCondition]] = [[] for _ in loops]
    is_single_row = isinstance(rows.extent, IntImm) and rows.extent.value == 1
    row_value = first if is_single_row else first + row
    for conjunct in conditions:
        condition = substitute(conjunct, {rows.loop_var: row_value})
        used = set(free_vars(condition))
        summed = [n for n, s in enumerate(loops) if s.loop_var in used]
        if len(summed) != 1:
            refuse(f"tensorize: {conjunct} is no condition on one loop of the sum", rows)
        n = summed[0]
        var = loops[n].loop_var
        if row not in used:
            form = _linear(condition, [var], rows)
            is_begin, bound = form.bound(var, form.rest)
            if is_begin:
                begins[n] = maximum(begins[n], bound)
            else:
                ends[n] = minimum(ends[n], bound)
        else:
            listed[n].append(_linear(substitute(condition, {first: rows.min}), [row, var], rows))
    return [
        _loop_bounds(loop, begin, end, forms, row, rows, analyzer)
        for loop, begin, end, forms in zip(loops, begins, ends, listed, strict=True)
    ]


def _linear(condition: PrimExpr, variables: Sequence[Var], rows: For) -> LinearCondition:
    form = linear_condition(condition, variables)
    if form is None or not all(form.scales.values()):
        refuse(f"tensorize: {condition} is no linear condition", rows)
    return form


def _loop_bounds(
    loop: For,
    begin: PrimExpr,
    end: PrimExpr,
    forms: Sequence[LinearCondition],
    row: Var,
    rows: For,
    analyzer: Analyzer,
) -> LoopBounds:
    """Return the bounds of a loop by its begin and end, and the forms of conditions on rows."""
    if not forms:
        if begin is loop.min and end is not loop.min:
            begin = analyzer.simplify(begin)
        extent = analyzer.simplify(maximum(end - begin, const(0, loop.loop_var.dtype)))
        return analyzer.simplify(begin), extent, None
    is_static = isinstance(rows.extent, IntImm) and all(form.is_static for form in forms)
    low, high = analyzer.simplify(begin), analyzer.simplify(end)
    if not is_static or not isinstance(low, IntImm) or not isinstance(high, IntImm):
        refuse("tensorize: a condition on rows is on rows and iterations of known numbers", rows)
    if high.value - low.value > MAX_LISTED_ITERATIONS:
        refuse(
            f"tensorize: loop {loop.loop_var.name!r} has over {MAX_LISTED_ITERATIONS} steps", loop
        )
    assert isinstance(rows.extent, IntImm)
    var, count = loop.loop_var, rows.extent.value
    per_iteration = tuple(
        tuple(
            r
            for r in range(count)
            if all(form.static_range({row: (r, r), var: (k, k)})[0] >= 0 for form in forms)
        )
        for k in range(low.value, high.value)
    )
    return low, const(len(per_iteration), var.dtype), per_iteration


__all__ = ["LoopBounds", "bounds_of_sum_loops"]
