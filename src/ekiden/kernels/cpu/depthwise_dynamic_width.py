"""Depthwise convolutions over lines of dynamic width, read in place.

    pixels before the middle      one at a time, the taps that read data
    pixels of the middle          tiles, all taps of a row
    pixels behind it              one at a time

Rows of taps outside of the data are left out by each line of results. A copy with zeros around it
takes longer than the convolution: 28x28x128 with strides of two 9.8 us with it, 4.3 without, and
4.1 where lengths are known (AMD EPYC Zen 5, one thread).
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import simplify
from ekiden.ir.prim import PrimExpr, Var, const, maximum, minimum
from ekiden.kernels.cpu.depthwise import DepthwiseKernel
from ekiden.kernels.micro_kernels.register_tiles import balanced_row_tiles
from ekiden.kernels.prim_builder import wrap_in_lets
from ekiden.tir.stmt import For, ForKind, LetStmt, Stmt, seq
from ekiden.tir.tensor_intrin.micro import SumLoop


class DynamicWidthDepthwiseKernel(DepthwiseKernel):
    """Builder of a depthwise kernel whose line width is known at run time only."""

    def body(self) -> Stmt:
        """Emit all output lines in parallel."""
        images, height, _, _ = self.geometry.out
        _, data_height, data_width, _ = self.geometry.data
        line, start = Var("line"), Var("start")

        def emit_lines(y: PrimExpr, row: PrimExpr, first: PrimExpr, rows: PrimExpr) -> Stmt:
            """Emit an output line whose taps are in `rows` data lines from `row` on."""
            self.first, self.rows = first, rows
            at = (line // height * data_height + row) * (data_width * self.channels)
            lines = self.emit_channel_lines(line // height, y, start)
            return LetStmt(start, simplify(at), lines)

        body = self.bind_tap_rows_in_bounds(line % height, emit_lines)
        return For(line, const(0), simplify(images * height), ForKind.PARALLEL, body, {"grain": 2})

    def emit_line(
        self, n: PrimExpr, y: PrimExpr, start: PrimExpr, channel: PrimExpr, columns: int
    ) -> Stmt:
        """Emit an output line for some channels; `start` is the offset of the first data
        line that it reads.
        """
        _, _, window = self.geometry.window_axes
        _, height, width, _ = self.geometry.out
        begin, end, pixel = Var("begin"), Var("end"), Var("pixel")
        tap, taps = Var("tap"), Var("taps")
        row_step = window.size * (self.geometry.dilation[0] * self.channels)

        def emit_pixel_tile(pixels: int, x: PrimExpr, tap: PrimExpr, taps: PrimExpr) -> Stmt:
            """Emit a tile of `pixels` pixels from x on, over `taps` taps of a row from `tap` on."""
            at = x * window.stride - window.pad_before + tap * window.dilation
            weights = (self.first * window.kernel + tap) * self.channels + channel
            loops = [
                SumLoop(self.rows, row_step, const(window.kernel * self.channels)),
                SumLoop(taps, const(window.dilation * self.channels), const(self.channels)),
            ]

            base = start + at * self.channels + channel
            store = self.pixel_store(n * height + y, n, y, x, channel)
            return self.emit_tile(pixels, columns, base, weights, loops, store)

        def emit_border_pixels(low: PrimExpr, high: PrimExpr) -> Stmt:
            """Emit the border pixels [low, high), one at a time, over the taps inside the data."""
            lets = [*zip((tap, taps), window.taps_in_bounds(pixel, pixel), strict=True)]
            body = wrap_in_lets(lets, emit_pixel_tile(1, pixel, tap, taps))
            return For(pixel, low, simplify(high - low), ForKind.SERIAL, body)

        def emit_interior_tile(pixels: int, x: PrimExpr) -> Stmt:
            """Emit a tile of interior pixels, over all taps of a row."""
            return emit_pixel_tile(pixels, begin + x, const(0), const(window.kernel))

        middle = balanced_row_tiles(end - begin, self.pixels, emit_interior_tile)
        return wrap_in_lets(self._interior_bounds(begin, end),
            seq(emit_border_pixels(const(0), begin), middle,
                                                   emit_border_pixels(end, width)))  # fmt: skip

    def _interior_bounds(self, begin: Var, end: Var) -> Sequence[tuple[Var, PrimExpr]]:
        """Return let-bindings of the interior: the first pixel all of whose taps are inside the
        data, and the end after the last.
        """
        _, _, window = self.geometry.window_axes
        width, (_, reach) = self.geometry.out[2], self.geometry.window_extents
        # Rounded up: the first pixel whose tap 0 is not in the padding.
        first = (window.pad_before + (window.stride - 1)) // window.stride
        last = (window.size - reach + window.pad_before) // window.stride + 1
        # Clamped to the line: one that is shorter than the window has no middle.
        return [
            (begin, simplify(minimum(width, as_expr(first)))),
            (end, simplify(maximum(begin, minimum(width, last)))),
        ]


def as_expr(number: int | PrimExpr) -> PrimExpr:
    """Return an int as a constant expression; expressions are unchanged."""
    return const(number) if isinstance(number, int) else number


__all__ = ["DynamicWidthDepthwiseKernel"]
