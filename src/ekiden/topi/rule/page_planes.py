"""How the keys of a head lie in a page of a cache, and its values.

    keys      [depth][page]    a row for each place of the depth
    values    [page][depth]

Floats are that and nothing else. Bytes ("int8") have a scale for each token behind them, a float16:
a number is its byte times the scale, which makes the greatest of the token's numbers 127.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, PrimExpr
from ekiden.tir.expr import Buffer, BufferLoad, ramp

BYTES = "int8"
KINDS = ("float32", "float16", "bfloat16", BYTES)
"""Dtypes of a cache."""
SCALE = np.dtype("<f2")
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

    def read(self, planes: NDArray[np.generic], values: int) -> NDArray[np.float32]:
        """[..., page, depth] of keys, or of values."""
        rows = (self.page, self.depth) if values else (self.depth, self.page)
        found = planes[..., : self.numbers].astype(np.float32)
        found = found.reshape(*planes.shape[:-1], *rows)
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
        if values:
            plane[:, token * self.depth : (token + 1) * self.depth] = given
        else:
            plane[:, token : self.numbers : self.page] = given


__all__ = ["BYTES", "KINDS", "LEVELS", "SCALE", "Plane"]
