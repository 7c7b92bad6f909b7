"""Convolutions in NHWC or NDHWC with packed constant weights, as implicit matrix products over
output pixels.

    out[n, y, x, o] = sum over i, j, c of data[n, y*sy + i*dy - top, x*sx + j*dx - left, c] *
    weight[o // tile, i, j, c, o % tile]

The rows of a register tile are neighbouring output pixels. A 1x1 convolution without stride and
padding is a dense layer over all pixels. Others read from zero-padded copies of the data
(padding.py): of bands of lines, or of all where threads share the weights. Without dilation the
taps of one kernel row are contiguous, so k is two loops. Slices and rows of taps that read zeros
only are skipped (window_taps.py), and so are taps of a row that are loops of their own: zeros times
non-finite weights do not count.

    order=panel, a run of panels in parallel     order=row, lines or tiles of pixels in parallel
      for a block of k, for a panel:               for all panels:
        all tiles of pixels                          a tile of pixels, or a line of them

Blocks of k are parts of the innermost loop; their sums are stored in the result until the last one.
Data of uint8 and weights of int8 [o // tile, i, j, c // 4, o % tile, c % 4], or of int16 in words
of two, give int32, of bfloat16 in words of two float32; such data are padded already. Groups come
first in a weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, maximum
from ekiden.kernels.conv_geometry import ConvGeometry, conv_geometry_of
from ekiden.kernels.cost_model import choose_panel_width, max_register_rows, panel_width_knob
from ekiden.kernels.cpu.dense import CACHE_LINE_F32_WORDS, MAX_NARROW_TILE_ROWS
from ekiden.kernels.cpu.padding import BandLoop, emit_pad_copy, lines_per_band
from ekiden.kernels.cpu.window_taps import ResultRanges, TapRanges, bind_taps_in_bounds
from ekiden.kernels.decision import Decision
from ekiden.kernels.family import RANGE_EPILOGUE, Family, elements_per_word, product_dtype
from ekiden.kernels.micro_kernels.epilogue import Epilogue, find_anchor, operands_of
from ekiden.kernels.micro_kernels.matrix_tiles import (
    MATRIX_DOT_FEATURES,
    MatrixOperands,
    MatrixTile,
    emit_matrix_tile,
    row_tiles_with_tail,
)
from ekiden.kernels.micro_kernels.prefetch import PanelPrefetches
from ekiden.kernels.micro_kernels.register_tiles import (
    RegisterTile,
    balanced_row_tiles,
    emit_register_tile,
    narrowest_lanes,
)
from ekiden.kernels.prim_builder import (
    LetBindings,
    declare_parameters,
    kernel_builder,
    product_of_dims,
    wrap_in_lets,
)
from ekiden.kernels.quantized.int8_dot import create_widened_buffer, emit_widen_pairs
from ekiden.kernels.spaces.conv import default_decision, is_short_line, search_space
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import Allocate, For, ForKind, LetStmt, Stmt, seq
from ekiden.tir.tensor_intrin.micro import PartialSums, StoreVector, SumLoop

PACKED_CONV_TAG = "conv_nhwc_pack"
SLICE_AXIS, LINE_AXIS, PIXEL_AXIS = range(3)
"""Indices of the window axes: depth slices, lines, pixels."""
ALL_TAPS: TapRanges = {}
"""Tap restriction that covers all taps of every axis."""


class ConvKernel:
    """Builder of one convolution kernel, as an implicit matrix product over output pixels."""

    def __init__(
        self,
        inputs: list[te.Tensor],
        outputs: list[te.Tensor],
        target: Target,
        decision: Decision,
        tag: str = PACKED_CONV_TAG,
    ) -> None:
        self.decision = decision
        self.anchor = find_anchor(outputs, tag)
        self.buffers = declare_parameters(inputs, outputs)
        attrs = self.anchor.op.attrs
        data, weight = operands_of(self.anchor)
        self.data, self.weight = self.buffers[data], self.buffers[weight]
        self.geometry = self.conv_geometry()
        self.width = int(str(attrs["tile"]))
        self.channels = int(str(attrs["channels"]))
        self.lanes, self.target = target.lanes("float32"), target
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        self.word_channels = elements_per_word(weight)
        assert self.word_channels == 1 or not self.geometry.is_padded, (
            "words have their border already"
        )
        self.group_in = simplify(
            weight.shape[-2 if self.word_channels == 1 else -3] * self.word_channels
        )
        self.group_out = self.channels // self.geometry.groups
        self.taps = self.num_taps()
        self.uses_amx = decision.get("dot") in MATRIX_DOT_FEATURES
        self.source = self.data  # or the padded copy
        self.slice_stride: PrimExpr | None = (
            None  # of bands: from the lines of a slice to the next ones
        )
        self.k_block: PrimExpr = const(0)  # of k
        self.blocks = 1
        inner, block = self.kernel_row_loop().extent, decision.get("k_block", 0)
        if block:
            assert isinstance(inner, IntImm)
            self.blocks = self.geometry.kernel[0] * inner.value // int(block)
        unroll, l1_prefetch = decision.int_value("unroll"), decision.int_value("l1_prefetch")
        row, line = self.width * self.word_channels, CACHE_LINE_F32_WORDS * self.word_channels
        size = simplify(self.group_in * (self.taps * self.width))
        l2_prefetch = int(decision.get("l2_prefetch", 0))
        steps = simplify(size // (row * self.blocks))
        self.panel_prefetches = PanelPrefetches(
            self.weight, row, line, steps, size, l1_prefetch, l2_prefetch, unroll
        )

    def conv_geometry(self) -> ConvGeometry:
        """Return the anchor's convolution geometry."""
        return conv_geometry_of(self.anchor)

    def num_taps(self) -> int:
        """Return the number of kernel taps (window positions) of the weight."""
        return math.prod(self.geometry.kernel) * self.geometry.depth.kernel

    def reduction_loops(self, panel: WeightPanel, taps: TapRanges) -> list[SumLoop]:
        """Return the reduction loops over slices, kernel rows, taps and channels, fused where they
        are contiguous and restricted to the `taps` inside the data.
        """
        depth, (kh, kw), (dy, dx) = (
            self.geometry.depth,
            self.geometry.kernel,
            self.geometry.dilation,
        )
        *slices, row, pixel = self.geometry.data_strides(self.slice_stride)
        per_tap = self.group_in * self.width

        def loop_over_axis(axis: int, tap_count: int, data: PrimExpr, weights: PrimExpr) -> SumLoop:
            """Return the loop over a kernel axis: its taps inside of the image, or all."""
            begin, count = taps.get(axis, (const(0), const(tap_count)))
            return SumLoop(count, data, weights, begin)

        # A block of k is a range of the fused loop over taps and channels, so it needs no loops
        # over taps.
        if self.blocks > 1:
            block_extent = const(self.decision.int_value("k_block"))
            return [
                SumLoop(
                    block_extent, const(self.word_channels), const(self.width * self.word_channels)
                )
            ]
        loops: list[SumLoop] = []
        if depth.kernel > 1:
            loops.append(loop_over_axis(SLICE_AXIS, depth.kernel, slices[0], per_tap * (kh * kw)))
        if kh > 1:
            loops.append(loop_over_axis(LINE_AXIS, kh, row * dy, per_tap * kw))
        if kw == 1 or self.has_full_rows:
            return [*loops, self.kernel_row_loop()]
        return [*loops, loop_over_axis(PIXEL_AXIS, kw, pixel * dx, per_tap), self.channel_loop(1)]

    def kernel_row_loop(self) -> SumLoop:
        """Return the loop over the contiguous taps and channels of a kernel row."""
        return self.channel_loop(self.geometry.kernel[1] if self.has_full_rows else 1)

    @property
    def has_full_rows(self) -> bool:
        """Return whether the taps of a kernel row are contiguous."""
        return self.geometry.dilation[1] == 1 and self.geometry.groups == 1

    def bind_taps_in_bounds(
        self, positions: ResultRanges, results: int = 1
    ) -> tuple[LetBindings, TapRanges]:
        """Return let-bindings and tap ranges inside the data for `results` neighbouring results,
        for axes where some taps may read only padding.
        """
        windows = self.geometry.window_axes
        if self.blocks > 1 or not self.geometry.is_padded:
            return [], {}
        padded_axes = {n: at for n, at in positions.items() if windows[n].may_skip_taps(results)}
        # The taps of a row are one loop with the channels: none can be left out alone.
        if self.has_full_rows:
            padded_axes.pop(PIXEL_AXIS, None)
        return bind_taps_in_bounds(windows, padded_axes)

    def k_block_offsets(self) -> tuple[PrimExpr, PrimExpr]:
        """Return the offsets of the current block of k in a pixel's data and in a panel."""
        if self.blocks == 1:
            return const(0), const(0)
        inner, block_size = self.kernel_row_loop().extent, self.decision.int_value("k_block")
        blocks_per_row = simplify(inner // block_size)
        row = self.geometry.data_strides(self.slice_stride)[-2] * self.geometry.dilation[0]
        data = self.k_block // blocks_per_row * row + self.k_block % blocks_per_row * block_size
        return simplify(data), simplify(self.k_block * (block_size * self.width))

    def channel_loop(self, taps: int) -> SumLoop:
        """Return the loop over the channels of contiguous taps."""
        steps = simplify(self.group_in * taps // self.word_channels)
        return SumLoop(steps, const(self.word_channels), const(self.width * self.word_channels))

    def emit_tile(
        self,
        rows: int,
        indices: Callable[[PrimExpr], list[PrimExpr]],
        a_rows: list[PrimExpr],
        out: PrimExpr,
        panel: WeightPanel,
        number: PrimExpr | None = None,
        taps: TapRanges = ALL_TAPS,
    ) -> Stmt:
        """Emit a register tile of pixels with data offsets `a_rows`; `out` is the index of the
        first pixel, `number` the tile's index within the panel, if known.
        """
        # A last panel of few columns takes narrower vectors instead of computing lanes that are not
        # stored.
        lanes = (
            self.lanes
            if self.word_channels > 1
            else narrowest_lanes(panel.num_columns, self.target)
        )
        shape = RegisterTile(
            rows,
            -(-panel.num_columns // lanes),
            lanes,
            panel.num_columns,
            self.anchor.dtype,
            word=self.word_channels,
        )

        def store_partial_sums(
            i: PrimExpr, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None
        ) -> Stmt:
            """Store a vector of partial sums, which a later pass over channels continues."""
            at = panel.column + column
            return self.epilogue.emit_raw_store((out + i) * self.channels + at, at, value, mask)

        def load_partial_sums(i: PrimExpr, column: PrimExpr, lanes: int) -> PrimExpr:
            """Load a vector of the partial sums of previous blocks of k from the result."""
            at = panel.column + column
            return self.epilogue.load_raw((out + i) * self.channels + at, at, lanes)

        data, panel_begin = self.k_block_offsets()
        base = Var("base")
        lets, ahead = self.panel_prefetches.tile_prefetches(base, number)
        is_last = self.k_block.equal(self.blocks - 1)
        tile = emit_register_tile(
            shape,
            self.reduction_loops(panel, taps),
            self.source,
            [row + data for row in a_rows] if self.blocks > 1 else a_rows,
            self.weight,
            base,
            self.pixel_store(indices, out, panel),
            not self.epilogue.is_cheap,
            ahead,
            self.panel_prefetches.unroll,
            PartialSums(self.k_block > 0, load_partial_sums, store_partial_sums, is_last)
            if self.blocks > 1
            else None,
        )
        return wrap_in_lets([(base, simplify(panel.offset + panel_begin)), *lets], tile)

    def emit_amx_tile(
        self,
        pixel_count: PrimExpr,
        indices: Callable[[PrimExpr], list[PrimExpr]],
        base: PrimExpr,
        step: PrimExpr,
        out: PrimExpr,
        panel: WeightPanel,
    ) -> Stmt:
        """Emit a tile of `pixel_count` pixels, `step` elements apart, accumulated in AMX tile
        registers.
        """

        shape = MatrixTile(
            self.decision.int_value("rows"), pixel_count, panel.num_columns, self.anchor.dtype
        )
        factors = MatrixOperands(self.source, base, step, self.weight, simplify(panel.offset))
        return emit_matrix_tile(
            shape,
            self.reduction_loops(panel, ALL_TAPS),
            factors,
            self.pixel_store(indices, out, panel),
        )

    def pixel_store(
        self, indices: Callable[[PrimExpr], list[PrimExpr]], out: PrimExpr, panel: WeightPanel
    ) -> StoreVector:
        """Return the function that stores vectors of a tile's channels through the epilogue."""

        def store_vector(
            i: PrimExpr, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None
        ) -> Stmt:
            """Store a vector of a pixel's channels."""
            at = panel.column + column
            return self.emit_store(
                [*indices(i), at], (out + i) * self.channels + at, value, mask, panel
            )

        return store_vector

    def emit_store(
        self,
        output_index: list[PrimExpr],
        flat: PrimExpr,
        value: PrimExpr,
        mask: PrimExpr | None,
        panel: WeightPanel,
    ) -> Stmt:
        """Emit the store of a vector of a panel's results, through the epilogue; `flat` is the
        offset of the output index.
        """
        return self.epilogue.emit_store(
            self.geometry.result_indices(output_index), flat, value, mask
        )

    def has_flattened_pixels(self) -> bool:
        """Return whether tiles run over the flattened output pixels: for pointwise kernels, and for
        lines too short for good tiles.
        """
        width = self.geometry.out[2]
        return self.geometry.is_pointwise or (is_short_line(width) and not self.uses_amx)

    def pixel_coordinates(self, at: PrimExpr) -> list[PrimExpr]:
        """Return (image, line, column) of an output pixel index."""
        _, height, width, _ = self.geometry.out
        area = simplify(height * width)
        return [at // area, at % area // width, at % width]

    def emit_flat_tile(
        self, rows: int, first: PrimExpr, panel: WeightPanel, number: PrimExpr | None = None
    ) -> Stmt:
        """Emit a tile of output pixels from index `first`, across line ends."""
        pixel = self.geometry.data[3]

        def pixel_indices(i: PrimExpr) -> list[PrimExpr]:
            """Return the indices of a pixel by its number in the flat tile."""
            return self.pixel_coordinates(first + i)

        # Output pixels are input pixels in order: rows of the tile are one stride apart, even
        # across line ends.
        if self.geometry.is_pointwise:
            a_rows = [first * pixel + panel.channel + pixel * i for i in range(rows)]
            return self.emit_tile(rows, pixel_indices, a_rows, first, panel, number)
        starts = [Var(f"row{i}") for i in range(rows)]
        lets, taps = self.bind_taps_in_bounds(
            {SLICE_AXIS: self.depth_slice_range(first, first + (rows - 1))}
        )
        tile = self.emit_tile(rows, pixel_indices, list(starts), first, panel, number, taps)
        tile = wrap_in_lets(lets, tile)
        for i in reversed(range(rows)):
            tile = LetStmt(
                starts[i], self.first_tap_offset(*pixel_indices(const(i))) + panel.channel, tile
            )
        return tile

    def depth_slice_range(self, first: PrimExpr, last: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Return the range of depth slices between two pixels; all slices if they belong to two
        batch items.
        """
        deep = maximum(self.geometry.depth.num_results, const(1))
        low, high = (self.pixel_coordinates(pixel_index)[0] for pixel_index in (first, last))
        is_one = (low // deep).equal(high // deep)
        begin = if_then_else(is_one, low % deep, const(0))
        return begin, if_then_else(is_one, high % deep, deep - 1)

    def first_tap_offset(self, n: PrimExpr, y: PrimExpr, x: PrimExpr) -> PrimExpr:
        """Return the data offset of an output pixel's first tap."""
        sy, sx = self.geometry.strides
        height, width = self.geometry.padded_extents()
        image = self.geometry.first_padded_slice(n)
        return ((image * height + y * sy) * width + x * sx) * self.geometry.data[3]

    def tile_rows(self, panel: WeightPanel) -> int:
        """Return the rows of a tile for a panel; a narrow panel gets as many as the registers
        hold.
        """
        rows = self.decision.int_value("rows")
        if panel.num_columns == self.width:
            return rows
        dtype = product_dtype(self.data.dtype, operands_of(self.anchor)[1])
        vectors = -(-panel.num_columns // self.lanes)
        register_limit = max_register_rows(vectors, self.target, dtype)
        return max(rows, min(MAX_NARROW_TILE_ROWS, register_limit))

    def emit_flat_tiles(self, panel: WeightPanel, kind: ForKind) -> Stmt:
        """Emit all output pixels as one flattened loop of tiles."""
        n, height, width, _ = self.geometry.out
        total, number = simplify(n * height * width), Var("t")
        if self.uses_amx:
            return self.emit_flat_amx_tiles(total, kind, panel, lambda tile: tile)
        return balanced_row_tiles(
            total,
            self.tile_rows(panel),
            lambda rows, first: self.emit_flat_tile(rows, first, panel, number),
            kind,
            number,
        )

    def emit_flat_amx_tiles(
        self, total: PrimExpr, kind: ForKind, panel: WeightPanel, around: Callable[[Stmt], Stmt]
    ) -> Stmt:
        """Emit all output pixels as one flattened loop of AMX tiles; `around` wraps each tile."""
        pixel = self.geometry.data[3]

        def emit_short_tile(pixel_count: PrimExpr, first: PrimExpr) -> Stmt:
            """Return an AMX tile of `pixel_count` pixels from `first` on."""
            tile = self.emit_amx_tile(
                pixel_count,
                lambda i: self.pixel_coordinates(first + i),
                first * pixel + panel.channel,
                pixel,
                first,
                panel,
            )
            return around(tile)

        return row_tiles_with_tail(total, self.decision.int_value("rows"), emit_short_tile, kind)

    def line_coordinates(self, line: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """Return (image, line, data offset of its first tap) of a line index."""
        _, height, _, _ = self.geometry.out
        padded_height, padded_width = self.geometry.padded_extents()
        n, y = line // height, line % height
        row = padded_width * self.geometry.data[3]
        image = self.geometry.first_padded_slice(n)
        return n, y, (image * padded_height + y * self.geometry.strides[0]) * row

    def emit_line(self, panel: WeightPanel, line: PrimExpr) -> Stmt:
        """Emit the line of output pixels of an index; its coordinates are divided out once, as a
        division by a height that only the run knows takes as long as ten products of vectors.
        """
        n, y, offset = Var("n"), Var("y"), Var("offset")
        tiles = self.emit_line_tiles(panel, n, y, offset)
        lets = list(zip((n, y, offset), self.line_coordinates(line), strict=True))
        return wrap_in_lets(lets, tiles)

    def emit_line_tiles(
        self, panel: WeightPanel, n: PrimExpr, y: PrimExpr, offset: PrimExpr
    ) -> Stmt:
        """Emit the tiles of one output line, whose first tap is at data offset `offset`."""
        _, height, width, _ = self.geometry.out
        sx = self.geometry.strides[1]
        pixel = self.geometry.data[3]
        line, start = n * height + y, offset + panel.channel
        slice = n % maximum(self.geometry.depth.num_results, const(1))
        lets, taps = self.bind_taps_in_bounds({SLICE_AXIS: (slice, slice), LINE_AXIS: (y, y)})
        if self.uses_amx:
            step = simplify(pixel * sx)
            return row_tiles_with_tail(
                width,
                self.decision.int_value("rows"),
                lambda pixel_count, first: self.emit_amx_tile(
                    pixel_count,
                    lambda i: [n, y, first + i],
                    start + first * step,
                    step,
                    line * width + first,
                    panel,
                ),
            )

        def emit_row_tile(rows: int, first: PrimExpr) -> Stmt:
            """Return a register tile of `rows` pixels of a line; consecutive rows are a stride
            apart.
            """
            begin, step = Var("begin"), simplify(pixel * sx)
            a_rows = [begin + step * i for i in range(rows)]
            # Taps that lie in the padding for all pixels of the tile are left out instead of
            # multiplied by zeros.
            own, across = self.bind_taps_in_bounds({PIXEL_AXIS: (first, first + (rows - 1))}, rows)
            number, all_taps = line * width + first, {**taps, **across}
            tile = self.emit_tile(
                rows, lambda i: [n, y, first + i], a_rows, number, panel, taps=all_taps
            )
            # The reduction must not compute the offset of a tile again in each iteration.
            return wrap_in_lets([*own, (begin, simplify(start + first * step))], tile)

        return wrap_in_lets(lets, balanced_row_tiles(width, self.tile_rows(panel), emit_row_tile))

    def emit_panels(self, panels: int, make: Callable[[PrimExpr], WeightPanel]) -> Stmt:
        """Emit all pixels of some panels; threads share the panels, the lines or, where lines are
        few, both.
        """
        _, height, _, _ = self.geometry.out
        lines = simplify(self.geometry.out[0] * height)
        line, index = Var("line"), Var("p")
        flat = self.has_flattened_pixels()
        if self.parallelizes_panels(panels):

            def emit_panel(at: PrimExpr) -> Stmt:
                """Return all pixels of one panel: threads share the panels here."""
                panel = make(at)
                if flat:
                    return self.emit_flat_tiles(panel, ForKind.SERIAL)
                tiles = self.emit_line(panel, line)
                return For(line, const(0), lines, ForKind.SERIAL, tiles)

            return self.emit_panel_loop(panels, index, emit_panel)
        if flat:
            return self.emit_pixel_tiles_over_panels(panels, make)
        line_tiles = self.emit_line(make(index), line)
        # There are fewer lines than threads, so these share lines and panels together.
        if self.has_few_lines():
            line_and_panel = Var("part")
            inside = LetStmt(
                line, line_and_panel // panels, LetStmt(index, line_and_panel % panels, line_tiles)
            )
            total = simplify(lines * panels)
            return For(line_and_panel, const(0), total, ForKind.PARALLEL, inside, {"grain": 1})
        row = For(index, const(0), const(panels), ForKind.SERIAL, line_tiles)
        return For(line, const(0), lines, ForKind.PARALLEL, row, {"grain": 1})

    def emit_panel_loop(self, panels: int, index: Var, inside: Callable[[PrimExpr], Stmt]) -> Stmt:
        """Emit all panels in parallel; with blocks of k, each thread runs its panels block by
        block.
        """
        if self.blocks == 1:
            body = inside(index)
            return For(index, const(0), const(panels), ForKind.PARALLEL, body, {"grain": 1})
        chunk, count, block = Var("c"), min(self.target.cores, panels), Var("kb")
        self.k_block = block
        begin, end = chunk * panels // count, (chunk + 1) * panels // count
        # Partial sums wait in the result: a thread keeps its panels through all blocks of k.
        run = For(index, begin, simplify(end - begin), ForKind.SERIAL, inside(index))
        body = For(block, const(0), const(self.blocks), ForKind.SERIAL, run)
        return For(chunk, const(0), const(count), ForKind.PARALLEL, body, {"grain": 1})

    def has_few_lines(self) -> bool:
        """Return whether an image has fewer lines than there are cores, as with one spatial
        axis.
        """
        height = simplify(self.geometry.out[1] * self.geometry.depth.num_results)
        return isinstance(height, IntImm) and height.value < self.target.cores

    def parallelizes_panels(self, panels: int) -> bool:
        """Return whether the parallel loop is the one over panels."""
        return self.blocks > 1 or (
            panels >= self.target.cores and self.decision["order"] == "panel"
        )

    def emit_pixel_tiles_over_panels(
        self, panels: int, make: Callable[[PrimExpr], WeightPanel]
    ) -> Stmt:
        """Emit tiles of flattened pixels in parallel, with the loop over panels inside."""
        n, height, width, _ = self.geometry.out
        total, index = simplify(n * height * width), Var("p")
        panel = make(index)
        if self.uses_amx:

            def loop_over_panels(tile: Stmt) -> Stmt:
                """Repeat the tile for each panel of output channels."""
                return For(index, const(0), const(panels), ForKind.SERIAL, tile)

            return self.emit_flat_amx_tiles(total, ForKind.PARALLEL, panel, loop_over_panels)

        def emit_row_tile(rows: int, first: PrimExpr) -> Stmt:
            """Run all panels for the pixels of a tile."""
            return For(
                index,
                const(0),
                const(panels),
                ForKind.SERIAL,
                self.emit_flat_tile(rows, first, panel),
            )

        return balanced_row_tiles(total, self.tile_rows(panel), emit_row_tile, ForKind.PARALLEL)

    def group_panels(self) -> list[tuple[int, Callable[[PrimExpr], WeightPanel]]]:
        """Return, for every group, the full panels and the narrower last one: their number, and a
        function from index to panel.
        """
        full_panels, tail_columns = divmod(self.group_out, self.width)
        groups_of_panels = []
        if full_panels:
            groups_of_panels.append(self._panels_of_groups(full_panels, 0, self.width))
        if tail_columns:
            groups_of_panels.append(self._panels_of_groups(1, full_panels, tail_columns))
        return groups_of_panels

    def _panels_of_groups(
        self, panels: int, first: int, valid: int
    ) -> tuple[int, Callable[[PrimExpr], WeightPanel]]:
        groups = self.geometry.groups
        size = simplify(self.group_in * (self.taps * self.width))
        per_group = -(-self.group_out // self.width)

        def panel_at(index: PrimExpr) -> WeightPanel:
            """Return the panel of an index: its group and position in it. `first` counts the panels
            of earlier parts.
            """
            group, within = index // panels, index % panels + first
            # Constant for the common case: the quotient and remainder of a group would stay in the
            # loop.
            if groups == 1:
                group, within = const(0), index + first
            offset = simplify((group * per_group + within) * size)
            column = simplify(group * self.group_out + within * self.width)
            return WeightPanel(offset, column, simplify(group * self.group_in), valid)

        return panels * groups, panel_at

    def emit_bands(self) -> Stmt:
        """Emit all lines in bands, each from a zero-padded copy of its input lines."""
        bands = BandLoop(
            self.data, self.geometry, lines_per_band(self.geometry, self.target), self.lanes
        )
        self.source, self.slice_stride = bands.source, bands.slice

        def emit_line(n: PrimExpr, y: PrimExpr, offset: PrimExpr) -> Stmt:
            """Return a line of the result: each part's panels."""
            index = Var("p")
            return seq(
                *(
                    For(
                        index,
                        const(0),
                        const(count),
                        ForKind.SERIAL,
                        self.emit_line_tiles(make(index), n, y, offset),
                    )
                    for count, make in self.group_panels()
                )
            )

        return bands.emit_loop(emit_line)

    def body(self) -> Stmt:
        """Emit the padding or widening of the data, if needed, and all tiles."""
        panel_parts = self.group_panels()
        if (pairs := create_widened_buffer(self.data, self.decision)) is not None:
            size = product_of_dims(list(self.data.shape))
            wide = emit_widen_pairs(self.data, pairs, size, self.lanes, self.word_channels)
            self.source = pairs
            return Allocate(
                pairs,
                seq(wide, *(self.emit_panels(*panel_part) for panel_part in panel_parts)),
            )
        if not self.geometry.is_padded:
            return seq(*(self.emit_panels(*panel_part) for panel_part in panel_parts))
        shares_panels = self.has_few_lines() or any(
            self.parallelizes_panels(count) for count, _ in panel_parts
        )
        # Bands keep the padded lines in L2; the full padded copy below is for tiles that cross
        # lines or threads that share panels.
        if not self.has_flattened_pixels() and not shares_panels:
            return self.emit_bands()
        height, width = self.geometry.padded_extents()
        shape = (self.geometry.num_padded_slices(), height, width, self.geometry.data[3])
        self.source = Buffer("padded", shape, "float32")
        copy = emit_pad_copy(self.data, self.source, self.geometry, self.lanes)
        return Allocate(
            self.source,
            seq(copy, *(self.emit_panels(*panel_part) for panel_part in panel_parts)),
        )


@dataclass(frozen=True, slots=True)
class WeightPanel:
    """Panel of packed weights: its offset, the output channel of its first column, the first input
    channel of its group, and the number of used columns.
    """

    offset: PrimExpr
    column: PrimExpr
    channel: PrimExpr
    num_columns: int


FAMILY = Family(
    name=PACKED_CONV_TAG,
    search_space=search_space,
    default_decision=default_decision,
    build_unscheduled=kernel_builder(ConvKernel),
    unscheduled_reason=(
        "borders of tiles are code of their own, whose compilation takes twice as long; "
        "padded copies of bands of lines differ in size"
    ),
    default_panel_width=choose_panel_width,
    panel_width_knob=panel_width_knob,
    special_epilogues=(RANGE_EPILOGUE,),
    writes_strided_rows=True,
    stores_partial_sums=lambda decision: decision["k_block"] != 0,
)
