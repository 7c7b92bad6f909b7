"""Paged attention over a KV cache, as flash decoding.

    cache    [blocks, layers, 2, groups, pages of a block * a plane]: of each layer and head the
             keys of some pages, then their values (kv_layout.py says how they lie)
    tables   int32 [sequences, most pages]: which pages hold the tokens of a sequence, in order

    for tile of tokens, for heads that share keys, for chunk of the sequence:
      for page of the chunk:     scores = q * keys * scale             registers: rows x keys
      scores = exp(scores - max)
      for page, for key of it:   sums += scores * values               registers: rows x depth
      sums, max and the sum of scores are merged with those of the chunks before
      (partial_softmax.py)

Keys are stored as a register tile reads them, so nothing is packed: each depth step loads vectors
of consecutive keys and multiplies them with an element of each query. The queries of heads that
share keys (grouped-query attention) are rows of one tile, as are those of consecutive tokens of one
sequence: decoding reads each page once, and a long prompt runs at the speed of a matrix product.

Chunks begin at multiples of their size, so a token's result depends on its sequence alone. Where
there are few tiles, as in single-token decoding, threads share the chunks of each tile, which are
then merged in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin, shuffle
from ekiden.ir.prim import (
    EQ,
    Add,
    Mul,
    PrimExpr,
    Select,
    Sub,
    Var,
    cast,
    const,
    logical_and,
    maximum,
    minimum,
)
from ekiden.kernels.attention.kv_layout import CachePlane
from ekiden.kernels.attention.paged_tiling import (
    DEFAULT_CHUNK_KEYS,
    DEFAULT_SPLIT_BELOW_TILES,
    EFFICIENT_TILE_ROWS,
    ChunkSplit,
    PagedAttentionConfig,
    PagedTile,
    PagedTiling,
    const_int,
    position_bounds,
    serial_loop,
)
from ekiden.kernels.attention.partial_softmax import INITIAL_MAX_SCORE, PartialSoftmax
from ekiden.kernels.attention.softmax_bounds import exp_of_nonpositive
from ekiden.kernels.cost_model import CACHE_LINE_BYTES
from ekiden.kernels.micro_kernels.vector_memory import VectorMemory, load_as_float32
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import (
    Allocate,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Prefetch,
    Stmt,
    seq,
)

DEFAULT_PAGED_LANES = 16
"""Vector lanes without a target."""
EXP_CHAINS = 4
"""Exponentials computed in interleaved dependency chains to hide their latency."""
PREFETCHED_LINES_PER_VECTOR = 2
"""Cache lines prefetched per vector of exponentials."""
MIN_MERGE_ELEMENTS = 1 << 13
"""Elements of partial results per thread below which the merge is not parallelised."""


class PagedAttention(VectorMemory):
    """Builder of a paged-attention kernel by flash decoding; subclasses read quantised caches.
    `inputs` are a tensor that begins with the queries [n, heads and more, depth], the cache, the
    layer [1], the page tables, per token its sequence and its position, and maybe the scores of
    attention sinks float32 [heads].
    """

    def __init__(self, pages: PagedAttentionConfig, inputs: Sequence[Buffer], output: Buffer,
                 lanes: int = DEFAULT_PAGED_LANES,
                 tiling: PagedTiling | None = None) -> None:  # fmt: skip
        self.config, self.output = pages, output
        self.query, self.cache, self.layer, self.tables, self.sequences, self.positions = inputs[:6]
        self.sinks = inputs[6] if len(inputs) > 6 else None
        self.tokens, total, depth = self.query.shape
        self.heads, self.num_query_heads, self.depth = (
            const_int(output.shape[1]),
            const_int(total),
            const_int(depth),
        )
        self.num_kv_heads = const_int(self.cache.shape[3])
        self.lanes = math.gcd(lanes, self.depth, pages.page_tokens)
        self.tiling = tiling or PagedTiling()
        self.share = self.heads // self.num_kv_heads
        fit = [n for n in range(1, self.share + 1) if self.share % n == 0 and n <= self.tiling.rows]
        self.heads_per_tile = fit[-1]
        """Heads per tile."""
        self.tokens_per_tile = max(1, self.tiling.rows // self.heads_per_tile)
        """Tokens per tile."""
        self.plane = CachePlane(pages.page_tokens, self.depth, self.cache.dtype)
        self.chunk_pages = max(1, self.tiling.chunk_keys // pages.page_tokens)
        """Pages per chunk."""
        # One vector more than a chunk: rows of scores then begin in different cache sets.
        self.score_row_stride = const(self.chunk_pages * pages.page_tokens + self.lanes)
        self.partial_softmax = PartialSoftmax(self.depth, self.lanes)

    def max_vectors(self, rows: int) -> int:
        """Return the maximum number of vectors of a tile of few rows."""
        return self.depth + self.config.page_tokens

    def plane_offset(self, page: PrimExpr, group: PrimExpr, values: PrimExpr | int) -> PrimExpr:
        """Return the cache offset of a page's keys or values of one KV head."""
        layer = cast(self.layer[const(0)], "int64")
        return self.plane.plane_offset(self.cache, layer, page, group, values)

    def emit_outer_products(
        self,
        acc: Buffer,
        rows: int,
        vectors: int,
        steps: Callable[[Stmt], Stmt],
        scalar: Callable[[int], PrimExpr],
        column: Callable[[int], PrimExpr],
        ahead: Sequence[Stmt],
    ) -> Stmt:
        """Emit a loop of outer products accumulated in registers: per step, a scalar of each row
        times a row of vectors.
        """
        vector = f"float32x{self.lanes}"
        broadcasts = [Var(f"a{r}", vector) for r in range(rows)]
        loaded = [Var(f"b{v}", vector) for v in range(vectors)]

        def multiply_accumulate(r: int, v: int) -> Stmt:
            """Add one product to the sum of a row and a vector."""
            n = const(r * vectors + v)
            value = call_intrin("fma", broadcasts[r], loaded[v], acc[n], dtype=vector)
            return BufferStore(acc, value, (n,))

        def bind_row_scalar(r: int, inside: Stmt) -> Stmt:
            """Bind the broadcast of a row's scalar around a statement."""
            return LetStmt(broadcasts[r], self.broadcast_scalar(scalar(r)), inside)

        def bind_vector(v: int, inside: Stmt) -> Stmt:
            """Bind a loaded vector of the column around a statement."""
            return LetStmt(loaded[v], column(v), inside)

        # those of which there are fewer are kept, the others come one by one: with the sums they
        # fill the registers, and a sum that has none waits for memory in every step
        bind: Callable[[int, Stmt], Stmt]
        if rows < vectors:
            bind, count = bind_row_scalar, rows
            statements = [
                bind_vector(v, seq(*(multiply_accumulate(r, v) for r in range(rows))))
                for v in range(vectors)
            ]
        else:
            bind, count = bind_vector, vectors
            statements = [
                bind_row_scalar(r, seq(*(multiply_accumulate(r, v) for v in range(vectors))))
                for r in range(rows)
            ]
        body = seq(*ahead, *statements)
        for n in reversed(range(count)):
            body = bind(n, body)
        zero_vector = self.broadcast_scalar(0.0)
        zero = [BufferStore(acc, zero_vector, (const(n),)) for n in range(rows * vectors)]
        return seq(*zero, steps(body))

    def column_blocks(self, total: int, rows: int) -> list[tuple[int, int]]:
        """Return (first column, vectors) of the blocks that columns are split into; fewer rows get
        more vectors, so that enough accumulators are independent.
        """
        available = self.tiling.rows * self.tiling.vectors // rows
        vector_count = max(1, min(self.max_vectors(rows), available))
        width = vector_count * self.lanes
        return [(c, min(width, total - c) // self.lanes) for c in range(0, total, width)]

    @property
    def score_scale(self) -> float:
        """Return the scale of scores: the configured one, or 1 / sqrt(depth)."""
        scale = self.config.scale
        return 1 / math.sqrt(self.depth) if scale is None else scale

    def finish_score(self, value: PrimExpr, key: PrimExpr, position: PrimExpr) -> PrimExpr:
        """Apply the scale, the softcap and the mask to a product; masked keys become -inf."""
        vector = value.dtype
        if cap := self.config.softcap:
            bent = call_intrin("tanh", Mul(value, self.broadcast_scalar(1 / cap), vector))
            value = Mul(bent, self.broadcast_scalar(cap), vector)
        # Causal by position: a token sees the keys up to its own.
        is_visible = self.first_lanes_mask(position + 1 - key)
        if window := self.config.window:
            last_unseen = cast(position - window - key, "int32")
            lanes = ramp(const(0, "int32"), const(1, "int32"), self.lanes)
            is_recent = broadcast(last_unseen, self.lanes) < lanes
            is_visible = call_intrin("bitwise_and", is_visible, is_recent, dtype=is_visible.dtype)
        return Select(is_visible, value, self.broadcast_scalar(-math.inf), vector)

    def first_lanes_mask(self, count: PrimExpr) -> PrimExpr:
        """Return the mask of the first `count` lanes, compared as int32: one element per lane."""
        lanes = ramp(const(0, "int32"), const(1, "int32"), self.lanes)
        return lanes < broadcast(cast(count, "int32"), self.lanes)

    def bind_tile(
        self, first: PrimExpr, span: int, head: PrimExpr, slot: PrimExpr,
        body: Callable[[PagedTile], Stmt],
    ) -> Stmt:  # fmt: skip
        """Bind a tile of tokens of one sequence, from `first` on, around its statements."""
        rows = span * self.heads_per_tile
        positions = tuple(Var(f"place{i}", "int64") for i in range(span))
        sequence, begin, end = (Var(n, "int64") for n in ("sequence", "begin", "end"))
        first_position, last = position_bounds(positions)
        scores = Buffer("scores", (simplify(self.score_row_stride * rows),))
        partial = Buffer("part", (const(rows * self.partial_softmax.row_elements),))
        group = simplify(head // self.share)
        tile = PagedTile(
            first, span, head, group, positions, sequence, begin, end, begin, end, last, slot,
            scores, partial,
        )  # fmt: skip
        # Pages before the sliding window and behind the last position are never visited.
        low, high = self.visible_pages(first_position, last)
        stmt = LetStmt(begin, low, LetStmt(end, high, body(tile)))
        stmt = LetStmt(sequence, cast(self.sequences[first], "int64"), stmt)
        for i in reversed(range(span)):
            stmt = LetStmt(positions[i], cast(self.positions[first + i], "int64"), stmt)
        return stmt

    def visible_pages(self, first_position: PrimExpr, last: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Return the half-open range of pages visible to tokens between two positions."""
        page, window = self.config.page_tokens, self.config.window
        low = (
            maximum(first_position - (window - 1), const(0)) // page
            if window
            else const(0, "int64")
        )
        return low, maximum((last + page) // page, const(0))

    def chunk_range(self, begin: PrimExpr, end: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Return the half-open range of chunks that contain some pages."""
        return begin // self.chunk_pages, (end + (self.chunk_pages - 1)) // self.chunk_pages

    def row_count(self, tile: PagedTile) -> int:
        """Return the number of rows of a tile: one for each token and head."""
        return tile.num_tokens * self.heads_per_tile

    def row_sink(self, tile: PagedTile) -> Callable[[Var], PrimExpr] | None:
        """Return the score of the attention sink of a tile's row; None without sinks."""
        sinks = self.sinks
        if sinks is None:
            return None
        return lambda row: sinks[tile.first_head + row % self.heads_per_tile]

    def row_start(self, tile: PagedTile, row: int, heads: int) -> PrimExpr:
        """Return the offset of a tile's row in a tensor [tokens, heads, depth]."""
        token, position = divmod(row, self.heads_per_tile)
        return simplify(
            ((tile.first_token + token) * heads + tile.first_head + position) * self.depth
        )

    def load_page_number(self, tile: PagedTile, number: PrimExpr) -> PrimExpr:
        """Load the number of the page of a sequence's tokens from `number` * page on."""
        return cast(self.tables[tile.sequence * self.tables.shape[1] + number], "int64")

    def emit_prefetches(self, at: PrimExpr, vectors: int) -> list[Stmt]:
        """Emit prefetches of cache lines into L2: a chunk's keys and values exceed L1 (int8 from
        memory on Zen 3: 87 to 94 us instead of 96 to 122).
        """
        line = CACHE_LINE_BYTES // dt.itemsize(self.cache.dtype)
        return [Prefetch(self.cache, (at + n,), 2) for n in range(0, vectors * self.lanes, line)]

    def lines_prefetched_in_softmax(self, rows: int) -> int:
        """Return the number of cache lines, at the end of a page's values and scales, that the
        softmax of a tile prefetches.
        """
        line = CACHE_LINE_BYTES // dt.itemsize(self.cache.dtype)
        vectors = rows * (self.config.page_tokens // self.lanes)
        return min(PREFETCHED_LINES_PER_VECTOR * vectors, -(-self.plane.size // line))

    def emit_value_prefetches(
        self, tile: PagedTile, after: Var, k: PrimExpr, row: int, column: int, vectors: int
    ) -> list[Stmt]:
        """Emit prefetches of a page's values at depth step k, except lines that the softmax
        prefetches; rows have `row` elements, columns `vectors` vectors.
        """
        line = CACHE_LINE_BYTES // dt.itemsize(self.cache.dtype)
        early = max(
            0, self.plane.size - self.lines_prefetched_in_softmax(self.row_count(tile)) * line
        )
        prefetches = self.emit_prefetches(after + k * row + column, vectors)
        return [IfThenElse(k < -(-early // row), seq(*prefetches))] if early else []

    def next_plane_offset(self, tile: PagedTile, number: PrimExpr, values: int) -> PrimExpr:
        """Return the offset of the plane to prefetch: the page's values after its keys, else the
        next chunk's keys or, at the end, the next unit's.
        """
        if not values:
            return self.plane_offset(self.load_page_number(tile, number), tile.kv_head, 1)
        head, behind = tile.first_head + self.heads_per_tile, number + self.chunk_pages
        # The prefetch follows the order of work: next page, then the next head, then the next
        # token's sequence.
        is_over, is_last = behind >= tile.tile_end_page, head >= const(self.heads)
        token = self.sequences[minimum(tile.first_token + tile.num_tokens, self.tokens - 1)]
        sequence = Select(is_last, cast(token, "int64"), tile.sequence, "int64")
        group = Select(is_last, const(0, "int64"), cast(head // self.share, "int64"), "int64")
        page = Select(is_over, tile.tile_begin_page + (number - tile.begin_page), behind, "int64")
        row = Select(is_over, sequence, tile.sequence, "int64") * self.tables.shape[1]
        return self.plane_offset(
            cast(self.tables[row + page], "int64"),
            Select(is_over, group, cast(tile.kv_head, "int64"), "int64"), 0,
        )  # fmt: skip

    def accumulator_buffer(self, count: int) -> Buffer:
        """Return the register buffer of float32 accumulators."""
        return Buffer("acc", (const(count),), f"float32x{self.lanes}", "register")

    def emit_scores(self, tile: PagedTile) -> Stmt:
        """Emit the scores of all visible pages, and the per-lane maximum of each row."""
        row = Var("row")
        top = row * self.partial_softmax.row_elements + self.partial_softmax.max_offset
        reset = self.store(tile.partial_result, top, self.broadcast_scalar(INITIAL_MAX_SCORE))
        begin = serial_loop(row, const(self.row_count(tile)), reset)
        number, base, after = Var("p"), Var("base", "int64"), Var("after", "int64")
        column_blocks = self.column_blocks(self.config.page_tokens, self.row_count(tile))
        blocks = [
            self._emit_page_scores(tile, number, base, after, *block) for block in column_blocks
        ]
        where = self.plane_offset(self.load_page_number(tile, number), tile.kv_head, 0)
        body = LetStmt(after, self.next_plane_offset(tile, number, 0), seq(*blocks))
        body = LetStmt(base, where, body)
        num_pages = tile.end_page - tile.begin_page
        return seq(begin, serial_loop(number, num_pages, body, tile.begin_page))

    def _emit_page_scores(
        self, tile: PagedTile, number: Var, base: Var, after: Var, column: int, vectors: int
    ) -> Stmt:
        """Emit the scores of some columns of a page, and prefetch the page `after` it."""
        rows, page = self.row_count(tile), self.config.page_tokens
        acc = self.accumulator_buffer(rows * vectors)
        ends = []
        for r in range(rows):
            scores = [Var(f"score{v}", acc.dtype) for v in range(vectors)]
            top = r * self.partial_softmax.row_elements + self.partial_softmax.max_offset
            highest = self.load(tile.partial_result, const(top))
            for score in scores:
                highest = self.vector_max(highest, score)
            stores = self.store(tile.partial_result, const(top), highest)
            for v in reversed(range(vectors)):
                position = column + v * self.lanes
                value: PrimExpr = acc[const(r * vectors + v)]
                value = Mul(value, self.product_scale(tile, r, base, const(position)), acc.dtype)
                value = self.finish_score(
                    value, number * page + position, tile.positions[r // self.heads_per_tile]
                )
                to = r * self.score_row_stride + (number - tile.begin_page) * page + position
                stores = seq(self.store(tile.scores, simplify(to), scores[v]), stores)
                stores = LetStmt(scores[v], value, stores)
            ends.append(stores)
        products = self.emit_score_products(tile, base, after, column, vectors, acc)
        return Allocate(acc, seq(products, *ends))

    def vector_max(self, a: PrimExpr, b: PrimExpr) -> PrimExpr:
        """Return the lanewise maximum; NaN may be dropped: its probability stays NaN."""
        return Select(b < a, a, b, a.dtype)

    def emit_score_products(
        self, tile: PagedTile, base: Var, after: Var, column: int, vectors: int, acc: Buffer
    ) -> Stmt:
        """Emit the products of a tile of queries with some keys."""
        page, k = self.config.page_tokens, Var("k")
        ahead = self.emit_value_prefetches(tile, after, k, page, column, vectors)
        return self.emit_outer_products(
            acc, self.row_count(tile), vectors,
            lambda body: serial_loop(k, const(self.depth), body),
            lambda row: self.load_query(tile, row, k),
            lambda v: self.load_keys(base, k, column + v * self.lanes), ahead,
        )  # fmt: skip

    def load_query(self, tile: PagedTile, row: int, k: PrimExpr) -> PrimExpr:
        """Load an element of a query."""
        return self.query[self.row_start(tile, row, self.num_query_heads) + k]

    def load_keys(self, base: PrimExpr, k: PrimExpr, column: int) -> PrimExpr:
        """Load one depth element of consecutive keys of the plane at `base`."""
        return load_as_float32(self.cache, base + k * self.config.page_tokens + column, self.lanes)

    def product_scale(self, tile: PagedTile, row: int, base: PrimExpr, token: PrimExpr) -> PrimExpr:
        """Return the factor that turns a row's products with consecutive keys into scores."""
        return self.broadcast_scalar(self.score_scale)

    def emit_probability_scaling(self, tile: PagedTile) -> Stmt:
        """Scale the probabilities before they multiply the values, for quantised caches."""
        return seq()

    def allocate_tile_buffers(self, tile: PagedTile, body: Callable[[], Stmt]) -> Stmt:
        """Return the statements of a tile within allocations of the buffers that subclasses add."""
        return body()

    def emit_softmax(self, tile: PagedTile) -> Stmt:
        """Emit scores = exp(scores - max) per row of a chunk; the maximum and the sum go to the
        partial result. The ends of the chunk's values are prefetched meanwhile: memory would be
        idle, and the number of misses in flight is limited.
        """
        row, number, v = Var("row"), Var("p"), Var("v")
        layout, line = self.partial_softmax, CACHE_LINE_BYTES // dt.itemsize(self.cache.dtype)
        vector, page_tokens = layout.vector_dtype, self.config.page_tokens
        rows, vectors_per_page = self.row_count(tile), page_tokens // self.lanes
        # Several independent exponentials in flight hide the latency of one polynomial.
        count = math.gcd(EXP_CHAINS, vectors_per_page)
        lanes = count * self.lanes
        kind = dt.with_lanes("float32", lanes)
        base, exponentials = Var("base", "int64"), Var("made", kind)
        to, late = row * layout.row_elements, self.lines_prefetched_in_softmax(rows)
        page_offset = (number - tile.begin_page) * page_tokens
        score_offset = row * self.score_row_stride + page_offset + v * lanes
        score_index = ramp(score_offset, 1, lanes)
        high = broadcast(tile.partial_result[to + layout.max_offset], lanes)
        shifted = Sub(BufferLoad(tile.scores, (score_index,), kind), high, kind)
        is_recent = (row * vectors_per_page + v * count) * PREFETCHED_LINES_PER_VECTOR
        first = base + (self.plane.size - late * line)
        # Sums stay per lane until a row ends: one horizontal reduction per row instead of one per
        # vector.
        total = self.load(tile.partial_result, to + layout.sums_offset)
        for n in range(count):
            some = shuffle(exponentials, exponentials, range(n * self.lanes, (n + 1) * self.lanes))
            total = Add(total, some, vector)
        page = serial_loop(v, const(vectors_per_page // count), seq(
            *(Prefetch(self.cache, (first + (is_recent + n) * line,), 2) for n in range(count *
            PREFETCHED_LINES_PER_VECTOR)),
            LetStmt(exponentials, exp_of_nonpositive(shifted), seq(
                BufferStore(tile.scores, exponentials, (score_index,)),
                self.store(tile.partial_result, to + layout.sums_offset, total),
            )),
        ))  # fmt: skip
        where = self.plane_offset(self.load_page_number(tile, number), tile.kv_head, 1)
        pages = LetStmt(base, where, serial_loop(row, const(rows), page))
        top = VectorReduce(self.load(tile.partial_result, to + layout.max_offset), "max", "float32")
        begin = seq(
            self.store(tile.partial_result, to + layout.max_offset, self.broadcast_scalar(top)),
            self.store(tile.partial_result, to + layout.sums_offset, self.broadcast_scalar(0.0)),
        )
        return seq(
            serial_loop(row, const(rows), begin),
            serial_loop(number, tile.end_page - tile.begin_page, pages, tile.begin_page),
        )

    def emit_value_products(self, tile: PagedTile) -> Stmt:
        """Emit the product of a tile's probabilities with the values."""
        blocks = self.column_blocks(self.depth, self.row_count(tile))
        return seq(*(self.emit_weighted_values(tile, *block) for block in blocks))

    def load_values(self, base: PrimExpr, s: PrimExpr, column: int) -> PrimExpr:
        """Load consecutive depth elements of a token's value in the plane at `base`."""
        return load_as_float32(self.cache, base + s * self.depth + column, self.lanes)

    def emit_weighted_values(self, tile: PagedTile, column: int, vectors: int) -> Stmt:
        """Emit the product of a tile's probabilities with some columns of the values."""
        rows, page = self.row_count(tile), self.config.page_tokens
        acc = self.accumulator_buffer(rows * vectors)
        number, s = Var("p"), Var("s")
        base, after = Var("base", "int64"), Var("after", "int64")

        def load_probability(row: int) -> PrimExpr:
            """Load the probability of position `s` of this page for a row."""
            position = row * self.score_row_stride + (number - tile.begin_page) * page + s
            return tile.scores[simplify(position)]

        def load_values(v: int) -> PrimExpr:
            """Load a vector of values of position `s`."""
            return self.load_values(base, s, column + v * self.lanes)

        def loop_over_tokens(body: Stmt) -> Stmt:
            """Wrap the body in loops over the pages of a tile and their positions, up to the tile's
            last; the next page's offset is computed early, so that it can be prefetched.
            """
            where = self.plane_offset(self.load_page_number(tile, number), tile.kv_head, 1)
            # Behind the last token a page holds stale memory, possibly NaN: 0 * NaN is NaN, so
            # these positions must not be multiplied at all.
            token_count = minimum(const(page), tile.last_position + 1 - number * page)
            inside = LetStmt(
                after, self.next_plane_offset(tile, number, 1), serial_loop(s, token_count, body)
            )
            inside = LetStmt(base, where, inside)
            return serial_loop(number, tile.end_page - tile.begin_page, inside, tile.begin_page)

        ends = []
        for n in range(rows * vectors):
            r, v = divmod(n, vectors)
            to = r * self.partial_softmax.row_elements + (column + v * self.lanes)
            ends.append(self.store(tile.partial_result, const(to), acc[const(n)]))
        ahead = self.emit_prefetches(after + s * self.depth + column, vectors)
        products = self.emit_outer_products(
            acc, rows, vectors, loop_over_tokens, load_probability, load_values, ahead
        )
        return Allocate(acc, seq(products, *ends))

    def emit_chunk(self, tile: PagedTile) -> Stmt:
        """Emit a chunk's partial result: scores, softmax, weighted values and their sums."""
        return seq(
            self.emit_scores(tile),
            self.emit_softmax(tile),
            self.emit_probability_scaling(tile),
            self.emit_value_products(tile),
        )

    def emit_kv_split(
        self, tile: PagedTile, split: ChunkSplit, split_index: PrimExpr, unit: PrimExpr
    ) -> Stmt:
        """Emit one thread's share of a tile: all chunks and their merge or, where threads share
        chunks, one chunk and its copy to the shared buffer.
        """
        rows, chunk = self.row_count(tile), Var("chunk", "int64")
        layout = self.partial_softmax
        first, stop = self.chunk_range(tile.begin_page, tile.end_page)
        # A piece is one chunk where threads share the chunks; otherwise one thread runs all of
        # them.
        low = first + Select(split.is_shared, split_index, const(0, "int64"), "int64")
        high = Select(split.is_shared, minimum(low + 1, stop), stop, "int64")
        merged = Buffer("found", (const(rows * self.partial_softmax.row_elements),))
        begin, end = Var("chunk_begin", "int64"), Var("chunk_end", "int64")
        chunk_tile = replace(tile, begin_page=begin, end_page=end)
        offset = self.partial_result_offset(tile, split, unit, split_index)
        stmt: Stmt = seq(
            self.allocate_tile_buffers(chunk_tile, lambda: self.emit_chunk(chunk_tile)),
            IfThenElse(
                split.is_shared,
                layout.emit_copy(split.partial_results, offset, tile.partial_result, rows),
                layout.emit_merge(merged, tile.partial_result, const(0), rows),
            ),
        )
        stmt = LetStmt(end, minimum(tile.end_page, (chunk + 1) * self.chunk_pages), stmt)
        stmt = LetStmt(begin, maximum(tile.begin_page, chunk * self.chunk_pages), stmt)
        stmt = serial_loop(chunk, maximum(high - low, const(0)), stmt, low)
        is_single = split.max_splits < const(2, "int64")
        stmt = seq(
            self.partial_softmax.emit_initialize(merged, rows, self.row_sink(tile)),
            stmt,
            IfThenElse(is_single, self.emit_results(tile, merged)),
        )
        return Allocate(tile.scores, Allocate(tile.partial_result, Allocate(merged, stmt)))

    def emit_merge(self, tile: PagedTile, split: ChunkSplit, unit: PrimExpr) -> Stmt:
        """Emit the merge, in order, of the chunks of a tile that threads shared."""
        rows, chunk = self.row_count(tile), Var("chunk", "int64")
        first, stop = self.chunk_range(tile.begin_page, tile.end_page)
        merged = Buffer("found", (const(rows * self.partial_softmax.row_elements),))
        offset = self.partial_result_offset(tile, split, unit, chunk)
        merge_chunk = self.partial_softmax.emit_merge(merged, split.partial_results, offset, rows)
        return Allocate(merged, seq(
            self.partial_softmax.emit_initialize(merged, rows, self.row_sink(tile)),
            serial_loop(chunk, stop - first, merge_chunk),
            self.emit_results(tile, merged),
        ))  # fmt: skip

    def partial_result_offset(
        self, tile: PagedTile, split: ChunkSplit, unit: PrimExpr, split_index: PrimExpr
    ) -> PrimExpr:
        """Return the offset of a unit's partial result for a piece."""
        tile_rows = self.tokens_per_tile * self.heads_per_tile
        row = (unit * split.max_splits + split_index) * tile_rows + tile.first_row
        return row * self.partial_softmax.row_elements

    def emit_results(self, tile: PagedTile, merged: Buffer) -> Stmt:
        """Emit the store of a tile's results."""
        row = Var("row")
        token, position = row // self.heads_per_tile, row % self.heads_per_tile
        to = ((tile.first_token + token) * self.heads + tile.first_head + position) * self.depth
        rows = self.row_count(tile)
        return self.partial_softmax.emit_normalize(self.output, to, row, merged, rows)

    def emit_unit(self, unit: PrimExpr, body: Callable[[PagedTile], Stmt]) -> Stmt:
        """Emit the statements of a unit's tile; where its tokens belong to several sequences, one
        token at a time.
        """
        heads, i = self.heads // self.heads_per_tile, Var("i")
        first, head = Var("first", "int64"), Var("head", "int64")
        if self.tokens_per_tile == 1:
            stmt = self.bind_tile(first, 1, head, const(0), body)
        else:
            limit = self.tokens - 1
            is_one: PrimExpr = first + self.tokens_per_tile < self.tokens + 1
            for n in range(1, self.tokens_per_tile):
                next_ = self.sequences[minimum(first + n, limit)]
                # Only tokens of one sequence share a tile, because a tile reads one page table row.
                is_one = logical_and(is_one, EQ(next_, self.sequences[first]))
            count = minimum(const(self.tokens_per_tile), self.tokens - first)
            single_token = self.bind_tile(first + i, 1, head, i * self.heads_per_tile, body)
            whole_tile = self.bind_tile(first, self.tokens_per_tile, head, const(0), body)
            stmt = IfThenElse(is_one, whole_tile, serial_loop(i, count, single_token))
        stmt = LetStmt(first, unit // heads * self.tokens_per_tile, stmt)
        return LetStmt(head, unit % heads * self.heads_per_tile, stmt)

    def emit_chunk_counts(self, tiles: PrimExpr, maxima: Buffer) -> Stmt:
        """Emit the maximum number of chunks, and of half chunks, over all tiles; a short last chunk
        counts as one half.
        """
        n, first, limit = Var("n"), Var("first", "int64"), self.tokens - 1
        positions = tuple(Var(f"place{i}", "int64") for i in range(self.tokens_per_tile))
        visible = self.visible_pages(*position_bounds(positions))
        low, high = self.chunk_range(*visible)
        half = max(1, self.chunk_pages // 2)
        halves = (visible[1] - low * self.chunk_pages + (half - 1)) // half
        stmt: Stmt = seq(*(
            BufferStore(maxima, maximum(maxima[const(index)], count), (const(index),))
            for index, count in enumerate((high - low, halves))
        ))  # fmt: skip
        for i in reversed(range(self.tokens_per_tile)):
            index = self.positions[minimum(first + i, limit)]
            stmt = LetStmt(positions[i], cast(index, "int64"), stmt)
        stmt = serial_loop(n, tiles, LetStmt(first, n * self.tokens_per_tile, stmt))
        one = const(1, "int64")
        return seq(*(BufferStore(maxima, one, (const(index),)) for index in range(2)), stmt)

    def emit_kernel(self) -> Stmt:
        """Emit all tiles of tokens and heads in parallel; where tiles are few, their chunks in
        parallel. Threads share chunks by halves, as the last chunk may be short, and a chunk
        belongs to the thread of its last half.
        """
        tiles = simplify((self.tokens + (self.tokens_per_tile - 1)) // self.tokens_per_tile)
        units = simplify(tiles * (self.heads // self.heads_per_tile))
        rows, index, unit = self.tokens_per_tile * self.heads_per_tile, Var("index"), Var("unit")
        maxima = Buffer("most", (const(2),), "int64", "register")
        num_splits, halves = Var("pieces", "int64"), Var("halves", "int64")
        is_shared = num_splits > const(1, "int64")
        size = units * num_splits * (rows * self.partial_softmax.row_elements)
        # No partial results are stored where each tile has its own thread.
        size = Select(is_shared, size, const(1, "int64"), "int64")
        split = ChunkSplit(num_splits, is_shared, Buffer("kept", (size,)))
        unit_index, split_index = Var("each", "int64"), Var("piece", "int64")
        halves_per_piece = 2 if self.chunk_pages > 1 else 1
        work = self.emit_unit(
            unit_index, lambda tile: self.emit_kv_split(tile, split, split_index, unit_index)
        )
        half = index % halves
        is_last = EQ(half, minimum((split_index + 1) * halves_per_piece, halves) - 1)
        work = LetStmt(split_index, half // halves_per_piece, IfThenElse(is_last, work))
        work = LetStmt(unit_index, index // halves, work)
        gather = self.emit_unit(unit, lambda tile: self.emit_merge(tile, split, unit))
        # A merge is a few multiply-adds per element: below this size it would not pay for waking a
        # thread.
        grain = max(1, MIN_MERGE_ELEMENTS // (rows * self.partial_softmax.row_elements))
        stmt: Stmt = seq(
            For(index, const(0), units * halves, ForKind.PARALLEL, work, {"grain": 1}),
            IfThenElse(is_shared, For(
                unit, const(0), units, ForKind.PARALLEL, gather, {"grain": grain}
            )),
        )  # fmt: skip
        merged_maximum = Select(is_shared, maxima[const(1)], const(1, "int64"), "int64")
        stmt = LetStmt(halves, merged_maximum, Allocate(split.partial_results, stmt))
        stmt = LetStmt(num_splits, maxima[const(0)], stmt)
        # Flash decoding: with fewer tiles than cores, threads share the chunks of a tile and merge
        # partial results afterwards.
        is_few = units < self.tiling.split_below_tiles
        count_pieces = self.emit_chunk_counts(
            Select(is_few, tiles, const(0, "int64"), "int64"), maxima
        )
        return Allocate(maxima, seq(count_pieces, stmt))


__all__ = [
    "DEFAULT_CHUNK_KEYS",
    "DEFAULT_SPLIT_BELOW_TILES",
    "EFFICIENT_TILE_ROWS",
    "PagedAttention",
    "PagedAttentionConfig",
    "PagedTile",
    "PagedTiling",
]
