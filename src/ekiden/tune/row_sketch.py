"""Row-wise sketch: fuse a reduction chain and its producers per block of rows.

    for rows in parallel(m // 4):         most, powers, total of four rows, which stay near
        for i in 4: most[i] = max of x[i, :]           vectors along the row, whose lanes are
        for i in 4: powers[i, :] = exp(x - most)       combined once, at its end
        for i in 4: total[i] = sum of powers[i, :]
        for i in 4: y[i, :] = powers / total

A sum along a row in a tile of columns instead reads elements that lie a row apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field

from ekiden import tir
from ekiden.ir.dtype import itemsize
from ekiden.ir.prim import IntImm
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.access_regions import block_regions
from ekiden.tir.reduction import match_update
from ekiden.tir.schedule.trace import BlockRV, LoopRV
from ekiden.tir.stmt import BufferStore, IterKind
from ekiden.tir.tensor_intrin.lanes import F32_LANE_COUNTS, LANE_REDUCTIONS, lane_reduction_name
from ekiden.tune.blocks import (
    extent,
    is_reduction,
    iter_kinds,
    parallelize_first,
    resolve_block,
    sample_number,
    try_schedule_step,
)

ROWS_PER_STEP = (1, 2, 4, 8)
"""Number of rows per iteration of the fused loop."""
ROW_PARTIAL_VECTORS = (1, 2, 4)
"""Number of partial-sum vectors per row, which hides the latency of additions."""
MAX_ROW_STACK_BYTES = 16384
"""Maximum size of intermediates that are kept on the stack."""


def apply_row_sketch(schedule: tir.Schedule, name: str, target: Target) -> list[tir.Schedule]:
    """Fuse the last block and all its producers row by row; empty if no reduction runs
    along rows.
    """
    lanes = target.lanes("float32")
    if target.kind.has_threads or schedule.get_consumers(schedule.get_block(name)):
        return []
    stages = _transitive_producers(schedule, name)
    sums = [stage for stage in (name, *stages) if is_reduction(schedule, stage)]
    if (
        lanes not in F32_LANE_COUNTS
        or not sums
        or not all(_reduces_rows(schedule, s, lanes) for s in sums)
    ):
        return []
    return try_schedule_step(schedule, _schedule_rows, name, stages, lanes)


def keep_placed(schedule: tir.Schedule, name: str, target: Target) -> list[tir.Schedule] | None:
    """Keep a block that another rule has already computed at a loop."""
    del target
    block = schedule.get_block(name)
    around = len(schedule.get_loops(block)) > len(resolve_block(schedule, block).iter_vars)
    return [schedule] if around else None


def _transitive_producers(schedule: tir.Schedule, name: str) -> list[str]:
    """Return the transitive producers of a block, consumers first."""
    waiting, names = list(schedule.get_producers(schedule.get_block(name))), []
    while waiting:
        block = waiting.pop(0)
        names.append(resolve_block(schedule, block).name)
        waiting.extend(schedule.get_producers(block))
    return list(reversed(dict.fromkeys(reversed(names))))


def _reduces_rows(schedule: tir.Schedule, name: str, lanes: int) -> bool:
    """Return whether a block reduces float32 rows to one element each, reading at least one
    contiguous vector per row.
    """
    handle = schedule.get_block(name)
    block, loops = resolve_block(schedule, handle), schedule.get_loops(handle)
    last = block.iter_vars[-1]
    rows = [extent(schedule, x) for x in loops[:-1]]
    reads, writes = block_regions(block)
    along = [r for r in reads if r.region and r.region[-1].min is last.var]
    return (
        [v.kind for v in block.iter_vars].count(IterKind.REDUCE) == 1
        and last.kind is IterKind.REDUCE
        and len(loops) == len(block.iter_vars)
        and extent(schedule, loops[-1]) >= lanes
        and max(rows, default=1) > 1
        and len(along) == len([r for r in reads if r.region])
        and all(r.buffer.dtype == "float32" for r in (*reads, *writes))
        and _reduction_kind(schedule, handle) != ""
    )


def _reduction_kind(schedule: tir.Schedule, block: BlockRV) -> str:
    """Return how a reduction combines lanes; empty if no instruction does."""
    body = resolve_block(schedule, block).body
    update = match_update(body) if isinstance(body, BufferStore) else None
    return "" if update is None else LANE_REDUCTIONS.get(update[0], "")


@dataclass(slots=True)
class _DeferredSteps:
    """Schedule steps deferred until after parallelisation, because vectorised loops can no longer
    be moved.
    """

    unrolled: list[LoopRV] = field(default_factory=list)
    vectors: list[LoopRV] = field(default_factory=list)
    combined: list[tuple[LoopRV, str]] = field(default_factory=list)
    """Lane loops, with the reduction intrinsic that replaces each."""

    def apply(self, schedule: tir.Schedule) -> None:
        """Apply the deferred steps."""
        for loop in self.unrolled:
            schedule.unroll(loop)
        for loop in self.vectors:
            schedule.vectorize(loop)
        for loop, intrinsic in self.combined:
            schedule.tensorize(loop, intrinsic)


def _schedule_rows(schedule: tir.Schedule, name: str, stages: Sequence[str], lanes: int) -> None:
    """Apply the row sketch to the named block and its stages."""
    sums = [candidate for candidate in (name, *stages) if is_reduction(schedule, candidate)]
    shared = min(len(iter_kinds(schedule, reduction)) - 1 for reduction in sums)
    partial_blocks = {summed: _split_partials(schedule, summed, lanes) for summed in sums}
    loops = schedule.get_loops(schedule.get_block(name))[:shared]
    rows = [n for n in ROWS_PER_STEP if n <= extent(schedule, loops[-1])]
    outer, _ = schedule.split(loops[-1], factors=[None, sample_number(schedule, rows, None)])
    for stage in (name, *stages):
        block = schedule.get_block(stage)
        if stage != name:
            schedule.compute_at(block, outer, preserve_unit_loops=True)
            if _row_bytes(schedule, block, shared) * ROWS_PER_STEP[-1] <= MAX_ROW_STACK_BYTES:
                schedule.set_scope(block, 0, "local")
        if stage in partial_blocks:
            _place_partials(schedule, stage, partial_blocks[stage], stage != name)
    steps = _DeferredSteps()
    for stage in (name, *stages):
        if stage in partial_blocks:
            _vectorize_sums(schedule, stage, partial_blocks[stage], lanes, steps)
        else:
            inner = schedule.get_loops(schedule.get_block(stage))[-1]
            steps.vectors.append(schedule.split(inner, factors=[None, lanes])[1])
    parallelize_first(schedule, [*loops[:-1], outer])
    steps.apply(schedule)


def _split_partials(schedule: tir.Schedule, name: str, lanes: int) -> BlockRV:
    """Split a reduction into vectors of partial results, and return their block."""
    block = schedule.get_block(name)
    last = schedule.get_loops(block)[-1]
    axis = len(iter_kinds(schedule, name)) - 1
    several = sample_number(schedule, ROW_PARTIAL_VECTORS, None)
    _, several_loop, lane = schedule.split(last, factors=[None, several, lanes])
    return schedule.rfactor(schedule.fuse(several_loop, lane), axis)


def _row_bytes(schedule: tir.Schedule, block: BlockRV, shared: int) -> int:
    """Return the bytes a block writes per row; larger than any stack if unknown."""
    _, writes = block_regions(resolve_block(schedule, block))
    sizes = [int(d.value) if isinstance(d, IntImm) else 1 << 40 for d in writes[0].buffer.shape]
    return math.prod(sizes[shared:]) * itemsize(writes[0].buffer.dtype)


def _place_partials(schedule: tir.Schedule, name: str, partial: BlockRV, moved: bool) -> None:
    """Keep a row's partial results in registers. moved: whether their block was moved into another
    block's loop, which puts the combining loop first.
    """
    num_axes = len(iter_kinds(schedule, name))
    loops = schedule.get_loops(schedule.get_block(name))[-num_axes:]
    if moved:
        schedule.reorder(*loops[1:], loops[0])
    schedule.compute_at(partial, loops[-1] if moved else loops[-2], preserve_unit_loops=True)
    schedule.set_scope(partial, 0, "register")


def _vectorize_sums(
    schedule: tir.Schedule, name: str, partial: BlockRV, lanes: int, steps: _DeferredSteps
) -> None:
    """Vectorize along a row, combining the partial results at its end."""
    block, num_axes = schedule.get_block(name), len(iter_kinds(schedule, name))
    partials_loop, *rows, last = schedule.get_loops(partial)[-num_axes - 1 :]
    several, lane = schedule.split(partials_loop, factors=[None, lanes])
    schedule.reorder(*rows, last, several, lane)
    init = schedule.get_loops(schedule.decompose_reduction(partial, last))
    steps.unrolled += [several, init[-2]]
    steps.vectors += [lane, init[-1]]
    several, lane = schedule.split(schedule.get_loops(block)[-1], factors=[None, lanes])
    schedule.decompose_reduction(block, several)
    steps.unrolled.append(several)
    steps.combined.append((lane, lane_reduction_name(_reduction_kind(schedule, block), lanes)))
