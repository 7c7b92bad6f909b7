"""The primitive merge: fuse sibling loop nests into one."""

from __future__ import annotations

from ekiden.ir.prim import PrimExpr, Var, is_const
from ekiden.tir.reduction import is_same_expr
from ekiden.tir.schedule.loops import require_unscheduled_loop, substitute_and_simplify
from ekiden.tir.schedule.program import ScheduleProgram, bound_analyzer, refuse, serial_loop
from ekiden.tir.stmt import Block, For, PrimFunc, SeqStmt, Stmt
from ekiden.tir.visitor import buffers_read, buffers_written, flatten_seq


def merge(program: ScheduleProgram, *sibling_loops: For) -> tuple[PrimFunc, list[Var]]:
    """See `Schedule.merge`."""
    if len(sibling_loops) < 2:
        refuse("merge: expected at least two loops")
    nests = [_perfect_nest_to(program, loop) for loop in sibling_loops]
    above = program.parent_of(nests[0][0])
    positions = [_position_among(above, nest[0]) for nest in nests]
    if not isinstance(above, SeqStmt) or None in positions:
        refuse("merge: the loops must stand side by side, each alone in the loops around it")
    order = sorted(range(len(sibling_loops)), key=lambda n: positions[n] or 0)
    nests = [nests[n] for n in order]
    _require_mergeable(nests)
    first = above.seq.index(nests[0][0])
    if list(above.seq[first : first + len(nests)]) != [nest[0] for nest in nests]:
        refuse("merge: other statements stand between the loops")
    merged = _merge_nests(program, nests)
    statements = (*above.seq[:first], merged, *above.seq[first + len(nests) :])
    inner = merged
    for _ in nests[0][1:]:
        assert isinstance(inner.body, For)
        inner = inner.body
    return program.replace(above, flatten_seq(*statements)), [inner.loop_var]


def _perfect_nest_to(program: ScheduleProgram, loop: For) -> list[For]:
    """Return the perfect nest that ends in a loop, outermost first."""
    nest = [loop]
    above = program.parent_of(loop)
    while isinstance(above, For):
        nest.append(above)
        above = program.parent_of(above)
    return nest[::-1]


def _position_among(above: Stmt | None, loop: For) -> int | None:
    if not isinstance(above, SeqStmt):
        return None
    return next((n for n, s in enumerate(above.seq) if s is loop), None)


def _require_mergeable(nests: list[list[For]]) -> None:
    for nest in nests:
        for loop, like in zip(nest, nests[0], strict=False):
            name = loop.loop_var.name
            require_unscheduled_loop("merge", loop)
            if not is_const(loop.min, 0):
                refuse(f"merge: loop {name!r} must start at 0", loop)
            if len(nest) != len(nests[0]) or not is_same_expr(loop.extent, like.extent):
                refuse(
                    f"merge: loop {name!r} has another extent or depth than {like.loop_var.name!r}",
                    loop,
                )
    for n, nest in enumerate(nests):
        for other_nest in nests[n + 1 :]:
            _require_no_dependence(nest[0], other_nest[0])


def _require_no_dependence(first: For, second: For) -> None:
    """Require that neither loop writes what the other reads or writes."""
    written = [set(buffers_written(s)) for s in (first, second)]
    touched = [w | set(buffers_read(s)) for w, s in zip(written, (first, second), strict=True)]
    for buffer in (written[0] & touched[1]) | (written[1] & touched[0]):
        refuse(
            f"merge: loops {first.loop_var.name!r} and {second.loop_var.name!r} share"
            f" {buffer.name!r}, which one of them writes",
            second,
        )


def _merge_nests(program: ScheduleProgram, nests: list[list[For]]) -> For:
    """Return one nest with the bodies of all nests, in order."""
    news = [Var(f"{loop.loop_var.name}_m", loop.loop_var.dtype) for loop in nests[0]]
    analyzer = bound_analyzer(program.loops_above(nests[0][0]))
    for var, loop in zip(news, nests[0], strict=True):
        analyzer.bind(var, 0, loop.extent)
    bodies = []
    for nest in nests:
        values: dict[Var, PrimExpr] = {
            loop.loop_var: var for loop, var in zip(nest, news, strict=True)
        }
        bodies.append(substitute_and_simplify(nest[-1].body, values, analyzer))
    stmt: Stmt = flatten_seq(*bodies)
    for var, loop in zip(reversed(news), reversed(nests[0]), strict=True):
        stmt = serial_loop(var, loop.extent, stmt)
    assert isinstance(stmt, For) and not isinstance(stmt, Block)
    return stmt


__all__ = ["merge"]
