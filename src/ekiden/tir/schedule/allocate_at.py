"""The primitive allocate_at: a buffer of the size that an iteration of a loop uses."""

from __future__ import annotations

from ekiden.arith import Analyzer
from ekiden.ir.prim import PrimExpr, is_const
from ekiden.ir.prim_visitor import free_vars
from ekiden.tir.access_regions import bounding_region
from ekiden.tir.expr import Buffer
from ekiden.tir.schedule.cache import resolve_buffer
from ekiden.tir.schedule.legality import privatization_fault
from ekiden.tir.schedule.program import (
    ScheduleProgram,
    accesses_of_buffer,
    block_writes,
    bound_analyzer,
    refuse,
    remove_allocation,
    replace_accesses,
)
from ekiden.tir.stmt import Allocate, BlockRealize, For, PrimFunc


def allocate_at(
    program: ScheduleProgram,
    loop: For,
    realize: BlockRealize,
    write_buffer_index: int | str | Buffer,
) -> PrimFunc:
    """See `Schedule.allocate_at`."""
    step, name = "allocate_at", realize.block.name
    if not program.is_inside(realize, loop):
        refuse(f"{step} {name!r}: the block is not in loop {loop.loop_var.name!r}", loop)
    old = resolve_buffer(step, realize, write_buffer_index, block_writes(realize.block), "writes")
    fault = privatization_fault(program, loop, old, program.outermost_blocks(loop.body))
    if fault is not None:
        refuse(f"{step} {name!r}: {old.name!r} outlives a step: {fault}", realize)
    outer = [*program.loops_above(loop), loop]
    analyzer = bound_analyzer(outer)
    # A step reads nothing but what it has written.
    stores = [a for a in accesses_of_buffer(loop.body, old) if a.is_store]
    box = bounding_region(old, stores, outer)
    lows = [analyzer.simplify(r.min) for r in box]
    sizes = tuple(analyzer.simplify(r.extent) for r in box)
    if any(s.loop_var in free_vars(*sizes) for s in outer):
        refuse(f"{step} {name!r}: steps use parts of {old.name!r} that differ in size", loop)
    new = Buffer(old.name, sizes, old.dtype, old.scope)

    def subtract_lows(indices: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
        """Return the indices of an element in the part of one step."""
        pairs = zip(indices, lows, strict=True)
        return tuple(i if is_const(low, 0) else Analyzer().simplify(i - low) for i, low in pairs)

    body = Allocate(new, replace_accesses(loop.body, old, new, subtract_lows))
    return remove_allocation(program.replace(loop.body, body), old)


__all__ = ["allocate_at"]
