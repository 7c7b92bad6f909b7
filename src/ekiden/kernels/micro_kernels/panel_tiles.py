"""Tiles of panels whose sums a micro-kernel emits: column parts, accumulators, masks and stores.

Tiles of at most `wide_rows` rows take all columns of a panel at once, to have sums enough that none
waits for another; others a few vectors at a time, so that what is unpacked serves more rows.
"""

from __future__ import annotations

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, const
from ekiden.kernels.micro_kernels.register_tiles import column_mask
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, Stmt, seq
from ekiden.tir.tensor_intrin.micro import DescribedTile, Options

NARROW_TILE_VECTORS = 2
"""Vectors of tiles with many rows."""


class PanelTile:
    """Base class of the emitter of one tile; subclasses emit the sums in `emit_sums`."""

    def __init__(self, tile: DescribedTile, options: Options) -> None:
        self.tile, self.rows, self.lanes = tile, tile.rows, options["lanes"]
        self.panel, self.wide_rows = options["panel"], options["wide_rows"]
        self.narrow_vectors = options["narrow_vectors"]
        self.kind = dt.with_lanes("int32", self.lanes)
        self.real = dt.with_lanes("float32", self.lanes)

    def emit_sums(self, acc: Buffer, column: int, vectors: int) -> Stmt:
        """Emit the sums of all k, added to the accumulators; `column` is the first of the panel."""
        raise NotImplementedError

    def emit(self) -> Stmt:
        """Emit the tiles of all columns, one after the other."""
        wide = self.panel // self.lanes
        limit = wide if self.rows <= self.wide_rows else self.narrow_vectors
        width = limit * self.lanes
        columns = range(0, self.tile.columns, width)
        return seq(*(self.emit_columns(c, min(width, self.tile.columns - c)) for c in columns))

    def emit_columns(self, column: int, valid: int) -> Stmt:
        """Emit the tile of `valid` columns from a column on."""
        vectors = -(-valid // self.lanes)
        count = self.rows * vectors
        acc = Buffer("acc", (const(count),), self.real, "register")
        zero = broadcast(const(0.0, "float32"), self.lanes)
        clear = [BufferStore(acc, zero, (const(n),)) for n in range(count)]
        stores: list[Stmt] = []
        for n in range(count):
            i, v = divmod(n, vectors)
            num_valid = valid - v * self.lanes
            mask = None if num_valid >= self.lanes else column_mask(num_valid, self.lanes)
            at = const(column + v * self.lanes)
            stores.append(self.tile.store(const(i), at, acc[const(n)], mask))
        return Allocate(acc, seq(*clear, self.emit_sums(acc, column, vectors), *stores))

    def row_element(self, name: str, row: int, at: PrimExpr) -> PrimExpr:
        """Return the element `at` of an operand of rows."""
        operand = self.tile.operands[name]
        return operand.buffer[operand.row_offsets[row] + at]

    def broadcast_word(self, row: int, k: PrimExpr) -> PrimExpr:
        """Broadcast four bytes of a row of the data, from k on, to every lane."""
        operand = self.tile.operands["data"]
        bytes_ = operand.buffer[ramp(operand.row_offsets[row] + k, 1, 4)].with_fields(
            dtype="int8x4"
        )
        return broadcast(call_intrin("reinterpret", bytes_, dtype="int32"), self.lanes)


__all__ = ["NARROW_TILE_VECTORS", "PanelTile"]
