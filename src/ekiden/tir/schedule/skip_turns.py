"""A primitive on sums: the turns of a loop that add nothing but zeros are left out.

    for d: for o: for c: y[d] += (x[d + o - 1, c] if 0 <= d + o - 1 and d + o - 1 < n else 0) * w[o]

    for d: for o: if 0 <= d + o - 1 and d + o - 1 < n: for c: y[d] += x[d + o - 1, c] * w[o]

The conditions of a term that the loop has a part in, and no loop inside of it: a sum in tiles has
the others still. What is left out is exact as in skip_zeros.py; a factor that may be infinite is
looked at before all, and where some of it is, no turn is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.ir.prim import Add, Or, PrimExpr, Var, const
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.predicates import conjunction
from ekiden.tir.reduction import update_of
from ekiden.tir.schedule.check import require_outermost, single_store
from ekiden.tir.schedule.finite import Marks
from ekiden.tir.schedule.kinds import COMPLETE, UPDATE, kind_of, require_kind
from ekiden.tir.schedule.program import Program, allocated, refuse, serial
from ekiden.tir.schedule.zero_terms import Conditional, conditional, share_of
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
from ekiden.tir.visitor import sequence


def skip_turns(
    program: Program, realize: BlockRealize, *loops: For, lanes: int = 1
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.skip_turns`."""
    step, name = "skip_turns", realize.block.name
    if lanes < 1:
        refuse(f"{step} {name!r}: lanes above 0 expected, got {lanes}", realize)
    found, known = _found(step, program, realize, loops)
    if found.partner is None:
        return _asked(program.func, known, None), []
    partner = _given(program, found.partner)
    if partner is None:
        refuse(f"{step} {name!r}: 0 times {found.partner} is not known to be 0", realize)
    return _asked_first(program, known, partner, lanes)


def share_skipped(program: Program, realize: BlockRealize, *loops: For) -> float:
    """How much `skip_turns` would leave out, from 0 to 1. Raises RefusedError like it."""
    _, known = _found("skip_turns", program, realize, loops)
    extents = {each.loop_var: each.extent for each in program.loops.values()}
    return 1 - share_of([part for parts in known.values() for part in parts], extents)


def _found(
    step: str, program: Program, realize: BlockRealize, loops: Sequence[For]
) -> tuple[Conditional, dict[Var, list[PrimExpr]]]:
    """How the terms are conditional, and what is known of whole turns of each loop."""
    require_outermost(step, program, realize)
    require_kind(step, realize, UPDATE)
    for each in loops:
        _require_alone(step, program, realize, each)
    found = conditional(program, realize, _term(step, realize))
    parts = [] if found is None else found.parts
    known = {each.loop_var: _known(program, realize, each, parts) for each in loops}
    if found is None or not any(known.values()):
        turns = [each.loop_var.name for each in loops]
        name = realize.block.name
        refuse(f"{step} {name!r}: no condition says that turns of {turns} add zeros", realize)
    return found, known


def _require_alone(step: str, program: Program, realize: BlockRealize, loop: For) -> None:
    """Refuses where the block is not in the loop, or others are too: their turns count."""
    if not program.is_inside(realize, loop):
        place = f"loop {loop.loop_var.name!r}"
        refuse(f"{step} {realize.block.name!r}: the block is not in {place}", loop)
    others = [b.block.name for b in program.blocks.values() if program.is_inside(b, loop)]
    if len(others) > 1:
        mine = realize.block.name
        refuse(f"{step} {mine!r}: blocks {sorted({*others} - {mine})} are in the loop too", loop)


def _term(step: str, realize: BlockRealize) -> PrimExpr:
    update = update_of(single_store(step, realize))
    if update is None or update[0] is not Add:
        refuse(f"{step} {realize.block.name!r}: it is no sum", realize)
    return update[1]


def _known(
    program: Program, realize: BlockRealize, loop: For, parts: Sequence[PrimExpr]
) -> list[PrimExpr]:
    """The conditions, of loop variables, that this loop has a part in and no inner one."""
    variables = [i.var for i in realize.block.iter_vars]
    values = dict(zip(variables, realize.iter_values, strict=True))
    around = {each.loop_var for each in (*program.loops_above(loop), loop)}
    inside = {each.loop_var for each in program.loops.values()} - around
    at_loops = [substitute(part, values) for part in parts]
    used = [set(free_vars(part)) for part in at_loops]
    return [
        part
        for part, own in zip(at_loops, used, strict=True)
        if loop.loop_var in own and not own & inside
    ]


def _given(program: Program, partner: PrimExpr) -> Buffer | None:
    """The argument of the function, which nothing writes, whose elements a factor is some of, by
    copies that may be between; None where there is none: what is computed meanwhile cannot be
    looked at before all."""
    seen = partner
    while isinstance(seen, BufferLoad):
        writers = program.writers(seen.buffer)
        if program.is_param(seen.buffer):
            return None if writers else seen.buffer
        if len(writers) != 1 or kind_of(writers[0].block).kind != COMPLETE:
            return None
        body = writers[0].block.body
        if not isinstance(body, BufferStore):
            return None
        seen = body.value
    return None


def _asked(
    func: PrimFunc, known: Mapping[Var, Sequence[PrimExpr]], unless: PrimExpr | None
) -> PrimFunc:
    """The function with what is known of turns of its loops asked there, unless that holds."""
    for loop_var, parts in known.items():
        if parts:
            program = Program(func)
            loop, condition = program.loops[loop_var], conjunction(parts)
            condition = condition if unless is None else Or(unless, condition, "bool")
            func = program.replace(loop, loop.with_fields(body=IfThenElse(condition, loop.body)))
    return func


def _asked_first(
    program: Program, known: Mapping[Var, Sequence[PrimExpr]], partner: Buffer, lanes: int
) -> tuple[PrimFunc, list[str]]:
    """The same where the partner of zeros is finite: that is looked at before all."""
    is_strange = Var("is_strange", "bool")
    func = _asked(program.func, known, is_strange)
    *outer, last = partner.shape or (const(1),)  # a single number is a row of one
    marks = Marks("at", "int64", last, lanes)
    every = _rows(marks, partner, outer)
    body = marks.within(sequence(marks.cleared(), every, marks.gathered()))
    name = program.fresh_block(f"{partner.name}_finite")
    check = BlockRealize((), const(True), Block(name, (), body))
    rest = LetStmt(is_strange, marks.flag > 0, func.body)
    made = func.with_fields(body=sequence(check, rest))
    return allocated(made, marks.any), [name]


def _rows(marks: Marks, partner: Buffer, outer: Sequence[PrimExpr]) -> Stmt:
    """Every row of a buffer, marked."""
    at = [Var(f"i{n}", "int64") for n in range(len(outer))]
    made = marks.row(lambda last: marks.marked(last, partner[(*at, last) if partner.shape else ()]))
    for var, extent in zip(reversed(at), reversed(outer), strict=True):
        made = serial(var, extent, made)
    return made


__all__ = ["share_skipped", "skip_turns"]
