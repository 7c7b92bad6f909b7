"""Micro-kernels of products with block-quantised weights: data of float32, or quantised to int8.

block_tile, float32 data              decodes each value once for all rows of a tile:

    for k: d += a[k] * (level(w, k) * scale(w, k) + offset(w, k))

block_int8_tile, int8 data with a step per 32 values and sums of groups:

    for g in groups:                                          t[i, v] = least level * total[i, g]
      for k: t += a[k] * level(w, k)                     ->   for each four values of the group:
      d += (t + least * total[g]) * (step[g] * scale[g])        t[i, v] += four bytes of a . levels
           + step[g] * total[g] * offset[g]                   acc[i, v] += step * scale * t[i, v]
                                                              acc[i, v] += step * total * offset

Levels are unsigned, counted from the least. Where sums of two products must fit int16
(int8_dot.py), so do those of a group of few bits: t is int16, and the least level is added behind
the loop. Levels of eight bits have a sign there. Accumulators of groups are float32.
"""

from __future__ import annotations

from functools import partial

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Add, Cast, Mul, PrimExpr, Var, cast, const, logical_and, minimum
from ekiden.kernels.cost_model import (
    CACHE_LINE_BYTES,
    STREAM_PREFETCH_BYTES,
    STREAM_PREFETCH_STRIDE_BYTES,
)
from ekiden.kernels.micro_kernels.block_descriptions import (
    describe_float_result,
    describe_int8_result,
    layout_of,
)
from ekiden.kernels.micro_kernels.panel_tiles import PanelTile
from ekiden.kernels.quantized.dynamic_quantization import SYMMETRIC_INT8_FACT
from ekiden.kernels.quantized.int8_dot import (
    DOT4_FEATURE,
    NARROW_DOT_FEATURE,
    SHORT_DOT_FEATURE,
    SIGNED_DOT_FEATURE,
)
from ekiden.runtime.errors import ScheduleError
from ekiden.tir.expr import Buffer, broadcast, ramp
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
from ekiden.tir.tensor_intrin.micro import DescribedTile, MicroKernel, Options
from ekiden.topi.nn.block_quantized import (
    BYTES_PER_WORD,
    VALUES_PER_UNIT,
    PackedBlock,
)

WORDS_PER_UNIT = VALUES_PER_UNIT // BYTES_PER_WORD
MAX_NARROW_DOT_BITS = 7
"""Maximum level bits whose byte pair products fit int16."""
INT16_MAX, SIGN_BIT = (1 << 15) - 1, 1 << 7
"""Largest int16; the offset of int8 values stored as uint8, and the largest magnitude of int8."""
DOT_INSTRUCTIONS = (DOT4_FEATURE, NARROW_DOT_FEATURE, SIGNED_DOT_FEATURE)
"""Dot products that the option `dot` numbers."""


class _BlockTile(PanelTile):
    """Emitter of a tile of products with block-quantised weights."""

    def __init__(self, tile: DescribedTile, options: Options, quantized: bool) -> None:
        super().__init__(tile, options)
        self.packed_layout, self.quantizes_data = layout_of(options), quantized
        self.blocks = options["blocks"]
        levels = self.packed_layout.format.levels
        self.dot = DOT_INSTRUCTIONS[options["dot"]]
        self.is_short = bool(options["int16_sums"])
        if self.dot == NARROW_DOT_FEATURE and levels.bits > MAX_NARROW_DOT_BITS:
            raise ScheduleError(
                f"block_int8_tile: sums of two products of levels of {levels.bits} bits do not fit "
                "int16"
            )
        if self.is_short and not int16_sums_fit(self.packed_layout):
            raise ScheduleError(
                f"block_int8_tile: sums of groups of {self.packed_layout.format.name} do not fit "
                "int16"
            )
        if self.dot == SIGNED_DOT_FEATURE and SYMMETRIC_INT8_FACT not in tile.facts:
            raise ScheduleError(
                f"block_int8_tile: {SIGNED_DOT_FEATURE} is exact for data from -127 on, which no "
                f"block declares as {SYMMETRIC_INT8_FACT!r}"
            )
        self.level_bias = levels.min_value + (SIGN_BIT if self.dot == SIGNED_DOT_FEATURE else 0)
        """Bias of the levels: the smallest level less the multiplied operand."""
        self.weight = tile.operands["weight"]

    def load_vector(self, at: PrimExpr, dtype: str) -> PrimExpr:
        """Load a vector of the weight's bytes, reinterpreted as a dtype."""
        size = {"int32": 4, "float16": 2, "int8": 1}[dtype] * self.lanes
        raw = self.weight.buffer[ramp(at, 1, size)].with_fields(dtype=f"uint8x{size}")
        return call_intrin("reinterpret", raw, dtype=dt.with_lanes(dtype, self.lanes))

    def load_scales(
        self, base: PrimExpr, unit: PrimExpr, group: int, column: PrimExpr
    ) -> list[PrimExpr]:
        """Load the scale, and the offset of formats that have one, of a group.

        Args:
            base: The block.
            unit: The unit of the block.
            group: The group of the unit.
            column: The first column.
        """
        factors, factor = [], 0
        for n, real in enumerate(self.packed_layout.group_scales):
            at = base + 2 * (self.panel * n + column)
            value: PrimExpr = Cast(self.load_vector(at, "float16"), self.real)
            if real.factor is not None:
                line = (
                    self.packed_layout.factors_offset
                    + (group * self.packed_layout.num_factors + factor) * self.panel
                )
                multiplier = self.load_vector(unit + line + column, "int8")
                value = Mul(value, Cast(multiplier, self.real), self.real)
                factor += 1
            factors.append(value)
        return factors

    def unpack_level(self, words: dict[tuple[int, int, int], Var], step: int, v: int) -> PrimExpr:
        """Unpack four levels per lane, of step `step` of a unit."""
        levels: PrimExpr | None = None
        low = 0
        for n, bit_field in enumerate(self.packed_layout.format.levels.bit_fields):
            word: PrimExpr = words[n, step * bit_field.bits // 8, v]
            if bit_field.bits < 8:
                word = self.extract_bits(
                    word, step % (8 // bit_field.bits) * bit_field.bits, bit_field.bits, low
                )
            levels = (
                word if levels is None else _call_intrinsic("bitwise_or", self.kind, levels, word)
            )
            low += bit_field.bits
        assert levels is not None
        return levels

    def extract_bits(self, word: PrimExpr, at: int, bits: int, low: int) -> PrimExpr:
        """Extract `bits` bits of every byte from bit `at` on, shifted to bit `low`."""
        by = at - low
        if by:
            name = "right_shift" if by > 0 else "left_shift"
            word = _call_intrinsic(name, self.kind, word, self.broadcast_scalar(abs(by)))
        # A word shift moves bits across bytes; the mask removes those of the neighbour.
        mask = ((1 << bits) - 1 << low) * 0x01010101
        return _call_intrinsic("bitwise_and", self.kind, word, self.broadcast_scalar(mask))

    def extract_byte(self, word: PrimExpr, number: int) -> PrimExpr:
        """Extract one byte of each word, zero-extended."""
        if number:
            word = _call_intrinsic(
                "right_shift", self.kind, word, self.broadcast_scalar(8 * number)
            )
        return _call_intrinsic("bitwise_and", self.kind, word, self.broadcast_scalar(255))

    def broadcast_scalar(self, value: int) -> PrimExpr:
        """Broadcast a scalar to every lane."""
        return broadcast(const(value, "int32"), self.lanes)

    def multiplicand(self, words: dict[tuple[int, int, int], Var], step: int, v: int) -> PrimExpr:
        """Return a step's levels as operand of the dot product."""
        levels = self.unpack_level(words, step, v)
        if self.dot != SIGNED_DOT_FEATURE:
            return levels
        # Flipping the sign bit subtracts 128; the smallest level compensates for it.
        return _call_intrinsic(
            "bitwise_xor",
            self.kind,
            levels,
            self.broadcast_scalar(SIGN_BIT * 0x01010101 - (1 << 32)),
        )

    def emit_sums(self, acc: Buffer, column: int, vectors: int) -> Stmt:
        """Emit the loop over all k blocks of a tile."""
        b, u, base, at = Var("block"), Var("unit"), Var("base"), Var("at")
        kind = _UnitEmitter if self.quantizes_data else _FloatUnitEmitter
        unit = kind(self, acc, column, vectors, b, u, base, at)
        inside = seq(self.emit_prefetches(at, unit.unit_index), unit.emit_steps())
        unit_body = LetStmt(
            at, base + u * self.packed_layout.unit_bytes + self.packed_layout.words_offset, inside
        )
        units = For(u, const(0), const(self.packed_layout.num_units), ForKind.SERIAL, unit_body)
        block_offset = self.weight.row_offsets[0] + b * self.packed_layout.block_bytes
        return For(
            b, const(0), const(self.blocks), ForKind.SERIAL, LetStmt(base, block_offset, units)
        )

    def emit_prefetches(self, at: PrimExpr, unit: PrimExpr) -> Stmt:
        """Emit prefetches: of the next panel, shared among several tiles, or of a single tile's own
        stream.

        Several tiles of a panel each prefetch some units of the next one, which the first of them
        would wait for: into L2, as two panels of bytes are more than L1. One tile alone reads a
        stream, of which some lines are enough: behind its end begins the weight that is used next,
        where constants are stored in their order.
        """
        # The last panel prefetches itself, so that no address behind the weight is formed.
        panel = const(0) if self.tile.panel is None else self.tile.panel
        following = minimum(panel + 1, self.tile.num_panels - 1)
        away = (following - panel) * (self.blocks * self.packed_layout.block_bytes)
        lines = range(
            0,
            self.packed_layout.unit_bytes
            + self.packed_layout.words_offset // self.packed_layout.num_units,
            CACHE_LINE_BYTES,
        )
        panel_prefetches = [Prefetch(self.weight.buffer, (at + away + n,), 2) for n in lines]
        tile_phase = unit % self.tile.total_rows
        # Tiles share the units of the next panel, so that each line is requested once.
        is_own = logical_and(
            tile_phase >= self.tile.first, tile_phase < self.tile.first + self.rows
        )
        touched = range(0, self.packed_layout.unit_bytes, STREAM_PREFETCH_STRIDE_BYTES)
        stream = [
            Prefetch(self.weight.buffer, (at + STREAM_PREFETCH_BYTES + n,), 2) for n in touched
        ]
        return IfThenElse(
            self.tile.total_rows > self.rows,
            IfThenElse(is_own, seq(*panel_prefetches)),
            seq(*stream),
        )


class _UnitEmitter:
    """Emitter of the dot products of one unit of a quantisation block, for a tile."""

    def __init__(
        self,
        kernel: _BlockTile,
        acc: Buffer,
        column: int,
        vectors: int,
        block: Var,
        unit: Var,
        base: Var,
        words_at: Var,
    ) -> None:
        self.kernel, self.acc, self.rows = kernel, acc, kernel.rows
        self.column, self.vectors, self.base, self.words_offset = column, vectors, base, words_at
        self.unit_index = block * kernel.packed_layout.num_units + unit
        """Index of the unit within a data row."""
        self.groups = VALUES_PER_UNIT // kernel.packed_layout.format.group_size
        count = const(self.rows * vectors)
        self.int16_vector_dtype = dt.with_lanes("int16", 2 * kernel.lanes)
        kind = self.int16_vector_dtype if kernel.is_short else kernel.kind
        self.sums = Buffer("sums", (count,), kind, "register")
        self.words: dict[tuple[int, int, int], Var] = {}
        self.scales: dict[tuple[int, int], list[Var]] = {}

    def emit_steps(self, step: int = 0) -> Stmt:
        """Emit the steps from a step on; each word is loaded before its first use."""
        if step == WORDS_PER_UNIT:
            return seq()
        loads = []
        for n, bit_field in enumerate(self.kernel.packed_layout.format.levels.bit_fields):
            if step * bit_field.bits % 8 == 0:
                loads += [
                    self.load_field_word(n, step * bit_field.bits // 8, v)
                    for v in range(self.vectors)
                ]
        group, inside = divmod(step, WORDS_PER_UNIT // self.groups)
        stmts = self.emit_begin_group(group) if inside == 0 else []
        stmts.append(self.emit_products(step))
        if inside == WORDS_PER_UNIT // self.groups - 1:
            stmts.append(self.emit_end_group(group))
        inner = seq(*stmts, self.emit_steps(step + 1)) if step + 1 < WORDS_PER_UNIT else seq(*stmts)
        # Bound around all steps of the group, so that its scales are loaded once.
        if inside == 0:
            inner = self.bind_group_values(group, inner)
        for var, value in reversed(loads):
            inner = LetStmt(var, value, inner)
        return Allocate(self.sums, inner) if step == 0 else inner

    def bind_group_values(self, group: int, body: Stmt) -> Stmt:
        """Bind the values that a group needs around its steps."""
        return body

    def load_field_word(self, field_index: int, word: int, v: int) -> tuple[Var, PrimExpr]:
        """Load a word of one bit field of the levels."""
        of = self.kernel.packed_layout
        at = of.word_position(field_index, word) * of.panel + self.column + v * self.kernel.lanes
        var = self.words[field_index, word, v] = Var(f"w{field_index}_{word}_{v}", self.kernel.kind)
        return var, self.kernel.load_vector(self.words_offset + at * BYTES_PER_WORD, "int32")

    def emit_products(self, step: int) -> Stmt:
        """Emit the products of four values for all rows."""
        kernel = self.kernel
        levels = [Var(f"l{v}", kernel.kind) for v in range(self.vectors)]
        rows_of_products: list[Stmt] = []
        for i in range(self.rows):
            value = Var(f"a{i}", kernel.kind)
            updates = []
            for v in range(self.vectors):
                n = const(i * self.vectors + v)
                # int16 sums hold twice as many lanes; they are chosen only where a group cannot
                # overflow them.
                instruction = SHORT_DOT_FEATURE if kernel.is_short else kernel.dot
                sums = self.sums[n]
                total = _call_intrinsic(instruction, sums.dtype, sums, levels[v], value)
                updates.append(BufferStore(self.sums, total, (n,)))
            data_word = kernel.broadcast_word(
                i, self.unit_index * VALUES_PER_UNIT + step * BYTES_PER_WORD
            )
            rows_of_products.append(LetStmt(value, data_word, seq(*updates)))
        stmt = seq(*rows_of_products)
        for v in reversed(range(self.vectors)):
            stmt = LetStmt(levels[v], kernel.multiplicand(self.words, step, v), stmt)
        return stmt

    def group_data_sum(self, row: int, group: int) -> PrimExpr:
        """Return the int32 sum of a group's data."""
        return self.kernel.row_element("total", row, self.unit_index * self.groups + group)

    def emit_begin_group(self, group: int) -> list[Stmt]:
        """Emit a group's initial sums, which undo the bias of unsigned levels."""
        # The int32 zero-point correction may exceed int16: widen_sum adds it at the group's end.
        if self.kernel.is_short:
            zero = broadcast(const(0, "int16"), 2 * self.kernel.lanes)
            count = self.rows * self.vectors
            return [BufferStore(self.sums, zero, (const(n),)) for n in range(count)]
        stmts: list[Stmt] = []
        for i in range(self.rows):
            var = Var(f"t{i}", self.kernel.kind)
            sum_indices = range(i * self.vectors, (i + 1) * self.vectors)
            stores = [BufferStore(self.sums, var, (const(n),)) for n in sum_indices]
            stmts.append(LetStmt(var, self.initial_sum(i, group), seq(*stores)))
        return stmts

    def initial_sum(self, row: int, group: int) -> PrimExpr:
        """Return a group's initial sum, broadcast to every lane."""
        min_level = self.kernel.level_bias
        # sum(a * (q + min)) = sum(a * q) + min * sum(a): the second term starts the sums.
        initial = (
            self.group_data_sum(row, group) * const(min_level, "int32")
            if min_level
            else const(0, "int32")
        )
        return broadcast(initial, self.kernel.lanes)

    def widen_sum(self, row: int, v: int, start: Var) -> PrimExpr:
        """Return a group's sum widened to int32."""
        partial = self.sums[const(row * self.vectors + v)]
        if not self.kernel.is_short:
            return partial
        kind = self.kernel.kind
        words = _call_intrinsic("reinterpret", kind, partial)
        # A product with ones adds pairs of int16 into int32 lanes.
        return _call_intrinsic(
            "madd_s16", kind, start, words, self.kernel.broadcast_scalar(0x00010001)
        )

    def emit_end_group(self, group: int) -> Stmt:
        """Emit the addition of a group's scaled sums to the results."""
        kernel = self.kernel
        has_offset = kernel.packed_layout.format.offset is not None
        steps = [Var(f"step{i}", kernel.real) for i in range(self.rows)]
        moved = [Var(f"moved{i}", kernel.real) for i in range(self.rows)]
        starts = [Var(f"start{i}", kernel.kind) for i in range(self.rows)]
        stmts: list[Stmt] = []
        for v in range(self.vectors):
            column = const(self.column + v * kernel.lanes)
            values = kernel.load_scales(self.base, self.words_offset, group, column)
            scales = [Var(f"scale{n}", kernel.real) for n in range(len(values))]
            stores: list[Stmt] = []
            for i in range(self.rows):
                n = const(i * self.vectors + v)
                factor = Mul(steps[i], scales[0], kernel.real)
                real = Cast(self.widen_sum(i, v, starts[i]), kernel.real)
                result = _call_intrinsic("fma", kernel.real, real, factor, self.acc[n])
                if has_offset:
                    result = _call_intrinsic("fma", kernel.real, moved[i], scales[1], result)
                stores.append(BufferStore(self.acc, result, (n,)))
            inside = seq(*stores)
            for var, value in zip(reversed(scales), reversed(values), strict=True):
                inside = LetStmt(var, value, inside)
            stmts.append(inside)
        scaled = seq(*stmts)
        for i in range(self.rows):
            step = kernel.row_element("step", i, self.unit_index)
            if has_offset:
                offset_total = step * cast(self.group_data_sum(i, group), "float32")
                scaled = LetStmt(moved[i], broadcast(offset_total, kernel.lanes), scaled)
            scaled = LetStmt(steps[i], broadcast(step, kernel.lanes), scaled)
            if kernel.is_short:
                scaled = LetStmt(starts[i], self.initial_sum(i, group), scaled)
        return scaled


class _FloatUnitEmitter(_UnitEmitter):
    """Emitter for float data, which multiplies decoded weights one by one."""

    def emit_begin_group(self, group: int) -> list[Stmt]:
        """Bind the scales; there are no integer sums."""
        count = len(self.kernel.packed_layout.group_scales)
        for v in range(self.vectors):
            names = [f"scale{group}_{v}_{n}" for n in range(count)]
            self.scales[group, v] = [Var(name, self.kernel.real) for name in names]
        return []

    def bind_group_values(self, group: int, body: Stmt) -> Stmt:
        """Bind the scales once for all values of a group."""
        for v in range(self.vectors):
            column = const(self.column + v * self.kernel.lanes)
            values = self.kernel.load_scales(self.base, self.words_offset, group, column)
            for var, value in zip(self.scales[group, v], values, strict=True):
                body = LetStmt(var, value, body)
        return body

    def emit_products(self, step: int) -> Stmt:
        """Emit the products of four decoded values for all rows."""
        kernel, stmts = self.kernel, list[Stmt]()
        group = step * BYTES_PER_WORD // kernel.packed_layout.format.group_size
        for v in range(self.vectors):
            level = Var(f"l{v}", kernel.kind)
            scales = self.scales[group, v]
            inside = seq(
                *(
                    self.emit_decoded_product(step * BYTES_PER_WORD + b, b, v, level, scales)
                    for b in range(BYTES_PER_WORD)
                )
            )
            stmts.append(LetStmt(level, kernel.unpack_level(self.words, step, v), inside))
        return seq(*stmts)

    def emit_decoded_product(
        self, k: int, byte: int, v: int, level: Var, scales: list[Var]
    ) -> Stmt:
        """Emit the decoding of value k of a unit and its product."""
        kernel, number = self.kernel, Var(f"b{v}_{byte}", self.kernel.real)
        level_value = kernel.extract_byte(level, byte)
        min_level = kernel.packed_layout.format.levels.min_value
        level_value = (
            Add(level_value, kernel.broadcast_scalar(min_level), kernel.kind)
            if min_level
            else level_value
        )
        decoded: PrimExpr = Mul(Cast(level_value, kernel.real), scales[0], kernel.real)
        if len(scales) > 1:
            decoded = Add(decoded, scales[1], kernel.real)
        stores: list[Stmt] = []
        for i in range(self.rows):
            n = const(i * self.vectors + v)
            value = kernel.row_element("data", i, self.unit_index * VALUES_PER_UNIT + k)
            factor = broadcast(value, kernel.lanes)
            result = _call_intrinsic("fma", kernel.real, factor, number, self.acc[n])
            stores.append(BufferStore(self.acc, result, (n,)))
        # Decoding costs several instructions: it is done once and shared by all rows of the tile.
        return LetStmt(number, decoded, seq(*stores))

    def emit_end_group(self, group: int) -> Stmt:
        """Emit nothing: sums are complete."""
        return seq()


def _call_intrinsic(name: str, dtype: str, *args: PrimExpr) -> PrimExpr:
    return call_intrin(name, *args, dtype=dtype)


def int16_sums_fit(of: PackedBlock) -> bool:
    """Return whether the sums of a group's products fit int16."""
    levels = of.format.levels
    # Each of the two int16 halves of a lane adds half of the group's products.
    max_sum = ((1 << levels.bits) - 1) * SIGN_BIT * of.format.group_size // 2
    return levels.bits <= MAX_NARROW_DOT_BITS and max_sum <= INT16_MAX


def _emit_tile(quantized: bool, tile: DescribedTile, options: Options) -> Stmt:
    return _BlockTile(tile, options, quantized).emit()


_DEFAULTS = {
    "lanes": 16,
    "panel": 64,
    "format": 2,
    "blocks": 1,
    "wide_rows": 0,
    "narrow_vectors": 2,
    "dot": 0,
    "int16_sums": 0,
}

BLOCK_TILE_KERNEL = MicroKernel.register(
    MicroKernel(
        name="block_tile",
        required_features=(),
        defaults=_DEFAULTS,
        describe=describe_float_result,
        write_described=partial(_emit_tile, False),
    )
)
BLOCK_INT8_TILE_KERNEL = MicroKernel.register(
    MicroKernel(
        name="block_int8_tile",
        required_features=(),
        defaults=_DEFAULTS,
        describe=describe_int8_result,
        write_described=partial(_emit_tile, True),
    )
)
"""lanes: of a vector. panel: columns stored side by side. format: GGUF's number of the format.
blocks: of a row. wide_rows: rows up to which a tile has all columns of a panel; narrow_vectors: the
vectors of other tiles. dot: the instruction, numbered by DOT_INSTRUCTIONS. int16_sums: sums of a
group are int16."""

__all__ = [
    "BLOCK_INT8_TILE_KERNEL",
    "BLOCK_TILE_KERNEL",
    "DOT_INSTRUCTIONS",
    "MAX_NARROW_DOT_BITS",
    "WORDS_PER_UNIT",
    "int16_sums_fit",
]
