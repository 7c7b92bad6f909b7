"""Range: the half-open interval of a loop variable or of one axis of a region."""

from __future__ import annotations

from ekiden.ir.prim import ExprLike, PrimExpr, convert
from ekiden.runtime import Object


@Object.register
class Range:
    """Half-open integer interval [min, min + extent). `Range(n)` starts at 0, `Range(a, b)` ends
    before b.
    """

    __slots__ = ("extent", "min")

    def __init__(self, begin: ExprLike, end: ExprLike | None = None) -> None:
        self.min: PrimExpr = convert(0 if end is None else begin)
        last = begin if end is None else end
        self.extent: PrimExpr = convert(last) if end is None else convert(last) - self.min

    @staticmethod
    def from_min_extent(low: ExprLike, extent: ExprLike) -> Range:
        """Build the range [low, low + extent)."""
        result = Range(extent)
        # The lower bound takes the dtype of the extent: their sum must have one.
        result.min = convert(low, result.extent.dtype)
        return result

    def __repr__(self) -> str:
        return f"Range(min={self.min!r}, extent={self.extent!r})"
