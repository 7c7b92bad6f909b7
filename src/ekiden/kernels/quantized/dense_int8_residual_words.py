"""Int8 dense layers whose large weight pairs are split into residual words, so that pair sums fit
int16 (int8_dot.py).

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
from ekiden.kernels.cost_model import CACHE_LINE_BYTES, can_hide_prefetches, max_register_rows
from ekiden.kernels.cpu import dense
from ekiden.kernels.cpu.dense import MAX_NARROW_TILE_ROWS
from ekiden.kernels.decision import Decision
from ekiden.kernels.family import INT16_PAIR_SUMS
from ekiden.kernels.micro_kernels.epilogue import Epilogue, find_anchor, operands_of
from ekiden.kernels.micro_kernels.prefetch import PanelPrefetches, wrap_in_lets
from ekiden.kernels.micro_kernels.register_tiles import (
    ReductionLoop,
    RegisterTile,
    ResidualWords,
    balanced_row_tiles,
    emit_register_tile,
)
from ekiden.kernels.prim_builder import (
    declare_parameters,
    kernel_builder,
    product_of_dims,
    unflatten_row,
)
from ekiden.kernels.quantized.int8_dot import create_widened_buffer, emit_widen_pairs
from ekiden.target import Target
from ekiden.tir.stmt import Allocate, For, ForKind, IfThenElse, Stmt, seq
from ekiden.topi.nn.weights import DOT_WORD_CHANNELS


class _ResidualDenseKernel:
    """Builder of one int8 dense kernel with residual words."""

    def __init__(
        self, inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, decision: Decision
    ) -> None:
        self.anchor = find_anchor(outputs, "dense_pack")
        self.buffers = declare_parameters(inputs, outputs)
        attrs = self.anchor.op.attrs
        data, weight = operands_of(self.anchor)
        self.a, self.b = self.buffers[data], self.buffers[weight]
        self.units, self.width = int(str(attrs["units"])), int(str(attrs["tile"]))
        self.lanes = target.lanes("float32")
        self.target, self.decision = target, decision
        self.rows, self.k = product_of_dims(data.shape[:-1]), data.shape[-1]
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        self.leading = list(outputs[0].shape[:-1])
        self.widened_data = create_widened_buffer(self.a, decision)
        index_tensor = attrs["places"]
        assert isinstance(index_tensor, te.Tensor)
        count = index_tensor.shape[1]
        assert isinstance(count, IntImm), "weights are known"
        self.word_indices, self.num_residual_words = self.buffers[index_tensor], count.value
        self.panel_size = simplify(
            (self.k + self.num_residual_words * DOT_WORD_CHANNELS) * self.width
        )
        self.panel_step_elements = self.width * DOT_WORD_CHANNELS
        self.steps = simplify(self.k // DOT_WORD_CHANNELS)
        numbers = (decision.int_value(name) for name in ("own", "spread", "unroll"))
        self.panel_prefetches = PanelPrefetches(
            self.b,
            self.panel_step_elements,
            CACHE_LINE_BYTES,
            self.steps,
            self.panel_size,
            *numbers,
        )

    def emit_tile(
        self, rows: int, first: PrimExpr, panel: PrimExpr, valid: int, number: PrimExpr | None
    ) -> Stmt:
        """Emit one tile of `rows` rows on one panel.

        Args:
            rows: Rows of the tile.
            first: The first row.
            panel: The panel.
            valid: Columns that are stored.
            number: The tile among those of the panel, if the next tile has the same panel.
        """
        dot, vectors = str(self.decision["dot"]), -(-valid // self.lanes)
        shape = RegisterTile(rows, vectors, self.lanes, valid, self.anchor.dtype, dot)

        def store_vector(
            i: PrimExpr, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None
        ) -> Stmt:
            """Store a vector of the result through the epilogue."""
            row, at = first + i, panel * self.width + column
            indices = unflatten_row(row, self.leading, at)
            return self.epilogue.emit_store(indices, row * self.units + at, value, mask)

        prefetches, base = self.panel_prefetches, Var("base")
        # The decision knows the rows of static tiles only; short dynamic ones skip the prefetches
        # here.
        if not isinstance(self.rows, IntImm) and not self.can_hide_prefetches(rows, vectors):
            prefetches = replace(prefetches, row_distance=0)
        lets, ahead = prefetches.tile_prefetches(base, number)
        tile_stmt = emit_register_tile(
            shape,
            [ReductionLoop(self.steps, const(DOT_WORD_CHANNELS), const(self.panel_step_elements))],
            self.a if self.widened_data is None else self.widened_data,
            [(first + i) * self.k for i in range(rows)],
            self.b,
            base,
            store_vector,
            not self.epilogue.is_cheap,
            ahead,
            prefetches.unroll,
            residuals=self.residual_words(panel),
        )
        return wrap_in_lets([(base, simplify(panel * self.panel_size)), *lets], tile_stmt)

    def can_hide_prefetches(self, rows: int, vectors: int) -> bool:
        """Return whether a tile has time to prefetch its panel."""
        return can_hide_prefetches(rows, vectors, self.target, INT16_PAIR_SUMS)

    def residual_words(self, panel: PrimExpr) -> ResidualWords:
        """Return a panel's residual words."""
        # Listed words follow the k / 4 rows of plain words, each `width` * 4 bytes long.
        origin = panel * self.panel_size + self.k * self.width
        begin = panel * self.num_residual_words
        return ResidualWords(
            self.num_residual_words,
            self.word_indices,
            begin,
            origin,
            const(DOT_WORD_CHANNELS),
            const(self.panel_step_elements),
        )

    def emit_row_tiles(self, panels: PrimExpr, begin: PrimExpr, valid: int, kind: ForKind) -> Stmt:
        """Emit row tiles outside, panels [begin, begin + panels) inside."""
        panel = Var("p")

        def emit_panels(rows: int, first: PrimExpr) -> Stmt:
            tile = self.emit_tile(rows, first, panel, valid, None)
            return For(panel, begin, panels, ForKind.SERIAL, tile)

        return balanced_row_tiles(self.rows, self.max_tile_rows(valid), emit_panels, kind)

    def emit_panel(self, panel: PrimExpr, valid: int) -> Stmt:
        """Emit all rows of one panel."""
        number = Var("t")

        def emit_row_tile(rows: int, first: PrimExpr) -> Stmt:
            return self.emit_tile(rows, first, panel, valid, number)

        return balanced_row_tiles(
            self.rows, self.max_tile_rows(valid), emit_row_tile, ForKind.SERIAL, number
        )

    def max_tile_rows(self, valid: int) -> int:
        """Return the maximum rows of a tile; a narrow panel gets as many as the registers hold."""
        rows = self.decision.int_value("rows")
        if valid == self.width:
            return rows
        register_rows = max_register_rows(-(-valid // self.lanes), self.target, INT16_PAIR_SUMS)
        return max(rows, min(MAX_NARROW_TILE_ROWS, register_rows))

    def emit_any_panel(self, panel: PrimExpr) -> Stmt:
        """Emit all rows of a panel, which may be the last, narrower one."""
        num_full, tail_columns = divmod(self.units, self.width)
        if tail_columns == 0:
            return self.emit_panel(panel, self.width)
        narrow = self.emit_panel(const(num_full), tail_columns)
        if num_full == 0:
            return narrow
        return IfThenElse(panel < num_full, self.emit_panel(panel, self.width), narrow)

    def emit_panel_run(
        self, begin: PrimExpr, end: PrimExpr, includes_last_panel: PrimExpr, kind: ForKind
    ) -> Stmt:
        """Emit row tiles of panels [begin, end); `includes_last_panel` includes the narrow one."""
        num_full, tail_columns = divmod(self.units, self.width)
        stmts = []
        if num_full:
            count = simplify(
                (Min(end, const(num_full), end.dtype) if tail_columns else end) - begin
            )
            stmts.append(self.emit_row_tiles(count, begin, self.width, kind))
        if tail_columns:
            narrow = self.emit_row_tiles(const(1), const(num_full), tail_columns, kind)
            stmts.append(
                narrow
                if is_const(includes_last_panel, 1)
                else IfThenElse(includes_last_panel, narrow)
            )
        return seq(*stmts)

    def body(self) -> Stmt:
        """Emit the widening of the data to int16 pairs, if needed, and all panels."""
        if self.widened_data is None:
            return self.emit_all_panels()
        size = simplify(self.rows * self.k)
        wide = emit_widen_pairs(self.a, self.widened_data, size, self.lanes, self.b.dtype)
        return Allocate(self.widened_data, seq(wide, self.emit_all_panels()))

    def emit_all_panels(self) -> Stmt:
        """Emit all panels; the last one may be narrower."""
        panels, always = -(-self.units // self.width), const(True, "bool")
        if self.decision["split"] == "rows":
            return self.emit_panel_run(const(0), const(panels), always, ForKind.PARALLEL)
        if self.decision["order"] == "panel":
            panel = Var("p")
            inside = self.emit_any_panel(panel)
            return For(panel, const(0), const(panels), ForKind.PARALLEL, inside, {"grain": 1})
        chunk, count = Var("c"), min(self.target.cores, panels)
        # Each core walks a contiguous run of panels, whose sizes differ by at most one.
        begin, end = chunk * panels // count, (chunk + 1) * panels // count
        # The narrow panel is the last one, so only the last core's run contains it.
        last = chunk.equal(count - 1) if count > 1 else always
        inside = self.emit_panel_run(begin, end, last, ForKind.SERIAL)
        return For(chunk, const(0), const(count), ForKind.PARALLEL, inside, {"grain": 1})


def has_residual_words(anchor: te.Tensor) -> bool:
    """Return whether a layer's pair sums fit int16, with residual words for the pairs that would
    not.
    """
    return "places" in anchor.op.attrs


FAMILY = replace(
    dense.FAMILY,
    build_unscheduled=kernel_builder(_ResidualDenseKernel),
    is_unscheduled=has_residual_words,
    unscheduled_reason=(
        "the summed axis runs over words of data given by a list; no primitive splits a "
        "sum by the address of its terms"
    ),
)

__all__ = ["FAMILY"]
