"""Depthwise convolutions in NHWC: one filter per channel, a vector of channels at a time.

    out[n, y, x, c] = sum over i, j of
        data[n, y*sy + i*dy - top, x*sx + j*dx - left, c] * weight[i, j, c]

A tile is several neighbouring pixels of one line and one vector of channels, accumulated in
registers over all taps. Such a convolution is memory-bound; the tile only reuses each weight vector
for several pixels. uint8 data become float32 when they are copied or loaded.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import IntImm, PrimExpr, Var, const
from ekiden.kernels.conv_geometry import ConvGeometry, conv_geometry_of
from ekiden.kernels.cpu.padding import BandLoop, lines_per_band, load_as_float32
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace, descending_range
from ekiden.kernels.micro_kernels.epilogue import Epilogue, find_anchor, operands_of
from ekiden.kernels.micro_kernels.register_tiles import (
    ReductionLoop,
    balanced_row_tiles,
    column_mask,
)
from ekiden.kernels.prim_builder import create_tiled_function, declare_parameters
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, LetStmt, PrimFunc, Stmt, seq

MAX_TILE_PIXELS = 12
"""Maximum pixels per tile: more only increase code size."""


class DepthwiseKernel:
    """Builder of one depthwise convolution kernel."""

    def __init__(
        self,
        inputs: list[te.Tensor],
        outputs: list[te.Tensor],
        target: Target,
        tag: str,
        decision: Decision,
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
        self.slice: PrimExpr | None = None

    def build_function(self, name: str) -> PrimFunc:
        """Build the kernel's PrimFunc."""
        return create_tiled_function(name, self.buffers, self.body())

    def conv_geometry(self) -> ConvGeometry:
        """Return the anchor's convolution geometry."""
        return conv_geometry_of(self.anchor)

    def load_channels(self, buffer: Buffer, at: PrimExpr, mask: PrimExpr | None) -> PrimExpr:
        """Load a vector of channels, 0 where the mask is off."""
        loaded = load_as_float32(buffer, at, self.lanes)
        return (
            loaded
            if mask is None
            else if_then_else(mask, loaded, broadcast(const(0.0, "float32"), self.lanes))
        )

    def tap_loops(self) -> list[ReductionLoop]:
        """Return the reduction loops over depth slices, kernel rows and taps of a row."""
        depth, (kh, kw), (dy, dx) = (
            self.geometry.depth,
            self.geometry.kernel,
            self.geometry.dilation,
        )
        *slices, row, pixel = self.geometry.data_strides(self.slice)
        across = const(kw * self.channels)
        loops = [
            ReductionLoop(const(kh), row * dy, across),
            ReductionLoop(const(kw), pixel * dx, pixel),
        ]
        if slices:
            loops.insert(0, ReductionLoop(const(depth.kernel), slices[0], across * kh))
        return loops

    def emit_tile(
        self,
        pixels: int,
        base: PrimExpr,
        weights: PrimExpr,
        mask: PrimExpr | None,
        loops: list[ReductionLoop],
        store: Callable[[int, PrimExpr], Stmt],
    ) -> Stmt:
        """Emit a register tile of `pixels` pixels from a data and a weight offset; `store` emits
        the store of one pixel.
        """
        sx = self.geometry.strides[1]
        acc = Buffer("acc", (const(pixels),), dt.with_lanes("float32", self.lanes), "register")
        w, taps = Var("w", acc.dtype), [Var(f"k{i}") for i in range(len(loops))]
        start, at = base, weights
        for tap, loop in zip(taps, loops, strict=True):
            start, at = start + tap * loop.a_stride, at + tap * loop.b_stride
        steps = [
            BufferStore(
                acc,
                call_intrin(
                    "fma",
                    self.load_channels(self.source, start + p * sx * self.channels, mask),
                    w,
                    acc[p],
                    dtype=acc.dtype,
                ),
                (const(p),),
            )
            for p in range(pixels)
        ]
        inside: Stmt = LetStmt(w, self.load_channels(self.weight, at, mask), seq(*steps))
        for tap, loop in zip(reversed(taps), reversed(loops), strict=True):
            inside = For(tap, const(0), loop.extent, ForKind.SERIAL, inside)
        zero = broadcast(const(0.0, "float32"), self.lanes)
        clear = [BufferStore(acc, zero, (const(p),)) for p in range(pixels)]
        stores = [store(p, acc[p]) for p in range(pixels)]
        return Allocate(acc, seq(*clear, inside, *stores))

    def emit_line(
        self, n: PrimExpr, y: PrimExpr, start: PrimExpr, channel: PrimExpr, mask: PrimExpr | None
    ) -> Stmt:
        """Emit one line of output pixels for one vector of channels; `start` is the first tap's
        offset.
        """
        _, height, width, _ = self.geometry.out
        sx = self.geometry.strides[1]
        line = n * height + y

        def emit_pixel_tile(pixels: int, first: PrimExpr) -> Stmt:
            """Return a register tile of some pixels of a line, for one vector of channels."""

            def store_pixel(p: int, value: PrimExpr) -> Stmt:
                """Store a pixel's vector through the epilogue."""
                flat = (line * width + first + p) * self.channels + channel
                output_index = self.geometry.result_indices([n, y, first + p, channel])
                return self.epilogue.emit_store(output_index, flat, value, mask)

            base = start + channel + first * (sx * self.channels)
            return self.emit_tile(pixels, base, channel, mask, self.tap_loops(), store_pixel)

        return balanced_row_tiles(width, self.pixels, emit_pixel_tile)

    def emit_channel_vectors(self, n: PrimExpr, y: PrimExpr, start: PrimExpr) -> Stmt:
        """Emit one line of output pixels for each full vector of channels, then for the tail."""
        full_vectors, tail_channels = divmod(self.channels, self.lanes)
        vector = Var("v")
        loops: list[Stmt] = []
        if full_vectors:
            body = self.emit_line(n, y, start, vector * self.lanes, None)
            loops.append(For(vector, const(0), const(full_vectors), ForKind.SERIAL, body))
        if tail_channels:
            mask = column_mask(tail_channels, self.lanes)
            loops.append(self.emit_line(n, y, start, const(full_vectors * self.lanes), mask))
        return seq(*loops)

    def body(self) -> Stmt:
        """Emit all lines in parallel; padded data are copied in bands."""
        if self.geometry.is_padded:
            lines = lines_per_band(self.geometry, self.target)
            bands = BandLoop(self.data, self.geometry, lines, self.lanes)
            self.source, self.slice = bands.source, bands.slice
            return bands.emit_loop(self.emit_channel_vectors)
        n, height, _, _ = self.geometry.out
        line = Var("line")
        image, y = line // height, line % height
        data_height, data_width = self.geometry.padded_extents()
        row = (
            self.geometry.first_padded_slice(image) * data_height + y * self.geometry.strides[0]
        ) * data_width
        body = self.emit_channel_vectors(image, y, row * self.channels)
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
