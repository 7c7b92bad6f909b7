"""The primitive rolling_buffer: keep only the sliding window of a buffer that a loop's iteration
reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import EQ, IntImm, PrimExpr, Var, fold_binary, logical_and
from ekiden.ir.prim import Or as OrExpr
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.range import Range
from ekiden.tir.access_regions import bounding_region
from ekiden.tir.expr import Buffer
from ekiden.tir.schedule.block_kinds import COMPLETE, REDUCTION, require_kind
from ekiden.tir.schedule.cache import resolve_buffer
from ekiden.tir.schedule.legality import (
    require_sole_writer,
    require_top_level_block,
    require_unconditional,
    written_box_in_iteration,
)
from ekiden.tir.schedule.program import (
    Indices,
    ScheduleProgram,
    accesses_of_buffer,
    block_writes,
    bound_analyzer,
    refuse,
    replace_accesses,
)
from ekiden.tir.stmt import BlockRealize, BufferStore, For, ForKind, PrimFunc
from ekiden.tir.visitor import pre_order_stmts


def rolling_buffer(
    program: ScheduleProgram, realize: BlockRealize, write_buffer_index: int | str | Buffer = 0
) -> PrimFunc:
    """See `Schedule.rolling_buffer`."""
    step, name = "rolling_buffer", realize.block.name
    require_top_level_block(step, program, realize)
    buffer = resolve_buffer(
        step, realize, write_buffer_index, block_writes(realize.block), "writes"
    )
    if program.is_param(buffer):
        refuse(f"{step} {name!r}: {buffer.name!r} is an argument", realize)
    require_kind(step, realize, COMPLETE, REDUCTION)
    require_sole_writer(step, program, realize, buffer)
    require_unconditional(step, realize)
    loop = _innermost_common_loop(step, program, realize, buffer)
    outer = [*program.loops_above(loop), loop]
    needed = bounding_region(buffer, accesses_of_buffer(loop.body, buffer), outer)
    axis, pace = _rolling_axis(step, realize, loop, needed, outer)
    window = needed[axis].extent
    assert isinstance(window, IntImm)
    written_region = written_box_in_iteration(program, loop, buffer, realize)
    if isinstance(written_region, str):
        refuse(f"{step} {name!r}: {written_region}", realize)
    analyzer = bound_analyzer(outer)
    for a, b in zip(written_region, needed, strict=True):
        same = analyzer.can_prove_equal(a.min, b.min)
        if not same or not analyzer.can_prove_equal(a.extent, b.extent):
            refuse(f"{step} {name!r}: a step does not write just what it reads", realize)
    index = _rolled_iter_value(step, realize, buffer, axis)
    # The last `pace` elements of the window are those that enter with this iteration.
    fresh = index >= needed[axis].min + (window.value - pace)
    # The first iteration fills the whole window; later ones compute only the `pace` new elements at
    # its end.
    first = fold_binary(EQ, loop.loop_var, loop.min)
    predicate = logical_and(realize.predicate, fold_binary(OrExpr, first, fresh))
    func = program.replace(realize, realize.with_fields(predicate=predicate))
    shape = tuple(window if n == axis else d for n, d in enumerate(buffer.shape))
    new = buffer.with_fields(shape=shape)

    def wrap_index(indices: Indices) -> Indices:
        """Reduce the rolled axis's index modulo the window."""
        return tuple(i % window if n == axis else i for n, i in enumerate(indices))

    return func.with_fields(body=replace_accesses(func.body, buffer, new, wrap_index))


def _innermost_common_loop(
    step: str, program: ScheduleProgram, realize: BlockRealize, buffer: Buffer
) -> For:
    """Return the innermost serial loop around all uses of the buffer."""
    name = realize.block.name
    users = [*program.readers(buffer), realize]
    around = [
        s for s in program.loops_above(realize) if all(program.is_inside(u, s) for u in users)
    ]
    if not around:
        refuse(f"{step} {name!r}: it is in no loop with those that read {buffer.name!r}", realize)
    loop = around[-1]
    # The window is carried from one iteration to the next.
    if loop.kind is not ForKind.SERIAL:
        refuse(f"{step} {name!r}: loop {loop.loop_var.name!r} is {loop.kind.value}", loop)
    return loop


def _rolling_axis(
    step: str, realize: BlockRealize, loop: For, needed: Sequence[Range], outer: Sequence[For]
) -> tuple[int, int]:
    """Return the axis along which the window moves with the loop, and its step per iteration."""
    name, var = realize.block.name, loop.loop_var
    moving = [n for n, r in enumerate(needed) if var in free_vars(r.min)]
    if len(moving) != 1:
        refuse(
            f"{step} {name!r}: what a step of {var.name!r} needs must move along one axis, it "
            f"moves along {moving}",
            realize,
        )
    (axis,) = moving
    pace = bound_analyzer(outer).coefficient(needed[axis].min, var)
    window = needed[axis].extent
    if pace is None or not isinstance(window, IntImm):
        refuse(f"{step} {name!r}: the window of axis {axis} has no constant size and pace", realize)
    if not 0 < pace < window.value:
        refuse(
            f"{step} {name!r}: windows of {window.value} that move by {pace} do not overlap",
            realize,
        )
    if any(var in free_vars(r.extent) for r in needed):
        refuse(f"{step} {name!r}: the window changes its size", realize)
    return axis, pace


def _rolled_iter_value(step: str, realize: BlockRealize, buffer: Buffer, axis: int) -> PrimExpr:
    """Return the binding of the iterator along the rolled axis."""
    values = dict(zip((i.var for i in realize.block.iter_vars), realize.iter_values, strict=True))
    for s in pre_order_stmts(realize.block.body):
        if isinstance(s, BufferStore) and s.buffer is buffer:
            index = s.indices[axis]
            if isinstance(index, Var) and index in values:
                return values[index]
    refuse(
        f"{step} {realize.block.name!r}: axis {axis} of {buffer.name!r} must be one iterator",
        realize,
    )
