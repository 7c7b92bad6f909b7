"""Depthwise convolutions in NHWC: one filter per channel, a vector of channels at a time.

    out[n, y, x, c] = sum over i, j of
        data[n, y*sy + i*dy - top, x*sx + j*dx - left, c] * weight[i, j, c]

A tile is several neighbouring pixels of one line and one vector of channels, accumulated in
registers over all taps. Such a convolution is memory-bound; the tile only reuses each weight vector
for several pixels. uint8 data become float32 when they are copied or loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.prim import IntImm, PrimExpr, Var, const
from ekiden.kernels.conv_geometry import ConvGeometry, conv_geometry_of
from ekiden.kernels.cpu.padding import BandLoop, lines_per_band
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace, descending_range
from ekiden.kernels.micro_kernels.depthwise_tiles import ElementProducts, emit_depthwise_sums
from ekiden.kernels.micro_kernels.epilogue import Epilogue, find_anchor, operands_of
from ekiden.kernels.micro_kernels.register_tiles import RegisterTile, balanced_row_tiles
from ekiden.kernels.prim_builder import declare_parameters, wrap_in_lets
from ekiden.target import Target
from ekiden.tir.stmt import For, ForKind, Stmt, seq
from ekiden.tir.tensor_intrin.micro import StoreVector, SumLoop

DEPTHWISE_TAG = "depthwise_conv_nhwc"
MAX_TILE_PIXELS = 12
"""Maximum pixels per tile: more only increase code size."""


class DepthwiseKernel:
    """Builder of one depthwise convolution kernel."""

    def __init__(
        self,
        inputs: list[te.Tensor],
        outputs: list[te.Tensor],
        target: Target,
        decision: Decision,
        tag: str = DEPTHWISE_TAG,
    ) -> None:
        self.pixels = decision.int_value("pixels")
        self.anchor = find_anchor(outputs, tag)
        self.buffers = declare_parameters(inputs, outputs)
        data, weight = operands_of(self.anchor)
        self.data, self.weight = self.buffers[data], self.buffers[weight]
        self.geometry: ConvGeometry = self.conv_geometry()
        self.lanes, self.target = target.lanes("float32"), target
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        channels = self.geometry.out[3]
        assert isinstance(channels, IntImm)
        self.channels = channels.value
        self.source = self.data
        self.pixel_stride, self.group_vectors = self.channels, 1
        """Elements between adjacent pixels of the data read, and channel vectors of a tile."""
        self.slice: PrimExpr | None = None

    def conv_geometry(self) -> ConvGeometry:
        """Return the anchor's convolution geometry."""
        return conv_geometry_of(self.anchor)

    def tap_loops(self) -> list[SumLoop]:
        """Return the reduction loops over depth slices, kernel rows and taps of a row."""
        depth, (kh, kw), (dy, dx) = (
            self.geometry.depth,
            self.geometry.kernel,
            self.geometry.dilation,
        )
        *slices, row, pixel = self.geometry.data_strides(self.slice)
        across = const(kw * self.channels)
        loops = [
            SumLoop(const(kh), row * dy, across),
            SumLoop(const(kw), pixel * dx, pixel),
        ]
        if slices:
            loops.insert(0, SumLoop(const(depth.kernel), slices[0], across * kh))
        return loops

    def tile_shape(self, pixels: int, columns: int) -> RegisterTile:
        """Return the register tile of `pixels` pixels and `columns` channels."""
        return RegisterTile(pixels, -(-columns // self.lanes), self.lanes, columns)

    def emit_tile(
        self,
        pixels: int,
        columns: int,
        base: PrimExpr,
        weights: PrimExpr,
        loops: Sequence[SumLoop],
        store: StoreVector,
    ) -> Stmt:
        """Emit a register tile of `pixels` pixels and `columns` channels from a data and a weight
        offset.
        """
        step = self.geometry.strides[1] * self.pixel_stride
        rows = [base + p * step for p in range(pixels)]
        products = ElementProducts(self.source, rows, self.weight, weights, loops)
        return emit_depthwise_sums(self.tile_shape(pixels, columns), products, store)

    def pixel_store(
        self, line: PrimExpr, n: PrimExpr, y: PrimExpr, x: PrimExpr, channel: PrimExpr
    ) -> StoreVector:
        """Return the function that stores results of a line through the epilogue, from pixel `x`
        and a channel on; `line` counts the lines of all images.
        """

        def store_vector(
            p: PrimExpr, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None
        ) -> Stmt:
            """Store a vector of a pixel's channels."""
            flat = (line * self.geometry.out[2] + x + p) * self.channels + channel + column
            result_index = self.geometry.result_indices([n, y, x + p, channel + column])
            return self.epilogue.emit_store(result_index, flat, value, mask)

        return store_vector

    def emit_line(
        self, n: PrimExpr, y: PrimExpr, start: PrimExpr, channel: PrimExpr, columns: int
    ) -> Stmt:
        """Emit one line of output pixels for some channels; `start` is the first tap's offset."""
        _, height, width, _ = self.geometry.out
        step = self.geometry.strides[1] * self.channels

        def emit_pixel_tile(pixels: int, first: PrimExpr) -> Stmt:
            """Return a register tile of some pixels of a line."""
            store = self.pixel_store(n * height + y, n, y, first, channel)
            base = start + channel + first * step
            return self.emit_tile(pixels, columns, base, channel, self.tap_loops(), store)

        return balanced_row_tiles(width, self.pixels, emit_pixel_tile)

    def emit_channel_groups(self, body: Callable[[PrimExpr, int], Stmt]) -> Stmt:
        """Emit `body(first channel, channels)` for each group of channel vectors, then for the
        rest.
        """
        group, width = Var("group"), self.group_vectors * self.lanes
        full_groups, tail_channels = divmod(self.channels, width)
        loops: list[Stmt] = []
        if full_groups:
            inside = body(group * width, width)
            loops.append(For(group, const(0), const(full_groups), ForKind.SERIAL, inside))
        if tail_channels:
            loops.append(body(const(full_groups * width), tail_channels))
        return seq(*loops)

    def emit_channel_lines(self, n: PrimExpr, y: PrimExpr, start: PrimExpr) -> Stmt:
        """Emit one line of output pixels for each group of channels."""
        return self.emit_channel_groups(
            lambda channel, columns: self.emit_line(n, y, start, channel, columns)
        )

    def bind_tap_rows_in_bounds(
        self, y: PrimExpr, body: Callable[[PrimExpr, PrimExpr, PrimExpr, PrimExpr], Stmt]
    ) -> Stmt:
        """Bind the first data line, kernel row and number of kernel rows inside the data around an
        output line's body.
        """
        _, window, _ = self.geometry.window_axes
        at, first, rows = Var("y"), Var("first"), Var("rows")
        top = at * window.stride - window.pad_before
        inside = body(at, top + first * window.dilation, first, rows)
        lets = [(at, y), *zip((first, rows), window.taps_in_bounds(at, at), strict=True)]
        return wrap_in_lets(lets, inside)

    def body(self) -> Stmt:
        """Emit all lines in parallel; padded data are copied in bands."""
        if self.geometry.is_padded:
            lines = lines_per_band(self.geometry, self.target)
            bands = BandLoop(self.data, self.geometry, lines, self.lanes)
            self.source, self.slice = bands.source, bands.slice
            return bands.emit_loop(self.emit_channel_lines)
        n, height, _, _ = self.geometry.out
        line = Var("line")
        image, y = line // height, line % height
        data_height, data_width = self.geometry.padded_extents()
        row = (
            self.geometry.first_padded_slice(image) * data_height + y * self.geometry.strides[0]
        ) * data_width
        body = self.emit_channel_lines(image, y, row * self.channels)
        return For(line, const(0), simplify(n * height), ForKind.PARALLEL, body, {"grain": 2})


def search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the search space of a depthwise convolution."""
    return (Knob("pixels", descending_range(MAX_TILE_PIXELS), "pixels of a tile"),)


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision: as many accumulators as hide the FMA latency, or a quarter of
    the registers.
    """
    pixels = max(target.fma_units * target.fma_latency, target.registers // 4)
    return Decision.from_mapping({"pixels": fixed.get("pixels", min(MAX_TILE_PIXELS, pixels))})
