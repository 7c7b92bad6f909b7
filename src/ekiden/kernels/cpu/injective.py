"""Loop nests of injective computations, which write each element of a buffer once.

    add(%x[n, 8, 16], %b[16])        one loop over n * 8, vectors of 16
    transpose %x[c, h, w] to hwc     tiles of lanes by lanes in registers, turned by shuffles

Adjacent axes are fused where every access stays affine in the fused index, so that small inner axes
still make full vectors and threads get equal parts. A condition on an axis (padding, parts of a
concatenation) splits the loop where it changes, and no part has it inside. A nest that walks an
outer axis of its data is transposed in square tiles: 0.53 of ONNX Runtime's speed an element at a
time, 1.3 to 2.4 times by tiles (NCHW to NHWC, Zen 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from ekiden.arith import Analyzer, simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import EXPENSIVE, call_intrin
from ekiden.ir.prim import Cast, IntImm, Intrinsic, PrimExpr, Var, cast, const, minimum
from ekiden.ir.prim_visitor import post_order, rewrite, substitute
from ekiden.kernels.cpu.loops import (
    CHUNK,
    Accesses,
    Axis,
    cost,
    estimate,
    flat_parallel,
    fuse,
    parallel_outer,
    serial,
    split_points,
    vector_lanes,
    vectorized,
)
from ekiden.kernels.micro_kernels.register_transpose import interleave, tile_size, transpose_rows
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, Stmt, seq
from ekiden.tir.transform.loop_vectorization import Vectorizer
from ekiden.tir.visitor import sequence

TRANSPOSE_BLOCK_ROWS = 64
"""Rows of a block of a transposition."""
TRANSPOSE_STRIP = 8
"""Neighbours that a transposition writes per row."""

MAX_INTERLEAVED_CHANNELS = 4
"""Channels whose pixels are woven from vectors of each: each takes as many shuffles."""
PIXELS_PER_TASK = 1024
"""Of a step of a loop that threads share."""
MIN_TILE_ROWS = 4
"""Rows of a tile transposed in registers, where vectors are not shorter."""
WORD_DTYPES = {2: "uint16", 4: "uint32"}
"""Channels of bytes that are a word -> the dtype of that word."""
MAX_PICKED_ROWS = 128
"""Rows that a vector of columns is walked down where elements of all are picked alike;"""
MAX_PICKED_ELEMENTS = 1 << 18
"""or elements of all rows, which stay in the second cache."""


@dataclass(frozen=True, slots=True)
class _Region:
    """A box of the output: its axes, and the element's offset and value in terms of them."""

    axes: tuple[Axis, ...]
    index: PrimExpr
    value: PrimExpr


def _regions(box: _Region, analyzer: Analyzer, lanes: int) -> list[_Region]:
    """Return the box split along each axis where a condition changes.

    Along the last axis parts are at least vectors of that many lanes, which run masked, unless that
    would turn loads into gathers.
    """
    done = [box]
    load_indices = [i for x in Accesses([], [box.value]).loads for i in x.indices]
    if any(e.dtype == "bool" for e in post_order(*load_indices)):
        lanes = 1
    for n in range(len(box.axes)):
        is_last = n == len(box.axes) - 1
        min_extent = (
            lanes if is_last and analyzer.coefficient(box.index, box.axes[n].var) == 1 else 1
        )
        done = [
            sub_region for region in done for sub_region in _cut(region, n, analyzer, min_extent)
        ]
    return done


def _cut(region: _Region, n: int, analyzer: Analyzer, min_extent: int) -> list[_Region]:
    axis = region.axes[n]
    other_vars = {a.var for a in region.axes if a is not axis}
    points = _merge_short_parts(
        split_points([region.value], axis, other_vars, analyzer), min_extent
    )
    if len(points) == 2:
        return [region]
    return [_part(region, n, low, high, analyzer) for low, high in pairwise(points)]


def _merge_short_parts(points: list[PrimExpr], min_extent: int) -> list[PrimExpr]:
    """Return split points such that no part but the last is too short: 0, 1, 55, 56 becomes 0, 16,
    48, 56 for 16.
    """
    constants = [p.value for p in points if isinstance(p, IntImm)]
    if len(constants) < len(points) or all(b - a >= min_extent for a, b in pairwise(constants)):
        return points
    points_kept = [0]
    while (last_point := points_kept[-1]) < constants[-1]:
        following, *later = [p for p in constants if p > last_point]
        if following - last_point < min_extent:
            following = min(last_point + min_extent, constants[-1])
        elif later and later[0] - following < min_extent:
            following = last_point + (following - last_point) // min_extent * min_extent
        points_kept.append(following)
    return [const(p) for p in points_kept]


def _part(region: _Region, n: int, low: PrimExpr, high: PrimExpr, analyzer: Analyzer) -> _Region:
    old = region.axes[n]
    new = Axis(Var(old.var.name), simplify(high - low))
    analyzer.bind(new.var, 0, new.extent)
    step: dict[Var, PrimExpr] = {old.var: low + new.var}
    index, value = (analyzer.simplify(substitute(e, step)) for e in (region.index, region.value))
    return _Region((*region.axes[:n], new, *region.axes[n + 1 :]), index, value)


class _InjectiveNest:
    """The loop nest of one region."""

    def __init__(self, buffer: Buffer, region: _Region, analyzer: Analyzer, target: Target) -> None:
        accesses = Accesses([region.index], [region.value])
        axes, step = fuse(region.axes, accesses, analyzer)
        self.axes = axes
        self.buffer, self.target = buffer, target
        self.index, self.value = substitute(region.index, step), substitute(region.value, step)
        self.loads = Accesses([self.index], [self.value])
        self.analyzer = analyzer
        loaded = [x.dtype for x in self.loads.loads]
        self.lanes = vector_lanes(target, buffer.dtype, loaded, [self.value])

    def store(self, values: dict[Var, PrimExpr] | None = None) -> Stmt:
        """Return the statement for one element."""
        substitution = values or {}
        return BufferStore(
            self.buffer,
            substitute(self.value, substitution),
            (substitute(self.index, substitution),),
        )

    def build(self, top: bool) -> Stmt:
        """Return the loops; with parallel ones at the top of a function."""
        if not self.axes:
            return self.store()
        if (interleaving := self.interleaved_load()) is not None:
            return self.interleaved(*interleaving, top)
        if (channel_bytes := self.channel_bytes()) is not None:
            return self.joined(channel_bytes, top)
        inner = self.vector_axis()
        walked = self.strided_axis(inner)
        if walked is not None:
            return self.transposed(inner, walked, top)
        outer = [a for a in self.axes if a is not inner]
        if not outer and top:
            weight = cost([self.value])
            return flat_parallel(inner, self.lanes, weight, lambda at: self.store({inner.var: at}))
        last = self.axes[-1]
        if inner is not last:
            body = vectorized(inner, self.lanes, serial([last], self.store()))
            outer = [a for a in outer if a is not last]
        elif outer and self.picks(inner, outer[-1]):
            if len(outer) == 1 and top:
                return self._all_rows(inner, outer[0])
            body = vectorized(inner, self.lanes, serial(outer[-1:], self.store()))
            outer = outer[:-1]
        else:
            body = vectorized(inner, self.lanes, self.store())
        work = estimate([a.extent for a in self.axes if a not in outer]) * cost([self.value])
        return parallel_outer(outer, work, body) if top else serial(outer, body)

    def _all_rows(self, inner: Axis, row: Axis) -> Stmt:
        """Walk every vector of columns down all rows."""
        weight = min(estimate([row.extent]) * cost([self.value]), CHUNK // (4 * self.lanes))
        return flat_parallel(
            inner, self.lanes, weight, lambda at: serial([row], self.store({inner.var: at}))
        )

    def vector_axis(self) -> Axis:
        """Return the last axis; the one before it where the last is very short and the other is
        long.
        """
        last = self.axes[-1]
        short = isinstance(last.extent, IntImm) and last.extent.value * 2 < self.lanes
        if not short or len(self.axes) == 1:
            return last
        before = self.axes[-2]
        wide = estimate([before.extent]) >= self.lanes
        return before if wide and self.unit_strides(before) else last

    def unit_strides(self, axis: Axis) -> bool:
        """Return whether every load has stride 0 or 1 along an axis."""
        return all(
            self.analyzer.coefficient(i, axis.var) in (0, 1) for i in self.loads.load_indices
        )

    def picks(self, inner: Axis, row: Axis) -> bool:
        """Return whether a load gathers along the inner axis by a computation that is the same in
        every row, so that it is computed once per vector of all rows.
        """
        if not isinstance(row.extent, IntImm):
            return False
        within = estimate([row.extent, inner.extent]) <= MAX_PICKED_ELEMENTS
        if row.extent.value > MAX_PICKED_ROWS and not within:
            return False
        return any(
            _is_row_invariant_gather(x.indices[0], inner.var, row.var) for x in self.loads.loads
        )

    def strided_axis(self, inner: Axis) -> Axis | None:
        """Return an outer axis that a load walks contiguously where it strides along the inner one,
        or None.
        """
        if inner is not self.axes[-1]:
            return None
        for index in self.loads.load_indices:
            if self.analyzer.coefficient(index, inner.var) in (0, 1):
                continue
            for axis in self.axes[:-1]:
                if self.analyzer.coefficient(index, axis.var) == 1:
                    return axis
        return None

    def transposed(self, inner: Axis, walked: Axis, top: bool) -> Stmt:
        """Transpose in blocks of `walked`, with neighbours along `inner` inside: cache lines are
        read fully before others.

        In register tiles where one load is transposed; else one element at a time, but in vectors
        where elements are expensive: a gather costs more than as many loads (512x21x200: 4.8 to 2.1
        ms, 1024x1024: 1.0 to 0.66).
        """
        outer = [a for a in self.axes if a is not inner and a is not walked]
        load, size = self.turned_load(inner, walked)
        block = Var(f"{walked.var.name}_block")
        divides_block = (
            isinstance(walked.extent, IntImm) and walked.extent.value % TRANSPOSE_BLOCK_ROWS == 0
        )
        row_count = (
            const(TRANSPOSE_BLOCK_ROWS)
            if divides_block
            else minimum(const(TRANSPOSE_BLOCK_ROWS), walked.extent - block * TRANSPOSE_BLOCK_ROWS)
        )
        blocks = Axis(
            block, simplify((walked.extent + (TRANSPOSE_BLOCK_ROWS - 1)) // TRANSPOSE_BLOCK_ROWS)
        )

        def rows(make: Callable[[dict[Var, PrimExpr]], Stmt]) -> Stmt:
            at = Var(walked.var.name)
            return For(
                at,
                const(0),
                row_count,
                ForKind.SERIAL,
                make({walked.var: block * TRANSPOSE_BLOCK_ROWS + at}),
            )

        around = parallel_outer if top else lambda axes, work, body: serial(axes, body)
        if load is not None:
            body = self._tiles(inner, walked, block * TRANSPOSE_BLOCK_ROWS, row_count, load, size)
            return around([*outer, blocks], TRANSPOSE_BLOCK_ROWS * estimate([inner.extent]), body)
        heavy = any(isinstance(e, Intrinsic) and e.op in EXPENSIVE for e in post_order(self.value))
        if heavy:
            body = vectorized(inner, self.lanes, rows(self.store))
        else:
            body = self._strips(inner, rows)
        work = TRANSPOSE_BLOCK_ROWS * estimate([inner.extent])
        if top:
            return parallel_outer([*outer, blocks], work, body)
        return serial([*outer, blocks], body)

    def turned_load(self, inner: Axis, walked: Axis) -> tuple[BufferLoad | None, int]:
        """Return the only load that walks an outer axis, if a tile of it can be transposed in
        registers, and the tile size.
        """
        strided_loads = [
            x for x, i in zip(self.loads.loads, self.loads.load_indices, strict=True)
            if self.analyzer.coefficient(i, inner.var) not in (0, 1)
        ]  # fmt: skip
        guarded = any(
            isinstance(e, Intrinsic) and e.op == "if_then_else" for e in post_order(self.value)
        )
        if (
            len(strided_loads) != 1
            or guarded
            or self.analyzer.coefficient(self.index, inner.var) != 1
        ):
            return None, 1
        (load,) = strided_loads
        if self.analyzer.coefficient(load.indices[0], walked.var) != 1:
            return None, 1
        size = tile_size(load.dtype, self.target)
        min_size = max(min(MIN_TILE_ROWS, size), 2)
        extents = [a.extent.value for a in (inner, walked) if isinstance(a.extent, IntImm)]
        while size > 1 and any(e < size for e in extents):
            size //= 2
        return (load, size) if size >= min_size else (None, 1)

    def interleaved_load(self) -> tuple[BufferLoad, Axis, Axis] | None:
        """Return (the load that is the value, pixels, channels) where there are few channels,
        planar on one side and interleaved on the other; else None.
        """
        value = self.value
        if not isinstance(value, BufferLoad) or len(self.axes) < 2:
            return None
        if tile_size(value.dtype, self.target) < MIN_TILE_ROWS:
            return None
        at, coefficient = self.loads.load_indices[0], self.analyzer.coefficient
        for pixel, channel in (self.axes[-2:], self.axes[:-3:-1]):
            count = channel.extent.value if isinstance(channel.extent, IntImm) else 0
            if not 2 <= count <= MAX_INTERLEAVED_CHANNELS:
                continue
            sides = (self.index, at) if channel is self.axes[-1] else (at, self.index)
            steps = [coefficient(side, axis.var) for side in sides for axis in (pixel, channel)]
            if steps[:3] == [count, 1, 1] and steps[3] not in (0, 1):
                return value, pixel, channel
        return None

    def interleaved(self, load: BufferLoad, pixel: Axis, channel: Axis, top: bool) -> Stmt:
        """Interleave vectors of all channels to vectors of pixels, or deinterleave, PIXELS at a
        time.
        """
        outer, is_planar = self.axes[:-2], channel is not self.axes[-1]
        block, run, row, column = Var("block"), Var("run"), Var("row"), Var("column")
        begin, channels = block * PIXELS_PER_TASK, estimate([channel.extent])
        divides_task = (
            isinstance(pixel.extent, IntImm) and pixel.extent.value % PIXELS_PER_TASK == 0
        )
        count = (
            const(PIXELS_PER_TASK)
            if divides_task
            else minimum(const(PIXELS_PER_TASK), pixel.extent - begin)
        )
        blocks = Axis(block, simplify((pixel.extent + (PIXELS_PER_TASK - 1)) // PIXELS_PER_TASK))
        lanes = tile_size(load.dtype, self.target)
        runs = simplify(count // lanes)

        def vector_index(index: PrimExpr, n: int, is_pixels: bool) -> PrimExpr:
            """Return the index of a run of vectors whose lanes are pixels, or channels from n
            vectors on.
            """
            substitution = {
                pixel.var: begin + run * lanes,
                channel.var: const(0 if is_pixels else n),
            }
            at = substitute(index, substitution)
            return ramp(simplify(at + n * lanes if is_pixels else at), 1, lanes)

        vectors = [
            BufferLoad(
                load.buffer,
                (vector_index(load.indices[0], n, is_planar),),
                dt.with_lanes(load.dtype, lanes),
            )
            for n in range(channels)
        ]
        body = interleave(
            vectors,
            lambda n, v: BufferStore(self.buffer, v, (vector_index(self.index, n, not is_planar),)),
            is_planar,
        )
        done = simplify(runs * lanes)
        copy_one = self.store({channel.var: column, pixel.var: begin + done + row})
        stmt = sequence(
            For(run, const(0), runs, ForKind.SERIAL, body),
            For(row, const(0), simplify(count - done), ForKind.SERIAL,
                For(column, const(0), channel.extent, ForKind.SERIAL, copy_one)),
        )  # fmt: skip
        if top:
            return parallel_outer([*outer, blocks], PIXELS_PER_TASK * channels, stmt)
        return serial([*outer, blocks], stmt)

    def channel_bytes(self) -> list[PrimExpr] | None:
        """Return the value of each of two or four interleaved channels of bytes that vectors of
        pixels compute, from data that are planar; else None.
        """
        if self.buffer.dtype not in ("int8", "uint8") or len(self.axes) < 2:
            return None
        if not self.target.has("shuffles"):  # nor do others split a word's lanes
            return None
        pixel, channel = self.axes[-2:]
        count = channel.extent.value if isinstance(channel.extent, IntImm) else 0
        coefficient = self.analyzer.coefficient
        steps = [coefficient(self.index, axis.var) for axis in (pixel, channel)]
        is_planar = any(coefficient(i, channel.var) not in (0, 1) for i in self.loads.load_indices)
        if count not in WORD_DTYPES or steps != [count, 1] or not is_planar or self.lanes == 1:
            return None
        values = [
            self.analyzer.simplify(substitute(self.value, {channel.var: const(n)}))
            for n in range(count)
        ]
        indices = Accesses([], values).load_indices
        is_contiguous = all(coefficient(i, pixel.var) in (0, 1) for i in indices)
        return values if is_contiguous and estimate([pixel.extent]) >= self.lanes else None

    def joined(self, channel_bytes: Sequence[PrimExpr], top: bool) -> Stmt:
        """Join the bytes of a pixel's channels to a word, in vectors of pixels; then the pixels
        that are left, element by element.
        """
        outer, (pixel, channel) = self.axes[:-2], self.axes[-2:]
        count, lanes = len(channel_bytes), self.lanes
        run, row, column = Var("run"), Var("row"), Var("column")
        word = WORD_DTYPES[count]
        vectors = Vectorizer(pixel.var, run * lanes, lanes)
        joined: PrimExpr | None = None
        for n, value in enumerate(channel_bytes):
            # the bits of a negative byte above its own would hide other channels
            bits = cast(cast(value, f"u{self.buffer.dtype.lstrip('u')}"), word)
            shifted = bits if n == 0 else call_intrin("left_shift", bits, const(8 * n, word))
            joined = shifted if joined is None else call_intrin("bitwise_or", joined, shifted)
        assert joined is not None
        wide = broadcast(vectors.expr(joined), lanes)
        elements = dt.with_lanes(self.buffer.dtype, lanes * count)
        first = substitute(self.index, {pixel.var: run * lanes, channel.var: const(0)})
        store = BufferStore(
            self.buffer,
            call_intrin("reinterpret", wide, dtype=elements),
            (ramp(simplify(first), 1, lanes * count),),
        )
        runs = simplify(pixel.extent // lanes)
        left = self.store({pixel.var: runs * lanes + row, channel.var: column})
        stmt = sequence(
            For(run, const(0), runs, ForKind.SERIAL, store),
            For(row, const(0), simplify(pixel.extent - runs * lanes), ForKind.SERIAL,
                For(column, const(0), channel.extent, ForKind.SERIAL, left)),
        )  # fmt: skip
        work = estimate([pixel.extent]) * count * cost([self.value])
        return parallel_outer(outer, work, stmt) if top else serial(outer, stmt)

    def _tiles(
        self,
        inner: Axis,
        walked: Axis,
        begin: PrimExpr,
        count: PrimExpr,
        load: BufferLoad,
        size: int,
    ) -> Stmt:
        """Transpose register tiles for `count` steps of `walked`, and the remainders at two sides
        element by element.
        """
        strip, tile, row, column = Var("strip"), Var("tile"), Var("row"), Var("column")
        strips, tiles = simplify(inner.extent // size), simplify(count // size)
        across, down = simplify(strips * size), simplify(tiles * size)
        serially = ForKind.SERIAL
        first = {inner.var: strip * size, walked.var: begin + tile * size}
        full_tiles = For(strip, const(0), strips, serially,
                    For(tile, const(0), tiles, serially, self._tile(first, inner, walked, load,
                                                                     size)))  # fmt: skip
        below = self.store({inner.var: column, walked.var: begin + down + row})
        beside = self.store({inner.var: across + column, walked.var: begin + row})
        return sequence(
            full_tiles,
            For(row, const(0), simplify(count - down), serially,
                For(column, const(0), across, serially, below)),
            For(row, const(0), count, serially,
                For(column, const(0), simplify(inner.extent - across), serially, beside)),
        )  # fmt: skip

    def _tile(
        self, first: dict[Var, PrimExpr], inner: Axis, walked: Axis, load: BufferLoad, size: int
    ) -> Stmt:
        """Transpose one tile. A computed value is computed from a transposed copy of the tile."""
        vector = dt.with_lanes(load.dtype, size)

        def row(n: int) -> PrimExpr:
            at = substitute(load.indices[0], {**first, inner.var: first[inner.var] + n})
            return BufferLoad(load.buffer, (ramp(simplify(at), 1, size),), vector)

        rows = [row(n) for n in range(size)]
        if self.value is load:

            def keep(n: int, value: PrimExpr) -> Stmt:
                at = substitute(self.index, {**first, walked.var: first[walked.var] + n})
                return BufferStore(self.buffer, value, (ramp(simplify(at), 1, size),))

            return transpose_rows(rows, keep)
        copy = Buffer("tile", (const(size * size),), load.dtype, "local")
        transposition = transpose_rows(
            rows, lambda n, v: BufferStore(copy, v, (ramp(const(n * size), 1, size),))
        )
        down, across = Var("down"), Var("across")
        at = {walked.var: first[walked.var] + down, inner.var: first[inner.var] + across}
        value = rewrite(
            self.value,
            lambda e: BufferLoad(copy, (down * size + across,), e.dtype) if e is load else e,
        )
        store = BufferStore(self.buffer, substitute(value, at), (substitute(self.index, at),))
        line = vectorized(Axis(across, const(size)), min(size, self.lanes), store)
        return Allocate(
            copy, seq(transposition, For(down, const(0), const(size), ForKind.SERIAL, line))
        )

    def _strips(
        self, inner: Axis, rows: Callable[[Callable[[dict[Var, PrimExpr]], Stmt]], Stmt]
    ) -> Stmt:
        """Write STRIP elements along `inner` per row of a block, then the tail."""
        strip, strip_index, tail_index = Var("strip"), Var("each"), Var("left")
        full_strips = simplify(inner.extent // TRANSPOSE_STRIP)
        tail_extent = simplify(inner.extent % TRANSPOSE_STRIP)
        short = isinstance(inner.extent, IntImm) and inner.extent.value <= TRANSPOSE_BLOCK_ROWS

        def one(row_values: dict[Var, PrimExpr]) -> Stmt:
            body = self.store(row_values | {inner.var: strip * TRANSPOSE_STRIP + strip_index})
            return For(strip_index, const(0), const(TRANSPOSE_STRIP), ForKind.UNROLLED, body)

        def strips(row_values: dict[Var, PrimExpr]) -> Stmt:
            return For(strip, const(0), full_strips, ForKind.SERIAL, one(row_values))

        def tail(row_values: dict[Var, PrimExpr]) -> Stmt:
            """Write the tail of a row behind full strips, element by element."""
            kind = ForKind.UNROLLED if isinstance(tail_extent, IntImm) else ForKind.SERIAL
            body = self.store(row_values | {inner.var: full_strips * TRANSPOSE_STRIP + tail_index})
            return For(tail_index, const(0), tail_extent, kind, body)

        if short:
            return rows(lambda row_values: sequence(strips(row_values), tail(row_values)))
        return sequence(For(strip, const(0), full_strips, ForKind.SERIAL, rows(one)), rows(tail))


def _is_row_invariant_gather(index: PrimExpr, column: Var, row: Var) -> bool:
    """Return whether an index depends on the column by a computation other than a multiple,
    independently of the row.
    """
    subtrees = [set(post_order(e)) for e in post_order(index) if isinstance(e, (Cast, Intrinsic))]
    within = [p for p in subtrees if column in p]
    return bool(within) and not any(row in p for p in within)


def injective_nest(
    axes: Sequence[Axis],
    buffer: Buffer,
    index: PrimExpr,
    value: PrimExpr,
    analyzer: Analyzer,
    target: Target,
    top: bool,
) -> Stmt:
    """Return `buffer[index] = value` for all values of the axes; with parallel loops at the top of
    a function.
    """
    loaded = [x.dtype for x in Accesses([index], [value]).loads]
    lanes = vector_lanes(target, buffer.dtype, loaded, [value])
    regions = _regions(_Region(tuple(axes), index, value), analyzer, lanes)
    return sequence(*(_InjectiveNest(buffer, r, analyzer, target).build(top) for r in regions))
