"""Convolution taps inside the data: taps that would read only padding are skipped.

    result x reads data[x * stride + tap * dilation - before]      for each tap of the kernel

All taps of a pixel in the middle do. Of few pixels, or where a dilated window is as wide as the
data, most do not: of 28 lines and three taps that are 24 apart, 36 of 84.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ekiden.arith import simplify
from ekiden.ir.prim import PrimExpr, Var, const, maximum, minimum
from ekiden.kernels.prim_builder import LetBindings
from ekiden.runtime.lazy_dataclass import dataclass

TapRanges: TypeAlias = Mapping[int, tuple[PrimExpr, PrimExpr]]
"""Axis -> (first tap, number of taps); other axes use all taps."""
ResultRanges: TypeAlias = Mapping[int, tuple[PrimExpr, PrimExpr]]
"""Axis -> (first result, last result)."""


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """One axis of a convolution window: the data's extent, taps, stride, dilation, and padding
    before and after.
    """

    size: PrimExpr
    kernel: int
    stride: int
    dilation: int
    pad_before: int | PrimExpr
    pad_after: int | PrimExpr

    def may_skip_taps(self, results: int = 1) -> bool:
        """Return whether some tap may read only padding for all of `results` neighbouring
        results.
        """
        between = (results - 1) * self.stride
        return self.kernel > 1 and any(
            not isinstance(zeros, int) or zeros > between
            for zeros in (self.pad_before, self.pad_after)
        )

    def taps_in_bounds(self, first: PrimExpr, last: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Return the first tap inside the data for any of the results `first` to `last`, and the
        number of taps up to the last such one.
        """
        low, high = (result * self.stride - self.pad_before for result in (first, last))
        begin, end = const(0), const(self.kernel)
        # Without zeros in front, tap 0 always reads data; likewise the last one behind.
        if self.pad_before:
            begin = maximum(begin, (const(self.dilation - 1) - high) // self.dilation)
        if self.pad_before or self.pad_after:
            end = minimum(end, (self.size - low + (self.dilation - 1)) // self.dilation)
        return simplify(begin), simplify(maximum(const(0), end - begin))


def bind_taps_in_bounds(
    windows: Sequence[WindowAxis], result_ranges: ResultRanges
) -> tuple[LetBindings, TapRanges]:
    """Return let-bindings and tap ranges inside the data, for ranges of results per axis."""
    lets: LetBindings = []
    taps: dict[int, tuple[PrimExpr, PrimExpr]] = {}
    for axis, (first, last) in result_ranges.items():
        begin, count = Var("tap"), Var("taps")
        taps[axis] = begin, count
        lets += zip((begin, count), windows[axis].taps_in_bounds(first, last), strict=True)
    return lets, taps


__all__ = ["ResultRanges", "TapRanges", "WindowAxis", "bind_taps_in_bounds"]
