"""What a computation in `te` is without search: a tile of registers by the model of the processor
that the families of kernels have, on the rules that sketches are made by.
"""

from __future__ import annotations

from ekiden import tir
from ekiden.runtime.errors import ScheduleError
from ekiden.target import Target
from ekiden.tir.regions import block_regions
from ekiden.tir.stmt import Block, IterKind, PrimFunc
from ekiden.topi.rule.model import most_rows, step_cycles
from ekiden.tune import rules


def modelled(func: PrimFunc, names: list[str], target: Target) -> PrimFunc | None:
    """The loops of a program whose sums have tiles; None for one that has others, or none. `names`
    are its blocks, producers first."""
    if target.kind.has_threads:
        return None
    schedule = tir.Schedule(func, seed=1, error_render_level="none")
    sums = {name for name in names if rules.is_reduction(schedule, name)}
    try:
        for name in reversed(names):
            if name in sums:
                _tiled(schedule, name, target)
            else:
                _elementwise(schedule, name, sums, target)
    except ScheduleError:
        return None
    return schedule.func if sums else None


def _elementwise(schedule: tir.Schedule, name: str, sums: set[str], target: Target) -> None:
    """What a sum reads many times is computed once; what reads a sum stays for its tile; anything
    else is where it is read."""
    block = schedule.get_block(name)

    def are_sums(blocks: list[tir.BlockRV]) -> bool:
        return any(rules.block_of(schedule, b).name in sums for b in blocks)

    readers = schedule.get_consumers(block)
    if are_sums(readers):
        rules.vectors(schedule, name, target)
    elif readers:
        schedule.compute_inline(block)
    elif not are_sums(schedule.get_producers(block)):
        rules.vectors(schedule, name, target)


def _tiled(schedule: tir.Schedule, name: str, target: Target) -> None:
    """Of the tiles along the last row axis, that whose sums take the fewest cycles; without the
    terms that are known to be zero."""
    rules.without_zeros(schedule, name, target)
    block = schedule.get_block(name)
    kinds = [v.kind for v in rules.block_of(schedule, block).iter_vars]
    loops, lanes = schedule.get_loops(block), target.lanes("float32")
    extents = [rules.extent(schedule, loop) for loop in loops]
    spatial = [i for i, k in enumerate(kinds) if k is not IterKind.REDUCE]
    if len(kinds) != len(loops) or not spatial or extents[spatial[-1]] < lanes:
        raise ScheduleError(f"{name}: it has no tile")
    if not _reads_columns(rules.block_of(schedule, block), spatial[-1]):
        raise ScheduleError(f"{name}: nothing that it reads lies along its columns")
    row = next((i for i in reversed(spatial[:-1]) if extents[i] > 1), -1)
    height = extents[row] if row >= 0 else 1
    best = min(
        (
            (_cycles(rows, vectors, height, extents[spatial[-1]] // lanes, target), -rows, vectors)
            for vectors in rules.widths(extents[spatial[-1]], lanes)
            for rows in rules.ROWS
            if rows <= min(height, most_rows(vectors, target))
        ),
    )
    rules.tiled(schedule, name, row, False, False, lanes, (best[2], -best[1], 1))


def _reads_columns(block: Block, columns: int) -> bool:
    """Whether something that a block reads has its columns side by side."""
    reads, _ = block_regions(block)
    return any(r.region[-1].min is block.iter_vars[columns].var for r in reads if r.region)


def _cycles(rows: int, vectors: int, height: int, width: int, target: Target) -> float:
    tiles = -(-height // rows) * -(-width // vectors)
    return tiles * step_cycles(rows, vectors, target)


__all__ = ["modelled"]
