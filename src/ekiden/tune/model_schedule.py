"""Default schedules of `te` computations without search, by the processor model of the kernel
families: a tile of registers by the model of the processor that the families of kernels have, on
the rules that sketches are made by.
"""

from __future__ import annotations

import math

from ekiden import tir
from ekiden.arith.linear import extract_linear_form
from ekiden.ir.dtype import itemsize
from ekiden.kernels.cost_model import (
    CACHE_LINE_BYTES,
    MEMORY_OP_CYCLES,
    USABLE_CACHE_FRACTION,
    cache_levels,
    is_balanced,
    max_register_rows,
    step_cycles,
)
from ekiden.kernels.decision import divisors
from ekiden.runtime.errors import ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.access_regions import BufferRegion, block_regions
from ekiden.tir.stmt import Block, IterKind, PrimFunc
from ekiden.tune import rules
from ekiden.tune.blocks import extent, is_reduction, resolve_block, vector_lanes

MAX_PACKING_SHARE = 0.05
"""Maximum share of a reduction's time that packing its columns may take. Columns that lie apart
fall into few sets of the first-level cache, and are at a new line, and soon at a new page, in every
step; a copy is read in order (Zen 3, depth and columns: 147x64 from 81 to 91 GFLOP/s, 1029x64 from
78 to 95, 144x128 from 71 to 79, 128x128 from 75 to 77, 192x128 alike).
"""

ACCUMULATE_STORE_CYCLES = 1
"""Cycles per vector of sums accumulated in memory; processors store one per cycle beside loads."""


def model_schedule(func: PrimFunc, names: list[str], target: Target) -> PrimFunc | None:
    """Return the loops of a program whose reductions can all be tiled by the processor model; None
    otherwise. `names` are its blocks, producers first.
    """
    if target.kind.has_threads:
        return None
    schedule = tir.Schedule(func, seed=1, error_render_level="none")
    sums = {name for name in names if is_reduction(schedule, name)}
    # Decided before any step, because scheduling changes the readers.
    bare = {name for name in names if _reads_padding_in_place(schedule, name, target)}
    try:
        # Consumers first, so that producers can be computed at their readers' loops.
        for name in reversed(names):
            if name in sums:
                _tile_reduction(schedule, name, target)
            else:
                _schedule_elementwise(schedule, name, target, name in bare)
    except ScheduleError:
        return None
    return schedule.func if sums else None


def _reads_padding_in_place(schedule: tir.Schedule, name: str, target: Target) -> bool:
    """Return whether a window should read padded data in place, without a padded copy: interior
    tiles and rows, which read no padding, get loops of their own (one core of Zen 4 with AVX2,
    relative to a copy: 3x3 at stride 1 0.44 to 0.62 of the time, at stride 2 0.35, 5x5 0.59 to
    0.74).
    """
    readers = schedule.get_consumers(schedule.get_block(name))
    block = resolve_block(schedule, schedule.get_block(name))
    if len(readers) != 1 or IterKind.REDUCE in [v.kind for v in block.iter_vars]:
        return False
    try:
        window = _TiledReduction.from_block(
            schedule, resolve_block(schedule, readers[0]).name, target
        )
    except ScheduleError:
        return False
    return window.window_taps() is not None


def _schedule_elementwise(schedule: tir.Schedule, name: str, target: Target, is_bare: bool) -> None:
    """Schedule an elementwise block: compute it once if a reduction rereads it (unless padding is
    better read in place), leave it to the tile of the reduction it reads, or inline it.
    """
    block = schedule.get_block(name)

    def are_reductions(blocks: list[tir.BlockRV]) -> bool:
        return any(is_reduction(schedule, resolve_block(schedule, b).name) for b in blocks)

    readers = schedule.get_consumers(block)
    if is_bare:
        schedule.compute_inline(block)
    elif are_reductions(readers):
        rules.vectorize_rows(schedule, name, target)
    elif readers:
        schedule.compute_inline(block)
    elif not are_reductions(schedule.get_producers(block)):
        rules.vectorize_rows(schedule, name, target)


def _tile_reduction(schedule: tir.Schedule, name: str, target: Target) -> None:
    """Tile a reduction along its last row axis with the shape that takes the fewest cycles, packing
    columns or blocking terms where that pays off, without terms known to be zero.
    """
    rules.skip_zero_terms(schedule, name, target)
    reduction = _TiledReduction.from_block(schedule, name, target)
    vectors, rows = reduction.choose_tile()
    copies, block = reduction.packs_columns(vectors, rows), reduction.block_steps(vectors, rows)
    if block and not copies:
        steps = min(reduction.unroll_factor(), 1 + (block % 2 == 0))
        rules.apply_blocked_tile(
            schedule, name, reduction.row, target, (vectors, rows, steps, block)
        )
        return
    shape = (vectors, rows, reduction.unroll_factor())
    rules.apply_tile(schedule, name, reduction.row, copies, copies, reduction.lanes, shape)


@dataclass(frozen=True, slots=True)
class _TiledReduction:
    """Tiled reduction: its trip counts, and its column and row loops (row -1 for none)."""

    block: Block
    extents: tuple[int, ...]
    columns: int
    row: int
    target: Target

    @staticmethod
    def from_block(schedule: tir.Schedule, name: str, target: Target) -> _TiledReduction:
        """Describe a reduction block. Raises ScheduleError if it cannot be tiled."""
        handle = schedule.get_block(name)
        block = resolve_block(schedule, handle)
        extents = tuple(extent(schedule, loop) for loop in schedule.get_loops(handle))
        spatial = [n for n, v in enumerate(block.iter_vars) if v.kind is not IterKind.REDUCE]
        is_plain = len(block.iter_vars) == len(extents)
        along = extents[spatial[-1]] if is_plain and spatial else 0
        if along < vector_lanes(along, target):
            raise ScheduleError(f"{name}: it has no tile")
        row = next((n for n in reversed(spatial[:-1]) if extents[n] > 1), -1)
        reduction = _TiledReduction(block, extents, spatial[-1], row, target)
        if not any(reduction.has_columns(r) for r in reduction.read_regions()):
            raise ScheduleError(f"{name}: nothing that it reads lies along its columns")
        return reduction

    @property
    def lanes(self) -> int:
        """Return the lanes of a vector; fewer for short rows."""
        return vector_lanes(self.extents[self.columns], self.target)

    def read_regions(self) -> list[BufferRegion]:
        """Return the regions a term reads."""
        return block_regions(self.block)[0]

    def has_columns(self, region: BufferRegion) -> bool:
        """Return whether columns are contiguous in a region."""
        return (
            bool(region.region) and region.region[-1].min is self.block.iter_vars[self.columns].var
        )

    @property
    def row_loops(self) -> list[int]:
        """Return the spatial loops except that of columns."""
        kinds = [v.kind for v in self.block.iter_vars]
        return [n for n, k in enumerate(kinds) if k is not IterKind.REDUCE and n != self.columns]

    @property
    def reduction_extents(self) -> list[int]:
        """Return the trip counts of the reduction loops."""
        pairs = zip(self.extents, self.block.iter_vars, strict=True)
        return [trip_count for trip_count, v in pairs if v.kind is IterKind.REDUCE]

    def choose_tile(self) -> tuple[int, int]:
        """Return the vectors and rows of the tile with the fewest cycles."""
        height = self.extents[self.row] if self.row >= 0 else 1
        width = self.extents[self.columns]

        taps = self.window_taps()

        def tile_cost(tile: tuple[int, int]) -> tuple[float, int, int]:
            """Return the cycles of one step over all sums along rows and columns; then what is
            preferred. Sums of windows are few, so that registers are left for data.
            """
            vectors, rows = tile
            tiles = -(-height // rows) * -(-(width // self.lanes) // vectors)
            if taps:
                return tiles * self.window_cycles(taps, *tile), rows * vectors, -vectors
            return tiles * step_cycles(rows, vectors, self.target), -rows, vectors

        # The accumulators of a tile must fit in the register file.
        tiles = (
            (vectors, rows)
            for vectors in rules.tile_widths(width, self.lanes)
            for rows in rules.TILE_ROW_COUNTS
            if rows <= min(height, max_register_rows(vectors, self.target))
            and not (taps and rows * vectors > max(vectors, self.max_window_sums()))
        )
        return min(tiles, key=tile_cost)

    def max_window_sums(self) -> int:
        """Return the number of sums in a window's tile. The other half of the registers, but one,
        holds data that its terms share.
        """
        return self.target.registers // 2 + 1

    def window_cycles(self, taps: tuple[int, int], vectors: int, rows: int) -> float:
        """Return the cycles of one step of a window's tile. They are bound by multiply-adds, by
        loads of data and weights, or by the latency of the previous step's sums; plus the
        transfer from L2, unless L1 holds what the tiles of all columns read, so that the next
        tile finds the shared part there.
        """
        stride, dilation = taps
        terms = range(self.reduction_extents[-1])
        data = len({r * stride + t * dilation for r in range(rows) for t in terms})
        loads_per_term = (data + len(terms)) / len(terms)
        multiply = rows * vectors / self.target.fma_units
        # Roofline of one step: multiply-add throughput, load throughput, or latency of the
        # dependent chain.
        busy = max(multiply, vectors * loads_per_term / self.target.loads, self.target.fma_latency)
        first, second, _ = cache_levels(self.target)
        size = itemsize("float32")
        held = (
            size * self.extents[self.columns] * loads_per_term * math.prod(self.reduction_extents)
        )
        wide = size * vectors * self.lanes
        if held > USABLE_CACHE_FRACTION * first.size:
            return busy + loads_per_term * wide / second.bandwidth
        return busy + MEMORY_OP_CYCLES * loads_per_term * -(-wide // CACHE_LINE_BYTES)

    def window_taps(self) -> tuple[int, int] | None:
        """Return the stride and dilation of a window along rows, if data and weights are contiguous
        along columns, so that adjacent rows read the same data; None if there is no such window
        or it is long.
        """
        reads = self.read_regions()
        if len(reads) != 2 or self.row < 0 or self.reduction_extents[-1] > rules.MAX_WINDOW_TERMS:
            return None
        if not all(self.has_columns(region) for region in reads):
            return None
        row, last = (self.block.iter_vars[n].var for n in (self.row, -1))
        for axis_range in reads[0].region:
            form = extract_linear_form(axis_range.min, (row, last))
            steps = [form.coefficients.get(v, 0) for v in (row, last)] if form else [0]
            if min(steps) > 0:
                return steps[0], steps[1]
        return None

    def unroll_factor(self) -> int:
        """Return the unroll factor of the reduction: all terms of a window, else two if the trip
        count is even, which halves the loop overhead (Zen 3, six rows of two vectors: 0 to 11
        percent).
        """
        if self.window_taps():
            return self.reduction_extents[-1]
        return 2 if self.reduction_extents[-1] % 2 == 0 else 1

    def packs_columns(self, vectors: int, rows: int) -> bool:
        """Return whether to iterate over columns outermost and pack what is read along them: if L2
        holds the packed copy, threads can divide the columns, and enough rows reuse it to
        amortize the copy.
        """
        size = itemsize("float32") * vectors * self.lanes
        _, second, third = cache_levels(self.target)
        above = rules.num_panel_loops(self.block)
        if (
            not self.is_column_panel()
            or size * math.prod(self.reduction_extents) > USABLE_CACHE_FRACTION * second.size
        ):
            return False
        trip_counts = [self.extents[n] for n in self.row_loops]
        panels = -(-self.extents[self.columns] // (vectors * self.lanes))
        if math.prod(trip_counts[:above]) == 1 and not is_balanced(panels, self.target.cores):
            return False
        tiles = math.prod(trip_counts[above:]) / rows
        copy_cost = vectors + size / third.bandwidth
        return copy_cost <= MAX_PACKING_SHARE * tiles * step_cycles(rows, vectors, self.target)

    def block_steps(self, vectors: int, rows: int) -> int:
        """Return the reduction steps of a block; 0 where blocking does not pay off.

        A second factor that exceeds the second-level cache is loaded from the third one again by
        every tile, in lines that lie apart. Whole rows of it come once, in
        order, with the next ones on their way; what that costs is to add sums up in memory (Zen
        3, 16 rows, depth 2048, 256 columns: 130 to 250 GFLOP/s). More steps add up less often,
        but what a quarter of the first-level cache does not hold comes from the second for every
        tile (`l2_stall_cycles`).
        """
        first, second, third = cache_levels(self.target)
        width, above = self.extents[self.columns], rules.num_panel_loops(self.block)
        line, trip_counts = itemsize("float32") * width, [self.extents[n] for n in self.row_loops]
        if (
            not self.is_column_panel()
            or line * math.prod(self.reduction_extents) <= USABLE_CACHE_FRACTION * second.size
        ):
            return 0
        is_narrow = self.lanes < self.target.lanes("float32")
        if (
            is_narrow
            or width % (vectors * self.lanes)
            or not is_balanced(math.prod(trip_counts[:above]), self.target.cores)
        ):
            return 0
        tiles = math.prod(trip_counts[above:]) / rows
        panel = itemsize("float32") * vectors * self.lanes
        again = (1 - 1 / tiles) * panel / third.bandwidth

        def block_cost(steps: int) -> float:
            """Return the cycles of a step besides its multiply-adds."""
            is_near = steps * line <= first.size // 4
            late = 0.0 if is_near else self.l2_stall_cycles(vectors, rows)
            return ACCUMULATE_STORE_CYCLES * rows * vectors / steps + late

        # Only divisors: a remainder block would need a second copy of the loop nest.
        few = [d for d in divisors(self.reduction_extents[-1]) if d <= rules.MAX_BLOCK_STEPS]
        fitting = [d for d in few if d * line <= second.size // 4]  # the next block comes beside it
        best = min(fitting, key=block_cost, default=0)
        return best if best and block_cost(best) < again else 0

    def l2_stall_cycles(self, vectors: int, rows: int) -> float:
        """Return the stall cycles of a step whose column operands come from L2: cache fills take
        load slots, of which a step may have some to spare. T2D on Zen 4, in blocks of 64 steps over
        8: 0.93 with tiles of 4 rows of 4 vectors of 512 bits, whose 16 cycles have 8 of loads; 1.14
        with 4 rows of 2 vectors of 256 bits, 3 of 4.
        """
        _, second, _ = cache_levels(self.target)
        brought = itemsize("float32") * vectors * self.lanes / second.bandwidth
        loads = (rows + vectors) / self.target.loads
        return max(0.0, loads + brought - rows * vectors / self.target.fma_units)

    def is_column_panel(self) -> bool:
        """Return whether only the second factor is contiguous along columns, and it is invariant
        over rows.
        """
        if [self.has_columns(region) for region in self.read_regions()] != [
            False,
            True,
        ] or self.row < 0:
            return False
        return rules.num_panel_loops(self.block) <= self.row_loops.index(self.row)


__all__ = ["model_schedule"]
