"""Image resizing; each result pixel is a weighted sum of a few pixels of the data.

Where a result pixel lies in the data, for scale s = result / data:

    half_pixel            (x + 0.5) / s - 0.5       pixels are squares with a middle
    pytorch_half_pixel    the same, 0 for one pixel
    asymmetric            x / s                     pixels are points from 0 on
    align_corners         x (data - 1) / (result - 1)
    tf_half_pixel_for_nn  (x + 0.5) / s

Linear takes two pixels an axis, cubic four by Keys's kernel (1981) with a = cubic_alpha, nearest
the one that `rounding_method` gives. Planes are resized along one axis, then the other, for 2 + 2
or 4 + 4 products a result instead of 4 or 16.
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
    cast,
    const,
    fold_binary,
    logical_and,
    maximum,
    minimum,
)
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te import Tensor
from ekiden.te.inline import STORED_ATTR
from ekiden.topi.dimensions import Dim, Shape, as_dim, known_int, replace_dim, require_min_extent
from ekiden.topi.layout import spatial_axis_indices

RESIZE_COORDINATE_DTYPE = "float32"


COORDINATE_MODES = (
    "half_pixel",
    "align_corners",
    "asymmetric",
    "pytorch_half_pixel",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
INTEGER_TOLERANCE = 1e-5
"""Tolerance of coordinates that rounding puts just below an integer (TVM's): 6.5 / (1 / 13)."""
ROUNDING_METHODS = ("round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def nearest_rounding_method(rounding: str, mode: str) -> str:
    """Return the rounding method of "nearest". "" is TVM's rule: the integer that is not above, or
    above by less than INTEGER_TOLERANCE. Raises ValueError for an unknown mode or method.
    """
    arguments = (("coordinate_transformation_mode", mode, COORDINATE_MODES),
                 ("rounding_method", rounding, ("", *ROUNDING_METHODS)))  # fmt: skip
    for what, value, allowed in arguments:
        if value not in allowed:
            raise ValueError(
                f"{what} must be one of {', '.join(filter(None, allowed))}, got {value!r}"
            )
    return "round" if not rounding and mode == "align_corners" else rounding


@dataclass(frozen=True, slots=True)
class ResizeSampling:
    """The mapping from result pixels to data pixels (see relay's Resize2DAttrs)."""

    method: str
    mode: str
    rounding: str
    cubic_alpha: float
    cubic_exclude: bool


def resize(
    data: Tensor,
    shape: Shape,
    axes: Sequence[int],
    sampling: ResizeSampling,
    scales: Sequence[float | PrimExpr] | None,
    out_dtype: str,
    region: Sequence[tuple[float, float]] | None = None,
    extrapolation: float = 0.0,
) -> Tensor:
    """Resize data along one to three axes.

    Args:
        data: the tensor.
        shape: the result's shape.
        axes: the resized axes.
        sampling: the coordinate mapping and interpolation.
        scales: result per data extent where that is not the quotient of the extents.
        out_dtype: dtype of the result.
        region: (begin, end) of each axis in [0, 1], for "tf_crop_and_resize".
        extrapolation: value outside the data.

    Returns:
        The resized tensor.
    """

    axis_index = dict(zip(axes, range(len(axes)), strict=True))
    name = f"resize{len(axes)}d"

    def resize_axis_group(source: Tensor, axis_group: Sequence[int], last: bool) -> Tensor:
        """Resize along some of the axes; the result is converted after the last of them."""

        def sum_taps(*i: Var) -> PrimExpr:
            """Sum the weighted taps of one group of axes; the extrapolation value outside the
            region. The last group's result is rounded and cast.
            """
            taps, outside = [], []
            for a in axis_group:
                scale = None if scales is None else scales[axis_index[a]]
                window = None if region is None else region[axis_index[a]]
                x = _source_coordinate(sampling.mode, i[a], data.shape[a], shape[a], scale, window)
                taps.append(_interpolation_taps(sampling, x, data.shape[a]))
                if window is not None:
                    bound = cast(data.shape[a] - 1, RESIZE_COORDINATE_DTYPE)
                    outside.append(fold_binary(Or, x < 0.0, x > bound))
            total = _weighted_sum(source, list(i), list(zip(axis_group, taps, strict=True)))
            for is_outside in outside:
                total = Select(is_outside, const(extrapolation, total.dtype), total, total.dtype)
            return _round_to_dtype(total, out_dtype) if last else total

        new_shape = [shape[n] if n in axis_group else d for n, d in enumerate(source.shape)]
        attrs = {} if last else {STORED_ATTR: True}
        return te.compute(new_shape, sum_taps, name=name, tag="injective", attrs=attrs)

    first, second = _axis_groups(data, shape, axes, sampling.method, region is not None)
    return (
        resize_axis_group(resize_axis_group(data, first, False), second, True)
        if first
        else resize_axis_group(data, second, True)
    )


def _axis_groups(
    data: Tensor, shape: Shape, axes: Sequence[int], method: str, cropped: bool
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the axes to resize first, into a stored intermediate, and the remaining ones. Elements
    along the last axis are gathered one by one, others in vectors, so the last axis is resized
    while there are few rows: before they multiply or after they have become fewer.
    """
    *outer_axes, last = axes
    sizes = [(known_int(data.shape[a]), known_int(shape[a])) for a in outer_axes]
    if cropped or not outer_axes or last != data.ndim - 1:
        return (), axes
    if any(before is None or after is None for before, after in sizes):
        return (), axes
    old, new = (math.prod(extents) for extents in zip(*sizes, strict=True))
    if method == "nearest_neighbor":
        return ((last,), outer_axes) if new > old else ((), axes)
    return ((last,), outer_axes) if new >= old else (outer_axes, (last,))


def _weighted_sum(
    data: Tensor,
    at: list[PrimExpr],
    taps: Sequence[tuple[int, Sequence[tuple[PrimExpr, PrimExpr | None]]]],
) -> PrimExpr:
    """Return the weighted sum over the taps of every axis, innermost axis first."""
    if not taps:
        return data[at]
    (axis, tap_indices), *inner_taps = taps
    total: PrimExpr | None = None
    for tap_index, weight in tap_indices:
        at[axis] = tap_index
        total = _add_or_first(total, _multiply_weight(_weighted_sum(data, at, inner_taps), weight))
    assert total is not None
    return total


def _add_or_first(a: PrimExpr | None, b: PrimExpr) -> PrimExpr:
    return b if a is None else a + b


def _multiply_weight(value: PrimExpr, weight: PrimExpr | None) -> PrimExpr:
    return value if weight is None else cast(value, RESIZE_COORDINATE_DTYPE) * weight


def _round_to_dtype(value: PrimExpr, dtype: str) -> PrimExpr:
    if dt.is_float(value.dtype) and not dt.is_float(dtype):
        value = call_intrin("round", value)
    return cast(value, dtype)


def _source_coordinate(
    mode: str,
    index: PrimExpr,
    size: PrimExpr,
    extent: PrimExpr,
    scale: float | PrimExpr | None,
    region: tuple[float, float] | None = None,
) -> PrimExpr:
    """Return the data coordinate of a result pixel."""
    x, half = cast(index, RESIZE_COORDINATE_DTYPE), const(0.5, RESIZE_COORDINATE_DTYPE)
    if mode == "tf_crop_and_resize" and region is not None:
        last, steps = (
            cast(size - 1, RESIZE_COORDINATE_DTYPE),
            cast(maximum(extent - 1, 1), RESIZE_COORDINATE_DTYPE),
        )
        begin, end = region
        one = (begin + end) * 0.5 * last
        general = begin * last + x * ((end - begin) * last / steps)
        return Select(fold_binary(EQ, extent, 1), one, general, RESIZE_COORDINATE_DTYPE)
    if mode == "align_corners":
        return x * cast(size - 1, RESIZE_COORDINATE_DTYPE) / _corner_distance(size, extent, scale)
    factor = _resize_scale(size, extent, scale)
    if mode == "asymmetric":
        return x / factor
    middle = (x + half) / factor
    if mode == "tf_half_pixel_for_nn":
        return middle
    if mode == "pytorch_half_pixel":
        return Select(
            fold_binary(EQ, extent, 1),
            const(0.0, RESIZE_COORDINATE_DTYPE),
            middle - half,
            RESIZE_COORDINATE_DTYPE,
        )
    return middle - half


def _corner_distance(size: PrimExpr, extent: PrimExpr, scale: float | PrimExpr | None) -> PrimExpr:
    """Return the distance in pixels from a result's first to its last corner, at least 1. With a
    scale, ONNX measures the scaled extent before it is rounded down to pixels.
    """
    if scale is None:
        return cast(maximum(extent - 1, 1), RESIZE_COORDINATE_DTYPE)
    number = known_int(size)
    if isinstance(scale, PrimExpr) or number is None:
        return maximum(
            cast(size, RESIZE_COORDINATE_DTYPE) * _resize_scale(size, extent, scale) - 1.0,
            const(1.0, RESIZE_COORDINATE_DTYPE),
        )
    # In float32, as the generated code computes it where extents are symbolic.
    wide = np.float32(number) * np.float32(scale)
    return const(max(float(wide - np.float32(1)), 1.0), RESIZE_COORDINATE_DTYPE)


def _resize_scale(size: PrimExpr, extent: PrimExpr, scale: float | PrimExpr | None) -> PrimExpr:
    """Return the result extent per data extent, in float32."""
    if isinstance(scale, PrimExpr):
        return cast(scale, RESIZE_COORDINATE_DTYPE)
    numbers = known_int(size), known_int(extent)
    if scale is None and numbers[0] and numbers[1] is not None:
        scale = numbers[1] / numbers[0]
    return (
        cast(extent, RESIZE_COORDINATE_DTYPE) / cast(size, RESIZE_COORDINATE_DTYPE)
        if scale is None
        else const(float(np.float32(scale)), RESIZE_COORDINATE_DTYPE)
    )


def _round_coordinate(x: PrimExpr, rounding: str) -> PrimExpr:
    half = const(0.5, RESIZE_COORDINATE_DTYPE)
    match rounding:
        case "round_prefer_floor":
            return call_intrin("ceil", x - half)
        case "round_prefer_ceil" | "round":
            return call_intrin("floor", x + half)
        case "":
            return call_intrin("floor", x + const(INTEGER_TOLERANCE, RESIZE_COORDINATE_DTYPE))
    return call_intrin(rounding, x)


MAX_FLOAT_COORDINATE = 2.0**62
"""Bound that float coordinates are clamped to before the conversion to int64."""


def _clamp_coordinate(x: PrimExpr, size: PrimExpr) -> PrimExpr:
    if (
        x.dtype == RESIZE_COORDINATE_DTYPE
    ):  # by a scale that is tiny places are no numbers of 64 bits
        x = minimum(
            maximum(x, const(-1.0, RESIZE_COORDINATE_DTYPE)),
            const(MAX_FLOAT_COORDINATE, RESIZE_COORDINATE_DTYPE),
        )
    return maximum(minimum(cast(x, "int64"), size - 1), 0)


def _interpolation_taps(
    sampling: ResizeSampling, x: PrimExpr, size: PrimExpr
) -> list[tuple[PrimExpr, PrimExpr | None]]:
    """Return the (index, weight) taps of one axis that interpolate at coordinate x; a weight of
    None is 1.
    """
    if sampling.method == "nearest_neighbor":
        return [(_clamp_coordinate(_round_coordinate(x, sampling.rounding), size), None)]
    base = call_intrin("floor", x)
    fraction = x - base
    if sampling.method == "linear":
        weights = [const(1.0, RESIZE_COORDINATE_DTYPE) - fraction, fraction]
        return [(_clamp_coordinate(base + float(n), size), w) for n, w in enumerate(weights)]
    weights = [_cubic_kernel(fraction, n, sampling.cubic_alpha) for n in range(-1, 3)]
    tap_indices = [cast(base, "int64") + n for n in range(-1, 3)]
    if sampling.cubic_exclude:
        weights = _exclude_out_of_bounds_weights(weights, tap_indices, size)
    return [
        (_clamp_coordinate(position, size), w)
        for position, w in zip(tap_indices, weights, strict=True)
    ]


def _cubic_kernel(fraction: PrimExpr, offset: int, alpha: float) -> PrimExpr:
    """Return the cubic convolution kernel at the distance |fraction - offset| (Keys 1981)."""
    d = (
        fraction - float(offset)
        if offset <= 0
        else const(float(offset), RESIZE_COORDINATE_DTYPE) - fraction
    )
    if offset in (0, 1):
        return (d * (alpha + 2) - (alpha + 3)) * d * d + 1.0
    return ((d - 5.0) * d + 8.0) * d * alpha - 4 * alpha


def _exclude_out_of_bounds_weights(
    weights: Sequence[PrimExpr], tap_indices: Sequence[PrimExpr], size: PrimExpr
) -> list[PrimExpr]:
    """Zero the weights of pixels outside the data and renormalise the others to sum 1."""
    inside_weights = [
        Select(
            logical_and(position >= 0, position < size),
            w,
            const(0.0, RESIZE_COORDINATE_DTYPE),
            RESIZE_COORDINATE_DTYPE,
        )
        for position, w in zip(tap_indices, weights, strict=True)
    ]
    total = inside_weights[0] + inside_weights[1] + inside_weights[2] + inside_weights[3]
    return [w / total for w in inside_weights]


RESIZE_METHODS = {"nearest_neighbor": "nearest_neighbor", "linear": "linear", "cubic": "cubic",
                  "bilinear": "linear", "bicubic": "cubic"}  # fmt: skip


def _resize_by_options(
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
    axes = spatial_axis_indices(layout)
    sizes = (size,) * rank if isinstance(size, Dim) else tuple(size)
    if len(axes) != rank or len(sizes) != rank:
        raise ValueError(f"{name}: expected {rank} spatial axes, got {layout!r} and size {size}")
    if method not in RESIZE_METHODS:
        raise ValueError(
            f"{name}: method must be one of {', '.join(RESIZE_METHODS)}, got {method!r}"
        )
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
    require_min_extent(name, "data", [shape[a] for a in axes], [1] * rank)
    for position, extent in zip(axes, sizes, strict=True):
        shape = replace_dim(shape, position, as_dim(extent))
    try:
        resolved_rounding = nearest_rounding_method(rounding, mode)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    sampling = ResizeSampling(RESIZE_METHODS[method], mode, resolved_rounding, alpha, bool(exclude))
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
    """Resize signals along one axis to `size`, which may be symbolic.

    method: "nearest_neighbor", "linear" or "cubic"; the coordinate modes and roundings are those of
    relay's Resize2DAttrs, with "tf_crop_and_resize", which reads the part `roi` (begins, then ends,
    in [0, 1]) and gives the extrapolation value outside. (`output_shape` is TVM's.)
    """
    return _resize_by_options(data, roi, size, layout, method, coordinate_transformation_mode,
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
    """Resize images along two axes; see `resize1d`."""
    return _resize_by_options(data, roi, size, layout, method, coordinate_transformation_mode,
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
    """Resize volumes along three axes; see `resize1d`."""
    return _resize_by_options(data, roi, size, layout, method, coordinate_transformation_mode,
                    rounding_method, bicubic_alpha, bicubic_exclude, extrapolation_value, out_dtype,
                              3)  # fmt: skip


__all__ = ["resize1d", "resize2d", "resize3d"]
