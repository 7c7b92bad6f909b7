"""What a computation in `te` is without search: a tile of registers by the model of the processor
that the families of kernels have, on the rules that sketches are made by.
"""

from __future__ import annotations

import math

from ekiden import tir
from ekiden.arith.linear import linear_form
from ekiden.ir.dtype import itemsize
from ekiden.kernels.cost_model import (
    LINE,
    MEMORY,
    SHARE,
    levels,
    most_rows,
    shared_evenly,
    step_cycles,
)
from ekiden.kernels.decision import divisors
from ekiden.runtime.errors import ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.regions import BufferRegion, block_regions
from ekiden.tir.stmt import Block, IterKind, PrimFunc
from ekiden.tune import rules
from ekiden.tune.blocks import block_of, extent, is_reduction, lanes_within

COPY = 0.05
"""Share of the time of sums that a copy of their columns may take. Columns that lie apart fall into
few sets of the first-level cache, and are at a new line, and soon at a new page, in every step; a
copy is read in order (Zen 3, depth and columns: 147x64 from 81 to 91 GFLOP/s, 1029x64 from 78 to
95, 144x128 from 71 to 79, 128x128 from 75 to 77, 192x128 alike)."""

ADDED = 1
"""Cycles that it takes to add a vector of sums up in memory: of stores, processors make one in
each, beside loads."""


def modelled(func: PrimFunc, names: list[str], target: Target) -> PrimFunc | None:
    """The loops of a program whose sums have tiles; None for one that has others, or none. `names`
    are its blocks, producers first."""
    if target.kind.has_threads:
        return None
    schedule = tir.Schedule(func, seed=1, error_render_level="none")
    sums = {name for name in names if is_reduction(schedule, name)}
    bare = {name for name in names if _is_read_bare(schedule, name, target)}
    try:
        for name in reversed(names):
            if name in sums:
                _tiled(schedule, name, target)
            else:
                _elementwise(schedule, name, target, name in bare)
    except ScheduleError:
        return None
    return schedule.func if sums else None


def _is_read_bare(schedule: tir.Schedule, name: str, target: Target) -> bool:
    """Whether a window reads data with a border from where they lie, and no copy that has it: the
    tiles and rows inside, which read no border, are loops of their own (one core of Zen 4, in
    place of a copy, with AVX2: 3x3 at stride 1 0.44 to 0.62 of the time, at stride 2 0.35, 5x5 0.59
    to 0.74)."""
    readers = schedule.get_consumers(schedule.get_block(name))
    block = block_of(schedule, schedule.get_block(name))
    if len(readers) != 1 or IterKind.REDUCE in [v.kind for v in block.iter_vars]:
        return False
    try:
        window = _Sum.of(schedule, block_of(schedule, readers[0]).name, target)
    except ScheduleError:
        return False
    return window.taps() is not None


def _elementwise(schedule: tir.Schedule, name: str, target: Target, is_bare: bool) -> None:
    """What a sum reads many times is computed once, but for borders of windows where that does not
    pay; what reads a sum stays for its tile; anything else is where it is read."""
    block = schedule.get_block(name)

    def are_sums(blocks: list[tir.BlockRV]) -> bool:
        return any(is_reduction(schedule, block_of(schedule, b).name) for b in blocks)

    readers = schedule.get_consumers(block)
    if is_bare:
        schedule.compute_inline(block)
    elif are_sums(readers):
        rules.vectors(schedule, name, target)
    elif readers:
        schedule.compute_inline(block)
    elif not are_sums(schedule.get_producers(block)):
        rules.vectors(schedule, name, target)


def _tiled(schedule: tir.Schedule, name: str, target: Target) -> None:
    """Of the tiles along the last row axis, that whose sums take the fewest cycles, on copies of
    its columns or in blocks of its terms where those pay; without the terms that are known to be
    zero."""
    rules.without_zeros(schedule, name, target)
    made = _Sum.of(schedule, name, target)
    vectors, rows = made.tile()
    copies, block = made.copies(vectors, rows), made.steps_of_block(vectors, rows)
    if block and not copies:
        steps = min(made.steps(), 1 + (block % 2 == 0))
        rules.blocked(schedule, name, made.row, target, (vectors, rows, steps, block))
        return
    shape = (vectors, rows, made.steps())
    rules.tiled(schedule, name, made.row, copies, copies, made.lanes, shape)


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum in tiles: turns of its loops; which of them columns are along, and rows (-1 for
    none)."""

    block: Block
    extents: tuple[int, ...]
    columns: int
    row: int
    target: Target

    @staticmethod
    def of(schedule: tir.Schedule, name: str, target: Target) -> _Sum:
        """Raises ScheduleError for one that has no tiles."""
        handle = schedule.get_block(name)
        block = block_of(schedule, handle)
        extents = tuple(extent(schedule, loop) for loop in schedule.get_loops(handle))
        spatial = [n for n, v in enumerate(block.iter_vars) if v.kind is not IterKind.REDUCE]
        is_plain = len(block.iter_vars) == len(extents)
        along = extents[spatial[-1]] if is_plain and spatial else 0
        if along < lanes_within(along, target):
            raise ScheduleError(f"{name}: it has no tile")
        row = next((n for n in reversed(spatial[:-1]) if extents[n] > 1), -1)
        made = _Sum(block, extents, spatial[-1], row, target)
        if not any(made.has_columns(r) for r in made.reads()):
            raise ScheduleError(f"{name}: nothing that it reads lies along its columns")
        return made

    @property
    def lanes(self) -> int:
        """Of a vector: of a short row fewer."""
        return lanes_within(self.extents[self.columns], self.target)

    def reads(self) -> list[BufferRegion]:
        """What a term reads."""
        return block_regions(self.block)[0]

    def has_columns(self, region: BufferRegion) -> bool:
        """Whether columns lie side by side in what is read."""
        return (
            bool(region.region) and region.region[-1].min is self.block.iter_vars[self.columns].var
        )

    @property
    def spatial(self) -> list[int]:
        """The loops that do not sum, but that of columns."""
        kinds = [v.kind for v in self.block.iter_vars]
        return [n for n, k in enumerate(kinds) if k is not IterKind.REDUCE and n != self.columns]

    @property
    def terms(self) -> list[int]:
        """Turns of the loops that sum."""
        pairs = zip(self.extents, self.block.iter_vars, strict=True)
        return [turns for turns, v in pairs if v.kind is IterKind.REDUCE]

    def tile(self) -> tuple[int, int]:
        """Vectors and rows of the tile whose sums take the fewest cycles."""
        height = self.extents[self.row] if self.row >= 0 else 1
        width = self.extents[self.columns]

        taps = self.taps()

        def cost(tile: tuple[int, int]) -> tuple[float, int, int]:
            """Cycles of a step of all sums along rows and columns; then what is preferred. Sums of
            windows are few, so that registers are left for data."""
            vectors, rows = tile
            tiles = -(-height // rows) * -(-(width // self.lanes) // vectors)
            if taps:
                return tiles * self.window_cycles(taps, *tile), rows * vectors, -vectors
            return tiles * step_cycles(rows, vectors, self.target), -rows, vectors

        tiles = (
            (vectors, rows)
            for vectors in rules.widths(width, self.lanes)
            for rows in rules.ROWS
            if rows <= min(height, most_rows(vectors, self.target))
            and not (taps and rows * vectors > max(vectors, self.window_sums()))
        )
        return min(tiles, key=cost)

    def window_sums(self) -> int:
        """Sums of a tile of a window: the other half of the registers, but one, has data that its
        terms share (AVX2, 3 terms: of 10 sums some are in memory, 1.4 to 1.8 times the time)."""
        return self.target.registers // 2 + 1

    def window_cycles(self, taps: tuple[int, int], vectors: int, rows: int) -> float:
        """Of a step of a tile, one of the terms of a window: multiply-adds, or loads of data that
        several rows read and of weights, or the wait for the sums of the step before; and what it
        takes to bring those lines from the second-level cache, unless the first has what the tiles
        of all columns read: then the next tile finds there what it shares with this one."""
        stride, dilation = taps
        terms = range(self.terms[-1])
        data = len({r * stride + t * dilation for r in range(rows) for t in terms})
        each = (data + len(terms)) / len(terms)
        multiply = rows * vectors / self.target.fma_units
        busy = max(multiply, vectors * each / self.target.loads, self.target.fma_latency)
        first, second, _ = levels(self.target)
        size = itemsize("float32")
        held = size * self.extents[self.columns] * each * math.prod(self.terms)
        wide = size * vectors * self.lanes
        if held > SHARE * first.size:
            return busy + each * wide / second.bandwidth
        return busy + MEMORY * each * -(-wide // LINE)

    def taps(self) -> tuple[int, int] | None:
        """Stride and dilation of a window along rows, if data and weights lie along columns: then
        rows next to each other read the same data. None where there is none, or a long one."""
        reads = self.reads()
        if len(reads) != 2 or self.row < 0 or self.terms[-1] > rules.WINDOW:
            return None
        if not all(self.has_columns(each) for each in reads):
            return None
        row, last = (self.block.iter_vars[n].var for n in (self.row, -1))
        for place in reads[0].region:
            form = linear_form(place.min, (row, last))
            steps = [form.coefficients.get(v, 0) for v in (row, last)] if form else [0]
            if min(steps) > 0:
                return steps[0], steps[1]
        return None

    def steps(self) -> int:
        """Steps that stand one after the other: of a window all, else two where none is left over,
        so that what counts the loop is half (Zen 3, six rows of two vectors: 0 to 11 percent)."""
        if self.taps():
            return self.terms[-1]
        return 2 if self.terms[-1] % 2 == 0 else 1

    def copies(self, vectors: int, rows: int) -> bool:
        """Whether columns are outside, and what is read along them is copied side by side: where a
        second-level cache holds the copy, threads can share out the columns, and so many rows pass
        by it that to make it takes a small share of the time."""
        size = itemsize("float32") * vectors * self.lanes
        _, second, third = levels(self.target)
        above = rules.loops_of_panel(self.block)
        if not self.is_panel() or size * math.prod(self.terms) > SHARE * second.size:
            return False
        turns = [self.extents[n] for n in self.spatial]
        panels = -(-self.extents[self.columns] // (vectors * self.lanes))
        if math.prod(turns[:above]) == 1 and not shared_evenly(panels, self.target.cores):
            return False
        tiles = math.prod(turns[above:]) / rows
        made = vectors + size / third.bandwidth
        return made <= COPY * tiles * step_cycles(rows, vectors, self.target)

    def steps_of_block(self, vectors: int, rows: int) -> int:
        """Steps of the last sum of a block; 0 where blocks do not pay. Of a second factor that no
        second-level cache holds every tile brings its columns from the third one again, whose lines
        lie apart. Whole rows of it come once, in order, with the next ones on their way; what that
        costs is to add sums up in memory (Zen 3, 16 rows, depth 2048, 256 columns: 130 to 250
        GFLOP/s). More steps add up less often, but what a quarter of the first-level cache does
        not hold comes from the second for every tile (`late_by_second`)."""
        first, second, third = levels(self.target)
        width, above = self.extents[self.columns], rules.loops_of_panel(self.block)
        line, turns = itemsize("float32") * width, [self.extents[n] for n in self.spatial]
        if not self.is_panel() or line * math.prod(self.terms) <= SHARE * second.size:
            return 0
        is_narrow = self.lanes < self.target.lanes("float32")
        if (
            is_narrow
            or width % (vectors * self.lanes)
            or not shared_evenly(math.prod(turns[:above]), self.target.cores)
        ):
            return 0
        tiles = math.prod(turns[above:]) / rows
        panel = itemsize("float32") * vectors * self.lanes
        again = (1 - 1 / tiles) * panel / third.bandwidth

        def cost(steps: int) -> float:
            """Cycles of a step beside its multiply-adds."""
            is_near = steps * line <= first.size // 4
            late = 0.0 if is_near else self.late_by_second(vectors, rows)
            return ADDED * rows * vectors / steps + late

        few = [d for d in divisors(self.terms[-1]) if d <= rules.MOST_STEPS]
        kept = [d for d in few if d * line <= second.size // 4]  # the next block comes beside it
        best = min(kept, key=cost, default=0)
        return best if best and cost(best) < again else 0

    def late_by_second(self, vectors: int, rows: int) -> float:
        """Cycles by which a step is longer whose columns come from the second-level cache: what
        brings lines takes turns of loads, of which a step may have some to spare. T2D on Zen 4, in
        blocks of 64 steps over 8: 0.93 with tiles of 4 rows of 4 vectors of 512 bits, whose 16
        cycles have 8 of loads; 1.14 with 4 rows of 2 vectors of 256 bits, 3 of 4."""
        _, second, _ = levels(self.target)
        brought = itemsize("float32") * vectors * self.lanes / second.bandwidth
        loads = (rows + vectors) / self.target.loads
        return max(0.0, loads + brought - rows * vectors / self.target.fma_units)

    def is_panel(self) -> bool:
        """Whether the second factor lies along columns, alone, and is the same for all rows."""
        if [self.has_columns(each) for each in self.reads()] != [False, True] or self.row < 0:
            return False
        return rules.loops_of_panel(self.block) <= self.spatial.index(self.row)


__all__ = ["modelled"]
