"""AMX tile products: accumulators in matrix registers, on the panels that register tiles use.

A register holds 16 rows of 64 bytes. A tile is one or two of them high and all columns of a panel
wide; some columns at a time, every 16 words of k:

    b = a panel's 16 rows of words, 16 columns        words of four bytes, of two of bfloat16
    for each 16 rows of the tile:
      a = 16 words of each row
      c[row, column] += a . b

The processor renames these registers: one for each factor is enough, and one or four sums are as
good as eight (Sapphire Rapids, from the first cache: 96-100 percent of its peak). Words left over
take registers of other shapes, so that nothing is read that is not there. A multiplication takes as
many cycles as there are rows: few cost little, and a tile is written once for any number of them.

The sums go through memory, from which vectors of them take what follows, as from a `staged` tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.arith import simplify
from ekiden.ir.dtype import itemsize, with_lanes
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import ExprLike, IntImm, PrimExpr, Var, const, minimum
from ekiden.kernels.micro_kernels.register_tiles import column_mask
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, BufferAddress, ramp
from ekiden.tir.stmt import (
    Allocate,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Stmt,
    seq,
)
from ekiden.tir.tensor_intrin.micro import StoreVector, SumLoop
from ekiden.topi.nn.weight_packing import DOT_WORD_BY_DTYPE

AMX_ROWS, AMX_WORDS, AMX_LANES = 16, 16, 16
"""Rows and words per row of an AMX register, and columns of an accumulator."""
AMX_WORD_BYTES = 4
NUM_TILE_REGISTERS = 8
MAX_TILE_LEVELS = 2
"""Maximum accumulator registers stacked vertically, which halves the panel loads."""
AMX_TILE_HEIGHTS = (MAX_TILE_LEVELS * AMX_ROWS, AMX_ROWS)
"""Domain of the rows of a full tile."""


@dataclass(frozen=True, slots=True)
class MatrixDotTypes:
    """Types of a product in matrix registers: dtypes of data, panel and accumulators, the target
    feature and the intrinsic.
    """

    data: str
    panel: str
    accumulator: str
    feature: str
    intrinsic: str


MATRIX_DOT_TYPES = (
    MatrixDotTypes("uint8", "int8", "int32", "amx_int8", "matrix_dot4_u8s8"),
    MatrixDotTypes("bfloat16", "bfloat16", "float32", "amx_bf16", "matrix_dot2_bf16"),
)
MATRIX_DOT_BY_DATA = {products.data: products for products in MATRIX_DOT_TYPES}
MATRIX_DOT_BY_PANEL = {products.panel: products for products in MATRIX_DOT_TYPES}
MATRIX_DOT_FEATURES = frozenset(products.feature for products in MATRIX_DOT_TYPES)


@dataclass(frozen=True, slots=True)
class MatrixTile:
    """AMX tile of at most `max_rows` rows, of which `num_rows` exist at run time, and the first
    `num_columns` columns of a panel.
    """

    max_rows: int
    num_rows: PrimExpr
    num_columns: int
    dtype: str


@dataclass(frozen=True, slots=True)
class MatrixOperands:
    """Operands of a tile: rows of `a` from `a_base` on, `a_stride` apart, and a panel of `b` from
    `b_base` on.
    """

    a: Buffer
    a_base: PrimExpr
    a_stride: PrimExpr
    b: Buffer
    b_base: PrimExpr


def emit_matrix_tile(
    tile: MatrixTile, loops: Sequence[SumLoop], factors: MatrixOperands, store: StoreVector
) -> Stmt:
    """Emit a tile's accumulation over k, and `store` on its results.

    Args:
        tile: The shape.
        loops: The loops of k, the innermost over words.
        factors: The operands.
        store: Stores a vector of sums.
    """
    one = _AmxTileBuilder(1, tile, loops, factors).emit_tile(store)
    if tile.max_rows <= AMX_ROWS:
        return one
    # Two levels share each load of the panel.
    both = _AmxTileBuilder(MAX_TILE_LEVELS, tile, loops, factors).emit_tile(store)
    # A static row count decides here, so that only one copy of the tile is emitted.
    if isinstance(tile.num_rows, IntImm):
        return both if tile.num_rows.value > AMX_ROWS else one
    return IfThenElse(tile.num_rows > AMX_ROWS, both, one)


def row_tiles_with_tail(
    total: PrimExpr,
    limit: int,
    body: Callable[[PrimExpr, PrimExpr], Stmt],
    kind: ForKind = ForKind.SERIAL,
) -> Stmt:
    """Return a loop over tiles of `limit` rows that cover [0, total), the last one partial.

    Args:
        total: Rows.
        limit: Rows of a tile.
        body: Takes the rows and the first row of a tile.
        kind: The kind of the loop.
    """
    size = simplify(total)
    # A single tile gets its height as a constant, so emit_matrix_tile emits one variant only.
    if isinstance(size, IntImm) and size.value <= limit:
        return body(size, const(0)) if size.value else seq()
    index, first = Var("t"), Var("first")
    exact = isinstance(size, IntImm) and size.value % limit == 0
    tile_height = const(limit) if exact else minimum(size - index * limit, const(limit))
    count = simplify((size + (limit - 1)) // limit)
    one = LetStmt(first, index * limit, body(tile_height, first))
    return For(index, const(0), count, kind, one)


def matrix_call(op: str, *args: ExprLike) -> Stmt:
    """Return a statement that calls a matrix-register intrinsic."""
    return Evaluate(call_intrin(op, *args, dtype="int32"))


class _AmxTileBuilder:
    """Builder of the statements of a tile of several AMX register rows."""

    def __init__(
        self, high: int, tile: MatrixTile, loops: Sequence[SumLoop], factors: MatrixOperands
    ) -> None:
        self.num_levels, self.tile, self.factors = high, tile, factors
        *self.outer, self.inner = loops
        extent = self.inner.extent
        assert isinstance(extent, IntImm), "weights are known"
        self.steps, self.remainder_words = divmod(extent.value, AMX_WORDS)
        # Operand registers come first, twice if the remainder needs a shape of its own; sums
        # follow.
        self.first_accumulator = (high + 1) * (2 if self.remainder_words else 1)
        self.num_column_registers = -(-tile.num_columns // AMX_LANES)
        # Eight tile registers in all: operands take `first` of them, the rest hold sums.
        max_columns = (NUM_TILE_REGISTERS - self.first_accumulator) // high
        self.columns = -(
            -self.num_column_registers // -(-self.num_column_registers // max_columns)
        )  # of a part, as equal as can be
        self.word_elements = DOT_WORD_BY_DTYPE[factors.b.dtype]
        size = const(high * self.num_column_registers * AMX_ROWS * AMX_LANES)
        self.rows = [self._level_rows(level) for level in range(high)]
        self.stage = Buffer("stage", (size,), tile.dtype, "local")

    def emit_tile(self, store: StoreVector) -> Stmt:
        """Emit the tile configuration, the accumulation part by part, and the stores."""
        group_starts = range(0, self.num_column_registers, self.columns)
        sums = [
            self.emit_column_group(at, min(self.columns, self.num_column_registers - at))
            for at in group_starts
        ]
        return Allocate(self.stage, seq(self.emit_configuration(), *sums, *self.emit_stores(store)))

    def _level_rows(self, level: int) -> PrimExpr:
        """Return the rows of a register row; the last one has the remainder."""
        if level < self.num_levels - 1:
            return const(AMX_ROWS)
        return simplify(self.tile.num_rows - level * AMX_ROWS)

    def emit_configuration(self) -> Stmt:
        """Emit the tile configuration: rows and row bytes of every register."""
        levels = range(self.num_levels)
        sizes: list[tuple[ExprLike, int]] = []
        # Shapes are set once per tile: a new configuration clears every register.
        for words in (AMX_WORDS, self.remainder_words) if self.remainder_words else (AMX_WORDS,):
            sizes += [(self.rows[n], words * AMX_WORD_BYTES) for n in levels]
            sizes.append((words, AMX_LANES * AMX_WORD_BYTES))
        # A register of sums is 16 rows of 16 4-byte words (64 bytes), the most that AMX allows.
        for level in levels:
            sizes += [(self.rows[level], AMX_LANES * AMX_WORD_BYTES)] * self.columns
        return matrix_call("matrix_shape", *(n for size in sizes for n in size))

    def accumulator_register(self, level: int, column: int) -> int:
        """Return the register number of an accumulator."""
        return self.first_accumulator + level * self.columns + column

    def emit_column_group(self, at: int, count: int) -> Stmt:
        """Emit the accumulation of `count` column registers from number `at` on."""
        every = [(level, n) for level in range(self.num_levels) for n in range(count)]
        # Each part clears its registers itself: they still hold the sums of the part before.
        zeros = [
            matrix_call("matrix_zero", self.accumulator_register(*position)) for position in every
        ]
        stores = []
        for level, n in every:
            value = call_intrin(
                "matrix_value", self.accumulator_register(level, n), dtype=self.sums_dtype
            )
            stage_index = ramp(self.stage_index(level, at + n, const(0)), 1, AMX_ROWS * AMX_LANES)
            stores.append(BufferStore(self.stage, value, (stage_index,)))
        return seq(*zeros, self.emit_k_nest(at, count), *stores)

    @property
    def sums_dtype(self) -> str:
        """Return the vector type of a whole register of sums."""
        return with_lanes(self.tile.dtype, AMX_ROWS * AMX_LANES)

    def stage_index(self, level: int, column: PrimExpr | int, row: PrimExpr) -> PrimExpr:
        """Return the staging-buffer index of a row of an accumulator tile."""
        return ((column + level * self.num_column_registers) * AMX_ROWS + row) * AMX_LANES

    def emit_k_nest(self, at: int, count: int) -> Stmt:
        """Emit the loops over all of k."""
        f, inner = self.factors, self.inner
        variables = [Var(f"k{i}") for i in range(len(self.outer))]
        a_base, b_base = f.a_base, f.b_base + at * (AMX_LANES * self.word_elements)
        for variable, loop in zip(variables, self.outer, strict=True):
            a_base = a_base + variable * loop.a_stride
            b_base = b_base + variable * loop.b_stride

        def emit_words(k: PrimExpr, is_remainder: bool) -> Stmt:
            """Emit the product of AMX_WORDS words of k, or of the remainder."""
            words = k * AMX_WORDS
            a, b = a_base + words * inner.a_stride, b_base + words * inner.b_stride
            return self.emit_step(a, b, count, is_remainder)

        k = Var("k")
        steps = [For(k, const(0), const(self.steps), ForKind.SERIAL, emit_words(k, False))]
        tail = [emit_words(const(self.steps), True)] if self.remainder_words else []
        body = seq(*(steps if self.steps else []), *tail)
        for variable, loop in zip(reversed(variables), reversed(self.outer), strict=True):
            body = For(variable, const(0), loop.extent, ForKind.SERIAL, body)
        return body

    def emit_step(self, a: PrimExpr, b: PrimExpr, count: int, is_remainder: bool) -> Stmt:
        """Emit the tile products of one group of words: panel registers are loaded once, data
        registers per register row.
        """
        # The remainder of k has shorter rows, so its operands use registers of another shape.
        f, begin = self.factors, self.num_levels + 1 if is_remainder else 0
        a_bytes = f.a_stride * itemsize(f.a.dtype)
        b_bytes = self.inner.b_stride * itemsize(f.b.dtype)
        done: list[Stmt] = []
        for level in range(self.num_levels):
            address = BufferAddress(f.a, (a + f.a_stride * (level * AMX_ROWS),), access="r")
            # The data's tiles are loaded once per step and reused for all columns; the panel's
            # register is reloaded per column.
            done.append(matrix_call("matrix_load", begin + level, address, a_bytes))
        for n in range(count):
            address = BufferAddress(f.b, (b + n * (AMX_LANES * self.word_elements),), access="r")
            done.append(matrix_call("matrix_load", begin + self.num_levels, address, b_bytes))
            done += [
                matrix_call(
                    MATRIX_DOT_BY_PANEL[f.b.dtype].intrinsic,
                    self.accumulator_register(level, n),
                    begin + level,
                    begin + self.num_levels,
                )
                for level in range(self.num_levels)
            ]
        return seq(*done)

    def emit_stores(self, store: StoreVector) -> list[Stmt]:
        """Emit `store` on every row of the accumulators."""
        loops: list[Stmt] = []
        for level in range(self.num_levels):
            row = Var("row")
            stores: list[Stmt] = []
            for n in range(self.num_column_registers):
                at = ramp(self.stage_index(level, n, row), 1, AMX_LANES)
                value = self.stage[at].with_fields(dtype=with_lanes(self.tile.dtype, AMX_LANES))
                num_valid = self.tile.num_columns - n * AMX_LANES
                # Columns behind `valid` are padding of the panel: the output has no place for them.
                mask = None if num_valid >= AMX_LANES else column_mask(num_valid, AMX_LANES)
                stores.append(store(row + level * AMX_ROWS, const(n * AMX_LANES), value, mask))
            loops.append(For(row, const(0), self.rows[level], ForKind.SERIAL, seq(*stores)))
        return loops


__all__ = [
    "AMX_LANES",
    "AMX_ROWS",
    "AMX_TILE_HEIGHTS",
    "AMX_WORDS",
    "AMX_WORD_BYTES",
    "MATRIX_DOT_BY_DATA",
    "MATRIX_DOT_BY_PANEL",
    "MATRIX_DOT_FEATURES",
    "MATRIX_DOT_TYPES",
    "NUM_TILE_REGISTERS",
    "MatrixDotTypes",
    "MatrixOperands",
    "MatrixTile",
    "emit_matrix_tile",
    "matrix_call",
    "row_tiles_with_tail",
]
