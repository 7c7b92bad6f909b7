"""Zero-padded copies of convolution inputs, so that every tap is at a constant offset from its
pixel.

    band of lines:  padded[r, x, c] = data[n, first*sy - top + r, x - left, c], zero outside
                    the output lines first, first + 1, ... from it

A thread copies what the lines of its band read, into memory of its own that stays in the
second-level cache: neighbouring bands copy the lines that both read.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.arith import simplify
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, logical_and, minimum
from ekiden.kernels.conv_geometry import ConvGeometry
from ekiden.kernels.micro_kernels.register_tiles import vector_loop_with_tail
from ekiden.kernels.micro_kernels.vector_memory import load_as_float32
from ekiden.kernels.prim_builder import wrap_in_lets
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, LetStmt, Stmt, seq

DEFAULT_BAND_LINES = 4
"""Lines per band where the number or length of lines is dynamic."""
BAND_CACHE_DIVISOR = 3
"""L2 size over the maximum size of a band."""


def lines_per_band(geometry: ConvGeometry, target: Target) -> int:
    """Return the output lines per band: as many as fit the cache, evenly divided among the
    cores.
    """
    n, height, _, _ = geometry.out
    _, width = geometry.padded_extents()
    sizes = (n, height, width, geometry.data[3])
    if not all(isinstance(d, IntImm) for d in sizes):
        return DEFAULT_BAND_LINES
    images, lines, pixels, channels = (d.value for d in sizes if isinstance(d, IntImm))
    (kh, _), (sy, _), (dy, _) = geometry.kernel, geometry.strides, geometry.dilation
    line = pixels * channels * geometry.depth.kernel * 4
    room = target.l2 // BAND_CACHE_DIVISOR // max(line, 1)
    max_lines = max(1, (room - (kh - 1) * dy - 1) // sy + 1)
    total = images * lines
    # As few rounds as the cache allows, of equal bands: no core waits for a longer one.
    rounds = -(-total // (target.cores * max_lines))
    return max(1, min(lines, -(-total // (target.cores * max(rounds, 1)))))


class BandLoop:
    """Loop over bands of output lines; `source` is the buffer that a band reads."""

    def __init__(self, data: Buffer, geometry: ConvGeometry, lines: int, lanes: int) -> None:
        self.data, self.geometry, self.lines, self.lanes = data, geometry, lines, lanes
        rows = self.num_source_lines(simplify(minimum(const(lines), geometry.out[1])))
        shape = (
            simplify(rows * geometry.depth.kernel),
            geometry.padded_extents()[1],
            geometry.data[3],
        )
        self.source = Buffer("padded", shape, "float32")
        self.slice = simplify(rows * geometry.padded_extents()[1] * geometry.data[3])
        """Element stride between the depth slices that a result reads."""

    def num_source_lines(self, lines: PrimExpr) -> PrimExpr:
        """Return the number of data lines that `lines` output lines read."""
        (kh, _), (sy, _), (dy, _) = (
            self.geometry.kernel,
            self.geometry.strides,
            self.geometry.dilation,
        )
        return simplify((lines - 1) * sy + ((kh - 1) * dy + 1))

    def emit_loop(self, body: Callable[[PrimExpr, PrimExpr, PrimExpr], Stmt]) -> Stmt:
        """Emit the loop nest that runs `body` for all lines, bands in parallel.

        Args:
            body: Takes the image, the line, and the offset in the source of its first tap.
        """
        n, height, _, _ = self.geometry.out
        (sy, _), top = self.geometry.strides, self.geometry.padding[0]
        row = simplify(self.geometry.padded_extents()[1] * self.geometry.data[3])
        per_image = simplify((height + (self.lines - 1)) // self.lines)
        band, r, line = Var("band"), Var("r"), Var("line")
        image, first, count = Var("image"), Var("first"), Var("count")
        tap, depth = Var("tap"), self.geometry.depth
        read = self.geometry.first_padded_slice(image) + tap * depth.dilation
        y, at = first * sy + r - top, tap * self.slice + r * row
        copied = emit_pad_row(self.data, self.source, at, read, y, self.geometry, self.lanes)
        copy: Stmt = For(r, const(0), self.num_source_lines(count), ForKind.SERIAL, copied)
        copy = For(tap, const(0), const(depth.kernel), ForKind.SERIAL, copy)
        lines = For(
            line, const(0), count, ForKind.SERIAL, body(image, first + line, line * (row * sy))
        )
        # Allocated inside the parallel loop over bands, so that each thread has a copy of its own.
        inside: Stmt = Allocate(self.source, seq(copy, lines))
        lets = [
            (image, band // per_image),
            (first, band % per_image * self.lines),
            (count, simplify(minimum(const(self.lines), height - first))),
        ]
        bands = simplify(n * per_image)
        loop = wrap_in_lets(lets, inside)
        return For(band, const(0), bands, ForKind.PARALLEL, loop, {"grain": 1})


def emit_pad_row(
    data: Buffer,
    padded: Buffer,
    at: PrimExpr,
    image: PrimExpr,
    y: PrimExpr,
    geometry: ConvGeometry,
    lanes: int,
) -> Stmt:
    """Emit the zero-padded copy of an image line, which may itself be padding, to offset `at`.
    Images of zeros count among them.
    """
    _, height, width, channels = geometry.data
    _, left_pixels, _, right = geometry.padding
    row = simplify(geometry.padded_extents()[1] * channels)
    source = Var("source")

    def emit_run(
        start: PrimExpr, count: PrimExpr, value: Callable[[PrimExpr, int], PrimExpr]
    ) -> Stmt:
        """Store `count` elements from `start` on, in vectors of `value(first, lanes)`."""

        def store_vector(first: PrimExpr, width: int) -> Stmt:
            """Store a vector of the padded row."""
            return BufferStore(padded, value(first, width), (ramp(start + first, 1, width),))

        return vector_loop_with_tail(simplify(count), lanes, store_vector)

    def emit_zeros(start: PrimExpr, count: PrimExpr) -> Stmt:
        return emit_run(start, count, lambda _, width: broadcast(const(0.0, "float32"), width))

    inside = seq(
        emit_zeros(at, left_pixels * channels),
        emit_run(
            at + left_pixels * channels,
            width * channels,
            lambda first, lanes: load_as_float32(data, source + first, lanes),
        ),
        emit_zeros(at + (left_pixels + width) * channels, right * channels),
    )
    image, is_image = geometry.unpadded_slice(image)
    origin = (image * height + y) * (width * channels)
    is_inside = logical_and(y >= 0, y < height)
    if is_image is not None:
        is_inside = logical_and(is_image, is_inside)
    return IfThenElse(is_inside, LetStmt(source, origin, inside), emit_zeros(at, row))


def emit_pad_copy(data: Buffer, padded: Buffer, geometry: ConvGeometry, lanes: int) -> Stmt:
    """Emit padded[n, y, x, c] = data[n, y - top, x - left, c], 0 outside the data, lines in
    parallel.
    """
    height, width = geometry.padded_extents()
    line = Var("line")
    at = line * simplify(width * geometry.data[3])
    y = line % height - geometry.padding[0]
    padded_row = emit_pad_row(data, padded, at, line // height, y, geometry, lanes)
    total = simplify(geometry.num_padded_slices() * height)
    return For(line, const(0), total, ForKind.PARALLEL, padded_row, {"grain": 8})


__all__ = ["BandLoop", "emit_pad_copy", "lines_per_band"]
