"""Quantised attention probabilities, and integer sums of the values that they weight.

    quantised probability = round(exp(score - max) * scale of the value / step), the largest of a
    page or chunk being `levels` steps

    ByteProbabilities    a step per page: 65,535 levels (two bytes) or 255 (one), each byte a factor
                         of a four-token dot product; 127 where products of half bytes are added in
                         pairs, so that a few such sums fit int16
    Int16Probabilities   a step per chunk: 32,767 levels, int16 factors of two-token dot products;
                         int32 sums run over all pages of a chunk

With few steps, quantising per page keeps what many small probabilities add up to: over a whole text
in 255 steps those below a thousandth of the maximum would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import (
    EQ,
    Add,
    Cast,
    Div,
    Max,
    Mul,
    PrimExpr,
    Select,
    Sub,
    Var,
    cast,
    const,
    minimum,
)
from ekiden.kernels.attention.kv_layout import CACHE_WORD_BYTES
from ekiden.kernels.attention.paged_tiling import PagedTile, serial_loop
from ekiden.kernels.quantized.dynamic_quantization import MIN_MAGNITUDE
from ekiden.kernels.quantized.int8_dot import (
    INT16_ONES,
    MADD_FEATURE,
    SHORT_DOT_FEATURE,
    to_pair_order,
)
from ekiden.tir.expr import Buffer, VectorReduce, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, IfThenElse, LetStmt, Stmt, seq

if TYPE_CHECKING:
    from ekiden.kernels.attention.paged_attention_int8 import Int8PagedAttention

ROUND_TO_INT_MAGIC = 1.5 * (1 << 23)
"""Magic number 1.5 * 2**23: added to a float below 2**22, it leaves the nearest integer in the low
mantissa bits.
"""
ROUND_TO_INT_MAGIC_BITS = int(np.float32(ROUND_TO_INT_MAGIC).view(np.int32))
"""Bit pattern of ROUND_TO_INT_MAGIC, whose low 16 bits are 0."""
FIRST_ELEMENT = const(0)

# A body for a vector of shares times scales: the number of its line, and the vector.
VectorBody = Callable[[int, PrimExpr], Stmt]


class QuantizedProbabilities:
    """Base class of quantised attention probabilities, with quantisation steps per tile row and
    scale group.
    """

    def __init__(self, kernel: Int8PagedAttention) -> None:
        self.kernel = kernel
        self.num_levels = 1.0
        self.dequantization_factors = Buffer("factors", (FIRST_ELEMENT,))

    def row_groups(self, tile: PagedTile) -> list[tuple[int, int]]:
        """Return the (row, scale group) pairs, each with quantisation steps of its own."""
        groups = range(self.kernel.plane.num_groups)
        return [(r, g) for r in range(tile.num_tokens * self.kernel.heads_per_tile) for g in groups]

    def emit_scaled_vector(
        self, tile: PagedTile, number: Var, base: Var, v: PrimExpr, body: VectorBody
    ) -> Stmt:
        """Emit `body` for one vector of probabilities times value scales, for each row and scale
        group.
        """
        kernel, statements = self.kernel, list[Stmt]()
        scales = [
            Var(f"scale{g}", kernel.float_vector_dtype) for g in range(kernel.plane.num_groups)
        ]
        for n, (row, group) in enumerate(self.row_groups(tile)):
            probability = kernel.load(tile.scores, kernel.probability_index(tile, row, number, v))
            statements.append(body(n, Mul(probability, scales[group], kernel.float_vector_dtype)))
        stmt = seq(*statements)
        for group, scale in enumerate(scales):
            stmt = LetStmt(scale, kernel.load_value_scales(tile, base, number, v, group), stmt)
        return stmt

    def emit_quantization_steps(
        self, tile: PagedTile, find: Callable[[VectorBody], Stmt], body: Callable[[list[Var]],
        Stmt],
        first: PrimExpr = FIRST_ELEMENT,
    ) -> Stmt:  # fmt: skip
        """Emit the maximum of each row and scale group, then `body` on the reciprocal quantisation
        steps; the steps are stored from `first` on.
        """
        kernel, count = self.kernel, len(self.row_groups(tile))
        best = Buffer("best", (const(count),), kernel.int_vector_dtype, "register")
        inverse_step = [Var(f"finer{n}", "float32") for n in range(count)]
        stmt = body(inverse_step)
        for n in reversed(range(count)):
            top = Var("top", "float32")
            factor = Mul(
                top, const(1 / (self.num_levels * kernel.value_multiplier), "float32"), "float32"
            )
            # A line of zeros must not divide by 0; the bound also keeps the reciprocal finite.
            bound = Max(top, const(MIN_MAGNITUDE * self.num_levels, "float32"), "float32")
            steps = Div(const(self.num_levels, "float32"), bound, "float32")
            stmt = LetStmt(inverse_step[n], steps, stmt)
            stmt = seq(BufferStore(self.dequantization_factors, factor, (first + n,)), stmt)
            # Non-negative floats have the order of their bit patterns, so an integer maximum
            # serves.
            largest = VectorReduce(best[const(n)], "max", "int32")
            stmt = LetStmt(top, call_intrin("reinterpret", largest, dtype="float32"), stmt)

        def update_maximum(n: int, probability: PrimExpr) -> Stmt:
            """Take a probability into the maximum, by its bits: it is not negative."""
            bits = call_intrin("reinterpret", probability, dtype=kernel.int_vector_dtype)
            return BufferStore(
                best, Max(best[const(n)], bits, kernel.int_vector_dtype), (const(n),)
            )

        none = [BufferStore(best, kernel.broadcast_int(0), (const(n),)) for n in range(count)]
        return Allocate(best, seq(*none, find(update_maximum), stmt))

    def quantize(self, probability: PrimExpr, inverse_step: Var) -> PrimExpr:
        """Quantise probabilities to integers in the low bits of int32, by the magic-number addition
        1.5 * 2**23.
        """
        kernel = self.kernel
        # Adding 1.5 * 2**23 rounds to nearest and leaves the integer in the low mantissa bits.
        rounded = call_intrin(
            "fma",
            probability,
            kernel.broadcast_scalar(inverse_step),
            kernel.broadcast_scalar(ROUND_TO_INT_MAGIC),
            dtype=kernel.float_vector_dtype,
        )
        return call_intrin("reinterpret", rounded, dtype=kernel.int_vector_dtype)


class Int16Probabilities(QuantizedProbabilities):
    """Attention probabilities quantised to int16 per chunk."""

    def __init__(self, kernel: Int8PagedAttention) -> None:
        super().__init__(kernel)
        self.tokens = kernel.chunk_pages * kernel.config.page_tokens
        row = kernel.plane.format
        max_value = (
            int(max(row.max_value + row.zero_point, -row.min_value - row.zero_point))
            if row.group_size
            else 1
        )
        # As many steps as int16 has, but no more than keep the int32 sum of a whole chunk from
        # overflowing: tokens * steps * largest value < 2**31.
        self.num_levels = float(min((1 << 15) - 1, ((1 << 31) - 1) // (max_value * self.tokens)))
        """Quantisation levels of a chunk's largest probability, so that int32 sums over the chunk
        cannot overflow.
        """
        self.levels = Buffer("shares", (FIRST_ELEMENT,), "int16")
        self.sums = Buffer("sums", (FIRST_ELEMENT,), "int32")

    def allocate_buffers(self, tile: PagedTile, body: Callable[[], Stmt]) -> Stmt:
        """Allocate a chunk's buffers of probabilities, steps and integer sums around a tile's
        statements.
        """
        count = len(self.row_groups(tile))
        size = tile.num_tokens * self.kernel.heads_per_tile * self.kernel.depth
        self.levels = Buffer("shares", (const(count * self.tokens),), "int16", "local")
        self.dequantization_factors = Buffer("factors", (const(count),), scope="local")
        self.sums = Buffer("sums", (const(size),), "int32", "local")
        return Allocate(
            self.levels, Allocate(self.dequantization_factors, Allocate(self.sums, body()))
        )

    def emit_value_sums(self, tile: PagedTile) -> Stmt:
        """Emit the quantisation of the probabilities, the integer sums over all pages of a chunk,
        and their conversion to float.
        """
        kernel, number = self.kernel, Var("p")
        base, after = Var("base", "int64"), Var("after", "int64")
        plane = kernel.plane
        ahead = kernel.emit_prefetches(
            after + plane.num_value_elements,
            (plane.size - plane.num_value_elements) // kernel.lanes,
        )
        blocks = [
            (g * plane.group_size + c, v) for g in range(plane.num_groups)
            for c,
            v in kernel.column_blocks(plane.group_size, tile.num_tokens * kernel.heads_per_tile)
        ]  # fmt: skip
        block_sums = [self._emit_page_sums(tile, number, base, after, *block) for block in blocks]
        # The integer sums of all pages of a chunk share one scale per line, so they are converted
        # to float only once.
        body = LetStmt(after, kernel.next_plane_offset(tile, number, 1), seq(*ahead, *block_sums))
        where = kernel.plane_offset(kernel.load_page_number(tile, number), tile.kv_head, 1)
        pages = serial_loop(
            number, tile.end_page - tile.begin_page, LetStmt(base, where, body), tile.begin_page
        )
        return seq(self._emit_quantize(tile), pages, *self._emit_dequantize(tile))

    # Shares.

    def _emit_quantize(self, tile: PagedTile) -> Stmt:
        """Emit the quantisation by the maximum of each row and scale group, and initialise the sums
        with the values' zero-point correction.
        """
        kernel, count = self.kernel, len(self.row_groups(tile))
        total = Buffer("total", (const(count),), kernel.int_vector_dtype, "register")
        has_total = kernel.value_zero_point > 0

        def store_levels_and_begin(inverse_step: list[Var]) -> Stmt:
            """Store the integers, and initialise the sums."""
            stmt = self._emit_vector_loop(tile, lambda at: lambda n, value: self._emit_store_levels(
                at, n, self.quantize(value, inverse_step[n]), total
            ))  # fmt: skip
            stmt = seq(stmt, *self._emit_initial_sums(tile, total if has_total else None))
            none = [BufferStore(total, kernel.broadcast_int(0), (const(n),)) for n in range(count)]
            return Allocate(total, seq(*none, stmt)) if has_total else stmt

        return self.emit_quantization_steps(
            tile,
            lambda grown: self._emit_vector_loop(tile, lambda _: grown),
            store_levels_and_begin,
        )

    def _emit_vector_loop(self, tile: PagedTile, body: Callable[[PrimExpr], VectorBody]) -> Stmt:
        """Emit a loop over the vectors of a chunk's probabilities; `body` takes the token index."""
        kernel, number, v, base = self.kernel, Var("p"), Var("v"), Var("base", "int64")
        position = (number - tile.begin_page) * kernel.config.page_tokens + v * kernel.lanes
        stmt = self.emit_scaled_vector(tile, number, base, v, body(position))
        stmt = serial_loop(v, const(kernel.config.page_tokens // kernel.lanes), stmt)
        where = kernel.plane_offset(kernel.load_page_number(tile, number), tile.kv_head, 1)
        return serial_loop(
            number, tile.end_page - tile.begin_page, LetStmt(base, where, stmt), tile.begin_page
        )

    def _emit_store_levels(self, at: PrimExpr, n: int, value: PrimExpr, total: Buffer) -> Stmt:
        """Emit the store of a vector of int16 probabilities in the pair order of the dot product
        (0, 2, 1, 3).
        """
        kernel, level = self.kernel, Var("level", self.kernel.int_vector_dtype)
        index = ramp(simplify(at + n * self.tokens), 1, kernel.lanes)
        stmt: Stmt = BufferStore(self.levels, to_pair_order(level), (index,))
        if kernel.value_zero_point:
            # The int32 still contains the bits of the magic number, which must not enter the total.
            more = Sub(
                level, kernel.broadcast_int(ROUND_TO_INT_MAGIC_BITS), kernel.int_vector_dtype
            )
            grown = Add(total[const(n)], more, kernel.int_vector_dtype)
            stmt = seq(stmt, BufferStore(total, grown, (const(n),)))
        return LetStmt(level, value, stmt)

    def _emit_initial_sums(self, tile: PagedTile, total: Buffer | None) -> list[Stmt]:
        """Emit the initial value of the sums: the zero-point correction of the values."""
        kernel, statements = self.kernel, list[Stmt]()
        count = kernel.plane.group_size // kernel.lanes
        for n in range(len(self.row_groups(tile))):
            v, start = Var("v"), Var("start", "int32")
            put = kernel.store(
                self.sums,
                n * kernel.plane.group_size + v * kernel.lanes,
                broadcast(start, kernel.lanes),
            )
            value: PrimExpr = const(0, "int32")
            if total is not None:
                every = VectorReduce(total[const(n)], "sum", "int32")
                value = every * const(-kernel.value_zero_point, "int32")
            statements.append(LetStmt(start, value, serial_loop(v, const(count), put)))
        return statements

    # Values.

    def _emit_page_sums(
        self, tile: PagedTile, number: Var, base: Var, after: Var, column: int, vectors: int
    ) -> Stmt:
        """Emit the products of a page's values with the probabilities for some columns of one scale
        group.
        """
        kernel, s = self.kernel, Var("s")
        rows, page, depth = (
            tile.num_tokens * kernel.heads_per_tile,
            kernel.config.page_tokens,
            kernel.depth,
        )
        acc = Buffer("acc", (const(rows * vectors),), kernel.int_vector_dtype, "register")
        body, operands = kernel.bind_unpacked_words(
            vectors, lambda v: base + (s * depth + (column + v * kernel.lanes)) * CACHE_WORD_BYTES,
            lambda words: kernel.unpack_words(words, kernel.value_dot, False),
        )  # fmt: skip
        statements = kernel.emit_prefetches(
            after + (s * depth + column) * CACHE_WORD_BYTES, vectors * CACHE_WORD_BYTES
        )
        first = (number - tile.begin_page) * page + s * kernel.values_per_word
        for row in range(rows):
            line = row * kernel.plane.num_groups + column // kernel.plane.group_size
            for n, loaded in enumerate(operands):
                position = (
                    line * self.tokens + kernel.multiplicand_offset(n, kernel.value_dot) + first
                )
                probability = kernel.broadcast_word(self.levels, position)
                accumulators = {row * vectors + v: b for v, b in enumerate(loaded)}
                statements.append(
                    kernel.emit_dot_accumulate(
                        acc, accumulators, probability, kernel.value_dot, True
                    )
                )
        # Tokens behind the last one are left out; their words may hold anything.
        token_count = minimum(const(page), tile.last_position + 1 - number * page)
        loop = serial_loop(
            s,
            (token_count + (kernel.values_per_word - 1)) // kernel.values_per_word,
            body(seq(*statements)),
        )
        begin, ends = list[Stmt](), list[Stmt]()
        for n in range(rows * vectors):
            row, v = divmod(n, vectors)
            index = ramp(const(row * depth + column + v * kernel.lanes), 1, kernel.lanes)
            previous = self.sums[index].with_fields(dtype=kernel.int_vector_dtype)
            begin.append(BufferStore(acc, previous, (const(n),)))
            ends.append(BufferStore(self.sums, acc[const(n)], (index,)))
        return Allocate(acc, seq(*begin, loop, *ends))

    def _emit_dequantize(self, tile: PagedTile) -> list[Stmt]:
        """Emit the conversion of a chunk's sums to float."""
        kernel, statements = self.kernel, list[Stmt]()
        size = kernel.plane.group_size
        for n, (row, group) in enumerate(self.row_groups(tile)):
            v, factor = Var("v"), kernel.broadcast_scalar(self.dequantization_factors[const(n)])
            index = ramp(n * size + v * kernel.lanes, 1, kernel.lanes)
            integer_sum = self.sums[index].with_fields(dtype=kernel.int_vector_dtype)
            to = row * kernel.partial_softmax.row_elements + group * size + v * kernel.lanes
            value = Mul(
                Cast(integer_sum, kernel.float_vector_dtype), factor, kernel.float_vector_dtype
            )
            statements.append(
                serial_loop(
                    v, const(size // kernel.lanes), kernel.store(tile.partial_result, to, value)
                )
            )
        return statements


class ByteProbabilities(QuantizedProbabilities):
    """Attention probabilities quantised to bytes per page."""

    def __init__(self, kernel: Int8PagedAttention) -> None:
        super().__init__(kernel)
        self.is_short = kernel.value_dot == SHORT_DOT_FEATURE
        # The short dot adds two products in int16: 7-bit factors keep 2 * 127 * 127 below 2**15.
        bits = 7 if self.is_short else 8
        self.num_levels = float((1 << bits * kernel.probability_bytes) - 1)
        self.line_bytes = kernel.config.page_tokens
        """Bytes of quantised probabilities per row and scale group."""
        self.words_per_run = kernel.config.page_tokens // kernel.values_per_word
        """Words accumulated in integers before the conversion to float."""
        if self.is_short:  # so many sums of two products of halves of bytes fit
            self.words_per_run = (
                ((1 << 15) - 1) // (2 * 127 * 15) * CACHE_WORD_BYTES // kernel.values_per_word
            )
        self.levels = Buffer("shares", (FIRST_ELEMENT,), "uint8")
        self.inverse_steps = Buffer("finer", (FIRST_ELEMENT,))
        self.initial_sums = Buffer("bases", (FIRST_ELEMENT,), "int32")

    def allocate_buffers(self, tile: PagedTile, body: Callable[[], Stmt]) -> Stmt:
        """Allocate buffers of a page's probabilities and a chunk's quantisation steps around a
        tile's statements.
        """
        lines, pages = len(self.row_groups(tile)), self.kernel.chunk_pages
        size = const(self.kernel.probability_bytes * lines * self.line_bytes)
        self.levels = Buffer("shares", (size,), "uint8", "local")
        self.dequantization_factors = Buffer("factors", (const(lines * pages),), scope="local")
        self.inverse_steps = Buffer("finer", (const(lines * pages),), scope="local")
        self.initial_sums = Buffer("bases", (const(lines),), "int32", "local")
        stmt = Allocate(self.inverse_steps, Allocate(self.initial_sums, body()))
        return Allocate(self.levels, Allocate(self.dequantization_factors, stmt))

    def emit_value_sums(self, tile: PagedTile) -> Stmt:
        """Emit the integer sums of each page, converted to float and accumulated. The next page's
        steps are computed before this page's products, so that out-of-order execution overlaps
        their latency.
        """
        kernel, plane, number = self.kernel, self.kernel.plane, Var("p")
        base, after = Var("base", "int64"), Var("after", "int64")
        rows = tile.num_tokens * kernel.heads_per_tile
        ahead = kernel.emit_prefetches(
            after + plane.num_value_elements,
            (plane.size - plane.num_value_elements) // kernel.lanes,
        )
        blocks = kernel.column_blocks(kernel.depth, kernel.probability_bytes * rows)
        block_sums = [self._emit_page_sums(tile, number, base, after, *block) for block in blocks]
        behind, is_there = number + 1, number + 1 < tile.end_page
        # The next page's maxima are found one page early, so that their latency overlaps with this
        # page's products.
        next_steps = IfThenElse(is_there, self._emit_steps(tile, behind))
        body = seq(*ahead, self._emit_quantize(tile, number, base), next_steps, *block_sums)
        body = LetStmt(after, kernel.next_plane_offset(tile, number, 1), body)
        where = kernel.plane_offset(kernel.load_page_number(tile, number), tile.kv_head, 1)
        v, row = Var("v"), Var("row")
        position = row * kernel.partial_softmax.row_elements + v * kernel.lanes
        zero: Stmt = kernel.store(tile.partial_result, position, kernel.broadcast_scalar(0.0))
        zero = serial_loop(
            row, const(rows), serial_loop(v, const(kernel.depth // kernel.lanes), zero)
        )
        body = LetStmt(base, where, body)
        return seq(
            zero, self._emit_steps(tile, tile.begin_page),
            serial_loop(number, tile.end_page - tile.begin_page, body, tile.begin_page),
        )  # fmt: skip

    # Shares.

    def step_index(self, tile: PagedTile, number: PrimExpr, n: int) -> PrimExpr:
        """Return the index of a page's row and scale group in the chunk's buffers of steps."""
        return (number - tile.begin_page) * len(self.row_groups(tile)) + n

    def _emit_steps(self, tile: PagedTile, number: PrimExpr) -> Stmt:
        """Emit the quantisation steps of each row and scale group of a page, from their maxima."""
        kernel, page, base, v = self.kernel, Var("page", "int64"), Var("base", "int64"), Var("v")

        def store_steps(inverse_step: list[Var]) -> Stmt:
            """Store the inverse quantisation steps of a page."""
            return seq(*(
                BufferStore(self.inverse_steps, steps, (self.step_index(tile, page, n),))
                for n, steps in enumerate(inverse_step)
            ))  # fmt: skip

        vectors = const(kernel.config.page_tokens // kernel.lanes)
        stmt = self.emit_quantization_steps(
            tile,
            lambda grown: serial_loop(
                v, vectors, self.emit_scaled_vector(tile, page, base, v, grown)
            ),
            store_steps,
            self.step_index(tile, page, 0),
        )
        where = kernel.plane_offset(kernel.load_page_number(tile, page), tile.kv_head, 1)
        return LetStmt(page, cast(number, "int64"), LetStmt(base, where, stmt))

    def _emit_quantize(self, tile: PagedTile, number: Var, base: Var) -> Stmt:
        """Emit the quantisation of a page's probabilities to bytes, and the initial values of the
        sums.
        """
        kernel, v, count = self.kernel, Var("v"), len(self.row_groups(tile))
        total = Buffer("total", (const(count),), kernel.int_vector_dtype, "register")
        inverse_step = [Var(f"finer{n}", "float32") for n in range(count)]
        vectors = const(kernel.config.page_tokens // kernel.lanes)
        stmt = serial_loop(v, vectors, self.emit_scaled_vector(
            tile, number, base, v,
            lambda n, value: self._emit_store_levels(
                v, n, self.quantize(value, inverse_step[n]), total
            ),
        ))  # fmt: skip
        if kernel.value_zero_point:
            none = [BufferStore(total, kernel.broadcast_int(0), (const(n),)) for n in range(count)]
            ends = [BufferStore(self.initial_sums, VectorReduce(total[const(n)], "sum", "int32")
                                * const(-kernel.value_zero_point, "int32"), (const(n),))
                    for n in range(count)]  # fmt: skip
            stmt = Allocate(total, seq(*none, stmt, *ends))
        for n in reversed(range(count)):
            stmt = LetStmt(
                inverse_step[n], self.inverse_steps[self.step_index(tile, number, n)], stmt
            )
        return stmt

    def _emit_store_levels(self, v: PrimExpr, n: int, value: PrimExpr, total: Buffer) -> Stmt:
        """Emit the store of a vector of byte probabilities, the most significant vector first;
        higher bits are truncated.
        """
        kernel, level, statements = (
            self.kernel,
            Var("level", self.kernel.int_vector_dtype),
            list[Stmt](),
        )
        count, size = kernel.probability_bytes, kernel.lanes
        for byte_index in range(count):
            bits: PrimExpr = level
            if below := 8 * (count - 1 - byte_index):
                bits = call_intrin(
                    "right_shift", bits, kernel.broadcast_int(below), dtype=kernel.int_vector_dtype
                )
            position = ramp(
                simplify(v * size + (count * n + byte_index) * self.line_bytes), 1, size
            )
            statements.append(
                BufferStore(self.levels, Cast(bits, dt.with_lanes("uint8", size)), (position,))
            )
        if kernel.value_zero_point:
            # The int32 still contains the bits of the magic number, which must not enter the total.
            more = Sub(
                level, kernel.broadcast_int(ROUND_TO_INT_MAGIC_BITS), kernel.int_vector_dtype
            )
            grown = Add(total[const(n)], more, kernel.int_vector_dtype)
            statements.append(BufferStore(total, grown, (const(n),)))
        return LetStmt(level, value, seq(*statements))

    # Values.

    def _emit_page_sums(
        self, tile: PagedTile, number: Var, base: Var, after: Var, column: int, vectors: int
    ) -> Stmt:
        """Emit the products of a page's values with the probabilities for some columns."""
        kernel, s, run = self.kernel, Var("s"), Var("run")
        rows, page, depth = (
            tile.num_tokens * kernel.heads_per_tile,
            kernel.config.page_tokens,
            kernel.depth,
        )
        plane, count = kernel.plane, kernel.probability_bytes * rows
        groups = [(column + v * kernel.lanes) // plane.group_size for v in range(vectors)]
        kind = (
            dt.with_lanes("int16", 2 * kernel.lanes) if self.is_short else kernel.int_vector_dtype
        )
        acc = Buffer("acc", (const(count * vectors),), kind, "register")
        body, operands = kernel.bind_unpacked_words(
            vectors, lambda v: base + (s * depth + (column + v * kernel.lanes)) * CACHE_WORD_BYTES,
            lambda words: kernel.unpack_words(words, kernel.value_dot, False),
        )  # fmt: skip
        statements = kernel.emit_prefetches(
            after + (s * depth + column) * CACHE_WORD_BYTES, vectors * CACHE_WORD_BYTES
        )
        for n in range(count):
            row, byte = divmod(n, kernel.probability_bytes)
            for part_index, loaded in enumerate(operands):
                for group in dict.fromkeys(groups):  # those that share scales are multiplied by one
                    line = kernel.probability_bytes * (row * plane.num_groups + group) + byte
                    offset = (
                        kernel.multiplicand_offset(part_index, kernel.value_dot)
                        + line * self.line_bytes
                    )
                    probability = kernel.broadcast_word(
                        self.levels, s * kernel.values_per_word + offset
                    )
                    mine = {v: b for v, b in enumerate(loaded) if groups[v] == group}
                    indices = {n * vectors + v: b for v, b in mine.items()}
                    statements.append(
                        kernel.emit_dot_accumulate(
                            acc, indices, probability, kernel.value_dot, True
                        )
                    )
        token_count = minimum(const(page), tile.last_position + 1 - number * page)
        words = (token_count + (kernel.values_per_word - 1)) // kernel.values_per_word
        none = broadcast(const(0, dt.element_dtype(kind)), dt.lanes(kind))
        zero = [BufferStore(acc, none, (const(n),)) for n in range(count * vectors)]
        first = run * self.words_per_run
        loop = serial_loop(
            s, minimum(const(self.words_per_run), words - first), body(seq(*statements)), first
        )
        ends = []
        for n in range(rows * vectors):
            row, v = divmod(n, vectors)
            to = row * kernel.partial_softmax.row_elements + column + v * kernel.lanes
            line = row * plane.num_groups + groups[v]
            factor = self.dequantization_factors[self.step_index(tile, number, line)]
            ends.append(
                self._emit_dequantize_run(
                    acc, tile.partial_result, n, line, vectors, to, run, factor
                )
            )
        runs = serial_loop(
            run, (words + (self.words_per_run - 1)) // self.words_per_run, seq(*zero, loop, *ends)
        )
        return Allocate(acc, runs)

    def _emit_dequantize_run(
        self, acc: Buffer, sums: Buffer, n: int, line: int, vectors: int, to: int, run: Var,
        factor: PrimExpr,
    ) -> Stmt:  # fmt: skip
        """Emit the addition of a run's dequantised sums to the floats at `to`; the first run of a
        page includes the initial value.
        """
        kernel = self.kernel
        row, v = divmod(n, vectors)
        first = kernel.probability_bytes * row
        integer_sum: PrimExpr = acc[const(first * vectors + v)]
        start: PrimExpr = kernel.broadcast_int(0)
        if kernel.value_zero_point:
            base = Select(
                EQ(run, const(0)), self.initial_sums[const(line)], const(0, "int32"), "int32"
            )
            start = broadcast(base, kernel.lanes)
        if self.is_short:
            halves = call_intrin("reinterpret", integer_sum, dtype=kernel.int_vector_dtype)
            integer_sum = call_intrin(
                MADD_FEATURE,
                start,
                halves,
                kernel.broadcast_int(INT16_ONES),
                dtype=kernel.int_vector_dtype,
            )
        # Bytes are stored highest first: shift the sum by 8 and add the next byte's (Horner).
        for lower in range(first + 1, first + kernel.probability_bytes):
            upper = call_intrin(
                "left_shift", integer_sum, kernel.broadcast_int(8), dtype=kernel.int_vector_dtype
            )
            integer_sum = Add(upper, acc[const(lower * vectors + v)], kernel.int_vector_dtype)
        if kernel.value_zero_point and not self.is_short:
            integer_sum = Add(integer_sum, start, kernel.int_vector_dtype)
        previous = kernel.load(sums, const(to))
        value = Cast(integer_sum, kernel.float_vector_dtype)
        grown = call_intrin(
            "fma", value, kernel.broadcast_scalar(factor), previous, dtype=kernel.float_vector_dtype
        )
        return kernel.store(sums, const(to), grown)


__all__ = ["ByteProbabilities", "Int16Probabilities"]
