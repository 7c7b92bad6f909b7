"""Block queries and schedule steps shared by the sketch rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import tir
from ekiden.ir.prim import IntImm
from ekiden.runtime.errors import ScheduleError
from ekiden.target import Target
from ekiden.tir.schedule.trace import BlockRV, ExprRV, LoopRV
from ekiden.tir.stmt import Block, For, IterKind


def extent(schedule: tir.Schedule, loop: LoopRV) -> int:
    """Return the trip count of a loop; 0 if it is not constant."""
    loop_node = schedule.get(loop)
    assert isinstance(loop_node, For), loop_node
    return int(loop_node.extent.value) if isinstance(loop_node.extent, IntImm) else 0


def resolve_block(schedule: tir.Schedule, handle: BlockRV) -> Block:
    """Return the block a handle refers to."""
    block = schedule.get(handle)
    assert isinstance(block, Block), block
    return block


def has_block(schedule: tir.Schedule, name: str) -> bool:
    """Return whether a program still has a block of this name."""
    try:
        schedule.get_block(name)
    except ScheduleError:
        return False
    return True


def iter_kinds(schedule: tir.Schedule, name: str) -> list[IterKind]:
    """Return the iterator kinds of a block."""
    return [v.kind for v in resolve_block(schedule, schedule.get_block(name)).iter_vars]


def is_reduction(schedule: tir.Schedule, name: str) -> bool:
    """Return whether a block is a reduction."""
    return IterKind.REDUCE in iter_kinds(schedule, name)


MIN_VECTOR_LANES = 4
"""Float lanes of the narrowest vectors."""


def vector_lanes(trip_count: int, target: Target) -> int:
    """Return the lanes of a vector over a loop: those of the target, or a half or quarter of them
    for a shorter loop, but at least MIN_VECTOR_LANES.
    """
    lanes = target.lanes("float32")
    while lanes > MIN_VECTOR_LANES and trip_count < lanes:
        lanes //= 2
    return lanes


def uniform_probabilities(candidates: Sequence[int]) -> list[float]:
    """Return equal probabilities."""
    return [1.0 / len(candidates)] * len(candidates)


MAX_STEP_ATTEMPTS = 3
"""Maximum number of attempts at a step that rejects sampled numbers."""


def try_schedule_step(
    schedule: tir.Schedule, step: Callable[..., None], *args: object
) -> list[tir.Schedule]:
    """Return a list with a copy of the schedule to which `step` is applied; empty if every sampled
    decision tried is refused.
    """
    for _ in range(MAX_STEP_ATTEMPTS):
        copy = schedule.copy()  # which draws for itself
        try:
            step(copy, *args)
        except ScheduleError:
            # Nothing was sampled, so another try would fail in the same way.
            if not copy.trace.decisions:
                break
            continue
        return [copy]
    return []


def sample_number(schedule: tir.Schedule, numbers: Sequence[int], chosen: int | None) -> ExprRV:
    """Sample one of `numbers` as a tunable decision; `chosen` fixes the initial one."""
    decision = None if chosen is None else list(numbers).index(chosen)
    return schedule.sample_categorical(numbers, uniform_probabilities(numbers), decision)


def parallelize_first(schedule: tir.Schedule, loops: Sequence[LoopRV]) -> None:
    """Parallelize the first loop of more than one iteration."""
    for loop in loops:
        if extent(schedule, loop) > 1:
            schedule.parallel(loop)
            return
