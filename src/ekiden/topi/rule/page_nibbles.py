"""Attention over pages of halves of bytes: that over bytes, with scales of 32 places each.

Keys and values are 8 more in the cache than what they stand for: 8 times the numbers that they
multiply is taken from their sums. Shares have one byte, whose rounding is little beside that of the
values: of a trained decoder the logits are 6.6 percent of their spread away with one or with two.
"""

from __future__ import annotations

from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, Mul, PrimExpr, Sub, cast, const
from ekiden.tir.expr import broadcast
from ekiden.tir.stmt import Stmt, seq
from ekiden.topi.rule.page_bytes import BytePages
from ekiden.topi.rule.page_planes import TOGETHER
from ekiden.topi.rule.pages import Rows

HALF = 0x0F0F0F0F
"""The lower halves of the bytes of a word."""


class NibblePages(BytePages):
    """One such attention."""

    key_zero = value_zero = 8
    share_bytes, share_bits = 1, 8
    has_inner_scales = True

    @property
    def key_dot(self) -> str:
        """Products of two halves of bytes fit int16 by far."""
        return self.dot

    def key_parts(self, words: PrimExpr) -> list[PrimExpr]:
        """The lower halves of bytes and the upper ones."""
        upper = call_intrin("right_shift", words, self.number(4), dtype=self.whole)
        mask = self.number(HALF)
        return [call_intrin("bitwise_and", x, mask, dtype=self.whole) for x in (words, upper)]

    value_parts = key_parts

    def picked(self, at: PrimExpr, which: PrimExpr) -> PrimExpr:
        """One of the eight numbers of each lane of the cache, as floats."""
        by = cast(which % TOGETHER * 8 + which // TOGETHER * 4, "int32")
        found = self.words(at)
        found = call_intrin("right_shift", found, broadcast(by, self.lanes), dtype=self.whole)
        found = call_intrin("bitwise_and", found, self.number(15), dtype=self.whole)
        return Cast(Sub(found, self.number(self.key_zero), self.whole), self.real)

    # As floats: scales are within the sums.

    def keys_at(self, base: PrimExpr, k: PrimExpr, column: PrimExpr | int) -> PrimExpr:
        """A place of neighbouring keys."""
        token = const(column) if isinstance(column, int) else column
        scale = self.plane.scales(self.cache, base, token, self.lanes, k // self.plane.group)
        return Mul(super().keys_at(base, k, column), scale, self.real)

    def key_scale(self, tile: Rows, row: int, base: PrimExpr, token: PrimExpr) -> PrimExpr:
        """Of a query alone."""
        return self.splat(self.rounded.step[self.row_of(tile, row)])

    def weighed(self, tile: Rows) -> Stmt:
        """Shares stay as they are: a value has several scales."""
        return seq()

    def values_at(self, base: PrimExpr, s: PrimExpr, column: int) -> PrimExpr:
        """Neighbouring numbers of a value."""
        scale = self.plane.scales(self.cache, base, s, 1, column // self.plane.group)
        return Mul(super().values_at(base, s, column), self.splat(scale), self.real)


__all__ = ["NibblePages"]
