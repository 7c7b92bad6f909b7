"""Products of int8 data with panels of words of few bits, in tiles of registers: what kernels for
one way to keep scales share with those for another.

One row takes all columns of a panel at once, to have sums enough that none waits for another;
beyond `wide_rows` tiles are two vectors wide, so that what is unpacked serves more rows.
"""

from __future__ import annotations

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.kernels.decision import Choice, Decision, Fixed, Space, steps_down
from ekiden.kernels.micro_kernels.epilogue import Epilogue, find_anchor
from ekiden.kernels.micro_kernels.register_tiles import balanced_rows, column_mask
from ekiden.kernels.prim_builder import make_buffers, product, unflatten
from ekiden.kernels.spaces.product import MOST_ROWS
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, Stmt, seq

NARROW = 2
"""Vectors of tiles of many rows, by default."""


class WordPanels:
    """One kernel being built: `block` says what a tile sums."""

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
        self.buffers = make_buffers(inputs, outputs)
        self.operands = [self.buffers[t] for t in operands_of(self.anchor)]
        self.bytes = self.operands[0]
        """Of the data."""
        self.units = int(str(self.anchor.op.attrs["units"]))
        self.lanes = target.lanes("float32")
        self.rows = product(self.bytes.shape[:-1])
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        self.leading = list(outputs[0].shape[:-1])

    @property
    def narrow(self) -> int:
        """Vectors of tiles of many rows."""
        return NARROW

    def block(
        self, acc: Buffer, rows: int, first: PrimExpr, panel: PrimExpr, column: int, vectors: int
    ) -> Stmt:
        """All blocks of k for a tile: the sums in `acc` grow."""
        raise NotImplementedError

    def word(self, row: PrimExpr, at: PrimExpr) -> PrimExpr:
        """Four bytes of the data in every lane."""
        start = row * self.bytes.shape[-1] + at
        taken = self.bytes[ramp(start, 1, 4)].with_fields(dtype="int8x4")
        return broadcast(call_intrin("reinterpret", taken, dtype="int32"), self.lanes)

    def tile(self, rows: int, first: PrimExpr, panel: PrimExpr, column: int, valid: int) -> Stmt:
        """One tile from a column of a panel, of whose columns from there `valid` are stored."""
        is_wide = rows <= self.decision.number("wide_rows")
        wanted = self.panel // self.lanes if is_wide else self.narrow
        vectors = min(wanted, -(-valid // self.lanes))
        acc = Buffer(
            "acc", (const(rows * vectors),), dt.with_lanes("float32", self.lanes), "register"
        )
        zero = broadcast(const(0.0, "float32"), self.lanes)
        count = rows * vectors
        clear = [BufferStore(acc, zero, (const(n),)) for n in range(count)]
        stores: list[Stmt] = []
        for n in range(count):
            i, v = divmod(n, vectors)
            left = valid - v * self.lanes
            mask = None if left >= self.lanes else column_mask(left, self.lanes)
            row, at = first + i, panel * self.panel + (column + v * self.lanes)
            place = row * self.units + at
            indices = unflatten(row, self.leading, at)
            stores.append(self.epilogue.store(indices, place, acc[const(n)], mask))
        work = self.block(acc, rows, first, panel, column, vectors)
        made = Allocate(acc, seq(*clear, work, *stores))
        width = vectors * self.lanes
        if valid <= width:
            return made
        return seq(made, self.tile(rows, first, panel, column + width, valid - width))

    def panels(self, count: int, begin: int, valid: int) -> Stmt:
        """Some panels in parallel, all rows of each."""
        panel = Var("p")
        inside = balanced_rows(
            self.rows,
            self.decision.number("rows"),
            lambda rows, first: self.tile(rows, first, panel, 0, valid),
        )
        return For(panel, const(begin), const(count), ForKind.PARALLEL, inside, {"grain": 1})

    def body(self) -> Stmt:
        """Whole panels, then the last one if it is narrower."""
        whole, rest = divmod(self.units, self.panel)
        parts = [self.panels(whole, 0, self.panel)] if whole else []
        if rest:
            parts.append(self.panels(1, whole, rest))
        return seq(*parts)


def operands_of(anchor: te.Tensor) -> tuple[te.Tensor, ...]:
    """What an anchor multiplies."""
    found = anchor.op.attrs["inputs"]
    assert isinstance(found, tuple)
    return found


def space(anchor: te.Tensor, target: Target) -> Space:
    """What may be chosen."""
    rows = steps_down(MOST_ROWS)
    return (
        Choice("rows", rows, "rows of a tile"),
        Choice("wide_rows", (*rows, 0), "rows up to which a tile has all columns of a panel"),
    )


def rows_in_registers(target: Target, fixed: Fixed, panel: int, spare: int) -> Decision:
    """As many rows as registers hold sums of, whole numbers and floats, with all columns; and as
    many sums with two vectors. `spare` registers have other things."""
    vectors = panel // target.lanes("float32")
    wide = max(1, (target.registers - spare) // (2 * vectors))
    rows = max(wide, wide * vectors // NARROW)
    return Decision.of({"rows": fixed.get("rows", rows), "wide_rows": fixed.get("wide_rows", wide)})


__all__ = ["NARROW", "WordPanels", "operands_of", "rows_in_registers", "space"]
