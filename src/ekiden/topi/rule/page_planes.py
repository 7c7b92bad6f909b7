"""How the keys of a head lie in a page of a cache, and its values.

    keys      [depth][page]    a row for each place of the depth
    values    [page][depth]

Floats are that and nothing else. Of bytes ("int8") four that are summed together stand together, as
products of bytes take them, and behind them is a scale for each token, a float16: a number is its
byte times the scale, which makes the greatest of the token's numbers 127.

    keys      [depth / 4][page][4], then [page]
    values    [page / 4][depth][4], then [page]

A cache is [blocks, layers, 2, groups, pages of a block * a plane]: the pages of a block, of which
those of a text are neighbours if it can be had, lie one behind the other for each head. So a head
reads them as one stream, which a processor brings near by itself: one token over 2,048 in planes of
8 KB that lie apart is read at 11.5 GB/s on Zen 4, 12 with prefetches, as many misses as it has at
once, and at 28 in a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, IntImm, PrimExpr, const
from ekiden.tir.expr import Buffer, BufferLoad, ramp

BYTES = "int8"
KINDS = ("float32", "float16", "bfloat16", BYTES)
"""Dtypes of a cache."""
SCALE = np.dtype("<f2")
TOGETHER = 4
"""Bytes of a word."""
LEVELS = 127.0
"""What the greatest number of a token becomes."""


@dataclass(frozen=True, slots=True)
class Plane:
    """The keys of a page, or its values: tokens of a page, numbers of each, and the dtype."""

    page: int
    depth: int
    dtype: str

    @property
    def numbers(self) -> int:
        """Of all tokens; scales begin behind them."""
        return self.page * self.depth

    @property
    def has_scales(self) -> bool:
        """Whether a token has one."""
        return self.dtype == BYTES

    @property
    def size(self) -> int:
        """Elements of the cache."""
        return self.numbers + self.page * SCALE.itemsize * self.has_scales

    def pages(self, last: PrimExpr) -> int:
        """Of a block of a cache with this last size; 0 where planes do not divide it."""
        whole = last.value if isinstance(last, IntImm) else 0
        return 0 if whole % self.size else whole // self.size

    def start(self, cache: Buffer, layer: PrimExpr, page: PrimExpr, group: PrimExpr,
              values: int) -> PrimExpr:  # fmt: skip
        """Where the keys of a page begin in a cache, or its values."""
        count = self.pages(cache.shape[4])
        block, inside = (page // count, page % count) if count > 1 else (page, const(0))
        line = ((block * cache.shape[1] + layer) * 2 + values) * cache.shape[3] + group
        return (line * count + inside) * self.size

    def at(self, token: PrimExpr, place: PrimExpr, values: int) -> PrimExpr:
        """Where a number of a token lies in a plane."""
        summed, other, others = (token, place, self.depth) if values else (place, token, self.page)
        if not self.has_scales:
            return summed * others + other
        return (summed // TOGETHER * others + other) * TOGETHER + summed % TOGETHER

    def scale_at(self, token: PrimExpr) -> PrimExpr:
        """Where the scale of a token lies in a plane."""
        return token * SCALE.itemsize + self.numbers

    def scales(self, cache: Buffer, base: PrimExpr, token: PrimExpr, lanes: int) -> PrimExpr:
        """Those of neighbouring tokens of the plane at `base`, a vector of float32."""
        size = SCALE.itemsize * lanes
        at = ramp(base + self.scale_at(token), 1, size)
        raw = BufferLoad(cache, (at,), f"{self.dtype}x{size}")
        halves = call_intrin("reinterpret", raw, dtype=f"float16x{lanes}")
        return Cast(halves, f"float32x{lanes}")

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
        scales = np.ascontiguousarray(planes[..., self.numbers :]).view(SCALE)
        return found * scales.astype(np.float32)[..., None]

    def write(self, plane: NDArray[np.generic], token: int, given: NDArray[np.float32],
              values: int) -> None:  # fmt: skip
        """Put the numbers [heads, depth] of a token into planes [heads, size]."""
        if self.has_scales:
            most = np.abs(given).max(-1, keepdims=True) * np.float32(1 / LEVELS)
            scales = most.astype(SCALE)
            wide = scales.astype(np.float32)
            finer = np.divide(1, wide, out=np.zeros_like(wide), where=wide > 0)
            given = np.clip(np.rint(given * finer), -LEVELS, LEVELS)
            at = self.numbers + token * SCALE.itemsize
            plane[:, at : at + SCALE.itemsize] = scales.view(plane.dtype)
        places = np.arange(self.depth)
        summed, other, others = (
            (token, places, self.depth) if values else (places, token, self.page)
        )
        group = TOGETHER if self.has_scales else 1
        plane[:, (summed // group * others + other) * group + summed % group] = given

    def _rows(self, planes: NDArray[np.generic], values: int) -> NDArray[np.generic]:
        """Numbers in the order of floats: [..., page, depth] of values, else [..., depth, page]."""
        summed, others = (self.page, self.depth) if values else (self.depth, self.page)
        found = planes[..., : self.numbers]
        if not self.has_scales:
            return found.reshape(*planes.shape[:-1], summed, others)
        words = found.reshape(*planes.shape[:-1], summed // TOGETHER, others, TOGETHER)
        return words.swapaxes(-1, -2).reshape(*planes.shape[:-1], summed, others)


__all__ = ["BYTES", "KINDS", "LEVELS", "SCALE", "TOGETHER", "Plane"]
