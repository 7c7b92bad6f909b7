"""Dense layers of bytes whose panels have words behind the others, with a list of the words of data
that those are multiplied with (words.py).

    for a run of panels, or one, in parallel:
      for a panel, for a tile of rows:         or the other way round, by `order`
        for a step of k:                       with prefetches as in `dense`
          acc[i, v] += word of data[i, k] . words of weight[p, k, v]
        for a listed word n:
          acc[i, v] += word of data[i, places[p, n]] . words of weight[p, k / 4 + n, v]

All other packed layers are schedules (dense.py).
"""

from __future__ import annotations

from dataclasses import replace

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.prim import IntImm, Min, PrimExpr, Var, const, is_const
from ekiden.kernels.cost_model import CACHE_LINE_BYTES, hides_prefetches, most_rows
from ekiden.kernels.cpu import dense
from ekiden.kernels.cpu.dense import MAX_NARROW_TILE_ROWS
from ekiden.kernels.decision import Decision
from ekiden.kernels.family import NARROW
from ekiden.kernels.micro_kernels.epilogue import Epilogue, find_anchor, operands_of
from ekiden.kernels.micro_kernels.prefetch import Prefetches, bound
from ekiden.kernels.micro_kernels.register_tiles import (
    IndexedSteps,
    KLoop,
    Tile,
    balanced_rows,
    compute_tile,
)
from ekiden.kernels.prim_builder import make_buffers, product, tiled_builder, unflatten
from ekiden.kernels.quantized.int8_dot import widen_pairs, widened_buffer
from ekiden.target import Target
from ekiden.tir.stmt import Allocate, For, ForKind, IfThenElse, Stmt, seq
from ekiden.topi.nn.weights import WORD


class _IndexedDense:
    """A builder of one kernel."""

    def __init__(
        self, inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, decision: Decision
    ) -> None:
        self.anchor = find_anchor(outputs, "dense_pack")
        self.buffers = make_buffers(inputs, outputs)
        attrs = self.anchor.op.attrs
        data, weight = operands_of(self.anchor)
        self.a, self.b = self.buffers[data], self.buffers[weight]
        self.units, self.width = int(str(attrs["units"])), int(str(attrs["tile"]))
        self.lanes = target.lanes("float32")
        self.target, self.decision = target, decision
        self.rows, self.k = product(data.shape[:-1]), data.shape[-1]
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        self.leading = list(outputs[0].shape[:-1])
        self.pairs = widened_buffer(self.a, decision)
        index_tensor = attrs["places"]
        assert isinstance(index_tensor, te.Tensor)
        count = index_tensor.shape[1]
        assert isinstance(count, IntImm), "weights are known"
        self.places, self.listed = self.buffers[index_tensor], count.value
        self.panel_size = simplify((self.k + self.listed * WORD) * self.width)
        self.step = self.width * WORD
        self.steps = simplify(self.k // WORD)
        numbers = (decision.number(name) for name in ("own", "spread", "unroll"))
        self.near = Prefetches(
            self.b, self.step, CACHE_LINE_BYTES, self.steps, self.panel_size, *numbers
        )

    def tile(
        self, rows: int, first: PrimExpr, panel: PrimExpr, valid: int, number: PrimExpr | None
    ) -> Stmt:
        """Emit one tile of `rows` rows and one panel.

        Args:
            rows: Rows of the tile.
            first: The first row.
            panel: The panel.
            valid: Columns that are stored.
            number: The tile among those of the panel, if the next tile has the same panel.
        """
        dot, vectors = str(self.decision["dot"]), -(-valid // self.lanes)
        shape = Tile(rows, vectors, self.lanes, valid, self.anchor.dtype, dot)

        def store(i: PrimExpr, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None) -> Stmt:
            """Store a vector of the result through the epilogue."""
            row, at = first + i, panel * self.width + column
            indices = unflatten(row, self.leading, at)
            return self.epilogue.store(indices, row * self.units + at, value, mask)

        prefetches, base = self.near, Var("base")
        # The decision knows the rows of static tiles only; short dynamic ones skip the prefetches
        # here.
        if not isinstance(self.rows, IntImm) and not self.has_time(rows, vectors):
            prefetches = replace(prefetches, own=0)
        lets, ahead = prefetches.of(base, number)
        tile_stmt = compute_tile(
            shape,
            [KLoop(self.steps, const(WORD), const(self.step))],
            self.a if self.pairs is None else self.pairs,
            [(first + i) * self.k for i in range(rows)],
            self.b,
            base,
            store,
            not self.epilogue.is_light,
            ahead,
            prefetches.unroll,
            listed=self.rest(panel),
        )
        return bound([(base, simplify(panel * self.panel_size)), *lets], tile_stmt)

    def has_time(self, rows: int, vectors: int) -> bool:
        """Return whether a tile has time to prefetch its panel."""
        return hides_prefetches(rows, vectors, self.target, NARROW)

    def rest(self, panel: PrimExpr) -> IndexedSteps:
        """Return the rows of a panel behind those for all words of data."""
        origin = panel * self.panel_size + self.k * self.width
        begin = panel * self.listed
        return IndexedSteps(self.listed, self.places, begin, origin, const(WORD), const(self.step))

    def row_tiles(self, panels: PrimExpr, begin: PrimExpr, valid: int, kind: ForKind) -> Stmt:
        """Emit row tiles outside, panels [begin, begin + panels) inside."""
        panel = Var("p")

        def body(rows: int, first: PrimExpr) -> Stmt:
            tile = self.tile(rows, first, panel, valid, None)
            return For(panel, begin, panels, ForKind.SERIAL, tile)

        return balanced_rows(self.rows, self.limit(valid), body, kind)

    def panel_tiles(self, panel: PrimExpr, valid: int) -> Stmt:
        """Emit all rows of one panel."""
        number = Var("t")

        def body(rows: int, first: PrimExpr) -> Stmt:
            return self.tile(rows, first, panel, valid, number)

        return balanced_rows(self.rows, self.limit(valid), body, ForKind.SERIAL, number)

    def limit(self, valid: int) -> int:
        """Return the most rows of a tile; of a narrow panel as many as there are registers for."""
        rows = self.decision.number("rows")
        if valid == self.width:
            return rows
        register_rows = most_rows(-(-valid // self.lanes), self.target, NARROW)
        return max(rows, min(MAX_NARROW_TILE_ROWS, register_rows))

    def any_panel(self, panel: PrimExpr) -> Stmt:
        """Emit all rows of a panel, which may be the narrow one."""
        num_full, tail_columns = divmod(self.units, self.width)
        if tail_columns == 0:
            return self.panel_tiles(panel, self.width)
        narrow = self.panel_tiles(const(num_full), tail_columns)
        if num_full == 0:
            return narrow
        return IfThenElse(panel < num_full, self.panel_tiles(panel, self.width), narrow)

    def run(self, begin: PrimExpr, end: PrimExpr, is_end: PrimExpr, kind: ForKind) -> Stmt:
        """Emit row tiles of panels [begin, end); the narrow one is among them if `is_end`."""
        num_full, tail_columns = divmod(self.units, self.width)
        stmts = []
        if num_full:
            count = simplify(
                (Min(end, const(num_full), end.dtype) if tail_columns else end) - begin
            )
            stmts.append(self.row_tiles(count, begin, self.width, kind))
        if tail_columns:
            narrow = self.row_tiles(const(1), const(num_full), tail_columns, kind)
            stmts.append(narrow if is_const(is_end, 1) else IfThenElse(is_end, narrow))
        return seq(*stmts)

    def body(self) -> Stmt:
        """Emit all panels, on data widened before if their words are multiplied in pairs."""
        if self.pairs is None:
            return self.all_panels()
        wide = widen_pairs(self.a, self.pairs, simplify(self.rows * self.k), self.lanes)
        return Allocate(self.pairs, seq(wide, self.all_panels()))

    def all_panels(self) -> Stmt:
        """Emit all panels, of which the last one may be narrower."""
        panels, always = -(-self.units // self.width), const(True, "bool")
        if self.decision["split"] == "rows":
            return self.run(const(0), const(panels), always, ForKind.PARALLEL)
        if self.decision["order"] == "panel":
            panel = Var("p")
            inside = self.any_panel(panel)
            return For(panel, const(0), const(panels), ForKind.PARALLEL, inside, {"grain": 1})
        chunk, count = Var("c"), min(self.target.cores, panels)
        # Each core walks a contiguous run of panels, whose sizes differ by at most one.
        begin, end = chunk * panels // count, (chunk + 1) * panels // count
        last = chunk.equal(count - 1) if count > 1 else always
        inside = self.run(begin, end, last, ForKind.SERIAL)
        return For(chunk, const(0), const(count), ForKind.PARALLEL, inside, {"grain": 1})


def has_word_list(anchor: te.Tensor) -> bool:
    """Return whether sums of two products of a layer fit int16, and there may be listed words."""
    return "places" in anchor.op.attrs


FAMILY = replace(
    dense.FAMILY,
    build=tiled_builder(_IndexedDense),
    by_hand=has_word_list,
    why="sums go on over words of data that a list says: no step cuts a sum by where its terms lie",
)

__all__ = ["FAMILY"]
