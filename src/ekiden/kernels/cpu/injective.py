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
from ekiden.ir.intrinsic import EXPENSIVE_INTRINSICS, call_intrin
from ekiden.ir.prim import (
    Cast,
    IntImm,
    Intrinsic,
    PrimExpr,
    Var,
    cast,
    const,
    is_const,
    logical_and,
    minimum,
)
from ekiden.ir.prim_visitor import post_order, rewrite, substitute
from ekiden.kernels.cpu.loops import (
    PARALLEL_CHUNK_ELEMENTS,
    LoopAxis,
    NestAccesses,
    element_cost,
    estimated_product,
    flat_parallel_loop,
    fuse_axes,
    parallel_outer_loops,
    serial_loops,
    split_points,
    vector_lanes,
    vectorized_loop,
)
from ekiden.kernels.micro_kernels.register_transpose import (
    emit_interleave,
    emit_transpose,
    transpose_tile_size,
)
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, Stmt, seq
from ekiden.tir.transform.loop_vectorization import Vectorizer
from ekiden.tir.visitor import flatten_seq

TRANSPOSE_BLOCK_ROWS = 64
"""Rows per block of a blocked transposition."""
TRANSPOSE_STRIP_ELEMENTS = 8
"""Contiguous elements that a transposition writes per row."""

MAX_INTERLEAVED_CHANNELS = 4
"""Maximum channels interleaved by shuffles, one shuffle per channel."""
PIXELS_PER_TASK = 1024
"""Pixels per iteration of the parallel loop."""
MIN_TRANSPOSE_TILE_ROWS = 4
"""Minimum rows of a register-transposed tile, unless vectors are shorter."""
WORD_DTYPES = {2: "uint16", 4: "uint32"}
"""Dtype of a word by its number of byte channels."""
MAX_GATHERED_ROWS = 128
"""Maximum rows per column vector that share gathered indices;."""
MAX_GATHERED_ELEMENTS = 1 << 18
"""Maximum elements over these rows, which stay in L2."""


@dataclass(frozen=True, slots=True)
class _OutputBox:
    """Box of the output: its axes, and the index and value of an element in terms of them."""

    axes: tuple[LoopAxis, ...]
    index: PrimExpr
    value: PrimExpr


def _split_at_conditions(box: _OutputBox, analyzer: Analyzer, lanes: int) -> list[_OutputBox]:
    """Return the parts of a box, split along each axis where a condition changes.

    Along the last axis parts are at least vectors of that many lanes, which run masked, unless that
    would turn loads into gathers.
    """
    done = [box]
    load_indices = [i for x in NestAccesses([], [box.value]).loads for i in x.indices]
    if any(e.dtype == "bool" for e in post_order(*load_indices)):
        lanes = 1
    for n in range(len(box.axes)):
        is_last = n == len(box.axes) - 1
        min_extent = (
            lanes if is_last and analyzer.coefficient(box.index, box.axes[n].var) == 1 else 1
        )
        done = [
            sub_region
            for region in done
            for sub_region in _split_axis(region, n, analyzer, min_extent)
        ]
    return done


def _split_axis(
    region: _OutputBox, n: int, analyzer: Analyzer, min_extent: int
) -> list[_OutputBox]:
    axis = region.axes[n]
    other_vars = {a.var for a in region.axes if a is not axis}
    points = _merge_short_parts(
        split_points([region.value], axis, other_vars, analyzer), min_extent
    )
    if len(points) == 2:
        return [region]
    return [_sub_box(region, n, low, high, analyzer) for low, high in pairwise(points)]


def _merge_short_parts(points: list[PrimExpr], min_extent: int) -> list[PrimExpr]:
    """Drop split points so that no part but the last is shorter than `min_extent`: 0, 1, 55, 56
    becomes 0, 16, 48, 56 for 16.
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


def _sub_box(
    region: _OutputBox, n: int, low: PrimExpr, high: PrimExpr, analyzer: Analyzer
) -> _OutputBox:
    old = region.axes[n]
    new = LoopAxis(Var(old.var.name), simplify(high - low))
    analyzer.bind(new.var, 0, new.extent)
    step: dict[Var, PrimExpr] = {old.var: low + new.var}
    index, value = (analyzer.simplify(substitute(e, step)) for e in (region.index, region.value))
    return _OutputBox((*region.axes[:n], new, *region.axes[n + 1 :]), index, value)


class _InjectiveNest:
    """Loop nest of one box of an injective computation."""

    def __init__(
        self, buffer: Buffer, region: _OutputBox, analyzer: Analyzer, target: Target
    ) -> None:
        accesses = NestAccesses([region.index], [region.value])
        axes, step = fuse_axes(region.axes, accesses, analyzer)
        self.axes = axes
        self.buffer, self.target = buffer, target
        self.index, self.value = substitute(region.index, step), substitute(region.value, step)
        self.accesses = NestAccesses([self.index], [self.value])
        self.analyzer = analyzer
        loaded = [x.dtype for x in self.accesses.loads]
        self.lanes = vector_lanes(target, buffer.dtype, loaded, [self.value])

    def emit_element(self, values: dict[Var, PrimExpr] | None = None) -> Stmt:
        """Return the statement for one element."""
        substitution = values or {}
        return BufferStore(
            self.buffer,
            substitute(self.value, substitution),
            (substitute(self.index, substitution),),
        )

    def emit_nest(self, top: bool) -> Stmt:
        """Emit the loops; with parallel ones at the top of a function."""
        if not self.axes:
            return self.emit_element()
        if (interleaving := self.interleaved_load()) is not None:
            return self.emit_interleaved(*interleaving, top)
        if (channel_bytes := self.interleaved_channel_values()) is not None:
            return self.emit_joined_channels(channel_bytes, top)
        inner = self.vector_axis()
        # A load that strides along the vector axis and is contiguous along another one is a
        # transposition.
        outer_axis = self.transposable_axis(inner)
        if outer_axis is not None:
            return self.emit_transposed(inner, outer_axis, top)
        outer = [a for a in self.axes if a is not inner]
        if not outer and top:
            weight = element_cost([self.value])
            return flat_parallel_loop(
                inner, self.lanes, weight, lambda at: self.emit_element({inner.var: at})
            )
        last = self.axes[-1]
        # The last axis is too short for vectors: it becomes the serial loop within each vector of
        # the axis before.
        if inner is not last:
            body = vectorized_loop(inner, self.lanes, serial_loops([last], self.emit_element()))
            outer = [a for a in outer if a is not last]
        elif outer and self.has_row_invariant_gather(inner, outer[-1]):
            if len(outer) == 1 and top:
                return self._emit_all_rows(inner, outer[0])
            body = vectorized_loop(inner, self.lanes, serial_loops(outer[-1:], self.emit_element()))
            outer = outer[:-1]
        else:
            body = vectorized_loop(inner, self.lanes, self.emit_element())
        work = estimated_product([a.extent for a in self.axes if a not in outer]) * element_cost(
            [self.value]
        )
        return parallel_outer_loops(outer, work, body) if top else serial_loops(outer, body)

    def _emit_all_rows(self, inner: LoopAxis, row: LoopAxis) -> Stmt:
        """Emit a loop nest with the vectors of columns outside and the rows inside."""
        weight = min(
            estimated_product([row.extent]) * element_cost([self.value]),
            PARALLEL_CHUNK_ELEMENTS // (4 * self.lanes),
        )
        return flat_parallel_loop(
            inner,
            self.lanes,
            weight,
            lambda at: serial_loops([row], self.emit_element({inner.var: at})),
        )

    def vector_axis(self) -> LoopAxis:
        """Return the axis to vectorise: the last one, or the one before where the last is very
        short.
        """
        last = self.axes[-1]
        short = isinstance(last.extent, IntImm) and last.extent.value * 2 < self.lanes
        if not short or len(self.axes) == 1:
            return last
        before = self.axes[-2]
        wide = estimated_product([before.extent]) >= self.lanes
        return before if wide and self.has_unit_strides(before) else last

    def has_unit_strides(self, axis: LoopAxis) -> bool:
        """Return whether every load has stride 0 or 1 along an axis."""
        return all(
            self.analyzer.coefficient(i, axis.var) in (0, 1) for i in self.accesses.load_indices
        )

    def has_row_invariant_gather(self, inner: LoopAxis, row: LoopAxis) -> bool:
        """Return whether a load gathers along the inner axis by indices that all rows share, so
        that they are computed once per vector.
        """
        if not isinstance(row.extent, IntImm):
            return False
        within = estimated_product([row.extent, inner.extent]) <= MAX_GATHERED_ELEMENTS
        if row.extent.value > MAX_GATHERED_ROWS and not within:
            return False
        return any(
            _is_row_invariant_gather(x.indices[0], inner.var, row.var) for x in self.accesses.loads
        )

    def transposable_axis(self, inner: LoopAxis) -> LoopAxis | None:
        """Return an outer axis that a load reads contiguously while it strides along the inner
        axis, or None.
        """
        if inner is not self.axes[-1]:
            return None
        for index in self.accesses.load_indices:
            if self.analyzer.coefficient(index, inner.var) in (0, 1):
                continue
            for axis in self.axes[:-1]:
                if self.analyzer.coefficient(index, axis.var) == 1:
                    return axis
        return None

    def emit_transposed(self, inner: LoopAxis, outer_axis: LoopAxis, top: bool) -> Stmt:
        """Emit a blocked transposition: blocks of `outer_axis` outside, neighbours along `inner`
        inside, so that cache lines are used completely.

        In register tiles where one load is transposed; else one element at a time, but in vectors
        where elements are expensive: a gather costs more than as many loads (512x21x200: 4.8 to 2.1
        ms, 1024x1024: 1.0 to 0.66).
        """
        outer = [a for a in self.axes if a is not inner and a is not outer_axis]
        load, size = self.register_transposable_load(inner, outer_axis)
        block = Var(f"{outer_axis.var.name}_block")
        divides_block = (
            isinstance(outer_axis.extent, IntImm)
            and outer_axis.extent.value % TRANSPOSE_BLOCK_ROWS == 0
        )
        row_count = (
            const(TRANSPOSE_BLOCK_ROWS)
            if divides_block
            else minimum(
                const(TRANSPOSE_BLOCK_ROWS), outer_axis.extent - block * TRANSPOSE_BLOCK_ROWS
            )
        )
        blocks = LoopAxis(
            block,
            simplify((outer_axis.extent + (TRANSPOSE_BLOCK_ROWS - 1)) // TRANSPOSE_BLOCK_ROWS),
        )

        def loop_over_rows(make: Callable[[dict[Var, PrimExpr]], Stmt]) -> Stmt:
            """Emit a loop over the rows of a strip."""
            at = Var(outer_axis.var.name)
            return For(
                at,
                const(0),
                row_count,
                ForKind.SERIAL,
                make({outer_axis.var: block * TRANSPOSE_BLOCK_ROWS + at}),
            )

        around = parallel_outer_loops if top else lambda axes, work, body: serial_loops(axes, body)
        if load is not None:
            body = self._emit_transpose_tiles(
                inner, outer_axis, block * TRANSPOSE_BLOCK_ROWS, row_count, load, size
            )
            return around(
                [*outer, blocks], TRANSPOSE_BLOCK_ROWS * estimated_product([inner.extent]), body
            )
        # Functions such as exp gain more from vectors than gathers cost.
        heavy = any(
            isinstance(e, Intrinsic) and e.op in EXPENSIVE_INTRINSICS
            for e in post_order(self.value)
        )
        if heavy:
            body = vectorized_loop(inner, self.lanes, loop_over_rows(self.emit_element))
        else:
            body = self._emit_strips(inner, loop_over_rows)
        work = TRANSPOSE_BLOCK_ROWS * estimated_product([inner.extent])
        if top:
            return parallel_outer_loops([*outer, blocks], work, body)
        return serial_loops([*outer, blocks], body)

    def register_transposable_load(
        self, inner: LoopAxis, outer_axis: LoopAxis
    ) -> tuple[BufferLoad | None, int]:
        """Return the load that a tile transposition in registers can serve, and the tile size; None
        where there is none or several.
        """
        strided_loads = [
            x for x, i in zip(self.accesses.loads, self.accesses.load_indices, strict=True)
            if self.analyzer.coefficient(i, inner.var) not in (0, 1)
        ]  # fmt: skip
        # A guarded load must not be hoisted into a vector: it may be out of range where its
        # condition is false.
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
        if self.analyzer.coefficient(load.indices[0], outer_axis.var) != 1:
            return None, 1
        size = transpose_tile_size(load.dtype, self.target)
        min_size = max(min(MIN_TRANSPOSE_TILE_ROWS, size), 2)
        extents = [a.extent.value for a in (inner, outer_axis) if isinstance(a.extent, IntImm)]
        while size > 1 and any(e < size for e in extents):
            size //= 2
        return (load, size) if size >= min_size else (None, 1)

    def interleaved_load(self) -> tuple[BufferLoad, LoopAxis, LoopAxis] | None:
        """Return (load, pixels, channels) of a copy between planar and interleaved channels, or
        None.
        """
        value = self.value
        if not isinstance(value, BufferLoad) or len(self.axes) < 2:
            return None
        lanes = transpose_tile_size(value.dtype, self.target)
        if lanes < MIN_TRANSPOSE_TILE_ROWS:
            return None
        at, coefficient = self.accesses.load_indices[0], self.analyzer.coefficient
        for pixel, channel in (self.axes[-2:], self.axes[:-3:-1]):
            count = channel.extent.value if isinstance(channel.extent, IntImm) else 0
            # More channels would need more shuffles per vector than the strided accesses cost.
            if not 2 <= count <= MAX_INTERLEAVED_CHANNELS:
                continue
            # Pixels fewer than a vector of elements may still fill one of whole words.
            if isinstance(pixel.extent, IntImm) and pixel.extent.value < lanes:
                continue
            sides = (self.index, at) if channel is self.axes[-1] else (at, self.index)
            steps = [coefficient(side, axis.var) for side in sides for axis in (pixel, channel)]
            if steps[:3] == [count, 1, 1] and steps[3] not in (0, 1):
                return value, pixel, channel
        return None

    def emit_interleaved(
        self, load: BufferLoad, pixel: LoopAxis, channel: LoopAxis, top: bool
    ) -> Stmt:
        """Emit the interleaving of planar channels into pixels or the reverse, PIXELS_PER_TASK
        pixels at a time.
        """
        outer, is_planar = self.axes[:-2], channel is not self.axes[-1]
        block, run, row, column = Var("block"), Var("run"), Var("row"), Var("column")
        begin, channels = block * PIXELS_PER_TASK, estimated_product([channel.extent])
        divides_task = (
            isinstance(pixel.extent, IntImm) and pixel.extent.value % PIXELS_PER_TASK == 0
        )
        count = (
            const(PIXELS_PER_TASK)
            if divides_task
            else minimum(const(PIXELS_PER_TASK), pixel.extent - begin)
        )
        blocks = LoopAxis(
            block, simplify((pixel.extent + (PIXELS_PER_TASK - 1)) // PIXELS_PER_TASK)
        )
        lanes = transpose_tile_size(load.dtype, self.target)
        runs = simplify(count // lanes)

        def vector_index(index: PrimExpr, n: int, is_pixels: bool) -> PrimExpr:
            """Return the index of consecutive vectors, whose lanes are pixels or channels."""
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
        body = emit_interleave(
            vectors,
            lambda n, v: BufferStore(self.buffer, v, (vector_index(self.index, n, not is_planar),)),
            is_planar,
        )
        done = simplify(runs * lanes)
        copy_one = self.emit_element({channel.var: column, pixel.var: begin + done + row})
        stmt = flatten_seq(
            For(run, const(0), runs, ForKind.SERIAL, body),
            For(row, const(0), simplify(count - done), ForKind.SERIAL,
                For(column, const(0), channel.extent, ForKind.SERIAL, copy_one)),
        )  # fmt: skip
        if top:
            return parallel_outer_loops([*outer, blocks], PIXELS_PER_TASK * channels, stmt)
        return serial_loops([*outer, blocks], stmt)

    def interleaved_channel_values(self) -> list[PrimExpr] | None:
        """Return the values of two or four interleaved byte channels that are computed from planar
        data, else None.
        """
        if self.buffer.dtype not in ("int8", "uint8") or len(self.axes) < 2:
            return None
        if not self.target.has("shuffles"):  # nor do others split a word's lanes
            return None
        pixel, channel = self.axes[-2:]
        count = channel.extent.value if isinstance(channel.extent, IntImm) else 0
        coefficient = self.analyzer.coefficient
        steps = [coefficient(self.index, axis.var) for axis in (pixel, channel)]
        is_planar = any(
            coefficient(i, channel.var) not in (0, 1) for i in self.accesses.load_indices
        )
        if count not in WORD_DTYPES or steps != [count, 1] or not is_planar or self.lanes == 1:
            return None
        values = [
            self.analyzer.simplify(substitute(self.value, {channel.var: const(n)}))
            for n in range(count)
        ]
        indices = NestAccesses([], values).load_indices
        is_contiguous = all(coefficient(i, pixel.var) in (0, 1) for i in indices)
        has_vector = estimated_product([pixel.extent]) >= self._word_lanes(pixel)
        return values if is_contiguous and has_vector else None

    def _word_lanes(self, pixel: LoopAxis) -> int:
        """Return the lanes of vectors of words along an axis: of one register where it is short."""
        one_register = min(self.lanes, self.target.lanes("int32"))
        return self.lanes if estimated_product([pixel.extent]) >= self.lanes else one_register

    def emit_joined_channels(self, channel_bytes: Sequence[PrimExpr], top: bool) -> Stmt:
        """Emit vectors of pixels whose channel bytes are packed in words, then the remaining pixels
        one by one.
        """
        outer, (pixel, channel) = self.axes[:-2], self.axes[-2:]
        count, lanes = len(channel_bytes), self._word_lanes(pixel)
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
        wide = broadcast(vectors.rewrite_expr(joined), lanes)
        elements = dt.with_lanes(self.buffer.dtype, lanes * count)
        first = substitute(self.index, {pixel.var: run * lanes, channel.var: const(0)})
        store = BufferStore(
            self.buffer,
            call_intrin("reinterpret", wide, dtype=elements),
            (ramp(simplify(first), 1, lanes * count),),
        )
        runs = simplify(pixel.extent // lanes)
        left = self.emit_element({pixel.var: runs * lanes + row, channel.var: column})
        stmt = flatten_seq(
            For(run, const(0), runs, ForKind.SERIAL, store),
            For(row, const(0), simplify(pixel.extent - runs * lanes), ForKind.SERIAL,
                For(column, const(0), channel.extent, ForKind.SERIAL, left)),
        )  # fmt: skip
        work = estimated_product([pixel.extent]) * count * element_cost([self.value])
        return parallel_outer_loops(outer, work, stmt) if top else serial_loops(outer, stmt)

    def _emit_transpose_tiles(
        self, inner: LoopAxis, outer_axis: LoopAxis, begin: PrimExpr, count: PrimExpr,
        load: BufferLoad, size: int,
    ) -> Stmt:  # fmt: skip
        """Emit register-tile transpositions for `count` steps of `outer_axis`.

        The last tiles overlap the previous ones and recompute their elements, if that is allowed
        and there is a whole tile, which the run decides for sizes that it alone knows (28 columns
        of 64 channels to NHWC as uint8, VNNI: 20 us, 40 with the last 12 element by element);
        otherwise the remainders of both axes are transposed element by element.
        """
        if not self._can_recompute(load):
            return self._emit_tiles_and_remainders(inner, outer_axis, begin, count, load, size)
        tiles = self._emit_overlapping_tiles(inner, outer_axis, begin, count, load, size)
        if isinstance(inner.extent, IntImm) and isinstance(outer_axis.extent, IntImm):
            # A tile never leaves its block, whose elements another thread may store.
            if 0 < outer_axis.extent.value % TRANSPOSE_BLOCK_ROWS < size:
                return self._emit_tiles_and_remainders(inner, outer_axis, begin, count, load, size)
            return tiles
        row, column = Var("row"), Var("column")
        one = self.emit_element({inner.var: column, outer_axis.var: begin + row})
        elements = For(row, const(0), count, ForKind.SERIAL,
                       For(column, const(0), inner.extent, ForKind.SERIAL, one))  # fmt: skip
        fits = logical_and(inner.extent >= size, count >= size)
        return IfThenElse(simplify(fits), tiles, elements)

    def _emit_tiles_and_remainders(
        self, inner: LoopAxis, outer_axis: LoopAxis, begin: PrimExpr, count: PrimExpr,
        load: BufferLoad, size: int,
    ) -> Stmt:  # fmt: skip
        """Emit register-tile transpositions, and element by element what is no whole tile."""
        strip, tile, row, column = Var("strip"), Var("tile"), Var("row"), Var("column")
        strips, tiles = simplify(inner.extent // size), simplify(count // size)
        across, down = simplify(strips * size), simplify(tiles * size)
        serially = ForKind.SERIAL
        first = {inner.var: strip * size, outer_axis.var: begin + tile * size}
        full_tiles = For(
            strip,
            const(0),
            strips,
            serially,
            For(
                tile,
                const(0),
                tiles,
                serially,
                self._emit_transpose_tile(first, inner, outer_axis, load, size),
            ),
        )
        below = self.emit_element({inner.var: column, outer_axis.var: begin + down + row})
        remainder = self.emit_element({inner.var: across + column, outer_axis.var: begin + row})
        return flatten_seq(
            full_tiles,
            For(row, const(0), simplify(count - down), serially,
                For(column, const(0), across, serially, below)),
            For(row, const(0), count, serially,
                For(column, const(0), simplify(inner.extent - across), serially, remainder)),
        )  # fmt: skip

    def _can_recompute(self, transposed: BufferLoad) -> bool:
        """Return whether elements may be computed again after they were stored, as overlapping
        tiles do.
        """
        # An input that is read at the output's own indices may have its bytes (kernels.in_place):
        # the first computation has overwritten it.
        return all(
            load.buffer is transposed.buffer or all(map(is_const, load.indices))
            for load in self.accesses.loads
        )

    def _emit_overlapping_tiles(
        self, inner: LoopAxis, outer_axis: LoopAxis, begin: PrimExpr, count: PrimExpr,
        load: BufferLoad, size: int,
    ) -> Stmt:  # fmt: skip
        """Emit register-tile transpositions in which the last tile of an axis overlaps the one
        before.
        """
        strip, tile = Var("strip"), Var("tile")
        strips, tiles = (simplify((n + (size - 1)) // size) for n in (inner.extent, count))
        first = {
            inner.var: simplify(minimum(strip * size, inner.extent - size)),
            outer_axis.var: simplify(begin + minimum(tile * size, count - size)),
        }
        body = self._emit_transpose_tile(first, inner, outer_axis, load, size)
        return For(strip, const(0), strips, ForKind.SERIAL,
                   For(tile, const(0), tiles, ForKind.SERIAL, body))  # fmt: skip

    def _emit_transpose_tile(
        self, first: dict[Var, PrimExpr], inner: LoopAxis, outer_axis: LoopAxis,
        load: BufferLoad, size: int,
    ) -> Stmt:  # fmt: skip
        """Emit the transposition of one register tile. A computed value is computed from a
        transposed copy of the tile.
        """
        vector = dt.with_lanes(load.dtype, size)

        def load_row(n: int) -> PrimExpr:
            at = substitute(load.indices[0], {**first, inner.var: first[inner.var] + n})
            return BufferLoad(load.buffer, (ramp(simplify(at), 1, size),), vector)

        rows = [load_row(n) for n in range(size)]
        if self.value is load:

            def store_column(n: int, value: PrimExpr) -> Stmt:
                at = substitute(self.index, {**first, outer_axis.var: first[outer_axis.var] + n})
                return BufferStore(self.buffer, value, (ramp(simplify(at), 1, size),))

            return emit_transpose(rows, store_column)
        copy = Buffer("tile", (const(size * size),), load.dtype, "local")
        transposition = emit_transpose(
            rows, lambda n, v: BufferStore(copy, v, (ramp(const(n * size), 1, size),))
        )
        down, across = Var("down"), Var("across")
        at = {outer_axis.var: first[outer_axis.var] + down, inner.var: first[inner.var] + across}
        value = rewrite(
            self.value,
            lambda e: BufferLoad(copy, (down * size + across,), e.dtype) if e is load else e,
        )
        store = BufferStore(self.buffer, substitute(value, at), (substitute(self.index, at),))
        line = vectorized_loop(LoopAxis(across, const(size)), min(size, self.lanes), store)
        return Allocate(
            copy, seq(transposition, For(down, const(0), const(size), ForKind.SERIAL, line))
        )

    def _emit_strips(
        self, inner: LoopAxis, rows: Callable[[Callable[[dict[Var, PrimExpr]], Stmt]], Stmt]
    ) -> Stmt:
        """Emit strips of TRANSPOSE_STRIP_ELEMENTS along `inner` for each row of a block, then the
        tail.
        """
        strip, strip_index, tail_index = Var("strip"), Var("each"), Var("left")
        full_strips = simplify(inner.extent // TRANSPOSE_STRIP_ELEMENTS)
        tail_extent = simplify(inner.extent % TRANSPOSE_STRIP_ELEMENTS)
        short = isinstance(inner.extent, IntImm) and inner.extent.value <= TRANSPOSE_BLOCK_ROWS

        def emit_strip(row_values: dict[Var, PrimExpr]) -> Stmt:
            """Emit an unrolled loop over the elements of a strip."""
            body = self.emit_element(
                row_values | {inner.var: strip * TRANSPOSE_STRIP_ELEMENTS + strip_index}
            )
            return For(
                strip_index, const(0), const(TRANSPOSE_STRIP_ELEMENTS), ForKind.UNROLLED, body
            )

        def emit_full_strips(row_values: dict[Var, PrimExpr]) -> Stmt:
            return For(strip, const(0), full_strips, ForKind.SERIAL, emit_strip(row_values))

        def emit_tail(row_values: dict[Var, PrimExpr]) -> Stmt:
            """Emit the tail of a row after its full strips, element by element."""
            kind = ForKind.UNROLLED if isinstance(tail_extent, IntImm) else ForKind.SERIAL
            body = self.emit_element(
                row_values | {inner.var: full_strips * TRANSPOSE_STRIP_ELEMENTS + tail_index}
            )
            return For(tail_index, const(0), tail_extent, kind, body)

        if short:
            return rows(
                lambda row_values: flatten_seq(emit_full_strips(row_values), emit_tail(row_values))
            )
        return flatten_seq(
            For(strip, const(0), full_strips, ForKind.SERIAL, rows(emit_strip)), rows(emit_tail)
        )


def _is_row_invariant_gather(index: PrimExpr, column: Var, row: Var) -> bool:
    """Return whether an index is a non-affine function of the column and independent of the row."""
    subtrees = [set(post_order(e)) for e in post_order(index) if isinstance(e, (Cast, Intrinsic))]
    within = [p for p in subtrees if column in p]
    return bool(within) and not any(row in p for p in within)


def emit_injective_nest(
    axes: Sequence[LoopAxis],
    buffer: Buffer,
    index: PrimExpr,
    value: PrimExpr,
    analyzer: Analyzer,
    target: Target,
    top: bool,
) -> Stmt:
    """Emit the loop nest `buffer[index] = value` over axes; `top`: as the outermost nest of a
    function, in parallel.
    """
    loaded = [x.dtype for x in NestAccesses([index], [value]).loads]
    lanes = vector_lanes(target, buffer.dtype, loaded, [value])
    regions = _split_at_conditions(_OutputBox(tuple(axes), index, value), analyzer, lanes)
    return flatten_seq(
        *(_InjectiveNest(buffer, r, analyzer, target).emit_nest(top) for r in regions)
    )
