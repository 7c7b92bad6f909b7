"""How the keys of a head lie in a page of a cache, and its values.

    keys      [depth][page]    a row for each place of the depth
    values    [page][depth]

Floats are that and nothing else. Numbers of few bits (a row of FORMATS) lie in words of 32 bits,
those that are summed together in one, as products of bytes take them; behind them is a float16 for
each token and each group of places, its scale.

    keys      [depth / n][page][4], then [groups][page]
    values    [page / n][depth][4], then [groups][page]

    int8    n = 4    byte * scale, for all places of a token
    int4    n = 8    (half - 8) * scale, for 32 places; the lower halves of a word's bytes are its
                     first four numbers

A scale is the least with which the numbers of a group are between the ends of the format.

A cache is [blocks, layers, 2, groups, pages of a block * a plane]: the pages of a block, of which
those of a text are neighbours if it can be had, lie one behind the other for each head. So a head
reads them as one stream, which a processor brings near by itself: one token over 2,048 in planes of
8 KB that lie apart is read at 11.5 GB/s on Zen 4, 12 with prefetches, as many misses as it has at
once, and at 28 in a row.
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

SCALE = np.dtype("<f2")
TOGETHER = 4
"""Bytes of a word."""
LEVELS = 127.0
"""What the greatest number of a query becomes, which multiplies bytes."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a cache keeps numbers: whole ones from `least` to `most` and kept from `zero` on, times
    the scale of a group of at most `group` places."""

    name: str
    dtype: str
    """Of the tensor, which no other format has."""
    bits: int
    group: int = 0
    """0 where there are no scales."""
    least: float = 0.0
    most: float = 0.0
    zero: int = 0

    @property
    def held(self) -> int:
        """Numbers of a word, where there are scales."""
        return 8 * TOGETHER // self.bits

    @property
    def quantum(self) -> int:
        """What the depth of a head and the tokens of a page are multiples of."""
        return self.held if self.group else TOGETHER


# fmt: off
FORMATS: Mapping[str, Format] = {row.name: row for row in (
    #       name        dtype      bits     group   least   most zero
    Format("float32",  "float32",   32),
    Format("float16",  "float16",   16),
    Format("bfloat16", "bfloat16",  16),
    Format("int8",     "int8",       8,  1 << 30, -127.0, 127.0,  0),
    Format("int4",     "uint8",      4,  32,        -8.0,   7.0,  8),
)}
# fmt: on
BY_DTYPE = {row.dtype: row for row in FORMATS.values()}


@dataclass(frozen=True, slots=True)
class Plane:
    """The keys of a page, or its values: tokens of a page, numbers of each, and the dtype."""

    page: int
    depth: int
    dtype: str

    @property
    def format(self) -> Format:
        """How numbers are kept."""
        return BY_DTYPE[self.dtype]

    @property
    def has_scales(self) -> bool:
        """Whether a token has one."""
        return self.format.group > 0

    @property
    def group(self) -> int:
        """Places that share a scale."""
        given = self.format.group
        return self.depth if given >= self.depth else math.gcd(given, self.depth)

    @property
    def groups(self) -> int:
        """Scales of a token."""
        return self.depth // self.group if self.has_scales else 0

    @property
    def numbers(self) -> int:
        """Elements that hold those of all tokens; scales begin behind them."""
        held = self.format.held // TOGETHER if self.has_scales else 1
        return self.page * self.depth // held

    @property
    def size(self) -> int:
        """Elements of the cache."""
        return self.numbers + self.page * SCALE.itemsize * self.groups

    def pages(self, last: PrimExpr) -> int:
        """Of a block of a cache with this last size; 0 where planes do not divide it."""
        whole = last.value if isinstance(last, IntImm) else 0
        return 0 if whole % self.size else whole // self.size

    def start(self, cache: Buffer, layer: PrimExpr, page: PrimExpr, group: PrimExpr,
              values: PrimExpr | int) -> PrimExpr:  # fmt: skip
        """Where the keys of a page begin in a cache, or its values."""
        count = self.pages(cache.shape[4])
        block, inside = (page // count, page % count) if count > 1 else (page, const(0))
        line = ((block * cache.shape[1] + layer) * 2 + values) * cache.shape[3] + group
        return (line * count + inside) * self.size

    def at(self, token: PrimExpr, place: PrimExpr, values: int) -> PrimExpr:
        """Where a number of a token lies in a plane: the element."""
        summed, other, others = (token, place, self.depth) if values else (place, token, self.page)
        if not self.has_scales:
            return summed * others + other
        return (summed // self.format.held * others + other) * TOGETHER + summed % TOGETHER

    def shift(self, token: PrimExpr, place: PrimExpr, values: int) -> PrimExpr:
        """And from which of its bits on."""
        summed = token if values else place
        return summed % self.format.held // TOGETHER * self.format.bits

    def scale_at(self, token: PrimExpr, group: PrimExpr | int) -> PrimExpr:
        """Where a scale of a token lies in a plane."""
        return (token + group * self.page) * SCALE.itemsize + self.numbers

    def scales(self, cache: Buffer, base: PrimExpr, token: PrimExpr, lanes: int,
               group: PrimExpr | int = 0) -> PrimExpr:  # fmt: skip
        """Those of neighbouring tokens of the plane at `base`, a vector of float32; of one token
        where it is one lane."""
        size = SCALE.itemsize * lanes
        at = ramp(base + self.scale_at(token, group), 1, size)
        raw = BufferLoad(cache, (at,), f"{self.dtype}x{size}")
        suffix = f"x{lanes}" if lanes > 1 else ""
        halves = call_intrin("reinterpret", raw, dtype=f"float16{suffix}")
        return Cast(halves, f"float32{suffix}")

    # The same in NumPy, for planes [..., size].

    def planes(self, cache: NDArray[np.generic], layer: int) -> NDArray[np.generic]:
        """A view [blocks, 2, groups, pages of a block, size] of a layer."""
        found = cache[:, layer]
        return found.reshape(*found.shape[:3], -1, self.size)

    def read(self, planes: NDArray[np.generic], values: int) -> NDArray[np.float32]:
        """[..., page, depth] of keys, or of values."""
        found = self._rows(planes, values).astype(np.float32)
        found = found if values else found.swapaxes(-1, -2)
        if not self.has_scales:
            return found
        raw = np.ascontiguousarray(planes[..., self.numbers :]).view(SCALE)
        scales = raw.reshape(*planes.shape[:-1], self.groups, self.page).swapaxes(-1, -2)
        every = np.repeat(scales.astype(np.float32), self.group, -1)
        return (found - np.float32(self.format.zero)) * every

    def write(self, plane: NDArray[np.generic], token: int, given: NDArray[np.float32],
              values: int) -> None:  # fmt: skip
        """Put the numbers [heads, depth] of a token into planes [heads, size]."""
        levels = self._levels(plane, token, given) if self.has_scales else None
        for place in range(self.depth):
            summed, other, others = (
                (token, place, self.depth) if values else (place, token, self.page)
            )
            if levels is None:
                plane[:, summed * others + other] = given[:, place]
                continue
            word, inside = divmod(summed, self.format.held)
            at = (word * others + other) * TOGETHER + inside % TOGETHER
            shift = inside // TOGETHER * self.format.bits
            kept = plane[:, at].view(np.uint8) & np.uint8(~(self._mask << shift) & 255)
            bits = (levels[:, place] & self._mask).astype(np.uint8) << np.uint8(shift)
            plane[:, at] = (kept | bits).view(plane.dtype)

    @property
    def _mask(self) -> int:
        return (1 << self.format.bits) - 1

    def _levels(self, plane: NDArray[np.generic], token: int,
                given: NDArray[np.float32]) -> NDArray[np.int32]:  # fmt: skip
        """The whole numbers of a token, whose scales are put into planes."""
        row = self.format
        parts = given.reshape(len(given), self.groups, self.group)
        ends = (parts.max(-1, keepdims=True), row.most), (parts.min(-1, keepdims=True), row.least)
        scales = np.maximum(*(end * np.float32(1 / level) for end, level in ends)).astype(SCALE)
        for group in range(self.groups):
            at = self.numbers + (group * self.page + token) * SCALE.itemsize
            each = np.ascontiguousarray(scales[:, group]).view(plane.dtype)
            plane[:, at : at + SCALE.itemsize] = each
        wide = scales.astype(np.float32)
        finer = np.divide(1, wide, out=np.ones_like(wide), where=wide > 0)
        whole = np.clip(np.rint(parts * finer), row.least, row.most) + row.zero
        levels: NDArray[np.int32] = whole.reshape(given.shape).astype(np.int32)
        return levels

    def _rows(self, planes: NDArray[np.generic], values: int) -> NDArray[np.generic]:
        """Numbers in the order of floats: [..., page, depth] of values, else [..., depth, page]."""
        summed, others = (self.page, self.depth) if values else (self.depth, self.page)
        found = planes[..., : self.numbers]
        if self.has_scales:
            held, bits = self.format.held, self.format.bits
            words = found.reshape(*planes.shape[:-1], summed // held, 1, others, TOGETHER)
            if bits < 8:
                shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None, None]
                words = words.view(np.uint8) >> shifts & np.uint8(self._mask)
            found = words.swapaxes(-1, -2)
        return found.reshape(*planes.shape[:-1], summed, others)


__all__ = ["BY_DTYPE", "FORMATS", "LEVELS", "SCALE", "TOGETHER", "Format", "Plane"]
