"""Image sampling at data-dependent coordinates, and morphological dilation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import EQ, Or, PrimExpr, Select, Var, cast, const, fold_binary
from ekiden.te import Tensor
from ekiden.te.range_checks import (
    RANGE_CHECKS_ATTR_KEY,
    extent_checks,
    index_check,
    normalize_negative_index,
)
from ekiden.topi.dimensions import (
    Dim,
    as_shape,
    require_min_extent,
    require_rank,
    require_shape,
    window_extent,
)
from ekiden.topi.layout import permute_values
from ekiden.topi.nn.convolution import Padding, as_tuple_of, guarded_load, normalize_padding

SAMPLE_COORDINATE_DTYPE = "float32"
SAMPLE_METHODS = ("nearest", "bilinear", "bicubic")
GRID_PADDING_MODES = ("zeros", "border", "reflection")


def crop_and_resize(
    data: Tensor,
    boxes: Tensor,
    box_indices: Tensor,
    crop_size: Sequence[Dim],
    layout: str = "NCHW",
    method: str = "bilinear",
    extrapolation_value: float | None = None,
    out_dtype: str | None = None,
) -> Tensor:
    """Crop the regions `boxes` [n, (y1, x1, y2, x2)] from images box_indices[n] and resize them to
    `crop_size` (TensorFlow's crop_and_resize). Coordinates are in [0, 1] from the first to the
    last pixel; pixels outside get the extrapolation value. Raises ValueError for another method
    than "bilinear" and "nearest_neighbor".
    """
    methods = ("bilinear", "nearest_neighbor")
    if method not in methods:
        raise ValueError(
            f"crop_and_resize: method must be one of {', '.join(methods)}, got {method!r}"
        )
    _, c, h, w = permute_values(data.shape, layout, "NCHW")
    height, width = as_shape(crop_size)
    require_shape("crop_and_resize", "boxes", boxes.shape, (None, 4))
    require_min_extent("crop_and_resize", "data", (h, w), (1, 1))
    dtype, fill = (
        out_dtype or data.dtype,
        const(extrapolation_value or 0.0, SAMPLE_COORDINATE_DTYPE),
    )

    def sample_coordinate(
        low: PrimExpr, high: PrimExpr, index: Var, extent: PrimExpr, size: PrimExpr
    ) -> PrimExpr:
        """Return the pixel coordinate of sample `index` between two ends in [0, 1]; a single sample
        is in their middle.
        """
        last = cast(size - 1, SAMPLE_COORDINATE_DTYPE)
        # A crop of one sample has no steps to divide by; its coordinate is selected below.
        steps = cast(te.max(extent - 1, 1), SAMPLE_COORDINATE_DTYPE)
        general = low * last + cast(index, SAMPLE_COORDINATE_DTYPE) * ((high - low) * last / steps)
        return Select(
            fold_binary(EQ, extent, 1), (low + high) * 0.5 * last, general, SAMPLE_COORDINATE_DTYPE
        )

    def sample_box(*i: Var) -> PrimExpr:
        """Return a sample of the box's image, or the extrapolation value outside."""
        n, channel, y, x = permute_values(i, layout, "NCHW")
        y1, x1, y2, x2 = (cast(boxes[n, k], SAMPLE_COORDINATE_DTYPE) for k in range(4))
        row, column = (
            sample_coordinate(y1, y2, y, height, h),
            sample_coordinate(x1, x2, x, width, w),
        )
        outside = row < 0.0
        for is_outside in (
            row > cast(h - 1, SAMPLE_COORDINATE_DTYPE),
            column < 0.0,
            column > cast(w - 1, SAMPLE_COORDINATE_DTYPE),
        ):
            outside = fold_binary(Or, outside, is_outside)
        image = normalize_negative_index(box_indices[n], data.shape[layout.index("N")])

        def load_pixel(iy: PrimExpr, ix: PrimExpr) -> PrimExpr:
            """Load a pixel as a coordinate's dtype, at the border one of the border."""
            indices = (image, channel, _clamp_to_image(iy, h), _clamp_to_image(ix, w))
            return cast(data[permute_values(indices, "NCHW", layout)], SAMPLE_COORDINATE_DTYPE)

        if method == "bilinear":
            value = _bilinear_sample(load_pixel, row, column)
        else:
            value = load_pixel(call_intrin("round", row), call_intrin("round", column))
        return cast(Select(outside, fill, value, SAMPLE_COORDINATE_DTYPE), dtype)

    shape = permute_values((boxes.shape[0], c, height, width), "NCHW", layout)
    count = data.shape[layout.index("N")]
    extents = extent_checks(
        "crop_and_resize", boxes.shape[:1], box_indices.shape, what=("boxes", "box_indices")
    )
    checks = (*extents, index_check("crop_and_resize", box_indices, count, 0, "image"))
    return te.compute(
        shape,
        sample_box,
        name="crop_and_resize",
        tag="injective",
        attrs={RANGE_CHECKS_ATTR_KEY: checks},
    )


def _clamp_to_image(coordinate: PrimExpr, size: PrimExpr) -> PrimExpr:
    """Return a rounded coordinate clamped to the image's indices."""
    return te.max(te.min(cast(coordinate, "int64"), size - 1), 0)


PixelLoad = Callable[[PrimExpr, PrimExpr], PrimExpr]


def _bilinear_sample(pixel: PixelLoad, y: PrimExpr, x: PrimExpr) -> PrimExpr:
    top, left_column = call_intrin("floor", y), call_intrin("floor", x)
    dy, dx = y - top, x - left_column
    upper = pixel(top, left_column) * (1.0 - dx) + pixel(top, left_column + 1.0) * dx
    lower = pixel(top + 1.0, left_column) * (1.0 - dx) + pixel(top + 1.0, left_column + 1.0) * dx
    return upper * (1.0 - dy) + lower * dy


def affine_grid(data: Tensor, target_shape: Sequence[Dim]) -> Tensor:
    """Return the sampling coordinates [N, (x, y), H, W] of images under affine maps [N, 2, 3]."""
    height, width = as_shape(target_shape)
    require_shape("affine_grid", "data", data.shape, (None, 2, 3))

    def normalized_coordinate(index: Var, extent: PrimExpr) -> PrimExpr:
        """Map an index to -1 at the first pixel and 1 at the last."""
        # An extent of 1 has no steps to divide by.
        steps = cast(te.max(extent - 1, 1), SAMPLE_COORDINATE_DTYPE)
        return cast(index, SAMPLE_COORDINATE_DTYPE) * (2.0 / steps) - 1.0

    def grid_coordinate(n: Var, d: Var, y: Var, x: Var) -> PrimExpr:
        """Multiply a row of the matrix by (x, y, 1)."""
        row = [cast(data[n, d, k], SAMPLE_COORDINATE_DTYPE) for k in range(3)]
        return cast(
            row[0] * normalized_coordinate(x, width)
            + row[1] * normalized_coordinate(y, height)
            + row[2],
            data.dtype,
        )

    return te.compute(
        (data.shape[0], 2, height, width), grid_coordinate, name="affine_grid", tag="injective"
    )


def grid_sample(
    data: Tensor,
    grid: Tensor,
    method: str = "bilinear",
    layout: str = "NCHW",
    padding_mode: str = "zeros",
    align_corners: bool = True,
) -> Tensor:
    """Sample images (or volumes, layout NCDHW) at grid[n, (x, y[, z]), ...] in [-1, 1].

    Corners are the centres of the outer pixels (`align_corners`) or their outer edges. Places
    outside are 0, the nearest pixel ("border") or reflected. ONNX GridSample has the coordinates
    last. Raises ValueError for a method, a padding mode or a layout that there is not; "bicubic" is
    for NCHW.
    """
    if method not in SAMPLE_METHODS or padding_mode not in GRID_PADDING_MODES:
        raise ValueError(
            f"grid_sample: expected a method of {', '.join(SAMPLE_METHODS)} and a padding mode of"
            f" {', '.join(GRID_PADDING_MODES)}, got {method!r} and {padding_mode!r}"
        )
    if layout not in ("NCHW", "NCDHW") or (method == "bicubic" and layout != "NCHW"):
        raise ValueError(f"grid_sample: no {method} sampling for layout {layout!r}")
    require_rank("grid_sample", data.shape, len(layout))
    sizes = data.shape[2:]
    rank = len(sizes)
    require_shape("grid_sample", "grid", grid.shape, (data.shape[0], rank, *[None] * rank))

    def to_pixel_coordinate(value: PrimExpr, size: PrimExpr) -> PrimExpr:
        """Convert [-1, 1] to pixels, measured between the outer pixels' centres or edges."""
        extent = cast(size, SAMPLE_COORDINATE_DTYPE)
        if align_corners:
            return (value + 1.0) * (extent - 1.0) * 0.5
        return ((value + 1.0) * extent - 1.0) * 0.5

    def pad_coordinate(x: PrimExpr, size: PrimExpr) -> PrimExpr:
        """Clamp an outside coordinate to the border, or reflect it."""
        last = cast(size - 1, SAMPLE_COORDINATE_DTYPE)
        if padding_mode == "zeros":
            return x
        if padding_mode == "reflection":
            low, span = (
                (0.0, last) if align_corners else (-0.5, cast(size, SAMPLE_COORDINATE_DTYPE))
            )
            x = _reflect_coordinate(x, low, span)
        return te.max(te.min(x, last), 0.0)

    def sample_element(*i: Var) -> PrimExpr:
        """Return one sample. Coordinates are moved into the image before interpolation; for bicubic
        each tap is moved instead.
        """
        n, channel, *spatial = i
        # Grids have x first, which belongs to the last axis of the data.
        coordinates = [
            cast(grid[(n, rank - 1 - d, *spatial)], SAMPLE_COORDINATE_DTYPE) for d in range(rank)
        ]
        indices = [to_pixel_coordinate(v, s) for v, s in zip(coordinates, sizes, strict=True)]
        if method != "bicubic":
            indices = [pad_coordinate(v, s) for v, s in zip(indices, sizes, strict=True)]

        def load_pixel(*pixel_coordinates: PrimExpr) -> PrimExpr:
            """Return a pixel, 0 outside."""
            if method == "bicubic":
                pixel_coordinates = tuple(
                    pad_coordinate(p, s) for p, s in zip(pixel_coordinates, sizes, strict=True)
                )
            # A coordinate far outside would not fit an integer.
            index = [cast(te.max(te.min(p, cast(s, SAMPLE_COORDINATE_DTYPE)), -1.0), "int64")
                     for p, s in zip(pixel_coordinates, sizes, strict=True)]  # fmt: skip
            inside = [c for k, s in zip(index, sizes, strict=True) for c in (k >= 0, k < s)]
            return cast(
                guarded_load(data, (n, channel, *index), inside, const(0, data.dtype)),
                SAMPLE_COORDINATE_DTYPE,
            )

        if method == "nearest":
            value = load_pixel(*(call_intrin("round", v) for v in indices))
        elif method == "bilinear":
            value = _interpolate_linearly(load_pixel, [], indices)
        else:
            value = _bicubic_sample(load_pixel, indices[0], indices[1])
        return cast(value, data.dtype)

    shape = (*data.shape[:2], *grid.shape[2:])
    return te.compute(shape, sample_element, name="grid_sample", tag="injective")


def _reflect_coordinate(x: PrimExpr, low: float, span: PrimExpr) -> PrimExpr:
    """Reflect x into [low, low + span]."""
    # A single pixel has span 0, by which nothing can be divided.
    safe = te.max(span, const(1e-30, SAMPLE_COORDINATE_DTYPE))
    distance = call_intrin("abs", x - low)
    periods = call_intrin("floor", distance / safe)
    offset = distance - periods * safe
    even = fold_binary(EQ, periods - call_intrin("floor", periods * 0.5) * 2.0, 0.0)
    return Select(even, offset, safe - offset, SAMPLE_COORDINATE_DTYPE) + low


def _interpolate_linearly(
    pixel: Callable[..., PrimExpr], done: Sequence[PrimExpr], remaining: Sequence[PrimExpr]
) -> PrimExpr:
    """Interpolate linearly along each coordinate in turn."""
    if not remaining:
        return pixel(*done)
    base = call_intrin("floor", remaining[0])
    fraction = remaining[0] - base
    low = _interpolate_linearly(pixel, [*done, base], remaining[1:])
    high = _interpolate_linearly(pixel, [*done, base + 1.0], remaining[1:])
    return low * (1.0 - fraction) + high * fraction


CUBIC_CONVOLUTION_ALPHA = -0.75
"""Alpha of the cubic convolution kernel, as in PyTorch and ONNX."""


def _bicubic_sample(pixel: PixelLoad, y: PrimExpr, x: PrimExpr) -> PrimExpr:
    top, left_column = call_intrin("floor", y), call_intrin("floor", x)
    rows, columns = (_cubic_weights(v - base) for v, base in ((y, top), (x, left_column)))
    total: PrimExpr = const(0.0, SAMPLE_COORDINATE_DTYPE)
    for n, wy in enumerate(rows):
        for m, wx in enumerate(columns):
            total = total + pixel(top + float(n - 1), left_column + float(m - 1)) * (wy * wx)
    return total


def _cubic_weights(fraction: PrimExpr) -> list[PrimExpr]:
    a = CUBIC_CONVOLUTION_ALPHA
    distances = [fraction + 1.0, fraction, 1.0 - fraction, 2.0 - fraction]
    return [
        ((d * a - 5 * a) * d + 8 * a) * d - 4 * a
        if n in (0, 3)
        else (d * (a + 2) - (a + 3)) * d * d + 1.0
        for n, d in enumerate(distances)
    ]


def _dilation2d(
    data: Tensor,
    weight: Tensor,
    stride: int | Sequence[int],
    padding: Padding,
    dilations: int | Sequence[int],
    layout: str,
    kernel_layout: str,
    out_dtype: str | None,
) -> Tensor:
    n, c, h, w = permute_values(data.shape, layout, "NCHW")
    channels, kh, kw = permute_values(weight.shape, kernel_layout, "IHW")
    require_shape("dilation2d", "weight", (channels,), (c,))
    (sy, sx), (dy, dx) = as_tuple_of(stride, 2, "stride"), as_tuple_of(dilations, 2, "dilations")
    top, pad_left, bottom, right = normalize_padding(padding, (kh, kw), (dy, dx))
    rows = window_extent(h, kh, sy, top, bottom, dy)
    columns = window_extent(w, kw, sx, pad_left, right, dx)
    ky, kx = te.reduce_axis((0, kh), "ky"), te.reduce_axis((0, kw), "kx")
    dtype = out_dtype or data.dtype
    lowest = te.identity("max", dtype)

    def max_over_window(*i: Var) -> PrimExpr:
        """Return the maximum of pixel plus weight over the window. A pixel at the dtype's minimum
        (outside too) stays there: adding would overflow an integer.
        """
        b, channel, y, x = permute_values(i, layout, "NCHW")
        iy, ix = y * sy + ky * dy - top, x * sx + kx * dx - pad_left
        indices = permute_values((b, channel, iy, ix), "NCHW", layout)
        inside = [iy >= 0, iy < h, ix >= 0, ix < w]
        value = cast(guarded_load(data, indices, inside, te.identity("max", data.dtype)), dtype)
        factor = cast(weight[permute_values((channel, ky, kx), "IHW", kernel_layout)], dtype)
        outside = fold_binary(EQ, value, lowest)
        return te.max(Select(outside, lowest, value + factor, dtype), (ky, kx))

    shape = permute_values((n, c, rows, columns), "NCHW", layout)
    return te.compute(shape, max_over_window, name="dilation2d", tag="dilation2d")


def dilation2d_nchw(
    input: Tensor,
    filter: Tensor,
    stride: int | Sequence[int],
    padding: Padding,
    dilations: int | Sequence[int],
    out_dtype: str | None = None,
) -> Tensor:
    """Return the morphological dilation, max over windows of data plus filter, per channel: [N, C,
    H, W] and [C, KH, KW]. Padding never wins.
    """
    return _dilation2d(input, filter, stride, padding, dilations, "NCHW", "IHW", out_dtype)


def dilation2d_nhwc(
    input: Tensor,
    filter: Tensor,
    stride: int | Sequence[int],
    padding: Padding,
    dilations: int | Sequence[int],
    out_dtype: str | None = None,
) -> Tensor:
    """Return `dilation2d_nchw` for [N, H, W, C] and [KH, KW, C]."""
    return _dilation2d(input, filter, stride, padding, dilations, "NHWC", "HWI", out_dtype)


__all__ = ["affine_grid", "crop_and_resize", "dilation2d_nchw", "dilation2d_nhwc", "grid_sample"]
