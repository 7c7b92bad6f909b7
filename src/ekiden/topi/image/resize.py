"""Resizing of images: each result pixel is a weighted sum of a few pixels of the data.

Where a result pixel lies in the data, for scale s = result / data:

    half_pixel            (x + 0.5) / s - 0.5       pixels are squares with a middle
    pytorch_half_pixel    the same, 0 for one pixel
    asymmetric            x / s                     pixels are points from 0 on
    align_corners         x (data - 1) / (result - 1)
    tf_half_pixel_for_nn  (x + 0.5) / s

Linear takes two pixels an axis, cubic four by Keys's kernel (1981) with a = cubic_alpha, nearest
the one that `rounding_method` gives. Planes are resized along one axis, then the
other, for 2 + 2 or 4 + 4 products a result instead of 4 or 16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import (
    EQ,
    Or,
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
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te import Tensor
from ekiden.te.inline import STORED
from ekiden.topi.layout import spatial
from ekiden.topi.shape import Dim, Shape, as_dim, expect_least, known, replaced

FLOAT = "float32"


COORDINATES = (
    "half_pixel",
    "align_corners",
    "asymmetric",
    "pytorch_half_pixel",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
NEAR = 1e-5
"""TVM's tolerance of places that rounding has put just below a whole number: 6.5 / (1 / 13)."""
ROUNDING = ("round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def rounding_of(rounding: str, mode: str) -> str:
    """How the nearest pixel is found where that is left open (""): TVM's rule, where it stays ""
    for the whole number that is not above, or above by less than NEAR. Raises ValueError for a
    mode or a rounding that there is not."""
    given = (("coordinate_transformation_mode", mode, COORDINATES),
             ("rounding_method", rounding, ("", *ROUNDING)))  # fmt: skip
    for what, value, allowed in given:
        if value not in allowed:
            raise ValueError(
                f"{what} must be one of {', '.join(filter(None, allowed))}, got {value!r}"
            )
    return "round" if not rounding and mode == "align_corners" else rounding


@dataclass(frozen=True, slots=True)
class Sampling:
    """How result pixels map to data pixels (see relay's Resize2DAttrs)."""

    method: str
    mode: str
    rounding: str
    cubic_alpha: float
    cubic_exclude: bool


def resize(
    data: Tensor,
    shape: Shape,
    axes: Sequence[int],
    sampling: Sampling,
    scales: Sequence[float | PrimExpr] | None,
    out_dtype: str,
    region: Sequence[tuple[float, float]] | None = None,
    extrapolation: float = 0.0,
) -> Tensor:
    """`data` resized to `shape` along one to three axes.

    scales: result per data extent where that is not the quotient of the extents. region: (begin,
    end) of each axis in [0, 1], for the mode "tf_crop_and_resize"; places outside the data get the
    extrapolation value.
    """

    here = dict(zip(axes, range(len(axes)), strict=True))
    name = f"resize{len(axes)}d"

    def along(source: Tensor, part: Sequence[int], last: bool) -> Tensor:
        """The source resized along some of the axes; converted after the last of them."""

        def body(*i: Var) -> PrimExpr:
            """The taps of one group of axes, weighted; what lies outside of the region is the
            extrapolation value. The last group's result is rounded and cast.
            """
            taps, outside = [], []
            for a in part:
                scale = None if scales is None else scales[here[a]]
                window = None if region is None else region[here[a]]
                x = _coordinate(sampling.mode, i[a], data.shape[a], shape[a], scale, window)
                taps.append(_taps(sampling, x, data.shape[a]))
                if window is not None:
                    bound = cast(data.shape[a] - 1, FLOAT)
                    outside.append(binary(Or, x < 0.0, x > bound))
            total = _weighted(source, list(i), list(zip(part, taps, strict=True)))
            for each in outside:
                total = Select(each, const(extrapolation, total.dtype), total, total.dtype)
            return _finish(total, out_dtype) if last else total

        made = [shape[n] if n in part else d for n, d in enumerate(source.shape)]
        kept = {} if last else {STORED: True}
        return te.compute(made, body, name=name, tag="injective", attrs=kept)

    first, second = _parts(data, shape, axes, sampling.method, region is not None)
    return along(along(data, first, False), second, True) if first else along(data, second, True)


def _parts(
    data: Tensor, shape: Shape, axes: Sequence[int], method: str, cropped: bool
) -> tuple[Sequence[int], Sequence[int]]:
    """The axes to resize first, with the result stored, and the others.

    Elements along the last axis of the data are picked one by one, those along others come in
    vectors: so the former is resized while there are few lines, before they are multiplied or
    after they have become fewer.
    """
    *others, last = axes
    sizes = [(known(data.shape[a]), known(shape[a])) for a in others]
    if cropped or not others or last != data.ndim - 1:
        return (), axes
    if any(before is None or after is None for before, after in sizes):
        return (), axes
    old, new = (math.prod(extents) for extents in zip(*sizes, strict=True))
    if method == "nearest_neighbor":
        return ((last,), others) if new > old else ((), axes)
    return ((last,), others) if new >= old else (others, (last,))


def _weighted(
    data: Tensor,
    at: list[PrimExpr],
    taps: Sequence[tuple[int, Sequence[tuple[PrimExpr, PrimExpr | None]]]],
) -> PrimExpr:
    """The sum over the taps of every axis, the innermost axis first."""
    if not taps:
        return data[at]
    (axis, places), *rest = taps
    total: PrimExpr | None = None
    for place, weight in places:
        at[axis] = place
        total = _plus(total, _times(_weighted(data, at, rest), weight))
    assert total is not None
    return total


def _plus(a: PrimExpr | None, b: PrimExpr) -> PrimExpr:
    return b if a is None else a + b


def _times(value: PrimExpr, weight: PrimExpr | None) -> PrimExpr:
    return value if weight is None else cast(value, FLOAT) * weight


def _finish(value: PrimExpr, dtype: str) -> PrimExpr:
    if dt.is_float(value.dtype) and not dt.is_float(dtype):
        value = call_intrin("round", value)
    return cast(value, dtype)


def _coordinate(
    mode: str,
    index: PrimExpr,
    size: PrimExpr,
    extent: PrimExpr,
    scale: float | PrimExpr | None,
    region: tuple[float, float] | None = None,
) -> PrimExpr:
    """Where a result pixel lies in the data."""
    x, half = cast(index, FLOAT), const(0.5, FLOAT)
    if mode == "tf_crop_and_resize" and region is not None:
        last, steps = cast(size - 1, FLOAT), cast(maximum(extent - 1, 1), FLOAT)
        begin, end = region
        one = (begin + end) * 0.5 * last
        many = begin * last + x * ((end - begin) * last / steps)
        return Select(binary(EQ, extent, 1), one, many, FLOAT)
    if mode == "align_corners":
        return x * cast(size - 1, FLOAT) / _steps(size, extent, scale)
    factor = _scale(size, extent, scale)
    if mode == "asymmetric":
        return x / factor
    middle = (x + half) / factor
    if mode == "tf_half_pixel_for_nn":
        return middle
    if mode == "pytorch_half_pixel":
        return Select(binary(EQ, extent, 1), const(0.0, FLOAT), middle - half, FLOAT)
    return middle - half


def _steps(size: PrimExpr, extent: PrimExpr, scale: float | PrimExpr | None) -> PrimExpr:
    """How many pixels the last corner of a result is from the first: with a scale, ONNX measures
    the scaled extent before it is rounded down to pixels. At least 1, of one pixel at place 0."""
    if scale is None:
        return cast(maximum(extent - 1, 1), FLOAT)
    number = known(size)
    if isinstance(scale, PrimExpr) or number is None:
        return maximum(cast(size, FLOAT) * _scale(size, extent, scale) - 1.0, const(1.0, FLOAT))
    wide = np.float32(number) * np.float32(scale)
    return const(max(float(wide - np.float32(1)), 1.0), FLOAT)


def _scale(size: PrimExpr, extent: PrimExpr, scale: float | PrimExpr | None) -> PrimExpr:
    """Result per data extent, in float32."""
    if isinstance(scale, PrimExpr):
        return cast(scale, FLOAT)
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
    match rounding:
        case "round_prefer_floor":
            return call_intrin("ceil", x - half)
        case "round_prefer_ceil" | "round":
            return call_intrin("floor", x + half)
        case "":
            return call_intrin("floor", x + const(NEAR, FLOAT))
    return call_intrin(rounding, x)


FAR = 2.0**62
"""Beyond all places, and a whole number of 64 bits."""


def _clamped(x: PrimExpr, size: PrimExpr) -> PrimExpr:
    if x.dtype == FLOAT:  # by a scale that is tiny places are no numbers of 64 bits
        x = minimum(maximum(x, const(-1.0, FLOAT)), const(FAR, FLOAT))
    return maximum(minimum(cast(x, "int64"), size - 1), 0)


def _taps(
    sampling: Sampling, x: PrimExpr, size: PrimExpr
) -> list[tuple[PrimExpr, PrimExpr | None]]:
    """(index, weight) of the data pixels of one axis that a result at place x sums; no weight is
    1."""
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


METHODS = {"nearest_neighbor": "nearest_neighbor", "linear": "linear", "cubic": "cubic",
           "bilinear": "linear", "bicubic": "cubic"}  # fmt: skip


def _resized(
    data: Tensor,
    roi: Sequence[float] | None,
    size: Dim | Sequence[Dim],
    layout: str,
    method: str,
    mode: str,
    rounding: str,
    alpha: float,
    exclude: bool | int,
    extrapolation: float | None,
    out_dtype: str | None,
    rank: int,
) -> Tensor:
    name = f"resize{rank}d"
    axes = spatial(layout)
    sizes = (size,) * rank if isinstance(size, Dim) else tuple(size)
    if len(axes) != rank or len(sizes) != rank:
        raise ValueError(f"{name}: expected {rank} spatial axes, got {layout!r} and size {size}")
    if method not in METHODS:
        raise ValueError(f"{name}: method must be one of {', '.join(METHODS)}, got {method!r}")
    region = None
    if mode == "tf_crop_and_resize":
        if roi is None or len(roi) != 2 * rank:
            raise ValueError(
                f"{name}: tf_crop_and_resize needs {2 * rank} numbers in roi, got {roi}"
            )
        region = list(zip(roi[:rank], roi[rank:], strict=True))
    shape = data.shape
    if len(shape) != len(layout):
        raise ValueError(f"{name}: 'data' of layout {layout!r} expected, got shape {shape}")
    expect_least(name, "data", [shape[a] for a in axes], [1] * rank)
    for at, extent in zip(axes, sizes, strict=True):
        shape = replaced(shape, at, as_dim(extent))
    try:
        found = rounding_of(rounding, mode)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    sampling = Sampling(METHODS[method], mode, found, alpha, bool(exclude))
    dtype = out_dtype or data.dtype
    return resize(data, shape, axes, sampling, None, dtype, region, extrapolation or 0.0)


def resize1d(
    data: Tensor,
    roi: Sequence[float] | None,
    size: Dim | Sequence[Dim],
    layout: str = "NCW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    bicubic_alpha: float = -0.5,
    bicubic_exclude: bool | int = 0,
    extrapolation_value: float | None = 0.0,
    out_dtype: str | None = None,
    output_shape: Sequence[Dim] | None = None,
) -> Tensor:
    """Signals resized along one axis to `size`, which may be symbolic.

    method: "nearest_neighbor", "linear" or "cubic"; the coordinate modes and roundings are those of
    relay's Resize2DAttrs, with "tf_crop_and_resize", which reads the part `roi` (begins, then ends,
    in [0, 1]) and gives the extrapolation value outside. (`output_shape` is TVM's.)
    """
    return _resized(data, roi, size, layout, method, coordinate_transformation_mode,
                    rounding_method, bicubic_alpha, bicubic_exclude, extrapolation_value, out_dtype,
                    1)  # fmt: skip


def resize2d(
    data: Tensor,
    roi: Sequence[float] | None,
    size: Dim | Sequence[Dim],
    layout: str = "NCHW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    bicubic_alpha: float = -0.5,
    bicubic_exclude: bool | int = 0,
    extrapolation_value: float | None = 0.0,
    out_dtype: str | None = None,
    output_shape: Sequence[Dim] | None = None,
) -> Tensor:
    """Images resized along two axes; see `resize1d`."""
    return _resized(data, roi, size, layout, method, coordinate_transformation_mode,
                    rounding_method, bicubic_alpha, bicubic_exclude, extrapolation_value, out_dtype,
                    2)  # fmt: skip


def resize3d(
    data: Tensor,
    roi: Sequence[float] | None,
    size: Dim | Sequence[Dim],
    layout: str = "NCDHW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    bicubic_alpha: float = -0.5,
    bicubic_exclude: bool | int = 0,
    extrapolation_value: float | None = 0.0,
    out_dtype: str | None = None,
    output_shape: Sequence[Dim] | None = None,
) -> Tensor:
    """Volumes resized along three axes; see `resize1d`."""
    return _resized(data, roi, size, layout, method, coordinate_transformation_mode,
                    rounding_method, bicubic_alpha, bicubic_exclude, extrapolation_value, out_dtype,
                    3)  # fmt: skip


__all__ = ["resize1d", "resize2d", "resize3d"]
