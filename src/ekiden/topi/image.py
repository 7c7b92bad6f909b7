"""Resizing of images: each result pixel is a weighted sum of a few pixels of the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import (
    EQ,
    PrimExpr,
    Select,
    Var,
    binary,
    cast,
    const,
    logical_and,
    maximum,
    minimum,
)
from ekiden.te import Tensor
from ekiden.topi.shape import Shape, known

FLOAT = "float32"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How result pixels map to data pixels (see relay's Resize2DAttrs)."""

    method: str
    mode: str
    rounding: str
    cubic_alpha: float
    cubic_exclude: bool


def resize2d(
    data: Tensor,
    shape: Shape,
    axes: Sequence[int],
    sampling: Sampling,
    scales: Sequence[float] | None,
    out_dtype: str,
) -> Tensor:
    """`data` resized to `shape` along two axes."""
    rows, columns = axes

    def body(*i: Var) -> PrimExpr:
        taps = [
            _taps(sampling, i[a], data.shape[a], shape[a], None if scales is None else scales[n])
            for n, a in enumerate(axes)
        ]
        total: PrimExpr | None = None
        for y, wy in taps[0]:
            line = None
            for x, wx in taps[1]:
                at = [y if n == rows else x if n == columns else index for n, index in enumerate(i)]
                line = _plus(line, _times(data[at], wx))
            assert line is not None
            total = _plus(total, _times(line, wy))
        assert total is not None
        return _finish(total, out_dtype)

    return te.compute(shape, body, name="resize2d", tag="injective")


def _plus(a: PrimExpr | None, b: PrimExpr) -> PrimExpr:
    return b if a is None else a + b


def _times(value: PrimExpr, weight: PrimExpr | None) -> PrimExpr:
    return value if weight is None else cast(value, FLOAT) * weight


def _finish(value: PrimExpr, dtype: str) -> PrimExpr:
    if dt.is_float(value.dtype) and not dt.is_float(dtype):
        value = call_intrin("round", value)
    return cast(value, dtype)


def _coordinate(
    mode: str, index: PrimExpr, size: PrimExpr, extent: PrimExpr, scale: float | None
) -> PrimExpr:
    """Where a result pixel lies in the data."""
    x, half = cast(index, FLOAT), const(0.5, FLOAT)
    if mode == "align_corners":
        return x * cast(size - 1, FLOAT) / cast(maximum(extent - 1, 1), FLOAT)
    factor = _scale(size, extent, scale)
    if mode == "asymmetric":
        return x / factor
    middle = (x + half) / factor
    if mode == "tf_half_pixel_for_nn":
        return middle
    if mode == "pytorch_half_pixel":
        return Select(binary(EQ, extent, 1), const(0.0, FLOAT), middle - half, FLOAT)
    return middle - half


def _scale(size: PrimExpr, extent: PrimExpr, scale: float | None) -> PrimExpr:
    """Result per data extent, in float32."""
    numbers = known(size), known(extent)
    if scale is None and numbers[0] and numbers[1] is not None:
        scale = numbers[1] / numbers[0]
    return (
        cast(extent, FLOAT) / cast(size, FLOAT)
        if scale is None
        else const(float(np.float32(scale)), FLOAT)
    )


def _nearest(x: PrimExpr, rounding: str) -> PrimExpr:
    half = const(0.5, FLOAT)
    if rounding in ("", "round", "round_prefer_floor"):
        return call_intrin("ceil", x - half)
    if rounding == "round_prefer_ceil":
        return call_intrin("floor", x + half)
    return call_intrin(rounding, x)


def _clamped(x: PrimExpr, size: PrimExpr) -> PrimExpr:
    return maximum(minimum(cast(x, "int64"), size - 1), 0)


def _taps(
    sampling: Sampling, index: PrimExpr, size: PrimExpr, extent: PrimExpr, scale: float | None
) -> list[tuple[PrimExpr, PrimExpr | None]]:
    """(index, weight) of the data pixels of one axis that a result pixel sums; no weight is 1."""
    x = _coordinate(sampling.mode, index, size, extent, scale)
    if sampling.method == "nearest_neighbor":
        return [(_clamped(_nearest(x, sampling.rounding), size), None)]
    base = call_intrin("floor", x)
    fraction = x - base
    if sampling.method == "linear":
        weights = [const(1.0, FLOAT) - fraction, fraction]
        return [(_clamped(base + float(n), size), w) for n, w in enumerate(weights)]
    weights = [_cubic(fraction, n, sampling.cubic_alpha) for n in range(-1, 3)]
    places = [cast(base, "int64") + n for n in range(-1, 3)]
    if sampling.cubic_exclude:
        weights = _without_outside(weights, places, size)
    return [(_clamped(at, size), w) for at, w in zip(places, weights, strict=True)]


def _cubic(fraction: PrimExpr, offset: int, alpha: float) -> PrimExpr:
    """The cubic convolution kernel at the distance |fraction - offset|."""
    d = fraction - float(offset) if offset <= 0 else const(float(offset), FLOAT) - fraction
    if offset in (0, 1):
        return (d * (alpha + 2) - (alpha + 3)) * d * d + 1.0
    return ((d - 5.0) * d + 8.0) * d * alpha - 4 * alpha


def _without_outside(
    weights: Sequence[PrimExpr], places: Sequence[PrimExpr], size: PrimExpr
) -> list[PrimExpr]:
    """Weights of pixels outside the data become 0, the others sum to 1."""
    kept = [
        Select(logical_and(at >= 0, at < size), w, const(0.0, FLOAT), FLOAT)
        for at, w in zip(places, weights, strict=True)
    ]
    total = kept[0] + kept[1] + kept[2] + kept[3]
    return [w / total for w in kept]


__all__ = ["resize2d"]
