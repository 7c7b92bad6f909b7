"""Copies that are made by the first block that reads a buffer, for those that read it later.

    for p:                                      for p: alloc packed[32, 8]
      for k, j: first:                            for k, j: packed[k, j] = b[k, p*8 + j]
        c[0, p*8 + j] +=                            first: c[0, p*8 + j] +=
          a[0, k] * b[k, p*8 + j]          ->                a[0, k] * b[k, p*8 + j]
      for i, k, j: later:                         for i, k, j: later:
        c[1 + i, p*8 + j] +=                        c[1 + i, p*8 + j] +=
          a[1 + i, k] * b[k, p*8 + j]                 a[1 + i, k] * packed[k, j]

The latency of reading the buffer hides behind the first block's arithmetic, and no pass over it
precedes the computation.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import Analyzer
from ekiden.ir.prim import PrimExpr, Var, is_const, logical_and
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.ir.range import Range
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.schedule.block_kinds import COMPLETE, REDUCTION, UPDATE, require_kind
from ekiden.tir.schedule.cache import common_access_indices, require_unguarded_reads
from ekiden.tir.schedule.legality import uncovered_read_fault
from ekiden.tir.schedule.program import (
    ScheduleProgram,
    block_reads,
    bound_analyzer,
    loops_between,
    refuse,
    replace_accesses,
)
from ekiden.tir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    IterKind,
    IterVar,
    PrimFunc,
)
from ekiden.tir.visitor import flatten_seq


def copy_on_first_use(
    program: ScheduleProgram,
    loop: For,
    first: BlockRealize,
    old: Buffer,
    new: Buffer,
    box: Sequence[Range],
) -> tuple[PrimFunc, list[str]]:
    """Return the function in which a block copies what it reads of a box of `old` to `new` in each
    iteration of a loop, and the blocks behind it in the loop read `new`.

    Proved: in each iteration the first block is done before the others begin, and it reads all that
    they read, as `legality.uncovered_read_fault` shows of the copy.
    """
    step, name = "read_at", first.block.name
    if not program.is_inside(first, loop) or old not in block_reads(first.block):
        refuse(f"{step}: block {name!r} does not read {old.name!r} in the loop", first)
    require_kind(step, first, COMPLETE, REDUCTION, UPDATE)
    indices = common_access_indices(step, first, old)
    require_unguarded_reads(step, first, old)
    users = _later_users(step, program, loop, first, old)
    lows = [r.min for r in box]
    copy = _create_copy(program, first, (old, new), indices, box)
    copy = _in_first_steps(step, program, loop, copy, first)
    func = program.replace(first, flatten_seq(copy, first))
    for user in users:
        after = ScheduleProgram(func, program.is_trusted)
        block = after.blocks[user.block.name].block
        func = after.replace(block, _redirect(block, old, new, lows))
    copied = ScheduleProgram(func, program.is_trusted)
    around = copied.loops[loop.loop_var]
    fault = uncovered_read_fault(copied, around, new, copied.blocks[copy.block.name])
    if fault is not None:
        refuse(
            f"{step}: block {name!r} is not known to read all that is read later: {fault}", first
        )
    return copied.replace(around.body, Allocate(new, around.body)), [copy.block.name]


def _later_users(
    step: str, program: ScheduleProgram, loop: For, first: BlockRealize, old: Buffer
) -> list[BlockRealize]:
    """Return the other blocks in the loop that read the buffer. Refuses those that do not run when
    the first block is done.
    """
    name = first.block.name
    users = [x for x in program.readers(old) if x is not first and program.is_inside(x, loop)]
    if not users:
        refuse(f"{step}: no block but {name!r} reads {old.name!r} in the loop", first)
    own = {s.loop_var for s in loops_between(loop.body, first, program)}
    for user in users:
        shared = [s for s in loops_between(loop.body, user, program) if s.loop_var in own]
        if shared:
            refuse(
                f"{step}: block {user.block.name!r} runs between steps of {name!r}, in loop "
                f"{shared[-1].loop_var.name!r}",
                user,
            )
        if not program.precedes(first, user):
            refuse(f"{step}: block {user.block.name!r} reads {old.name!r} before {name!r}", user)
    return users


def _create_copy(
    program: ScheduleProgram,
    first: BlockRealize,
    region: tuple[Buffer, Buffer],
    indices: Sequence[PrimExpr],
    box: Sequence[Range],
) -> BlockRealize:
    """Return the block new[v] = old[box.min + v], which runs for what the first block reads."""
    old, new = region
    bound = dict(zip((i.var for i in first.block.iter_vars), first.iter_values, strict=True))
    iters = tuple(
        IterVar(Var(f"v{n}", r.min.dtype), r.extent, IterKind.SPATIAL) for n, r in enumerate(box)
    )
    own = tuple(i.var for i in iters)
    source = tuple(r.min + v for r, v in zip(box, own, strict=True))
    body = BufferStore(new, BufferLoad(old, source, old.dtype), own)
    at = _subtract([substitute(i, bound) for i in indices], [r.min for r in box])
    block = Block(program.fresh_block_name(f"{first.block.name}_copy"), iters, body)
    return BlockRealize(at, first.predicate, block)


def _in_first_steps(
    step: str, program: ScheduleProgram, loop: For, copy: BlockRealize, first: BlockRealize
) -> BlockRealize:
    """Return the copy under the condition that the loops which would repeat it are in their first
    steps. Refuses loops that are not serial, and those that may have no step.
    """
    inner = loops_between(loop.body, first, program)
    for s in inner:
        if s.kind not in (ForKind.SERIAL, ForKind.UNROLLED):
            refuse(f"{step}: loop {s.loop_var.name!r} around the copy is {s.kind.value}", s)
    used = set(free_vars(*copy.iter_values, copy.predicate))
    for s in reversed(inner):  # a part begins where the loop that counts parts says
        if s.loop_var in used:
            used.update(free_vars(s.min, s.extent))
    analyzer = bound_analyzer([*program.loops_above(loop), loop, *inner])
    predicate = copy.predicate
    for s in inner:
        if s.loop_var in used:
            continue
        if not program.is_trusted and not analyzer.can_prove(s.extent > 0):
            refuse(f"{step}: loop {s.loop_var.name!r} around the copy may have no step", s)
        if not is_const(s.extent, 1):
            predicate = logical_and(predicate, s.loop_var.equal(s.min))
    return copy.with_fields(predicate=predicate)


def _redirect(block: Block, old: Buffer, new: Buffer, lows: Sequence[PrimExpr]) -> Block:
    """Return a block that reads the copy."""
    redirected = replace_accesses(block, old, new, lambda indices: _subtract(indices, lows))
    assert isinstance(redirected, Block)
    return redirected


def _subtract(indices: Sequence[PrimExpr], lows: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
    return tuple(Analyzer().simplify(i - low) for i, low in zip(indices, lows, strict=True))


__all__ = ["copy_on_first_use"]
