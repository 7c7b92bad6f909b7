"""Layout of a head's keys and values in a page of a KV cache.

    keys      [depth][page]    a row for each place of the depth
    values    [page][depth]

Floats are stored so without more. Quantised numbers (a row of CACHE_FORMATS) are packed in 32-bit
words, numbers of one reduction together, as integer dot products take them; behind them is a
float16 scale per token and group of depth elements.

    keys      [depth / n][page][4], then [groups][page]
    values    [page / n][depth][4], then [groups][page]
    int8    n = 4    byte * scale, for all places of a token
    int4    n = 8    (half - 8) * scale, for 32 places; the lower halves of a word's bytes are its
                     first four numbers

A scale is the smallest with which a group's numbers fit the format's range. A cache is [blocks,
layers, 2, groups, pages of a block * a plane]: a block's pages, consecutive ones of a text where
possible, are contiguous per head. So a head reads them as one stream, which hardware prefetches:
one token over 2,048 in scattered planes of 8 KB is read at 11.5 GB/s on Zen 4, 12 with prefetches,
as many misses as it has in flight, and at 28 in a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, IntImm, PrimExpr, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, BufferLoad, ramp

CACHE_SCALE_DTYPE = np.dtype("<f2")
CACHE_WORD_BYTES = 4
"""Bytes per packed word of a quantised cache."""
MAX_QUERY_LEVEL = 127.0
"""Largest magnitude of a quantised query element (int8)."""


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """Number format of a KV cache: integers from `min_value` to `max_value`, stored with a zero
    point and scaled per group of depth elements.
    """

    name: str
    dtype: str
    """Element dtype of the cache tensor, unique to the format."""
    bits: int
    group_size: int = 0
    """Depth elements per scale; 0 for unscaled formats."""
    min_value: float = 0.0
    max_value: float = 0.0
    zero_point: int = 0

    @property
    def values_per_word(self) -> int:
        """Return the number of values packed in a 32-bit word of a format with scales."""
        return 8 * CACHE_WORD_BYTES // self.bits

    @property
    def granularity(self) -> int:
        """Return the multiples that a head's depth and a page's tokens must have."""
        return self.values_per_word if self.group_size else CACHE_WORD_BYTES


# fmt: off
CACHE_FORMATS: Mapping[str, CacheFormat] = {row.name: row for row in (
    #       name        dtype      bits     group   least   most zero
    CacheFormat("float32",  "float32",   32),
    CacheFormat("float16",  "float16",   16),
    CacheFormat("bfloat16", "bfloat16",  16),
    CacheFormat("int8",     "int8",       8,  1 << 30, -127.0, 127.0,  0),
    CacheFormat("int4",     "uint8",      4,  32,        -8.0,   7.0,  8),
)}
# fmt: on
CACHE_FORMAT_BY_DTYPE = {row.dtype: row for row in CACHE_FORMATS.values()}


@dataclass(frozen=True, slots=True)
class CachePlane:
    """Layout of the keys or the values of one page and head: tokens per page, depth and dtype."""

    page_tokens: int
    depth: int
    dtype: str

    @property
    def format(self) -> CacheFormat:
        """Return the number format of the plane's dtype."""
        return CACHE_FORMAT_BY_DTYPE[self.dtype]

    @property
    def has_scales(self) -> bool:
        """Return whether tokens have scales."""
        return self.format.group_size > 0

    @property
    def group_size(self) -> int:
        """Return how many depth elements share a scale."""
        format_group = self.format.group_size
        return self.depth if format_group >= self.depth else math.gcd(format_group, self.depth)

    @property
    def num_groups(self) -> int:
        """Return the number of scales per token."""
        return self.depth // self.group_size if self.has_scales else 0

    @property
    def num_value_elements(self) -> int:
        """Return the number of elements that store the values of all tokens; the scales follow
        them.
        """
        held = self.format.values_per_word // CACHE_WORD_BYTES if self.has_scales else 1
        return self.page_tokens * self.depth // held

    @property
    def size(self) -> int:
        """Return the number of cache elements that a plane occupies, values and scales."""
        return (
            self.num_value_elements
            + self.page_tokens * CACHE_SCALE_DTYPE.itemsize * self.num_groups
        )

    def pages_per_block(self, last: PrimExpr) -> int:
        """Return the number of pages per block of a cache with this last dimension; 0 if it is no
        multiple of the plane's size.
        """
        block_size = last.value if isinstance(last, IntImm) else 0
        return 0 if block_size % self.size else block_size // self.size

    def plane_offset(self, cache: Buffer, layer: PrimExpr, page: PrimExpr, group: PrimExpr,
                     values: PrimExpr | int) -> PrimExpr:  # fmt: skip
        """Return the offset of a page's keys or values in a cache."""
        count = self.pages_per_block(cache.shape[4])
        block, inside = (page // count, page % count) if count > 1 else (page, const(0))
        line = ((block * cache.shape[1] + layer) * 2 + values) * cache.shape[3] + group
        return (line * count + inside) * self.size

    def element_offset(self, token: PrimExpr, depth_index: PrimExpr, values: int) -> PrimExpr:
        """Return the element offset of a token's value in a plane."""
        summed, inner_index, inner_size = (
            (token, depth_index, self.depth) if values else (depth_index, token, self.page_tokens)
        )
        if not self.has_scales:
            return summed * inner_size + inner_index
        return (
            summed // self.format.values_per_word * inner_size + inner_index
        ) * CACHE_WORD_BYTES + summed % CACHE_WORD_BYTES

    def bit_offset(self, token: PrimExpr, depth_index: PrimExpr, values: int) -> PrimExpr:
        """Return the bit offset of a token's value within its element."""
        summed = token if values else depth_index
        return summed % self.format.values_per_word // CACHE_WORD_BYTES * self.format.bits

    def scale_offset(self, token: PrimExpr, group: PrimExpr | int) -> PrimExpr:
        """Return the offset of a token's scale in a plane."""
        return (
            token + group * self.page_tokens
        ) * CACHE_SCALE_DTYPE.itemsize + self.num_value_elements

    def load_scales(self, cache: Buffer, base: PrimExpr, token: PrimExpr, lanes: int,
                    group: PrimExpr | int = 0) -> PrimExpr:  # fmt: skip
        """Return the scales of consecutive tokens of the plane at `base` as a float32 vector; a
        scalar for one lane.
        """
        size = CACHE_SCALE_DTYPE.itemsize * lanes
        position = ramp(base + self.scale_offset(token, group), 1, size)
        raw = BufferLoad(cache, (position,), f"{self.dtype}x{size}")
        suffix = f"x{lanes}" if lanes > 1 else ""
        halves = call_intrin("reinterpret", raw, dtype=f"float16{suffix}")
        return Cast(halves, f"float32{suffix}")

    # The same in NumPy, for planes [..., size].

    def layer_view(self, cache: NDArray[np.generic], layer: int) -> NDArray[np.generic]:
        """Return a view [blocks, 2, groups, pages of a block, size] of a layer."""
        layer_view = cache[:, layer]
        return layer_view.reshape(*layer_view.shape[:3], -1, self.size)

    def dequantize(self, planes: NDArray[np.generic], values: int) -> NDArray[np.float32]:
        """Dequantise planes to float32 keys or values [..., page, depth]."""
        numbers = self._unpack_rows(planes, values).astype(np.float32)
        numbers = numbers if values else numbers.swapaxes(-1, -2)
        if not self.has_scales:
            return numbers
        raw = np.ascontiguousarray(planes[..., self.num_value_elements :]).view(CACHE_SCALE_DTYPE)
        scales = raw.reshape(*planes.shape[:-1], self.num_groups, self.page_tokens).swapaxes(-1, -2)
        every = np.repeat(scales.astype(np.float32), self.group_size, -1)
        return (numbers - np.float32(self.format.zero_point)) * every

    def write_token(self, plane: NDArray[np.generic], token: int,
        token_numbers: NDArray[np.float32],
              values: int) -> None:  # fmt: skip
        """Quantise and store a token's values [heads, depth] in planes [heads, size]."""
        levels = self._quantize_token(plane, token, token_numbers) if self.has_scales else None
        for depth_index in range(self.depth):
            # Words run along the axis that a product sums over: tokens for values, depth for keys.
            # One dot-product instruction then takes a whole word.
            summed, inner_index, inner_size = (
                (token, depth_index, self.depth)
                if values
                else (depth_index, token, self.page_tokens)
            )
            if levels is None:
                plane[:, summed * inner_size + inner_index] = token_numbers[:, depth_index]
                continue
            word, inside = divmod(summed, self.format.values_per_word)
            position = (
                word * inner_size + inner_index
            ) * CACHE_WORD_BYTES + inside % CACHE_WORD_BYTES
            shift = inside // CACHE_WORD_BYTES * self.format.bits
            # A byte of a 4-bit cache holds two numbers: the neighbour's bits stay.
            other_bits = plane[:, position].view(np.uint8) & np.uint8(
                ~(self._value_mask << shift) & 255
            )
            bits = (levels[:, depth_index] & self._value_mask).astype(np.uint8) << np.uint8(shift)
            plane[:, position] = (other_bits | bits).view(plane.dtype)

    @property
    def _value_mask(self) -> int:
        return (1 << self.format.bits) - 1

    def _quantize_token(self, plane: NDArray[np.generic], token: int,
                token_numbers: NDArray[np.float32]) -> NDArray[np.int32]:  # fmt: skip
        """Return the quantised values of a token, and store its scales in the planes."""
        row = self.format
        grouped = token_numbers.reshape(len(token_numbers), self.num_groups, self.group_size)
        # The range may be asymmetric (int4: -8 to 7): the end that needs the larger scale decides.
        ends = (
            (grouped.max(-1, keepdims=True), row.max_value),
            (grouped.min(-1, keepdims=True), row.min_value),
        )
        scales = np.maximum(*(end * np.float32(1 / level) for end, level in ends)).astype(
            CACHE_SCALE_DTYPE
        )
        for group in range(self.num_groups):
            position = (
                self.num_value_elements
                + (group * self.page_tokens + token) * CACHE_SCALE_DTYPE.itemsize
            )
            scale_bytes = np.ascontiguousarray(scales[:, group]).view(plane.dtype)
            plane[:, position : position + CACHE_SCALE_DTYPE.itemsize] = scale_bytes
        wide = scales.astype(np.float32)
        # The float16 scale is what readers multiply by, so it is also what is divided by here: its
        # rounding must not become a second error.
        finer = np.divide(1, wide, out=np.ones_like(wide), where=wide > 0)
        quantized = np.clip(np.rint(grouped * finer), row.min_value, row.max_value) + row.zero_point
        levels: NDArray[np.int32] = quantized.reshape(token_numbers.shape).astype(np.int32)
        return levels

    def _unpack_rows(self, planes: NDArray[np.generic], values: int) -> NDArray[np.generic]:
        """Unpack planes to integers in the order of float planes: [..., page, depth] for values,
        [..., depth, page] for keys.
        """
        summed, inner_size = (
            (self.page_tokens, self.depth) if values else (self.depth, self.page_tokens)
        )
        unpacked = planes[..., : self.num_value_elements]
        if self.has_scales:
            held, bits = self.format.values_per_word, self.format.bits
            words = unpacked.reshape(
                *planes.shape[:-1], summed // held, 1, inner_size, CACHE_WORD_BYTES
            )
            if bits < 8:
                shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None, None]
                words = words.view(np.uint8) >> shifts & np.uint8(self._value_mask)
            unpacked = words.swapaxes(-1, -2)
        return unpacked.reshape(*planes.shape[:-1], summed, inner_size)


__all__ = [
    "CACHE_FORMATS",
    "CACHE_FORMAT_BY_DTYPE",
    "CACHE_SCALE_DTYPE",
    "CACHE_WORD_BYTES",
    "MAX_QUERY_LEVEL",
    "CacheFormat",
    "CachePlane",
]
