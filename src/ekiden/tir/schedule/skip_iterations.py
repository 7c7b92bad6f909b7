"""The schedule primitive skip_turns, which skips the iterations of a loop that add only zeros to a
sum.

    for d: for o: for c: y[d] += (x[d + o - 1, c] if 0 <= d + o - 1 and d + o - 1 < n else 0) * w[o]
    for d: for o: if 0 <= d + o - 1 and d + o - 1 < n: for c: y[d] += x[d + o - 1, c] * w[o]

Hoisted are the conditions of a term that depend on the loop and on no loop inside of it; conditions
on inner loops stay in the tiles. Exactness is as in skip_zeros.py; a factor that may be infinite is
checked before the sum, and where some of it is not finite, no iteration is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.ir.prim import Add, Or, PrimExpr, Var, const
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.predicates import join_conjuncts
from ekiden.tir.reduction import match_update
from ekiden.tir.schedule.block_kinds import COMPLETE, UPDATE, classify_block, require_kind
from ekiden.tir.schedule.finiteness_checks import NonFiniteFlags
from ekiden.tir.schedule.legality import require_top_level_block, single_store
from ekiden.tir.schedule.program import ScheduleProgram, add_allocation, refuse, serial_loop
from ekiden.tir.schedule.zero_terms import ConditionalTerm, match_conditional_term, true_fraction
from ekiden.tir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    IfThenElse,
    LetStmt,
    PrimFunc,
    Stmt,
)
from ekiden.tir.visitor import flatten_seq


def skip_turns(
    program: ScheduleProgram, realize: BlockRealize, *loops: For, lanes: int = 1
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.skip_turns`."""
    step, name = "skip_turns", realize.block.name
    if lanes < 1:
        refuse(f"{step} {name!r}: lanes above 0 expected, got {lanes}", realize)
    term_condition, loop_conditions = _analyse_conditional_term(step, program, realize, loops)
    # The whole term is 0: nothing multiplies it, so NaN and infinity cannot arise and no check is
    # needed.
    if term_condition.other_factor is None:
        return _guard_loops(program.func, loop_conditions, None), []
    partner = _unwritten_argument(program, term_condition.other_factor)
    if partner is None:
        refuse(
            f"{step} {name!r}: 0 times {term_condition.other_factor} is not known to be 0", realize
        )
    return _guard_with_finiteness_check(program, loop_conditions, partner, lanes)


def skipped_fraction(program: ScheduleProgram, realize: BlockRealize, *loops: For) -> float:
    """Return the fraction of iterations that `skip_turns` would skip, from 0 to 1. Raises
    RefusedError like it.
    """
    _, loop_conditions = _analyse_conditional_term("skip_turns", program, realize, loops)
    extents = {loop.loop_var: loop.extent for loop in program.loops.values()}
    return 1 - true_fraction(
        [condition for conditions in loop_conditions.values() for condition in conditions], extents
    )


def _analyse_conditional_term(
    step: str, program: ScheduleProgram, realize: BlockRealize, loops: Sequence[For]
) -> tuple[ConditionalTerm, dict[Var, list[PrimExpr]]]:
    """Return how the terms are conditional, and for each loop the conditions that decide whole
    iterations of it.
    """
    require_top_level_block(step, program, realize)
    require_kind(step, realize, UPDATE)
    for loop in loops:
        _require_only_block(step, program, realize, loop)
    term_condition = match_conditional_term(program, realize, _update_term(step, realize))
    conditions = [] if term_condition is None else term_condition.conjuncts
    loop_conditions = {
        loop_stmt.loop_var: _conditions_deciding_loop(program, realize, loop_stmt, conditions)
        for loop_stmt in loops
    }
    if term_condition is None or not any(loop_conditions.values()):
        loop_names = [named_loop.loop_var.name for named_loop in loops]
        name = realize.block.name
        refuse(f"{step} {name!r}: no condition says that turns of {loop_names} add zeros", realize)
    return term_condition, loop_conditions


def _require_only_block(
    step: str, program: ScheduleProgram, realize: BlockRealize, loop: For
) -> None:
    """Refuse where the block is not in the loop, or other blocks are too: their iterations
    count.
    """
    if not program.is_inside(realize, loop):
        loop_text = f"loop {loop.loop_var.name!r}"
        refuse(f"{step} {realize.block.name!r}: the block is not in {loop_text}", loop)
    block_names = [b.block.name for b in program.blocks.values() if program.is_inside(b, loop)]
    if len(block_names) > 1:
        mine = realize.block.name
        refuse(
            f"{step} {mine!r}: blocks {sorted({*block_names} - {mine})} are in the loop too", loop
        )


def _update_term(step: str, realize: BlockRealize) -> PrimExpr:
    update = match_update(single_store(step, realize))
    if update is None or update[0] is not Add:
        refuse(f"{step} {realize.block.name!r}: it is no sum", realize)
    return update[1]


def _conditions_deciding_loop(
    program: ScheduleProgram, realize: BlockRealize, loop: For, conditions: Sequence[PrimExpr]
) -> list[PrimExpr]:
    """Return the conditions, in loop variables, that depend on this loop and on no inner one."""
    variables = [i.var for i in realize.block.iter_vars]
    values = dict(zip(variables, realize.iter_values, strict=True))
    around = {outer_loop.loop_var for outer_loop in (*program.loops_above(loop), loop)}
    inside = {any_loop.loop_var for any_loop in program.loops.values()} - around
    at_loops = [substitute(condition, values) for condition in conditions]
    used = [set(free_vars(condition)) for condition in at_loops]
    return [
        condition
        for condition, own in zip(at_loops, used, strict=True)
        if loop.loop_var in own and not own & inside
    ]


def _unwritten_argument(program: ScheduleProgram, partner: PrimExpr) -> Buffer | None:
    """Return the function's argument, which nothing writes, that a factor's elements come from,
    through copies; None where there is none, since computed values cannot be checked beforehand.
    """
    source = partner
    # Packed and padded copies hold the same values as the argument, so checking the argument is
    # enough.
    while isinstance(source, BufferLoad):
        writers = program.writers(source.buffer)
        if program.is_param(source.buffer):
            return None if writers else source.buffer
        if len(writers) != 1 or classify_block(writers[0].block).kind != COMPLETE:
            return None
        body = writers[0].block.body
        if not isinstance(body, BufferStore):
            return None
        source = body.value
    return None


def _guard_loops(
    func: PrimFunc, loop_conditions: Mapping[Var, Sequence[PrimExpr]], unless: PrimExpr | None
) -> PrimFunc:
    """Return the function with each loop's body guarded by its conditions, unless `unless`
    holds.
    """
    for loop_var, conditions in loop_conditions.items():
        if conditions:
            # Analysed anew per loop: the edit before has replaced the loops around.
            program = ScheduleProgram(func)
            loop, condition = program.loops[loop_var], join_conjuncts(conditions)
            condition = condition if unless is None else Or(unless, condition, "bool")
            func = program.replace(loop, loop.with_fields(body=IfThenElse(condition, loop.body)))
    return func


def _guard_with_finiteness_check(
    program: ScheduleProgram,
    loop_conditions: Mapping[Var, Sequence[PrimExpr]],
    partner: Buffer,
    lanes: int,
) -> tuple[PrimFunc, list[str]]:
    """Return the function guarded where the other factor is finite, which is checked before the
    sum.
    """
    is_strange = Var("is_strange", "bool")
    func = _guard_loops(program.func, loop_conditions, is_strange)
    *outer, last = partner.shape or (const(1),)  # a single number is a row of one
    marks = NonFiniteFlags("at", "int64", last, lanes)
    every = _flag_nonfinite_rows(marks, partner, outer)
    body = marks.allocate_around(flatten_seq(marks.emit_clear(), every, marks.emit_combine()))
    name = program.fresh_block_name(f"{partner.name}_finite")
    check = BlockRealize((), const(True), Block(name, (), body))
    guarded = LetStmt(is_strange, marks.combined_flag > 0, func.body)
    checked = func.with_fields(body=flatten_seq(check, guarded))
    return add_allocation(checked, marks.any_flag), [name]


def _flag_nonfinite_rows(marks: NonFiniteFlags, partner: Buffer, outer: Sequence[PrimExpr]) -> Stmt:
    """Return the statement that flags the non-finite elements of every row of a buffer."""
    row_vars = [Var(f"i{n}", "int64") for n in range(len(outer))]
    stmt = marks.emit_row_loop(
        lambda last: marks.emit_mark(last, partner[(*row_vars, last) if partner.shape else ()])
    )
    for var, extent in zip(reversed(row_vars), reversed(outer), strict=True):
        stmt = serial_loop(var, extent, stmt)
    return stmt


__all__ = ["skip_turns", "skipped_fraction"]
