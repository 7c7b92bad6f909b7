"""Depthwise convolutions of known width that read their data in place, without a zero-padded copy.

A line of results skips the rows of taps outside of the data, and pixels at its ends skip single
taps: which ones is known for every end tile. Such a kernel is memory-bound, and a copy costs as
much as the convolution (3x3 with strides of two, 112x112x96 on Zen 3: 372 us with a copy).

    tile       pixels x vectors of sums in registers; the vectors fill a line of the cache
    for row of taps from the first inside of the data to the last
        for tap of the row: of the pixels whose tap is inside

Where pixels are spaced so that those of a line of results conflict in L1 (512 channels: two of its
64 sets take all), the channels of a tile are copied from the lines of data that a few lines of
results read, so that pixels are contiguous:

    for band of lines: for group of channels
        near[row, x, c] = data[n, first + row, x, group + c]
        for line of the band: the tiles above, of near

Each element is then loaded once, not once per row of taps (14x14x512 on Zen 3: 3x3 64 and 47 us,
5x5 150 and 104).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.prim import PrimExpr, Var, const, maximum, minimum
from ekiden.kernels.conv_geometry import NO_DEPTH_AXIS, ConvGeometry, conv_geometry_of
from ekiden.kernels.cost_model import CACHE_LINE_BYTES, exceeds_associativity
from ekiden.kernels.cpu.depthwise import DEPTHWISE_TAG, DepthwiseKernel
from ekiden.kernels.cpu.depthwise import default_decision as copied_default
from ekiden.kernels.cpu.depthwise import search_space as copied_space
from ekiden.kernels.cpu.depthwise_dynamic_width import DynamicWidthDepthwiseKernel
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace
from ekiden.kernels.family import RANGE_EPILOGUE, Family, known_extent
from ekiden.kernels.micro_kernels.epilogue import find_anchor, operands_of
from ekiden.kernels.micro_kernels.vector_memory import load_as_float32
from ekiden.kernels.prim_builder import kernel_builder, wrap_in_lets
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, Stmt, seq
from ekiden.tir.tensor_intrin.micro import SumLoop

MAX_UNROLLED_EDGE_TAPS = 512
"""Maximum unrolled multiply-adds of border tiles: more only increase code size."""


@dataclass(frozen=True, slots=True)
class LineGeometry:
    """Geometry of an output line: its width, and the size, kernel, stride, dilation and left
    padding of the data.
    """

    width: int
    size: int
    kernel: int
    stride: int
    dilation: int
    left: int

    @staticmethod
    def from_conv_geometry(geometry: ConvGeometry) -> LineGeometry | None:
        """Return the line geometry of a convolution, or None where the width is unknown or zero."""
        width, size = known_extent(geometry.out[2]), known_extent(geometry.data[2])
        pad_left = geometry.padding[1]
        if not width or not size or not isinstance(pad_left, int):
            return None
        step = geometry.kernel[1], geometry.strides[1], geometry.dilation[1]
        return LineGeometry(width, size, *step, pad_left)

    def valid_pixels_per_tap(self, first: int, pixels: int) -> tuple[tuple[int, ...], ...]:
        """Return, for each tap of a row, the pixels for which it is inside the data."""
        starts = [(first + p) * self.stride - self.left for p in range(pixels)]
        return tuple(
            tuple(p for p, x in enumerate(starts) if 0 <= x + tap * self.dilation < self.size)
            for tap in range(self.kernel)
        )

    def are_taps_in_bounds(self, first: int, pixels: int) -> bool:
        """Return whether all taps of some pixels are inside the data."""
        return all(
            len(tap_pixels) == pixels for tap_pixels in self.valid_pixels_per_tap(first, pixels)
        )

    def balanced_tiles(self, max_pixels: int) -> list[tuple[int, int]]:
        """Return (first pixel, pixels) of tiles whose sizes differ by at most one."""
        count = max(1, -(-self.width // max_pixels))
        base, extra = divmod(self.width, count)
        firsts = [i * base + min(i, extra) for i in range(count)]
        return [(first, base + (i < extra)) for i, first in enumerate(firsts)]

    def num_edge_taps(self, max_pixels: int) -> int:
        """Return the number of multiply-adds of the tiles that have taps outside the data."""
        ends = [
            tile for tile in self.balanced_tiles(max_pixels) if not self.are_taps_in_bounds(*tile)
        ]
        return sum(
            len(tap_pixels) for tile in ends for tap_pixels in self.valid_pixels_per_tap(*tile)
        )


class InPlaceDepthwiseKernel(DepthwiseKernel):
    """Builder of a depthwise kernel for lines of known width."""

    def __init__(
        self,
        inputs: list[te.Tensor],
        outputs: list[te.Tensor],
        target: Target,
        decision: Decision,
        across: LineGeometry,
    ) -> None:
        super().__init__(inputs, outputs, target, decision)
        self.line_geometry, self.group_vectors = across, decision.int_value("vectors")
        self.lines_per_band = decision.int_value("copied_lines")
        if self.lines_per_band:
            self.pixel_stride = self.group_vectors * self.lanes

    def body(self) -> Stmt:
        """Emit all lines in parallel, or bands of them."""
        n, height, _, _ = self.geometry.out
        if self.lines_per_band:
            return self.emit_bands(n, height)
        line, size = Var("line"), self.geometry.data[1]

        def emit_line_channel_groups(
            y: PrimExpr, top: PrimExpr, first: PrimExpr, rows: PrimExpr
        ) -> Stmt:
            """Emit the channel groups of a line, on data read in place."""
            image = simplify(line // height)
            start = (image * size + top) * self.line_geometry.size * self.channels
            return self.emit_channel_groups(
                lambda channel, columns: self.emit_pixels(
                    line, image, y, start + channel, first, rows, channel, columns
                )
            )

        inside = self.bind_tap_rows_in_bounds(line % height, emit_line_channel_groups)
        return For(line, const(0), simplify(n * height), ForKind.PARALLEL, inside, {"grain": 2})

    def emit_bands(self, n: PrimExpr, height: PrimExpr) -> Stmt:
        """Emit bands of lines in parallel; each channel group is copied once for all lines of its
        band.
        """
        (sy, _), top = self.geometry.strides, self.geometry.padding[0]
        reach, size = self.geometry.window_extents[0], self.geometry.data[1]
        per_image = simplify((height + (self.lines_per_band - 1)) // self.lines_per_band)
        band, line = Var("band"), Var("line")
        image, y, count, low, high = (Var(v) for v in ("image", "y0", "count", "low", "high"))
        # A band holds the lines that its results read, for one group of channels: half of L1 at
        # most.
        shape = (
            const((self.lines_per_band - 1) * sy + reach),
            const(self.line_geometry.size),
            const(self.pixel_stride),
        )
        self.source = Buffer("near", shape, "float32")

        def emit_group(channel: PrimExpr, columns: int) -> Stmt:
            """Copy a channel group, then compute its lines."""

            def emit_copied_line(
                at: PrimExpr, row: PrimExpr, first: PrimExpr, rows: PrimExpr
            ) -> Stmt:
                """Emit an output line whose taps read a row of the copy."""
                start = (row - low) * (self.line_geometry.size * self.pixel_stride)
                return self.emit_pixels(
                    image * height + at, image, at, start, first, rows, channel, columns
                )

            lines = For(
                line,
                const(0),
                count,
                ForKind.SERIAL,
                self.bind_tap_rows_in_bounds(y + line, emit_copied_line),
            )
            return seq(
                self.emit_band_copy((image * size + low), high - low, channel, columns), lines
            )

        # Allocated inside the parallel loop over bands, so that each thread has a copy of its own.
        inside: Stmt = Allocate(self.source, self.emit_channel_groups(emit_group))
        lets = [
            (image, band // per_image),
            (y, band % per_image * self.lines_per_band),
            (count, simplify(minimum(const(self.lines_per_band), height - y))),
            (low, simplify(maximum(const(0), y * sy - top))),
            (high, simplify(minimum(size, (y + count - 1) * sy - top + reach))),
        ]
        body, bands = wrap_in_lets(lets, inside), simplify(n * per_image)
        return For(band, const(0), bands, ForKind.PARALLEL, body, {"grain": 1})

    def emit_band_copy(
        self, first: PrimExpr, rows: PrimExpr, channel: PrimExpr, columns: int
    ) -> Stmt:
        """Emit the copy of a group's channels, whole data lines pixel by pixel."""
        pixel, size, lanes = Var("pixel"), self.line_geometry.size, self.lanes
        at, shape = (first * size + pixel) * self.channels + channel, self.tile_shape(1, columns)
        moves = [
            BufferStore(
                self.source,
                load_as_float32(self.data, at + v * lanes, lanes, shape.vector_mask(v)),
                (ramp(pixel * self.pixel_stride + v * lanes, 1, lanes),),
            )
            for v in range(shape.vectors)
        ]
        return For(pixel, const(0), rows * size, ForKind.SERIAL, seq(*moves))

    def emit_pixels(
        self,
        line: PrimExpr,
        n: PrimExpr,
        y: PrimExpr,
        start: PrimExpr,
        first: PrimExpr,
        rows: PrimExpr,
        channel: PrimExpr,
        columns: int,
    ) -> Stmt:
        """Emit the tiles of a line for some channels; tiles at the borders are specialised.
        `start` is where the taps of the first pixel begin, of the first of these channels.
        """
        across = self.line_geometry
        weights = first * (across.kernel * self.channels) + channel
        row_step = const(self.geometry.dilation[0] * across.size * self.pixel_stride)
        tap_step = const(across.dilation * self.pixel_stride)

        def emit_pixel_tile(
            x: PrimExpr, pixels: int, inside: tuple[tuple[int, ...], ...] | None
        ) -> Stmt:
            """Emit a tile of pixels from x on; `inside` lists the pixels per tap where some taps
            are outside the data.
            """
            # Border tiles are unrolled per tap: which pixels have the tap is known, so no zero is
            # ever multiplied.
            loops = (
                SumLoop(rows, row_step, const(across.kernel * self.channels)),
                SumLoop(const(across.kernel), tap_step, const(self.channels), rows=inside),
            )
            base = start + (x * across.stride - across.left) * self.pixel_stride
            store = self.pixel_store(line, n, y, x, channel)
            return self.emit_tile(pixels, columns, base, weights, loops, store)

        return seq(*(
            emit_pixel_tile(const(x), pixels, self.line_geometry.valid_pixels_per_tap(x, pixels))
            if count == 1 and not self.line_geometry.are_taps_in_bounds(x, pixels)
            else _emit_tile_run(x, pixels, count, emit_pixel_tile)
            for x, pixels, count in self.tile_runs()
        ))  # fmt: skip

    def tile_runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield (first pixel, pixels per tile, number of tiles) of runs of tiles that share
        code.
        """
        tiles = self.line_geometry.balanced_tiles(self.pixels)
        alike = groupby(
            tiles,
            key=lambda t: (
                t[1] if self.line_geometry.are_taps_in_bounds(*t) else (t[0], "at an end")
            ),
        )
        for _, group in alike:
            (x, pixels), *more = group
            yield x, pixels, 1 + len(more)


def _emit_tile_run(
    x: int,
    pixels: int,
    count: int,
    tile: Callable[[PrimExpr, int, tuple[tuple[int, ...], ...] | None], Stmt],
) -> Stmt:
    """Emit a loop over consecutive tiles, all of whose taps are inside the data."""
    index = Var("t")
    if count == 1:
        return tile(const(x), pixels, None)
    return For(
        index, const(0), const(count), ForKind.SERIAL, tile(index * pixels + x, pixels, None)
    )


def _in_place_line_geometry(anchor: te.Tensor, max_pixels: int) -> LineGeometry | None:
    """Return the line geometry of a convolution that reads its data in place, or None."""
    geometry = conv_geometry_of(anchor)
    data, _ = operands_of(anchor)
    top = geometry.padding[0]
    if geometry.depth is not NO_DEPTH_AXIS or data.dtype != "float32" or not isinstance(top, int):
        return None
    across = LineGeometry.from_conv_geometry(geometry)
    return across if across and across.num_edge_taps(max_pixels) <= MAX_UNROLLED_EDGE_TAPS else None


def create_depthwise_kernel(
    inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, decision: Decision
) -> DepthwiseKernel:
    """Return the builder of a kernel: for lines of known or of dynamic width, or with a copy."""
    anchor = find_anchor(outputs, DEPTHWISE_TAG)
    across = _in_place_line_geometry(anchor, decision.int_value("pixels"))
    geometry = conv_geometry_of(anchor)
    has_unknown_lines = not known_extent(geometry.out[2]) or not known_extent(geometry.data[2])
    if has_unknown_lines and geometry.is_padded and geometry.depth is NO_DEPTH_AXIS:
        return DynamicWidthDepthwiseKernel(inputs, outputs, target, decision)
    if across is None:
        return DepthwiseKernel(inputs, outputs, target, decision)
    return InPlaceDepthwiseKernel(inputs, outputs, target, decision, across)


def search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the search space of a depthwise convolution."""
    doc = "vectors of channels of a tile, where data are read in place"
    widths = tuple(range(1, _max_channel_vectors(anchor, target) + 1))
    bands = "lines of results for which the channels of a tile are copied; 0 copies none"
    return (
        *copied_space(anchor, target),
        Knob("vectors", widths, doc),
        Knob("copied_lines", tuple(range(_max_band_lines(anchor, target) + 1)), bands),
    )


def _max_channel_vectors(anchor: te.Tensor, target: Target) -> int:
    """Return the number of channel vectors that fill a cache line, limited by the number of
    channels.
    """
    channels = known_extent(anchor.shape[-1])
    assert channels is not None, "weights are known"
    lanes = target.lanes("float32")
    return max(1, min(-(-channels // lanes), CACHE_LINE_BYTES // (4 * lanes)))


def _max_band_lines(anchor: te.Tensor, target: Target) -> int:
    """Return the number of output lines whose data fit half of L1, for the channels of one tile."""
    geometry = conv_geometry_of(anchor)
    height, width = known_extent(geometry.out[1]), known_extent(geometry.data[2])
    if not height or not width:
        return 0
    row = width * _max_channel_vectors(anchor, target) * 4 * target.lanes("float32")
    rows = target.l1 // 2 // row
    return max(0, min(height, (rows - geometry.window_extents[0]) // geometry.strides[0] + 1))


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision: the copying kernel's accumulators with one channel vector, so
    that each weight vector is reused for the most pixels.

    Where L1 does not hold what a line of results reads until the next vector, all of a cache line
    is used at once (3x3 with strides of two, 112x112x96 on Zen 3: 298 and 228 us; where it does,
    5x5 of 14x14x672: 86 and 107).
    """
    sums = copied_default(anchor, target, {}).int_value("pixels")
    geometry, max_vectors = conv_geometry_of(anchor), _max_channel_vectors(anchor, target)
    read = geometry.kernel[0] * (known_extent(geometry.data[2]) or 0)
    is_kept = not exceeds_associativity(read, int(str(anchor.op.attrs["groups"])), target)
    vectors = int(fixed.get("vectors", 1 if is_kept else max_vectors))
    pixels = int(fixed.get("pixels", max(1, sums // vectors)))
    # The copying kernel will be built then, whose tiles have one vector of channels.
    if "pixels" not in fixed and _in_place_line_geometry(anchor, pixels) is None:
        pixels = sums
    copied_lines = int(
        fixed.get("copied_lines", 0 if is_kept else _default_band_lines(anchor, target))
    )
    return Decision.from_mapping(
        {"pixels": pixels, "vectors": vectors, "copied_lines": copied_lines}
    )


def _default_band_lines(anchor: te.Tensor, target: Target) -> int:
    """Return the lines of equally sized bands; 0 where a copy does not halve the loads (28x28x256
    with stride 2: 38 us in place, 46 copied).
    """
    geometry, max_lines = conv_geometry_of(anchor), _max_band_lines(anchor, target)
    height, images = known_extent(geometry.out[1]) or 0, known_extent(geometry.out[0]) or 1
    max_lines = min(max_lines, -(-images * height // target.cores))  # each core has a band
    if not max_lines:
        return 0
    lines, stride = -(-height // -(-height // max_lines)), geometry.strides[0]
    brought = lines * stride + geometry.window_extents[0] - stride
    return lines if 2 * brought <= lines * geometry.kernel[0] else 0


FAMILY = Family(
    name=DEPTHWISE_TAG,
    search_space=search_space,
    default_decision=default_decision,
    build_unscheduled=kernel_builder(create_depthwise_kernel),
    unscheduled_reason=(
        "bands copy the lines that are inside of the data, whose number differs at the "
        "borders; other data are copied with their border"
    ),
    special_epilogues=(RANGE_EPILOGUE,),
    writes_strided_rows=True,
)
