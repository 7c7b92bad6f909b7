"""Sketch rules, each of which returns the possible schedules of one block: each looks at one block
and gives the schedules that it may have.

    inline     an injective block in its readers, or vectors over it where it is
    skip       a sum without the terms that a remainder makes zero, then as any other
    tile       a reduction over a tile of registers: rows, vectors, which loop is outside; what
               reads it in the tile, or a copy of what it reads side by side, or blocks of terms
    tensorize  products of bytes by instructions of the target, of weights put in their order
    placed     what a step for another block has put into a loop of it stays there
    rfactor    a reduction to few elements by several sums
    threads    on devices: blocks and threads, tiles of theirs, memory that a block shares
    spread     anything else: vectors over its last axis, threads over its first

What a rule samples (tiles, vectors, unrolling) stands as decisions in the trace, and changing those
is what search does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from ekiden import tir
from ekiden.ir.prim import IntImm, PrimExpr, is_const
from ekiden.ir.prim_visitor import free_vars
from ekiden.kernels.decision import divisors
from ekiden.runtime.errors import ScheduleError
from ekiden.target import Target
from ekiden.tir.access_regions import block_regions
from ekiden.tir.index_map import IndexMap
from ekiden.tir.schedule.trace import BlockRV, ExprRV, LoopRV
from ekiden.tir.stmt import Block, IterKind
from ekiden.tir.tensor_intrin.x86 import VNNI_DOT_16x4_INTRIN
from ekiden.tir.transform.inject_prefetch import PREFETCH_ANNOTATION as BRING_AHEAD
from ekiden.tir.transform.loop_partitioning import PARTITION_HINT_ANNOTATION
from ekiden.tune.blocks import (
    extent,
    is_reduction,
    iter_kinds,
    parallelize_first,
    resolve_block,
    sample_number,
    try_schedule_step,
    uniform_probabilities,
    vector_lanes,
)
from ekiden.tune.row_sketch import apply_row_sketch, keep_placed

SketchRule: TypeAlias = Callable[[tir.Schedule, str, Target], "list[tir.Schedule] | None"]
"""Function (schedule, block name, target) -> possible schedules; None if the rule does not apply.
The schedule that is given stays as it is.
"""
TILE_ROW_COUNTS = tuple(range(1, 15))
"""Candidate row counts of a register tile."""
TILE_VECTOR_COUNTS = (1, 2, 3, 4)
UNROLL_FACTORS = (1, 2, 4)
MAX_WINDOW_TERMS = 5
"""Maximum number of unrolled window terms along rows, which share loaded data (Zen 3, depthwise, in
turns: 3 terms 4 to 21 percent faster than one by one, 5 terms 10, 7 terms 2 slower).
"""
ZERO_CHECK_COST = 4
"""Cost of a finiteness check in multiply-adds."""
MAX_BLOCK_STEPS = 64
"""Maximum number of reduction steps per block."""
RFACTOR_VECTORS = (2, 4, 8)
"""Candidate numbers of partial-sum vectors of a reduction to few elements."""


def inline(schedule: tir.Schedule, name: str, target: Target) -> list[tir.Schedule] | None:
    """Inline an injective block into its consumers, or keep and vectorize it."""
    if is_reduction(schedule, name) or not schedule.get_consumers(schedule.get_block(name)):
        return None
    return [
        *try_schedule_step(schedule, _inline_block, name),
        vectorize_rows(schedule.copy(), name, target),
    ]


def _inline_block(schedule: tir.Schedule, name: str) -> None:
    schedule.compute_inline(schedule.get_block(name))


def spread(schedule: tir.Schedule, name: str, target: Target) -> list[tir.Schedule] | None:
    """Vectorize an injective block over its last axis and parallelize its first, or leave it for
    the tile of the reduction that it reads.
    """
    if is_reduction(schedule, name):
        return None
    block = schedule.get_block(name)
    producers = [resolve_block(schedule, b).name for b in schedule.get_producers(block)]
    waits = (
        [schedule] if sum(is_reduction(schedule, producer) for producer in producers) == 1 else []
    )
    return [
        *waits,
        vectorize_rows(schedule.copy(), name, target),
        *apply_row_sketch(schedule, name, target),
    ]


def vectorize_rows(schedule: tir.Schedule, name: str, target: Target) -> tir.Schedule:
    """Vectorize the last axis of a block and parallelize its first, and return the schedule. If the
    last axis is shorter than a vector, several axes are vectorized and padding is split off.
    """
    block, lanes = schedule.get_block(name), target.lanes("float32")
    loops, regions = schedule.get_loops(block), [block]
    if len(loops) > 1 and extent(schedule, loops[-1]) < lanes:
        with suppress(ScheduleError):
            regions.append(schedule.decompose_padding(block, loops[0]))
    for region_block in regions:
        _vectorize_row_axis(schedule, schedule.get_loops(region_block), lanes)
    return schedule


def _vectorize_row_axis(schedule: tir.Schedule, loops: list[LoopRV], lanes: int) -> None:
    while len(loops) > 1 and 0 < extent(schedule, loops[-1]) < lanes:
        loops = [*loops[:-2], schedule.fuse(*loops[-2:])]
    if loops and extent(schedule, loops[-1]) >= lanes:
        outer, lane = schedule.split(loops[-1], factors=[None, lanes])
        schedule.vectorize(lane)
        loops = [*loops[:-1], outer]
    parallelize_first(schedule, loops)


def tile(schedule: tir.Schedule, name: str, target: Target) -> list[tir.Schedule] | None:
    """Tile a reduction in registers as rows of vectors; one variant per loop that can provide the
    rows, with columns, rows or terms outermost.
    """
    kinds = iter_kinds(schedule, name)
    loops = schedule.get_loops(schedule.get_block(name))
    if len(kinds) != len(loops) or IterKind.REDUCE not in kinds:
        return None
    spatial = [i for i, k in enumerate(kinds) if k is not IterKind.REDUCE]
    along = extent(schedule, loops[spatial[-1]]) if spatial else 0
    lanes = vector_lanes(along, target)
    if along < lanes:
        return None
    blocks = lanes == target.lanes("float32")
    rows = [i for i in spatial[:-1] if extent(schedule, loops[i]) > 1]
    variants: list[tir.Schedule] = []
    # The two innermost row axes, or none: each adds sketches to search.
    for row in [*rows[-2:], -1] if rows else [-1]:
        for outside in ("rows", "columns") if row >= 0 else ("rows",):
            for packs in (False, True) if outside == "columns" else (False,):
                variants += try_schedule_step(
                    schedule, apply_tile, name, row, outside == "columns", packs, lanes
                )
        variants += (
            try_schedule_step(schedule, apply_blocked_tile, name, row, target)
            if row >= 0 and blocks
            else []
        )
    return [*variants, *apply_row_sketch(schedule, name, target)] or None


def skip(schedule: tir.Schedule, name: str, target: Target) -> list[tir.Schedule] | None:
    """Skip terms of a reduction that are provably zero, and tile the rest if possible."""
    copy = schedule.copy()
    if not is_reduction(schedule, name) or not skip_zero_terms(copy, name, target):
        return None
    return tile(copy, name, target) or [copy]


def skip_zero_terms(schedule: tir.Schedule, name: str, target: Target) -> bool:
    """Skip terms of a reduction that are provably zero; return whether there were any."""
    try:
        schedule.skip_zeros(name, target.lanes("float32"))
    except ScheduleError:
        return False
    return True


def _fusible_consumer(schedule: tir.Schedule, name: str) -> BlockRV | None:
    """Return the only block that reads another's results elementwise and is still unscheduled, so
    that it can be computed in the same loops.
    """
    readers = schedule.get_consumers(schedule.get_block(name))
    if len(readers) != 1:
        return None
    reader = resolve_block(schedule, readers[0])
    kinds, block_kinds = iter_kinds(schedule, reader.name), iter_kinds(schedule, name)
    is_plain = len(schedule.get_loops(readers[0])) == len(kinds)
    spatial = [k for k in block_kinds if k is not IterKind.REDUCE]
    return readers[0] if is_plain and kinds == spatial else None


def apply_tile(
    schedule: tir.Schedule, name: str, row: int, columns_first: bool, packs: bool, lanes: int,
    chosen: tuple[int, int, int] | None = None,
) -> None:  # fmt: skip
    """Tile a block in registers along a row loop (-1 for none). columns_first: columns are outside
    all loops over which the second factor is invariant. chosen: the tile's vectors and rows, and
    the unroll factor, instead of sampled ones.
    """
    block = schedule.get_block(name)
    kinds = iter_kinds(schedule, name)
    out = _fusible_consumer(schedule, name)
    if out is None:
        out = schedule.cache_write(block, 0, "register")
    else:
        schedule.set_scope(block, 0, "register")
    loops = schedule.get_loops(block)
    spatial = [loops[i] for i, k in enumerate(kinds) if k is not IterKind.REDUCE]
    reduced = [loops[i] for i, k in enumerate(kinds) if k is IterKind.REDUCE]
    pick = chosen or (None, None, None)
    above = num_panel_loops(resolve_block(schedule, block))
    width = sample_number(schedule, tile_widths(extent(schedule, spatial[-1]), lanes), pick[0])
    column_tile, vector, lane = schedule.split(spatial[-1], factors=[None, width, lanes])
    outer, inner = [*spatial[:-1], column_tile], [vector, lane]
    if row >= 0:
        heights = [r for r in TILE_ROW_COUNTS if r <= extent(schedule, loops[row])]
        rows = sample_number(schedule, heights, pick[1])
        position = spatial.index(loops[row])
        outer[position], row_loop = schedule.split(loops[row], factors=[None, rows])
        inner.insert(0, row_loop)
        schedule.unroll(row_loop)
        if columns_first:
            outer.insert(above, outer.pop())
    terms = extent(schedule, reduced[-1])
    is_window = row >= 0 and 0 < terms <= MAX_WINDOW_TERMS
    last, step = schedule.split(
        reduced[-1], factors=[None, sample_number(schedule, unroll_factors(terms), pick[2])]
    )
    schedule.reorder(*outer, *reduced[:-1], last, step, *inner)
    schedule.unroll(step)
    schedule.unroll(vector)
    schedule.vectorize(lane)
    schedule.reverse_compute_at(out, outer[-1], preserve_unit_loops=True)
    copied = schedule.get_loops(out)
    inside = copied[len(schedule.get_loops(block)) - len(reduced) - 1 - len(inner) :]
    _vectorize_writeback(schedule, inside, lanes)
    if packs:
        panel = schedule.cache_read(block, 1, "global", consumer_blocks=[block])
        schedule.compute_at(panel, outer[above], preserve_unit_loops=True)
        _, lane = schedule.split(schedule.get_loops(panel)[-1], factors=[None, lanes])
        schedule.vectorize(lane)
    if is_window:  # tiles and terms that read no border are loops without its conditions
        for loop in (outer[position], *reduced[:-1]):
            schedule.annotate(loop, PARTITION_HINT_ANNOTATION, 1)
    # The initialisation becomes a nest of its own, so that the sums stay in registers in the main
    # loop.
    schedule.decompose_reduction(block, reduced[0] if len(reduced) > 1 else last)
    _skip_padding_terms(schedule, block, reduced[:-1], lanes)
    parallelize_first(schedule, outer)


def _skip_padding_terms(
    schedule: tir.Schedule, block: BlockRV, loops: Sequence[LoopRV], lanes: int
) -> None:
    """Skip iterations of a reduction that only add zeros, if that saves more than checking the
    shared factor once.
    """
    spatial = [
        v.extent for v in resolve_block(schedule, block).iter_vars if v.kind is IterKind.SPATIAL
    ]
    shared = math.prod(size.value for size in spatial[:-1] if isinstance(size, IntImm))
    if loops and schedule.share_skipped(block, *loops) * shared > ZERO_CHECK_COST:
        schedule.skip_turns(block, *loops, lanes=lanes)


def apply_blocked_tile(
    schedule: tir.Schedule, name: str, row: int, target: Target,
    chosen: tuple[int, int, int, int] | None = None,
) -> None:  # fmt: skip
    """Tile a block in registers along a row loop, processing all tiles for a block of reduction
    steps before the next block. Columns are innermost: whole rows of the second factor are read
    in order, stay cached for the other tiles, and prefetch the following steps. Partial sums are
    accumulated in memory, and the consumer runs afterwards. chosen: the tile's vectors and rows,
    the unroll factor, and the steps of a block, instead of sampled ones.
    """
    block, reader = schedule.get_block(name), _fusible_consumer(schedule, name)
    lanes = target.lanes("float32")
    kinds, above = iter_kinds(schedule, name), num_panel_loops(resolve_block(schedule, block))
    loops = schedule.get_loops(block)
    spatial = [loops[i] for i, k in enumerate(kinds) if k is not IterKind.REDUCE]
    reduced = [loops[i] for i, k in enumerate(kinds) if k is IterKind.REDUCE]
    position = spatial.index(loops[row])
    if row < 0 or position < above:
        raise ScheduleError(f"{name}: no rows share what it reads along columns")
    pick = chosen or (None, None, None, None)
    few = [d for d in divisors(extent(schedule, reduced[-1])) if d <= MAX_BLOCK_STEPS]
    steps = sample_number(schedule, few, pick[3])
    second = block_regions(resolve_block(schedule, block))[0][1].buffer
    outer, _ = schedule.split(reduced[-1], factors=[None, steps])
    outer = schedule.fuse(*reduced[:-1], outer) if len(reduced) > 1 else outer
    partial = schedule.rfactor(outer, 0)
    schedule.set_scope(partial, 0, "register")
    *spatial, outer = schedule.get_loops(block)
    width = sample_number(schedule, tile_widths(extent(schedule, spatial[-1]), lanes), pick[0])
    columns, vector, lane = schedule.split(spatial[-1], factors=[None, width, lanes])
    heights = [r for r in TILE_ROW_COUNTS if r <= extent(schedule, spatial[position])]
    rows = sample_number(schedule, heights, pick[1])
    tiles, row_in_tile = schedule.split(spatial[position], factors=[None, rows])
    between = [*spatial[above:position], tiles, *spatial[position + 1 : -1]]
    schedule.reorder(*spatial[:above], outer, *between, columns, row_in_tile, vector, lane)
    schedule.compute_at(partial, columns, preserve_unit_loops=True)
    partial_loops = schedule.get_loops(partial)[-len(spatial) - 1 :]
    own_vector, own_lane = schedule.split(partial_loops[-2], factors=[None, lanes])
    last, step = schedule.split(
        partial_loops[-1], factors=[None, sample_number(schedule, UNROLL_FACTORS, pick[2])]
    )
    schedule.reorder(last, step, partial_loops[position], own_vector, own_lane)
    for loop in (row_in_tile, vector, step, partial_loops[position], own_vector):
        schedule.unroll(loop)
    schedule.vectorize(lane)
    schedule.vectorize(own_lane)
    schedule.decompose_reduction(partial, last)
    read = [r.buffer.name for r in block_regions(resolve_block(schedule, partial))[0]].index(
        second.name
    )
    schedule.annotate(step, BRING_AHEAD, [read, steps, width * lanes])
    schedule.decompose_reduction(block, outer)
    parallelize_first(schedule, spatial[:above])
    if reader is not None:
        vectorize_rows(schedule, resolve_block(schedule, reader).name, target)


def num_panel_loops(block: Block) -> int:
    """Return the number of outer spatial loops, columns excluded, up to the last one that the
    second factor depends on: for a batched product, the batch.
    """
    reads, _ = block_regions(block)
    used = free_vars(*(axis_range.min for axis_range in reads[1].region)) if len(reads) > 1 else ()
    spatial = [v for v in block.iter_vars if v.kind is not IterKind.REDUCE][:-1]
    moving = [n + 1 for n, v in enumerate(spatial) if v.var in used and not is_const(v.extent, 1)]
    return max(moving, default=0)


def unroll_factors(terms: int) -> list[int]:
    """Return the possible unroll factors of a reduction: a few, or all of a window."""
    return sorted({*UNROLL_FACTORS, terms} if 0 < terms <= MAX_WINDOW_TERMS else UNROLL_FACTORS)


def tile_widths(extent: int, lanes: int) -> list[int]:
    """Return the possible tile widths in vectors: those that leave no columns over, else those that
    fit. A tile wider than its row is all masks, which takes LLVM minutes.
    """
    fitting = [v for v in TILE_VECTOR_COUNTS if v * lanes <= extent]
    return [v for v in fitting if extent % (v * lanes) == 0] or fitting


def _vectorize_writeback(schedule: tir.Schedule, loops: Sequence[LoopRV], lanes: int) -> None:
    """Vectorise and unroll the write-back from registers to memory."""
    vector, lane = schedule.split(loops[-1], factors=[None, lanes])
    schedule.unroll(vector)
    schedule.vectorize(lane)
    for loop in loops[:-1]:
        schedule.unroll(loop)


def rfactor(schedule: tir.Schedule, name: str, target: Target) -> list[tir.Schedule] | None:
    """Factor a reduction to few elements: all terms in one loop, accumulated in two or more
    vectors.
    """
    kinds = iter_kinds(schedule, name)
    block = schedule.get_block(name)
    loops = schedule.get_loops(block)
    if len(kinds) != len(loops) or IterKind.REDUCE not in kinds:
        return None
    reduced = [x for x, k in zip(loops, kinds, strict=True) if k is IterKind.REDUCE]
    total, lanes = math.prod(extent(schedule, x) for x in reduced), target.lanes("float32")
    sums = [n for n in RFACTOR_VECTORS if n * lanes <= total]
    variants = try_schedule_step(schedule, _apply_rfactor, name, lanes, sums) if sums else []
    return [*variants, *apply_row_sketch(schedule, name, target)] or None


def _apply_rfactor(schedule: tir.Schedule, name: str, lanes: int, numbers: Sequence[int]) -> None:
    """Apply `rfactor` with one of the given numbers of partial vectors."""
    kinds = iter_kinds(schedule, name)
    block = schedule.get_block(name)
    pairs = zip(schedule.get_loops(block), kinds, strict=True)
    reduced = [x for x, k in pairs if k is IterKind.REDUCE]
    fused = schedule.fuse(*reduced) if len(reduced) > 1 else reduced[0]
    sums = schedule.sample_categorical(numbers, uniform_probabilities(numbers))
    outer, several, lane = schedule.split(fused, factors=[None, sums, lanes])
    inner = schedule.fuse(several, lane)
    partial = schedule.rfactor(inner, 0)
    loops = schedule.get_loops(partial)
    several, lane = schedule.split(loops[-1], factors=[None, lanes])
    schedule.unroll(several)
    schedule.vectorize(lane)
    schedule.decompose_reduction(partial, loops[-2])
    del outer


DOT_INSTRUCTIONS = (("dot4_u8s8", "uint8", "int8", "int32", VNNI_DOT_16x4_INTRIN, 16, 4),)
"""Dot-product instructions: target ability, dtypes of both factors and of the sums, intrinsic,
number of sums, and number of products per sum.
"""
DOT_TILE_ROWS = (1, 2, 4, 6, 8, 12)
"""Candidate row counts of a dot-product tile."""


def tensorize(schedule: tir.Schedule, name: str, target: Target) -> list[tir.Schedule] | None:
    """Tensorize a reduction with an instruction of the target, on a second factor that is stored in
    its order or on a packed copy.
    """
    kinds = iter_kinds(schedule, name)
    loops = schedule.get_loops(schedule.get_block(name))
    if len(kinds) != len(loops) or IterKind.REDUCE not in kinds or target.kind.has_threads:
        return None
    block = resolve_block(schedule, schedule.get_block(name))
    reads, writes = block_regions(block)
    dtypes = [r.buffer.dtype for r in (*reads, *writes)]
    variants: list[tir.Schedule] = []
    for ability, a, b, c, intrinsic, lanes, depth in DOT_INSTRUCTIONS:
        if target.has(ability) and dtypes == [a, b, c]:
            for packs in (False, True):
                variants += try_schedule_step(
                    schedule, _apply_dot, name, intrinsic, lanes, depth, packs
                )
    return variants or None


def _apply_dot(
    schedule: tir.Schedule, name: str, intrinsic: str, lanes: int, depth: int, packs: bool
) -> None:
    """Apply a dot-product instruction to a block."""
    block = schedule.get_block(name)
    out = schedule.cache_write(block, 0, "local")  # vectors of one cannot be registers
    if packs:
        _pack_operand(schedule, block, lanes, depth)
    kinds, loops = iter_kinds(schedule, name), schedule.get_loops(block)
    spatial = [loops[i] for i, k in enumerate(kinds) if k is not IterKind.REDUCE]
    reduced = [loops[i] for i, k in enumerate(kinds) if k is IterKind.REDUCE]
    if not packs and [extent(schedule, x) for x in (spatial[-1], reduced[-1])] != [lanes, depth]:
        raise ScheduleError(f"{name}: its second factor lies in another order")
    (*outer, lane), (*steps, product_loop) = spatial, reduced
    inner = [lane, product_loop]
    if len(outer) > 1:
        height = _sample_divisor(schedule, DOT_TILE_ROWS, extent(schedule, outer[-2]))
        outer[-2], row = schedule.split(outer[-2], factors=[None, height])
        schedule.unroll(row)
        inner.insert(0, row)
    schedule.reorder(*outer, *steps, *inner)
    schedule.reverse_compute_at(out, outer[-1], preserve_unit_loops=True)
    _vectorize_writeback(schedule, schedule.get_loops(out)[len(outer) :][1 - len(inner) :], lanes)
    init = schedule.decompose_reduction(block, steps[0])
    schedule.vectorize(schedule.get_loops(init)[-1])
    parallelize_first(schedule, outer)
    schedule.tensorize(lane, intrinsic)


def _pack_operand(schedule: tir.Schedule, block: BlockRV, lanes: int, depth: int) -> None:
    """Pack the second factor, a matrix, so that the products of a sum are contiguous, and split the
    block's iterators accordingly.
    """
    block_node = resolve_block(schedule, block)
    kinds = [v.kind for v in block_node.iter_vars]
    columns, last = kinds.index(IterKind.REDUCE) - 1, len(kinds) - 1
    reads, _ = block_regions(block_node)
    indices = [r.min for r in reads[1].region]
    if columns < 0 or len(indices) != 2 or block_node.iter_vars[columns].var not in indices:
        raise ScheduleError(f"{block_node.name}: its second factor is no matrix")
    extents = [extent(schedule, x) for x in schedule.get_loops(block)]
    if extents[columns] % lanes or extents[last] % depth:
        raise ScheduleError(f"{block_node.name}: no whole groups of {lanes} and {depth}")
    # The packed copy is made once per call and read by all row tiles.
    copy = schedule.cache_read(block, 1, "global")
    is_transposed = indices[0] is block_node.iter_vars[columns].var

    def packed_index(*index: PrimExpr) -> tuple[PrimExpr, ...]:
        """Return the packed index of a matrix element."""
        j, k = index if is_transposed else reversed(index)
        return j // lanes, k // depth, j % lanes, k % depth

    def panel_index(*index: PrimExpr) -> tuple[PrimExpr, ...]:
        """Return the index in panels of `lanes` sums, with `depth` products contiguous."""
        own = [[x] for x in index]
        own[columns] = [index[columns] // lanes, index[columns] % lanes]
        own[last] = [index[last] // depth, index[last] % depth]
        return tuple(x for axis_parts in own for x in axis_parts)

    schedule.transform_layout(block, ("read", 1), IndexMap.from_func(packed_index, 2))
    schedule.transform_block_layout(block, IndexMap.from_func(panel_index, len(kinds)))
    parallelize_first(schedule, schedule.get_loops(copy))


THREADS_PER_BLOCK = (32, 64, 128, 256)
"""Threads per block of an untiled block."""
TILE_THREAD_COUNTS = (2, 4, 8, 16)
"""Candidate numbers of threads along a tile axis."""
ELEMENTS_PER_THREAD = (1, 2, 4, 8)
"""Candidate numbers of elements per thread along a tile axis."""
SHARED_TILE_DEPTHS = (2, 4, 8, 16, 32)
"""Candidate reduction depths of tiles in shared memory."""


def threads(schedule: tir.Schedule, name: str, target: Target) -> list[tir.Schedule] | None:
    """Bind every block to GPU threads: injective blocks are inlined or get a thread per element;
    reductions get a thread per element or tiles, with or without shared memory.
    """
    if not target.kind.has_threads:
        return None
    if not is_reduction(schedule, name):
        read = bool(schedule.get_consumers(schedule.get_block(name)))
        return (
            try_schedule_step(schedule, _inline_block, name) if read else []
        ) + _thread_per_element(schedule, name)
    tiles = [
        t
        for shares in (True, False)
        for t in try_schedule_step(schedule, _bind_thread_tile, name, shares)
    ]
    return [*tiles, *_thread_per_element(schedule, name)]


def _thread_per_element(schedule: tir.Schedule, name: str) -> list[tir.Schedule]:
    return try_schedule_step(schedule, _bind_thread_per_element, name)


def _bind_thread_per_element(schedule: tir.Schedule, name: str) -> None:
    """Bind one thread to each element."""
    block = schedule.get_block(name)
    pairs = zip(schedule.get_loops(block), iter_kinds(schedule, name), strict=True)
    spatial = [x for x, k in pairs if k is not IterKind.REDUCE]
    fused = schedule.fuse(*spatial) if spatial else schedule.add_unit_loop(block)
    number = schedule.sample_categorical(
        THREADS_PER_BLOCK, uniform_probabilities(THREADS_PER_BLOCK)
    )
    outer, inner = schedule.split(fused, factors=[None, number])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")


def _bind_thread_tile(schedule: tir.Schedule, name: str, shares: bool) -> None:
    """Bind blocks, threads and elements per thread along the last two axes. Each thread keeps its
    own sums; a block may stage a few terms of both factors in shared memory.
    """
    block = schedule.get_block(name)
    kinds = iter_kinds(schedule, name)
    sums = schedule.cache_write(block, 0, "local")
    loops = schedule.get_loops(block)
    spatial = [loops[i] for i, k in enumerate(kinds) if k is not IterKind.REDUCE]
    reduced = [loops[i] for i, k in enumerate(kinds) if k is IterKind.REDUCE]
    grid, sides, own = spatial[:-2], [], []
    numbers: list[ExprRV] = []
    for loop in spatial[-2:]:
        side, elements = (
            _sample_divisor(schedule, of, extent(schedule, loop))
            for of in (TILE_THREAD_COUNTS, ELEMENTS_PER_THREAD)
        )
        outer, thread, element = schedule.split(loop, factors=[None, side, elements])
        grid.append(outer)
        sides.append(thread)
        own.append(element)
        numbers.append(side)
    depth = _sample_divisor(schedule, SHARED_TILE_DEPTHS, extent(schedule, reduced[-1]))
    last, step = schedule.split(reduced[-1], factors=[None, depth])
    schedule.reorder(*grid, *sides, *reduced[:-1], last, step, *own)
    where = schedule.fuse(*grid) if len(grid) > 1 else grid[0]
    who = schedule.fuse(*sides) if len(sides) > 1 else sides[0]
    schedule.bind(where, "blockIdx.x")
    schedule.bind(who, "threadIdx.x")
    schedule.reverse_compute_at(sums, who)
    if shares:
        count = numbers[0] * numbers[1] if len(numbers) > 1 else numbers[0]
        for factor in range(len(block_regions(resolve_block(schedule, block))[0])):
            copy = schedule.cache_read(block, factor, "shared")
            schedule.compute_at(copy, last, preserve_unit_loops=True)
            inner = schedule.get_loops(copy)[len(schedule.get_loops(block)) - 1 - len(own) :]
            # All threads of the block copy the shared tile together.
            _, thread = schedule.split(schedule.fuse(*inner), factors=[None, count])
            schedule.bind(thread, "threadIdx.x")
    schedule.decompose_reduction(block, reduced[0] if len(reduced) > 1 else last)


def _sample_divisor(schedule: tir.Schedule, numbers: Sequence[int], extent: int) -> ExprRV:
    """Sample one of `numbers`, preferring those that divide the axis."""
    divisors = [n for n in numbers if extent % n == 0] or [1]
    return schedule.sample_categorical(divisors, uniform_probabilities(divisors))


DEFAULT_RULES: list[SketchRule] = [
    keep_placed,
    threads,
    inline,
    skip,
    tensorize,
    tile,
    rfactor,
    spread,
]
"""Default sketch rules in order of priority; users may add more."""
