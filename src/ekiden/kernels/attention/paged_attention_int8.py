"""Paged attention over an int8 cache with integer products: queries are quantised dynamically, too.

    query    step[row] * bytes[row]                 as in `dynamic_quantization`, for all targets
    scores   sums of products of a query's bytes and places of a key
    shares   exp(scores - max) * a value's scale, as whole numbers (quantized_probabilities.py)

Four bytes of one lane are consecutive along the reduction axis (kv_layout.py). They are
multiplied

    by words     four at once, where the target has a dot-product instruction. It needs one unsigned
                 side: 128 is added to each key byte, and subtracted from the sums' start values
    by halves    two at once, of bytes widened to int16 by shifts as they are loaded, for all rows
                 of a tile: two products per 32 bytes and row. Sums of two bytes, which must fit
                 int16, need as many and a third instruction of the same units that moves the signs
                 of keys to queries: 1.3 times as long on Zen 3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, Mul, PrimExpr, Select, Var, cast, const
from ekiden.kernels.attention.kv_layout import CACHE_WORD_BYTES
from ekiden.kernels.attention.paged_attention import PagedAttention
from ekiden.kernels.attention.paged_tiling import (
    PagedAttentionConfig,
    PagedTile,
    PagedTiling,
    const_int,
    serial_loop,
)
from ekiden.kernels.attention.quantized_probabilities import ByteProbabilities, Int16Probabilities
from ekiden.kernels.quantized.dynamic_quantization import DynamicQuantization
from ekiden.kernels.quantized.int8_dot import DOT4_FEATURE, MADD_FEATURE
from ekiden.tir.expr import Buffer, BufferLoad, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, LetStmt, Stmt, seq

SIGN_BITS_I32 = 0x80808080 - (1 << 32)
"""Sign bits of the four bytes of a word as int32: XOR turns int8 into uint8 with an offset of 128.
"""


class Int8PagedAttention(PagedAttention):
    """Paged attention over an int8 cache, by the best of the target's dot-product instructions
    `dots`.
    """

    key_dots: Sequence[str] = (DOT4_FEATURE, MADD_FEATURE)
    value_dots: Sequence[str] = (DOT4_FEATURE, MADD_FEATURE)
    """Dot-product features usable for keys and values, the best first."""
    zero_point_by_dot: Mapping[str, int] = {DOT4_FEATURE: 128, MADD_FEATURE: 0}
    """Zero point of the key operand by dot-product feature."""
    value_zero_point = 0
    """Zero point of the value operand."""
    value_multiplier = 1
    """Scale of the value operand relative to the stored value."""
    probability_bytes = 2
    """Bytes per quantised probability."""
    unpacked_offsets: Sequence[int] = (0, 2)
    """Position within a word's values at which each unpacked int16 part begins, in the pair order
    0, 2, 1, 3.
    """
    has_inner_scales = False
    """Whether scales apply within the sums, since a token has several."""

    def __init__(self, pages: PagedAttentionConfig, inputs: Sequence[Buffer], output: Buffer,
                 lanes: int, tiling: PagedTiling | None = None,
                 dots: Sequence[str] = ()) -> None:  # fmt: skip
        super().__init__(pages, inputs, output, lanes, tiling)
        self.key_dot, self.value_dot = (
            next((dot for dot in candidates if dot in dots), "")
            for candidates in (self.key_dots, self.value_dots)
        )
        self.quantized_query = DynamicQuantization.create(
            self.query, self.depth, self.plane.group_size, is_paired=self.key_dot == MADD_FEATURE
        )
        self.int_vector_dtype = dt.with_lanes("int32", self.lanes)
        self.float_vector_dtype = dt.with_lanes("float32", self.lanes)
        self.values_per_word = self.plane.format.values_per_word
        # Products of int16 pairs are exact enough per chunk; byte dots need the finer steps of one
        # page.
        self.probabilities = (
            Int16Probabilities if self.value_dot in (MADD_FEATURE, "") else ByteProbabilities
        )(self)

    def max_vectors(self, rows: int) -> int:
        """Return the maximum number of vectors of a tile of few rows: unpacked intermediates need
        registers, two per vector where words are split into halves.
        """
        if not self.key_dot:
            return super().max_vectors(rows)
        few = (
            0
            if self.key_dot == DOT4_FEATURE
            else self.tiling.rows * self.tiling.vectors // (rows + 2)
        )
        return max(self.tiling.vectors, few)

    @property
    def key_zero_point(self) -> int:
        """Return the zero point of keys for their multiplication."""
        return self.zero_point_by_dot.get(self.key_dot, 0)

    def emit_kernel(self) -> Stmt:
        """Emit the quantisation of the queries, then the attention."""
        rows = simplify(self.tokens * self.num_query_heads)
        return self.quantized_query.emit_before(rows, self.lanes, super().emit_kernel())

    # Vectors.

    def load_words(self, at: PrimExpr) -> PrimExpr:
        """Load a vector of packed cache words, four bytes per lane."""
        size = CACHE_WORD_BYTES * self.lanes
        kind = dt.with_lanes(self.cache.dtype, size)
        raw = BufferLoad(self.cache, (ramp(at, 1, size),), kind)
        return call_intrin("reinterpret", raw, dtype=self.int_vector_dtype)

    def broadcast_word(self, buffer: Buffer, at: PrimExpr) -> PrimExpr:
        """Broadcast a 32-bit word of a buffer (four bytes or two int16) to every lane."""
        count = CACHE_WORD_BYTES // dt.itemsize(buffer.dtype)
        kind = dt.with_lanes(buffer.dtype, count)
        loaded = BufferLoad(buffer, (ramp(simplify(at), 1, count),), kind)
        return broadcast(call_intrin("reinterpret", loaded, dtype="int32"), self.lanes)

    def broadcast_int(self, value: int) -> PrimExpr:
        """Broadcast an integer to every lane."""
        return broadcast(const(value, "int32"), self.lanes)

    def to_int16_pairs(self, words: PrimExpr, *shifts: tuple[str, int]) -> PrimExpr:
        """Return words as int16 pairs after shifts."""
        count = 2 * self.lanes
        kind = dt.with_lanes("int16", count)
        shifted = call_intrin("reinterpret", words, dtype=kind)
        for shift_op, by in shifts:
            shifted = call_intrin(
                shift_op, shifted, broadcast(const(by, "int16"), count), dtype=kind
            )
        return call_intrin("reinterpret", shifted, dtype=self.int_vector_dtype)

    def load_value(self, at: PrimExpr, which: PrimExpr) -> PrimExpr:
        """Load one of the four bytes of each cache word as float32."""
        # The byte moves to the top first, so that the arithmetic shift by 24 extends its sign.
        up = broadcast(cast((CACHE_WORD_BYTES - 1 - which) * 8, "int32"), self.lanes)
        byte = call_intrin("left_shift", self.load_words(at), up, dtype=self.int_vector_dtype)
        byte = call_intrin("right_shift", byte, self.broadcast_int(24), dtype=self.int_vector_dtype)
        return Cast(byte, self.float_vector_dtype)

    def unpack_words(self, words: PrimExpr, dot: str, is_key: bool) -> list[PrimExpr]:
        """Unpack words into the dot product's operands: four bytes or two int16 per lane."""
        if dot == MADD_FEATURE:
            return self.split_int16_halves(words)
        if not is_key:
            return [words]
        # dot4_u8s8 takes keys unsigned: flipping the sign bit adds 128, which key_zero_point
        # undoes.
        return [
            call_intrin(
                "bitwise_xor", words, self.broadcast_int(SIGN_BITS_I32), dtype=self.int_vector_dtype
            )
        ]

    def split_int16_halves(self, words: PrimExpr) -> list[PrimExpr]:
        """Split words into their even and their odd bytes, each as int16."""
        down = "right_shift", 8
        return [
            self.to_int16_pairs(words, ("left_shift", 8), down),
            self.to_int16_pairs(words, down),
        ]

    def multiplicand_offset(self, n: int, dot: str) -> int:
        """Return the query offset that part `n` of an unpacked word is multiplied by."""
        return self.unpacked_offsets[n] if dot == MADD_FEATURE else n * CACHE_WORD_BYTES

    def query_row_index(self, tile: PagedTile, row: int) -> PrimExpr:
        """Return the index of a tile's row among the query rows of all tokens and heads."""
        token, position = divmod(row, self.heads_per_tile)
        return simplify(
            (tile.first_token + token) * self.num_query_heads + tile.first_head + position
        )

    # Scores.

    def load_query(self, tile: PagedTile, row: int, k: PrimExpr) -> PrimExpr:
        """Return an element of a quantised query, in quantisation steps."""
        index = self.row_start(tile, row, self.num_query_heads) + k
        return Cast(self.quantized_query.bytes[simplify(index)], "float32")

    def load_keys(self, base: PrimExpr, k: PrimExpr, column: PrimExpr | int) -> PrimExpr:
        """Load one depth element of consecutive keys."""
        position = (k // self.values_per_word * self.config.page_tokens + column) * CACHE_WORD_BYTES
        return self.load_value(base + position, k % self.values_per_word)

    def product_scale(self, tile: PagedTile, row: int, base: PrimExpr, token: PrimExpr) -> PrimExpr:
        """Return the factor that turns integer products into scores: the key's scale times the
        query's step.
        """
        scales = self.plane.load_scales(self.cache, base, token, self.lanes)
        return Mul(scales, self.query_scale(tile, row), self.float_vector_dtype)

    def query_scale(self, tile: PagedTile, row: int) -> PrimExpr:
        """Return a query's quantisation step times the scale of scores."""
        step = self.quantized_query.step[self.query_row_index(tile, row)]
        return self.broadcast_scalar(Mul(step, const(self.score_scale, "float32"), "float32"))

    def emit_score_products(
        self, tile: PagedTile, base: Var, after: Var, column: int, vectors: int, acc: Buffer
    ) -> Stmt:
        """Emit the query-key products: integer dot products where the target has them, else float
        FMAs.
        """
        if not self.key_dot:
            return super().emit_score_products(tile, base, after, column, vectors, acc)
        groups = range(self.plane.num_groups)
        return seq(
            *(self._emit_group_sums(tile, base, after, column, vectors, acc, g) for g in groups)
        )

    def _emit_group_sums(
        self,
        tile: PagedTile,
        base: Var,
        after: Var,
        column: int,
        vectors: int,
        acc: Buffer,
        group: int,
    ) -> Stmt:
        """Emit the integer products of one scale group."""
        rows, page, k = tile.num_tokens * self.heads_per_tile, self.config.page_tokens, Var("k")
        sums = self.sums_buffer(rows * vectors)
        body, operands = self.bind_unpacked_words(
            vectors, lambda v: base + (k * page + (column + v * self.lanes)) * CACHE_WORD_BYTES,
            lambda words: self.unpack_words(words, self.key_dot, True),
        )  # fmt: skip
        statements = self.emit_value_prefetches(
            tile,
            after,
            k,
            page * CACHE_WORD_BYTES,
            column * CACHE_WORD_BYTES,
            vectors * CACHE_WORD_BYTES,
        )
        for r in range(rows):
            for n, loaded in enumerate(operands):
                position = self.row_start(tile, r, self.num_query_heads) + k * self.values_per_word
                a = self.broadcast_word(
                    self.quantized_query.bytes, position + self.multiplicand_offset(n, self.key_dot)
                )
                accumulators = {r * vectors + v: b for v, b in enumerate(loaded)}
                statements.append(self.emit_dot_accumulate(sums, accumulators, a, self.key_dot))
        # Sums start at the zero-point correction, -zero * sum(query), so that the dot instruction
        # needs no subtraction per element.
        starts = [self._zero_point_correction(tile, r, group) for r in range(rows)]
        begin = [BufferStore(sums, self.initial_sums(sums, starts[n // vectors]), (const(n),))
                 for n in range(rows * vectors)]  # fmt: skip
        count = self.plane.group_size // self.values_per_word
        loop = serial_loop(k, const(count), body(seq(*statements)), const(group * count))
        ends = self._emit_group_end(base, column, vectors, acc, sums, group, starts)
        return Allocate(sums, seq(*begin, loop, *ends))

    def sums_buffer(self, count: int) -> Buffer:
        """Return the register buffer of integer accumulators."""
        return Buffer("sums", (const(count),), self.int_vector_dtype, "register")

    def initial_sums(self, sums: Buffer, start: PrimExpr) -> PrimExpr:
        """Return the initial value of the accumulators."""
        return start

    def finalize_sums(self, accumulated: PrimExpr, start: PrimExpr) -> PrimExpr:
        """Return the accumulated sums as int32."""
        return accumulated

    def _zero_point_correction(self, tile: PagedTile, row: int, group: int) -> PrimExpr:
        """Return the zero-point correction of a scale group's sums."""
        index = self.query_row_index(tile, row) * self.plane.num_groups + group
        total = self.quantized_query.group_sums[simplify(index)] * const(
            -self.key_zero_point, "int32"
        )
        return broadcast(total, self.lanes)

    def _emit_group_end(
        self, base: Var, column: int, vectors: int, acc: Buffer, sums: Buffer, group: int,
        starts: Sequence[PrimExpr],
    ) -> list[Stmt]:  # fmt: skip
        """Emit the addition of a group's scaled integer sums to the scores."""
        statements: list[Stmt] = []
        for v in range(vectors):
            scale, stores = Var("scale", self.float_vector_dtype), list[Stmt]()
            for n in range(v, const_int(sums.shape[0]), vectors):
                integer_sum = self.finalize_sums(sums[const(n)], starts[n // vectors])
                scores: PrimExpr = Cast(integer_sum, self.float_vector_dtype)
                if self.has_inner_scales and group:
                    scores = call_intrin(
                        "fma", scores, scale, acc[const(n)], dtype=self.float_vector_dtype
                    )
                elif self.has_inner_scales:
                    scores = Mul(scores, scale, self.float_vector_dtype)
                else:
                    assert not group, "scales are of the whole depth where they are outside"
                stores.append(BufferStore(acc, scores, (const(n),)))
            stmt = seq(*stores)
            if self.has_inner_scales:
                position = const(column + v * self.lanes)
                value = self.plane.load_scales(self.cache, base, position, self.lanes, group)
                stmt = LetStmt(scale, value, stmt)
            statements.append(stmt)
        return statements

    def bind_unpacked_words(
        self,
        vectors: int,
        at: Callable[[int], PrimExpr],
        unpack: Callable[[PrimExpr], list[PrimExpr]],
    ) -> tuple[Callable[[Stmt], Stmt], list[list[Var]]]:
        """Return a wrapper that loads and unpacks consecutive words around a body, and the
        variables it binds, one per word part and vector.
        """
        words = [Var(f"w{v}", self.int_vector_dtype) for v in range(vectors)]
        values = [unpack(word) for word in words]
        variables = [[Var(f"b{n}_{v}", self.int_vector_dtype) for v in range(vectors)]
                     for n in range(len(values[0]))]  # fmt: skip

        def wrap_in_loads(body: Stmt) -> Stmt:
            """Wrap the body in its loads: a word, then the numbers unpacked from it."""
            for v in reversed(range(vectors)):
                for n, value in enumerate(values[v]):
                    body = LetStmt(variables[n][v], value, body)
                body = LetStmt(words[v], self.load_words(at(v)), body)
            return body

        return wrap_in_loads, variables

    def emit_dot_accumulate(
        self,
        sums: Buffer,
        loaded: Mapping[int, Var],
        a: PrimExpr,
        dot: str,
        is_probability: bool = False,
    ) -> Stmt:
        """Emit the accumulation of a word's products with the `loaded` vectors into their sums;
        `is_probability`: `a` is unsigned.
        """
        word = Var("a", self.int_vector_dtype)
        statements = []
        for position, b in loaded.items():
            n = const(position)
            # The first operand is unsigned, the second signed: keys and probabilities come first.
            pair = (word, b) if is_probability else (b, word)
            value = call_intrin(dot, sums[n], *pair, dtype=sums.dtype)
            statements.append(BufferStore(sums, value, (n,)))
        return LetStmt(word, a, seq(*statements))

    # Values.

    def load_value_scales(
        self, tile: PagedTile, base: Var, number: Var, v: PrimExpr | int, group: int
    ) -> PrimExpr:
        """Load the value scales of consecutive tokens of a page; 0 past the last token, where
        memory may hold NaN.
        """
        position = v * self.lanes if isinstance(v, PrimExpr) else const(v * self.lanes)
        scale = self.plane.load_scales(self.cache, base, position, self.lanes, group)
        is_valid = self.first_lanes_mask(
            tile.last_position + 1 - (number * self.config.page_tokens + position)
        )
        return Select(is_valid, scale, self.broadcast_scalar(0.0), self.float_vector_dtype)

    def probability_index(
        self, tile: PagedTile, row: int, number: Var, v: PrimExpr | int
    ) -> PrimExpr:
        """Return the index of the attention probabilities of consecutive tokens of a page."""
        position = (
            row * self.score_row_stride
            + (number - tile.begin_page) * self.config.page_tokens
            + v * self.lanes
        )
        return simplify(position)

    def emit_probability_scaling(self, tile: PagedTile) -> Stmt:
        """Multiply the probabilities by the values' scales; integer products apply the scales
        themselves.
        """
        if self.value_dot:
            return seq()
        rows, position, base = tile.num_tokens * self.heads_per_tile, Var("p"), Var("base", "int64")
        v, scale, statements = Var("v"), Var("scale", self.float_vector_dtype), []
        for r in range(rows):
            index = self.probability_index(tile, r, position, v)
            value = Mul(self.load(tile.scores, index), scale, self.float_vector_dtype)
            statements.append(self.store(tile.scores, index, value))
        scales = self.load_value_scales(tile, base, position, v, 0)
        body: Stmt = LetStmt(scale, scales, seq(*statements))
        body = serial_loop(v, const(self.config.page_tokens // self.lanes), body)
        body = LetStmt(
            base, self.plane_offset(self.load_page_number(tile, position), tile.kv_head, 1), body
        )
        return serial_loop(position, tile.end_page - tile.begin_page, body, tile.begin_page)

    def load_values(self, base: PrimExpr, s: PrimExpr, column: int) -> PrimExpr:
        """Load consecutive depth elements of a token's value."""
        position = (s // self.values_per_word * self.depth + column) * CACHE_WORD_BYTES
        return self.load_value(base + position, s % self.values_per_word)

    def emit_value_products(self, tile: PagedTile) -> Stmt:
        """Emit the probability-weighted sum of the values, in floats or integers."""
        return (
            self.probabilities.emit_value_sums(tile)
            if self.value_dot
            else super().emit_value_products(tile)
        )

    def allocate_tile_buffers(self, tile: PagedTile, body: Callable[[], Stmt]) -> Stmt:
        """Return the body of a tile, with buffers for its quantised probabilities."""
        return self.probabilities.allocate_buffers(tile, body) if self.value_dot else body()


__all__ = ["Int8PagedAttention"]
