"""Register-tile products of int8 data with panels of packed words; shared by the block-quantised
and int4 kernels.

One row takes all columns of a panel at once, to have sums enough that none waits for another;
beyond `wide_rows` tiles are two vectors wide, so that what is unpacked serves more rows.
"""

from __future__ import annotations

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace, descending_range
from ekiden.kernels.micro_kernels.epilogue import Epilogue, find_anchor
from ekiden.kernels.micro_kernels.register_tiles import balanced_row_tiles, column_mask
from ekiden.kernels.prim_builder import declare_parameters, product_of_dims, unflatten_row
from ekiden.kernels.spaces.batch_matmul import MAX_PRODUCT_TILE_ROWS
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, Stmt, seq

NARROW_TILE_VECTORS = 2
"""Default vectors of tiles with many rows."""


class WordPanelKernel:
    """Base class of kernels on word panels; subclasses emit the sums of a tile in `emit_blocks`."""

    def __init__(
        self,
        inputs: list[te.Tensor],
        outputs: list[te.Tensor],
        target: Target,
        decision: Decision,
        tag: str,
        panel: int,
    ) -> None:
        self.decision, self.panel, self.target = decision, panel, target
        self.anchor = find_anchor(outputs, tag)
        self.buffers = declare_parameters(inputs, outputs)
        self.operands = [self.buffers[t] for t in anchor_operands(self.anchor)]
        self.bytes = self.operands[0]
        """Buffer of the quantised data."""
        self.units = int(str(self.anchor.op.attrs["units"]))
        self.lanes = target.lanes("float32")
        self.rows = product_of_dims(self.bytes.shape[:-1])
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        self.leading = list(outputs[0].shape[:-1])

    @property
    def narrow_tile_vectors(self) -> int:
        """Return the vectors of tiles with many rows."""
        return NARROW_TILE_VECTORS

    def emit_blocks(
        self, acc: Buffer, rows: int, first: PrimExpr, panel: PrimExpr, column: int, vectors: int
    ) -> Stmt:
        """Emit all k blocks of a tile, accumulated in `acc`."""
        raise NotImplementedError

    def broadcast_word(self, row: PrimExpr, at: PrimExpr) -> PrimExpr:
        """Broadcast four bytes of the data to every lane."""
        start = row * self.bytes.shape[-1] + at
        bytes_ = self.bytes[ramp(start, 1, 4)].with_fields(dtype="int8x4")
        return broadcast(call_intrin("reinterpret", bytes_, dtype="int32"), self.lanes)

    def emit_tile(
        self, rows: int, first: PrimExpr, panel: PrimExpr, column: int, valid: int
    ) -> Stmt:
        """Emit the tiles of a panel from a column on, of which `valid` columns are stored."""
        is_wide = rows <= self.decision.int_value("wide_rows")
        max_vectors = self.panel // self.lanes if is_wide else self.narrow_tile_vectors
        vectors = min(max_vectors, -(-valid // self.lanes))
        acc = Buffer(
            "acc", (const(rows * vectors),), dt.with_lanes("float32", self.lanes), "register"
        )
        zero = broadcast(const(0.0, "float32"), self.lanes)
        count = rows * vectors
        clear = [BufferStore(acc, zero, (const(n),)) for n in range(count)]
        stores: list[Stmt] = []
        for n in range(count):
            i, v = divmod(n, vectors)
            num_valid = valid - v * self.lanes
            mask = None if num_valid >= self.lanes else column_mask(num_valid, self.lanes)
            row, at = first + i, panel * self.panel + (column + v * self.lanes)
            offset = row * self.units + at
            indices = unflatten_row(row, self.leading, at)
            stores.append(self.epilogue.emit_store(indices, offset, acc[const(n)], mask))
        work = self.emit_blocks(acc, rows, first, panel, column, vectors)
        tile_stmt = Allocate(acc, seq(*clear, work, *stores))
        width = vectors * self.lanes
        # Registers hold no more sums than one tile's: the other columns are a tile of their own.
        if valid <= width:
            return tile_stmt
        return seq(tile_stmt, self.emit_tile(rows, first, panel, column + width, valid - width))

    def emit_panels(self, count: int, begin: int, valid: int) -> Stmt:
        """Emit panels in parallel, with all rows of each."""
        panel = Var("p")
        inside = balanced_row_tiles(
            self.rows,
            self.decision.int_value("rows"),
            lambda rows, first: self.emit_tile(rows, first, panel, 0, valid),
        )
        return For(panel, const(begin), const(count), ForKind.PARALLEL, inside, {"grain": 1})

    def body(self) -> Stmt:
        """Emit the full panels, then the last one if it is narrower."""
        num_full, tail_columns = divmod(self.units, self.panel)
        stmts = [self.emit_panels(num_full, 0, self.panel)] if num_full else []
        if tail_columns:
            stmts.append(self.emit_panels(1, num_full, tail_columns))
        return seq(*stmts)


def anchor_operands(anchor: te.Tensor) -> tuple[te.Tensor, ...]:
    """Return the operands of an anchor."""
    operands = anchor.op.attrs["inputs"]
    assert isinstance(operands, tuple)
    return operands


def search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the search space."""
    rows = descending_range(MAX_PRODUCT_TILE_ROWS)
    return (
        Knob("rows", rows, "rows of a tile"),
        Knob("wide_rows", (*rows, 0), "rows up to which a tile has all columns of a panel"),
    )


def rows_in_registers(target: Target, fixed: Overrides, panel: int, spare: int) -> Decision:
    """Return the number of rows whose integer and float accumulators fit the registers, with all
    columns of a panel and with two vectors.

    Args:
        target: The processor.
        fixed: The overrides.
        panel: Columns of a panel.
        spare: Registers for other values.
    """
    vectors = panel // target.lanes("float32")
    # Factor 2: every result takes an int32 sum and a float32 accumulator.
    wide = max(1, (target.registers - spare) // (2 * vectors))
    rows = max(wide, wide * vectors // NARROW_TILE_VECTORS)
    return Decision.from_mapping(
        {"rows": fixed.get("rows", rows), "wide_rows": fixed.get("wide_rows", wide)}
    )


__all__ = [
    "NARROW_TILE_VECTORS",
    "WordPanelKernel",
    "anchor_operands",
    "rows_in_registers",
    "search_space",
]
