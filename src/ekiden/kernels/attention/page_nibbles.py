"""Attention over pages of halves of bytes: that over bytes, with scales of 32 places each.

Keys and values are 8 more in the cache than what they stand for: 8 times the numbers that they
multiply is taken from their sums. Where two products of bytes are added up in int16, those of
keys and a query stay so over a whole group, 127 * 15 * 2 * 8 at most, and those of shares over 32
tokens.

Shares have one byte, whose rounding is little beside that of the values: of a trained decoder the
logits are 6.6 percent of their spread away with one or with two.
"""

from __future__ import annotations

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, Mul, PrimExpr, Sub, cast, const
from ekiden.kernels.attention.page_bytes import SIGNS, BytePages
from ekiden.kernels.attention.page_planes import TOGETHER
from ekiden.kernels.attention.pages import Rows
from ekiden.kernels.quantized.words import DOT4, MADD, ONES, SHORT_DOT
from ekiden.tir.expr import Buffer, broadcast
from ekiden.tir.stmt import Stmt, seq

HALF = 0x0F0F0F0F
"""The lower halves of the bytes of a word."""
UPPER = 0xF0F0F0F0 - (1 << 32)
"""The upper ones, as int32."""
LOWEST = 0x000F000F
"""The lowest four bits of both int16 of a word."""


class NibblePages(BytePages):
    """One such attention."""

    key_dots = value_dots = (DOT4, SHORT_DOT, MADD)
    zero_by_dot = {DOT4: 8, SHORT_DOT: 8, MADD: 8}  # noqa: RUF012
    share_bytes = 1
    places = (0, 4, 2, 6)
    has_inner_scales = True

    @property
    def value_zero(self) -> int:  # type: ignore[override]
        """None where a product takes values with their signs."""
        return 0 if self.value_dot == DOT4 else 8

    @property
    def value_unit(self) -> int:  # type: ignore[override]
        """There they are the upper halves of bytes."""
        return 16 if self.value_dot == DOT4 else 1

    def taken(self, words: PrimExpr, dot: str, is_key: bool) -> list[PrimExpr]:
        """As halves, or the lower halves of bytes and the upper ones; values with their signs as
        the upper halves of bytes, of which nothing is taken from the sums."""
        if dot == MADD:
            return self.as_halves(words)
        if dot == DOT4 and not is_key:
            up = call_intrin("left_shift", words, self.number(4), dtype=self.whole)
            return [
                call_intrin("bitwise_xor", self.masked(x, UPPER), self.number(SIGNS),
                            dtype=self.whole)
                for x in (up, words)
            ]  # fmt: skip
        return [self.masked(x, HALF) for x in (words, self._down(words, 4))]

    def masked(self, words: PrimExpr, mask: int) -> PrimExpr:
        """Some bits."""
        return call_intrin("bitwise_and", words, self.number(mask), dtype=self.whole)

    def _down(self, words: PrimExpr, by: int) -> PrimExpr:
        return call_intrin("right_shift", words, self.number(by), dtype=self.whole)

    def as_halves(self, words: PrimExpr) -> list[PrimExpr]:
        """Every fourth number as int16; what is above the twelfth bit needs no mask but for the
        bits of the word's other half."""
        return [self.masked(self._down(words, by) if by else words, LOWEST)
                for by in (0, 4, 8, 12)]  # fmt: skip

    # Sums of keys in int16: 8 of two products of 127 and 15 fit.

    def sums(self, count: int) -> Buffer:
        """Of products of keys, in registers."""
        if self.key_dot != SHORT_DOT:
            return super().sums(count)
        assert self.plane.group <= 32, self.plane
        kind = dt.with_lanes("int16", 2 * self.lanes)
        return Buffer("sums", (const(count),), kind, "register")

    def first_sums(self, sums: Buffer, start: PrimExpr) -> PrimExpr:
        """With nothing, where what they begin with is added at their end."""
        if self.key_dot != SHORT_DOT:
            return start
        return broadcast(const(0, "int16"), 2 * self.lanes)

    def last_sums(self, found: PrimExpr, start: PrimExpr) -> PrimExpr:
        """The sum of both halves."""
        if self.key_dot != SHORT_DOT:
            return found
        words = call_intrin("reinterpret", found, dtype=self.whole)
        return call_intrin(MADD, start, words, self.number(ONES), dtype=self.whole)

    def picked(self, at: PrimExpr, which: PrimExpr) -> PrimExpr:
        """One of the eight numbers of each lane of the cache, as floats."""
        by = cast(which % TOGETHER * 8 + which // TOGETHER * 4, "int32")
        found = self.words(at)
        found = call_intrin("right_shift", found, broadcast(by, self.lanes), dtype=self.whole)
        found = self.masked(found, 15)
        return Cast(Sub(found, self.number(self.value_zero), self.whole), self.real)

    # As floats: scales are within the sums.

    def keys_at(self, base: PrimExpr, k: PrimExpr, column: PrimExpr | int) -> PrimExpr:
        """A place of neighbouring keys."""
        token = const(column) if isinstance(column, int) else column
        scale = self.plane.scales(self.cache, base, token, self.lanes, k // self.plane.group)
        return Mul(super().keys_at(base, k, column), scale, self.real)

    def key_scale(self, tile: Rows, row: int, base: PrimExpr, token: PrimExpr) -> PrimExpr:
        """Of a query alone."""
        return self.row_scale(tile, row)

    def weighed(self, tile: Rows) -> Stmt:
        """Shares stay as they are: a value has several scales."""
        return seq()

    def values_at(self, base: PrimExpr, s: PrimExpr, column: int) -> PrimExpr:
        """Neighbouring numbers of a value."""
        scale = self.plane.scales(self.cache, base, s, 1, column // self.plane.group)
        return Mul(super().values_at(base, s, column), self.splat(scale), self.real)


__all__ = ["NibblePages"]
