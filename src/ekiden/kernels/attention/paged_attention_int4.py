"""Paged attention over an int4 cache: the int8 attention with a scale per 32 depth elements.

Cached keys and values have a zero point of 8: 8 times the sum of their multiplicands is subtracted
from the sums. Where two products of bytes are accumulated in int16, sums of keys and a query stay
in int16 over a whole group, 127 * 15 * 2 * 8 at most, and those of probabilities over 32 tokens.

Probabilities have one byte, whose rounding error is small beside that of the values: a trained
decoder's logits deviate by 6.6 percent of their spread with one byte or two.
"""

from __future__ import annotations

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, Mul, PrimExpr, Sub, cast, const
from ekiden.kernels.attention.kv_layout import CACHE_WORD_BYTES
from ekiden.kernels.attention.paged_attention import PagedTile
from ekiden.kernels.attention.paged_attention_int8 import SIGN_BITS_I32, Int8PagedAttention
from ekiden.kernels.quantized.int8_dot import (
    DOT4_FEATURE,
    INT16_ONES,
    MADD_FEATURE,
    SHORT_DOT_FEATURE,
)
from ekiden.tir.expr import Buffer, broadcast
from ekiden.tir.stmt import Stmt, seq

LOW_NIBBLES_MASK = 0x0F0F0F0F
"""Mask of the low nibbles of a word's bytes."""
HIGH_NIBBLES_MASK_I32 = 0xF0F0F0F0 - (1 << 32)
"""Mask of the high nibbles of a word's bytes, as int32."""
LOW_NIBBLE_OF_INT16_MASK = 0x000F000F
"""Mask of the lowest four bits of both int16 halves of a word."""


class Int4PagedAttention(Int8PagedAttention):
    """Paged attention over an int4 cache with a scale per 32 depth elements."""

    key_dots = value_dots = (DOT4_FEATURE, SHORT_DOT_FEATURE, MADD_FEATURE)
    zero_point_by_dot = {DOT4_FEATURE: 8, SHORT_DOT_FEATURE: 8, MADD_FEATURE: 8}  # noqa: RUF012
    probability_bytes = 1
    unpacked_offsets = (0, 4, 2, 6)
    has_inner_scales = True

    @property
    def value_zero_point(self) -> int:  # type: ignore[override]
        """Return the zero point of values: 0 where the dot product takes signed bytes."""
        return 0 if self.value_dot == DOT4_FEATURE else 8

    @property
    def value_multiplier(self) -> int:  # type: ignore[override]
        """Return the factor of values in a product: 16 where they are the high nibbles of bytes."""
        return 16 if self.value_dot == DOT4_FEATURE else 1

    def unpack_words(self, words: PrimExpr, dot: str, is_key: bool) -> list[PrimExpr]:
        """Unpack words into int16 halves, or into low and high nibbles of bytes; signed values stay
        high nibbles, which need no zero-point correction.
        """
        if dot == MADD_FEATURE:
            return self.split_int16_halves(words)
        if dot == DOT4_FEATURE and not is_key:
            up = call_intrin(
                "left_shift", words, self.broadcast_int(4), dtype=self.int_vector_dtype
            )
            return [
                call_intrin("bitwise_xor", self.bitwise_and(x, HIGH_NIBBLES_MASK_I32),
                            self.broadcast_int(SIGN_BITS_I32),
                            dtype=self.int_vector_dtype)
                for x in (up, words)
            ]  # fmt: skip
        return [self.bitwise_and(x, LOW_NIBBLES_MASK) for x in (words, self._shift_right(words, 4))]

    def bitwise_and(self, words: PrimExpr, mask: int) -> PrimExpr:
        """Return words masked by a bit mask that is broadcast to every lane."""
        return call_intrin(
            "bitwise_and", words, self.broadcast_int(mask), dtype=self.int_vector_dtype
        )

    def _shift_right(self, words: PrimExpr, by: int) -> PrimExpr:
        return call_intrin(
            "right_shift", words, self.broadcast_int(by), dtype=self.int_vector_dtype
        )

    def split_int16_halves(self, words: PrimExpr) -> list[PrimExpr]:
        """Split words into every fourth value as int16; bits above the twelfth need no mask except
        those of the word's other half.
        """
        return [
            self.bitwise_and(
                self._shift_right(words, by) if by else words, LOW_NIBBLE_OF_INT16_MASK
            )
            for by in (0, 4, 8, 12)
        ]

    # Sums of keys in int16: 8 of two products of 127 and 15 fit.

    def sums_buffer(self, count: int) -> Buffer:
        """Return the register buffer of key sums, in int16 for the short dot product."""
        if self.key_dot != SHORT_DOT_FEATURE:
            return super().sums_buffer(count)
        # 32 values are 8 additions of two products of at most 127 * 15: 30480 < 2**15.
        assert self.plane.group_size <= 32, self.plane
        kind = dt.with_lanes("int16", 2 * self.lanes)
        return Buffer("sums", (const(count),), kind, "register")

    def initial_sums(self, sums: Buffer, start: PrimExpr) -> PrimExpr:
        """Return the start value of the sums: zero where the correction is added at the end."""
        if self.key_dot != SHORT_DOT_FEATURE:
            return start
        return broadcast(const(0, "int16"), 2 * self.lanes)

    def finalize_sums(self, accumulated: PrimExpr, start: PrimExpr) -> PrimExpr:
        """Return the sum of both int16 halves in int32, plus the correction."""
        if self.key_dot != SHORT_DOT_FEATURE:
            return accumulated
        words = call_intrin("reinterpret", accumulated, dtype=self.int_vector_dtype)
        return call_intrin(
            MADD_FEATURE, start, words, self.broadcast_int(INT16_ONES), dtype=self.int_vector_dtype
        )

    def load_value(self, at: PrimExpr, which: PrimExpr) -> PrimExpr:
        """Load one of the eight nibbles of each cache word as float32, less the zero point."""
        by = cast(which % CACHE_WORD_BYTES * 8 + which // CACHE_WORD_BYTES * 4, "int32")
        nibbles = self.load_words(at)
        nibbles = call_intrin(
            "right_shift", nibbles, broadcast(by, self.lanes), dtype=self.int_vector_dtype
        )
        nibbles = self.bitwise_and(nibbles, 15)
        return Cast(
            Sub(nibbles, self.broadcast_int(self.value_zero_point), self.int_vector_dtype),
            self.float_vector_dtype,
        )

    # As floats: scales are within the sums.

    def load_keys(self, base: PrimExpr, k: PrimExpr, column: PrimExpr | int) -> PrimExpr:
        """Load one dequantised depth element of consecutive keys."""
        token = const(column) if isinstance(column, int) else column
        scale = self.plane.load_scales(
            self.cache, base, token, self.lanes, k // self.plane.group_size
        )
        return Mul(super().load_keys(base, k, column), scale, self.float_vector_dtype)

    def product_scale(self, tile: PagedTile, row: int, base: PrimExpr, token: PrimExpr) -> PrimExpr:
        """Return the query's step alone: keys are scaled before they are summed."""
        return self.query_scale(tile, row)

    def emit_probability_scaling(self, tile: PagedTile) -> Stmt:
        """Emit nothing: the values of a token have several scales, which `values_at` applies."""
        return seq()

    def load_values(self, base: PrimExpr, s: PrimExpr, column: int) -> PrimExpr:
        """Load consecutive dequantised depth elements of a token's value."""
        scale = self.plane.load_scales(self.cache, base, s, 1, column // self.plane.group_size)
        return Mul(
            super().load_values(base, s, column),
            self.broadcast_scalar(scale),
            self.float_vector_dtype,
        )


__all__ = ["Int4PagedAttention"]
