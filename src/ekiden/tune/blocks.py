"""What rules of sketches ask of blocks, and steps that several of them take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import tir
from ekiden.ir.prim import IntImm
from ekiden.runtime.errors import ScheduleError
from ekiden.target import Target
from ekiden.tir.schedule.trace import BlockRV, ExprRV, LoopRV
from ekiden.tir.stmt import Block, For, IterKind


def extent(schedule: tir.Schedule, loop: LoopRV) -> int:
    """Turns of a loop; 0 where they are not known."""
    found = schedule.get(loop)
    assert isinstance(found, For), found
    return int(found.extent.value) if isinstance(found.extent, IntImm) else 0


def block_of(schedule: tir.Schedule, handle: BlockRV) -> Block:
    """The block that a handle stands for."""
    found = schedule.get(handle)
    assert isinstance(found, Block), found
    return found


def has_block(schedule: tir.Schedule, name: str) -> bool:
    """Whether a program has a block of a name yet."""
    try:
        schedule.get_block(name)
    except ScheduleError:
        return False
    return True


def kinds_of(schedule: tir.Schedule, name: str) -> list[IterKind]:
    """Of the variables of a block."""
    return [v.kind for v in block_of(schedule, schedule.get_block(name)).iter_vars]


def is_reduction(schedule: tir.Schedule, name: str) -> bool:
    """Whether a block sums."""
    return IterKind.REDUCE in kinds_of(schedule, name)


NARROWEST = 4
"""Floats of the narrowest vectors."""


def lanes_within(turns: int, target: Target) -> int:
    """Floats of a vector over a loop: those of the target, or a half or a quarter where the loop
    has fewer turns; never below NARROWEST."""
    lanes = target.lanes("float32")
    while lanes > NARROWEST and turns < lanes:
        lanes //= 2
    return lanes


def even(candidates: Sequence[int]) -> list[float]:
    """Odds that are all alike."""
    return [1.0 / len(candidates)] * len(candidates)


DRAWS = 3
"""How often steps are tried that refuse some of the numbers they sample."""


def tried(schedule: tir.Schedule, step: Callable[..., None], *given: object) -> list[tir.Schedule]:
    """A copy with some steps; none where one of them is refused, whatever they draw."""
    for _ in range(DRAWS):
        copy = schedule.copy()  # which draws for itself
        try:
            step(copy, *given)
        except ScheduleError:
            if not copy.trace.decisions:
                break
            continue
        return [copy]
    return []


def sampled(schedule: tir.Schedule, numbers: Sequence[int], chosen: int | None) -> ExprRV:
    """One of some numbers, which search may change; the one that is chosen, if one is."""
    decision = None if chosen is None else list(numbers).index(chosen)
    return schedule.sample_categorical(numbers, even(numbers), decision)


def share(schedule: tir.Schedule, loops: Sequence[LoopRV]) -> None:
    """The first loop of several turns is shared by threads."""
    for loop in loops:
        if extent(schedule, loop) > 1:
            schedule.parallel(loop)
            return
