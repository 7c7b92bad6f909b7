"""Dense layers with block-quantised weights, by int8 dot products on dynamically quantised data.

for each panel of rows of the weight, in parallel; for each tile of rows of the data:
  for each block of k, for each 32 of its values, for each group of these:
    t[i, v] = least level * total[i, group]
    for each four values of the group:
      t[i, v] += four bytes of a . levels of b[v], of the bits of a word or of several
    acc[i, v] += step[i, 32 values] * scale[group, v] * t[i, v]
    acc[i, v] += step[i, 32 values] * total[i, group] * offset[group, v]

Where sums of two products must fit int16 (int8_dot.py), so do those of a whole group of few bits: t
is int16, and the least level is added behind the loop. Levels of eight bits have a sign there.
"""

from __future__ import annotations

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Add, Cast, IntImm, Mul, PrimExpr, Var, cast, const, logical_and, minimum
from ekiden.kernels.cost_model import (
    CACHE_LINE_BYTES,
    STREAM_PREFETCH_BYTES,
    STREAM_PREFETCH_STRIDE_BYTES,
)
from ekiden.kernels.decision import Decision, Knob, Overrides
from ekiden.kernels.family import Family, MatmulSizes, clamp_panel_width
from ekiden.kernels.micro_kernels.epilogue import find_anchor
from ekiden.kernels.prim_builder import kernel_builder
from ekiden.kernels.quantized.dynamic_quantization import MAX_INT8_LEVEL, DynamicQuantization
from ekiden.kernels.quantized.int8_dot import (
    DOT4_FEATURE,
    NARROW_DOT_FEATURE,
    SHORT_DOT_FEATURE,
    SIGNED_DOT_FEATURE,
    exact_dot_instruction,
)
from ekiden.kernels.quantized.word_panels import (
    WordPanelKernel,
    anchor_operands,
    rows_in_registers,
    search_space,
)
from ekiden.target import Target
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
from ekiden.topi.nn.block_formats import BLOCK_FORMATS_BY_NAME
from ekiden.topi.nn.block_quantized import BYTES_PER_WORD, VALUES_PER_UNIT, PackedBlock

BLOCK_DENSE_TAG = "dense_blocks_pack"
BLOCK_SPARE_REGISTERS = 6
"""Registers for unpacked words, scales, offsets and masks beside the accumulators."""
MIN_PANEL_VECTORS = 2
"""Minimum vectors of a panel: that of tiles with many rows, so that every tile reads whole panels.
Half a panel at a time came from memory at a third of the speed (Zen 4: four rows took 3.3 ms of a
weight of 32 MB, now 1.5, sixteen 7.1 and 6.0, one and two the same).
"""
WORDS_PER_UNIT = VALUES_PER_UNIT // BYTES_PER_WORD
MAX_NARROW_DOT_BITS = 7
"""Maximum level bits whose byte pair products fit int16."""
INT16_MAX, SIGN_BIT = (1 << 15) - 1, 1 << 7
"""Largest int16, and the offset of int8 values stored as uint8."""


class _BlockDenseKernel(WordPanelKernel):
    """Builder of one block-quantised dense kernel."""

    def __init__(
        self,
        inputs: list[te.Tensor],
        outputs: list[te.Tensor],
        target: Target,
        decision: Decision,
    ) -> None:
        self.packed_layout = packed_layout_of(find_anchor(outputs, BLOCK_DENSE_TAG))
        super().__init__(
            inputs, outputs, target, decision, BLOCK_DENSE_TAG, self.packed_layout.panel
        )
        self.data, self.weight = self.operands
        # A step per unit and a sum per group: the sum times the smallest level corrects for
        # unsigned levels.
        self.quantized_data = DynamicQuantization.create(
            self.data, VALUES_PER_UNIT, self.packed_layout.format.group_size
        )
        self.bytes = self.quantized_data.bytes
        self.quantizes_data = self.anchor.op.attrs["activations"] == "int8"
        self.blocks = self.weight.shape[1]
        self.kind, self.real = (
            dt.with_lanes("int32", self.lanes),
            dt.with_lanes("float32", self.lanes),
        )
        levels = self.packed_layout.format.levels
        self.dot = exact_dot_instruction(target)
        if self.dot == NARROW_DOT_FEATURE and levels.bits > MAX_NARROW_DOT_BITS:
            # The narrow dot adds two u8 * s8 products in int16 with saturation: levels above 7 bits
            # could saturate it.
            self.dot = SIGNED_DOT_FEATURE
        self.level_bias = levels.min_value + (SIGN_BIT if self.dot == SIGNED_DOT_FEATURE else 0)
        """Bias of the levels: the smallest level less the multiplied operand."""
        self.is_short = uses_int16_sums(self.packed_layout, target)

    @property
    def narrow_tile_vectors(self) -> int:
        """Return 1 with int16 sums, whose group levels stay in registers while rows pass.

        With two, each word of the data would be live for the second vector too, which the registers
        of such processors do not hold (Zen 3, q4_0, alternately: 16 rows 140 to 164 GFLOP/s, 4 rows
        of weights in memory 83 to 149).
        """
        return 1 if self.is_short else super().narrow_tile_vectors

    def load_vector(self, at: PrimExpr, dtype: str) -> PrimExpr:
        """Load a vector of the weight's bytes, reinterpreted as a dtype."""
        size = {"int32": 4, "float16": 2, "int8": 1}[dtype] * self.lanes
        raw = self.weight[ramp(at, 1, size)].with_fields(dtype=f"uint8x{size}")
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

    def emit_blocks(
        self, acc: Buffer, rows: int, first: PrimExpr, panel: PrimExpr, column: int, vectors: int
    ) -> Stmt:
        """Emit the loop over all k blocks of a tile."""
        b, u, base, at = Var("block"), Var("unit"), Var("base"), Var("at")
        kind = _UnitEmitter if self.quantizes_data else _FloatUnitEmitter
        unit = kind(self, acc, rows, first, column, vectors, b, u, base, at)
        inside = seq(
            self.emit_prefetches(rows, first, panel, at, unit.unit_index), unit.emit_steps()
        )
        unit_body = LetStmt(
            at, base + u * self.packed_layout.unit_bytes + self.packed_layout.words_offset, inside
        )
        units = For(u, const(0), const(self.packed_layout.num_units), ForKind.SERIAL, unit_body)
        block_offset = (panel * self.blocks + b) * self.packed_layout.block_bytes
        return For(b, const(0), self.blocks, ForKind.SERIAL, LetStmt(base, block_offset, units))

    def emit_prefetches(
        self, rows: int, first: PrimExpr, panel: PrimExpr, at: PrimExpr, unit: PrimExpr
    ) -> Stmt:
        """Emit prefetches: of the next panel, shared among several tiles, or of a single tile's own
        stream.

        Several tiles of a panel each prefetch some units of the next one, which the first of them
        would wait for: into L2, as two panels of bytes are more than L1. One tile alone reads a
        stream, of which some lines are enough: behind its end begins the weight that is used next,
        where constants are stored in their order.
        """
        # The last panel prefetches itself, so that no address behind the weight is formed.
        following = minimum(panel + 1, self.weight.shape[0] - 1)
        away = (following - panel) * self.blocks * self.packed_layout.block_bytes
        lines = range(
            0,
            self.packed_layout.unit_bytes
            + self.packed_layout.words_offset // self.packed_layout.num_units,
            CACHE_LINE_BYTES,
        )
        panel_prefetches = [Prefetch(self.weight, (at + away + n,), 2) for n in lines]
        tile_phase = unit % self.rows
        # Tiles share the units of the next panel, so that each line is requested once.
        is_own = logical_and(tile_phase >= first, tile_phase < first + rows)
        touched = range(0, self.packed_layout.unit_bytes, STREAM_PREFETCH_STRIDE_BYTES)
        stream = [Prefetch(self.weight, (at + STREAM_PREFETCH_BYTES + n,), 2) for n in touched]
        return IfThenElse(
            self.rows > rows, IfThenElse(is_own, seq(*panel_prefetches)), seq(*stream)
        )

    def body(self) -> Stmt:
        """Emit the quantisation of the data, where they are not multiplied as floats, and all
        panels.
        """
        inner = super().body()
        return (
            self.quantized_data.emit_before(self.rows, self.lanes, inner)
            if self.quantizes_data
            else inner
        )


class _UnitEmitter:
    """Emitter of the products of one unit of a block for a tile."""

    def __init__(
        self,
        kernel: _BlockDenseKernel,
        acc: Buffer,
        rows: int,
        first: PrimExpr,
        column: int,
        vectors: int,
        block: Var,
        unit: Var,
        base: Var,
        words_at: Var,
    ) -> None:
        self.kernel, self.acc, self.rows, self.first = kernel, acc, rows, first
        self.column, self.vectors, self.base, self.words_offset = column, vectors, base, words_at
        self.unit_index = block * kernel.packed_layout.num_units + unit
        """Index of the unit within a data row."""
        self.groups = VALUES_PER_UNIT // kernel.packed_layout.format.group_size
        count = const(rows * vectors)
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
                self.first + i, self.unit_index * VALUES_PER_UNIT + step * BYTES_PER_WORD
            )
            rows_of_products.append(LetStmt(value, data_word, seq(*updates)))
        stmt = seq(*rows_of_products)
        for v in reversed(range(self.vectors)):
            stmt = LetStmt(levels[v], kernel.multiplicand(self.words, step, v), stmt)
        return stmt

    def group_data_sum(self, row: int, group: int) -> PrimExpr:
        """Return the int32 sum of a group's data."""
        groups = self.kernel.quantized_data.group_sums.shape[-1]
        at = (self.first + row) * groups + self.unit_index * self.groups + group
        return self.kernel.quantized_data.group_sums[at]

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
        found_all = seq(*stmts)
        for i in range(self.rows):
            step = kernel.quantized_data.step[
                (self.first + i) * kernel.quantized_data.step.shape[-1] + self.unit_index
            ]
            if has_offset:
                offset_total = step * cast(self.group_data_sum(i, group), "float32")
                found_all = LetStmt(moved[i], broadcast(offset_total, kernel.lanes), found_all)
            found_all = LetStmt(steps[i], broadcast(step, kernel.lanes), found_all)
            if kernel.is_short:
                found_all = LetStmt(starts[i], self.initial_sum(i, group), found_all)
        return found_all


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
            at = (self.first + i) * kernel.data.shape[-1] + self.unit_index * VALUES_PER_UNIT + k
            n = const(i * self.vectors + v)
            factor = broadcast(kernel.data[at], kernel.lanes)
            result = _call_intrinsic("fma", kernel.real, factor, number, self.acc[n])
            stores.append(BufferStore(self.acc, result, (n,)))
        # Decoding costs several instructions: it is done once and shared by all rows of the tile.
        return LetStmt(number, decoded, seq(*stores))

    def emit_end_group(self, group: int) -> Stmt:
        """Emit nothing: sums are complete."""
        return seq()


def _call_intrinsic(name: str, dtype: str, *args: PrimExpr) -> PrimExpr:
    return call_intrin(name, *args, dtype=dtype)


def packed_layout_of(anchor: te.Tensor) -> PackedBlock:
    """Return the packed block layout of an anchor's weight."""
    attrs = anchor.op.attrs
    return PackedBlock(BLOCK_FORMATS_BY_NAME[str(attrs["format"])], int(str(attrs["panel"])))


def uses_int16_sums(of: PackedBlock, target: Target) -> bool:
    """Return whether a group's sums fit int16 and the target sums in int16."""
    levels = of.format.levels
    # Each of the two int16 halves of a lane adds half of the group's products.
    max_sum = ((1 << levels.bits) - 1) * int(MAX_INT8_LEVEL) * of.format.group_size // 2
    return (
        exact_dot_instruction(target) == NARROW_DOT_FEATURE
        and levels.bits <= MAX_NARROW_DOT_BITS
        and max_sum <= INT16_MAX
    )


def is_supported(anchor: te.Tensor, target: Target) -> bool:
    """Return whether the kernel covers a product: the weight's shape is static."""
    return all(isinstance(d, IntImm) for d in anchor_operands(anchor)[1].shape)


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision: as many rows as the registers hold accumulators for."""
    if uses_int16_sums(packed_layout_of(anchor), target):
        fixed = {"rows": WORDS_PER_UNIT, **fixed}
    return rows_in_registers(target, fixed, packed_layout_of(anchor).panel, BLOCK_SPARE_REGISTERS)


def panel_columns(product: MatmulSizes, target: Target) -> int:
    """Return the columns of a panel: enough vectors to hide the FMA latency of a single row."""
    return clamp_panel_width(MIN_PANEL_VECTORS * target.lanes("float32"), product, target)


def panel_knob(target: Target) -> Knob:
    """Return the knob of panel columns."""
    lanes = target.lanes("float32")
    return Knob(
        "panel", tuple(lanes * n for n in range(1, 2 * MIN_PANEL_VECTORS + 1)), "rows of a panel"
    )


FAMILY = Family(
    name=BLOCK_DENSE_TAG,
    accepts=is_supported,
    alternative_features=(DOT4_FEATURE, NARROW_DOT_FEATURE),
    search_space=search_space,
    default_decision=default_decision,
    build_unscheduled=kernel_builder(_BlockDenseKernel),
    default_panel_width=panel_columns,
    panel_width_knob=panel_knob,
    unscheduled_reason=(
        "each group of k is scaled as it is accumulated, and the accumulators have two types"
    ),
)
