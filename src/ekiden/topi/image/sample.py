"""Image sampling at coordinates that are data, and dilation by a structuring element."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import EQ, Or, PrimExpr, Select, Var, binary, cast, const
from ekiden.te import Tensor
from ekiden.te.range_checks import CHECKS_ATTR, extent_checks, from_either_end, index_check
from ekiden.topi.dimensions import (
    Dim,
    as_shape,
    check_rank,
    expect_least,
    expect_shape,
    window_extent,
)
from ekiden.topi.layout import permute
from ekiden.topi.nn.convolution import Padding, guarded, ntuple, pads

COORDINATE_DTYPE = "float32"
SAMPLE_METHODS = ("nearest", "bilinear", "bicubic")
PADDING_MODES = ("zeros", "border", "reflection")


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
    _, c, h, w = permute(data.shape, layout, "NCHW")
    height, width = as_shape(crop_size)
    expect_shape("crop_and_resize", "boxes", boxes.shape, (None, 4))
    expect_least("crop_and_resize", "data", (h, w), (1, 1))
    dtype, fill = out_dtype or data.dtype, const(extrapolation_value or 0.0, COORDINATE_DTYPE)

    def coordinate(
        low: PrimExpr, high: PrimExpr, index: Var, extent: PrimExpr, size: PrimExpr
    ) -> PrimExpr:
        """Return the pixel coordinate of sample `index` between two ends in [0, 1]; a single sample
        is in their middle.
        """
        last = cast(size - 1, COORDINATE_DTYPE)
        steps = cast(te.max(extent - 1, 1), COORDINATE_DTYPE)
        general = low * last + cast(index, COORDINATE_DTYPE) * ((high - low) * last / steps)
        return Select(binary(EQ, extent, 1), (low + high) * 0.5 * last, general, COORDINATE_DTYPE)

    def body(*i: Var) -> PrimExpr:
        """Return a sample of the box's image, or the extrapolation value outside."""
        n, channel, y, x = permute(i, layout, "NCHW")
        y1, x1, y2, x2 = (cast(boxes[n, k], COORDINATE_DTYPE) for k in range(4))
        row, column = coordinate(y1, y2, y, height, h), coordinate(x1, x2, x, width, w)
        outside = row < 0.0
        for is_outside in (
            row > cast(h - 1, COORDINATE_DTYPE),
            column < 0.0,
            column > cast(w - 1, COORDINATE_DTYPE),
        ):
            outside = binary(Or, outside, is_outside)
        image = from_either_end(box_indices[n], data.shape[layout.index("N")])

        def pixel(iy: PrimExpr, ix: PrimExpr) -> PrimExpr:
            at = (image, channel, _kept(iy, h), _kept(ix, w))
            return cast(data[permute(at, "NCHW", layout)], COORDINATE_DTYPE)

        if method == "bilinear":
            value = _bilinear(pixel, row, column)
        else:
            value = pixel(call_intrin("round", row), call_intrin("round", column))
        return cast(Select(outside, fill, value, COORDINATE_DTYPE), dtype)

    shape = permute((boxes.shape[0], c, height, width), "NCHW", layout)
    count = data.shape[layout.index("N")]
    extents = extent_checks(
        "crop_and_resize", boxes.shape[:1], box_indices.shape, what=("boxes", "box_indices")
    )
    checks = (*extents, index_check("crop_and_resize", box_indices, count, 0, "image"))
    return te.compute(
        shape, body, name="crop_and_resize", tag="injective", attrs={CHECKS_ATTR: checks}
    )


def _kept(coordinate: PrimExpr, size: PrimExpr) -> PrimExpr:
    """Return a rounded coordinate clamped to the image's indices."""
    return te.max(te.min(cast(coordinate, "int64"), size - 1), 0)


PixelLoad = Callable[[PrimExpr, PrimExpr], PrimExpr]


def _bilinear(pixel: PixelLoad, y: PrimExpr, x: PrimExpr) -> PrimExpr:
    top, left_column = call_intrin("floor", y), call_intrin("floor", x)
    dy, dx = y - top, x - left_column
    upper = pixel(top, left_column) * (1.0 - dx) + pixel(top, left_column + 1.0) * dx
    lower = pixel(top + 1.0, left_column) * (1.0 - dx) + pixel(top + 1.0, left_column + 1.0) * dx
    return upper * (1.0 - dy) + lower * dy


def affine_grid(data: Tensor, target_shape: Sequence[Dim]) -> Tensor:
    """Return the sampling coordinates [N, (x, y), H, W] of images under affine maps [N, 2, 3]."""
    height, width = as_shape(target_shape)
    expect_shape("affine_grid", "data", data.shape, (None, 2, 3))

    def unit(index: Var, extent: PrimExpr) -> PrimExpr:
        steps = cast(te.max(extent - 1, 1), COORDINATE_DTYPE)
        return cast(index, COORDINATE_DTYPE) * (2.0 / steps) - 1.0

    def body(n: Var, d: Var, y: Var, x: Var) -> PrimExpr:
        row = [cast(data[n, d, k], COORDINATE_DTYPE) for k in range(3)]
        return cast(row[0] * unit(x, width) + row[1] * unit(y, height) + row[2], data.dtype)

    return te.compute((data.shape[0], 2, height, width), body, name="affine_grid", tag="injective")


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
    if method not in SAMPLE_METHODS or padding_mode not in PADDING_MODES:
        raise ValueError(
            f"grid_sample: expected a method of {', '.join(SAMPLE_METHODS)} and a padding mode of"
            f" {', '.join(PADDING_MODES)}, got {method!r} and {padding_mode!r}"
        )
    if layout not in ("NCHW", "NCDHW") or (method == "bicubic" and layout != "NCHW"):
        raise ValueError(f"grid_sample: no {method} sampling for layout {layout!r}")
    check_rank("grid_sample", data.shape, len(layout))
    sizes = data.shape[2:]
    rank = len(sizes)
    expect_shape("grid_sample", "grid", grid.shape, (data.shape[0], rank, *[None] * rank))

    def coordinate(value: PrimExpr, size: PrimExpr) -> PrimExpr:
        """Convert [-1, 1] to pixels, measured between the outer pixels' centres or edges."""
        extent = cast(size, COORDINATE_DTYPE)
        if align_corners:
            return (value + 1.0) * (extent - 1.0) * 0.5
        return ((value + 1.0) * extent - 1.0) * 0.5

    def moved(x: PrimExpr, size: PrimExpr) -> PrimExpr:
        """Clamp an outside coordinate to the border, or reflect it."""
        last = cast(size - 1, COORDINATE_DTYPE)
        if padding_mode == "zeros":
            return x
        if padding_mode == "reflection":
            low, span = (0.0, last) if align_corners else (-0.5, cast(size, COORDINATE_DTYPE))
            x = _reflected(x, low, span)
        return te.max(te.min(x, last), 0.0)

    def body(*i: Var) -> PrimExpr:
        """Return one sample. Coordinates are moved into the image before interpolation; for bicubic
        each tap is moved instead.
        """
        n, channel, *spatial = i
        coordinates = [
            cast(grid[(n, rank - 1 - d, *spatial)], COORDINATE_DTYPE) for d in range(rank)
        ]
        at = [coordinate(v, s) for v, s in zip(coordinates, sizes, strict=True)]
        if method != "bicubic":
            at = [moved(v, s) for v, s in zip(at, sizes, strict=True)]

        def pixel(*pixel_coordinates: PrimExpr) -> PrimExpr:
            """Return a pixel, 0 outside."""
            if method == "bicubic":
                pixel_coordinates = tuple(
                    moved(p, s) for p, s in zip(pixel_coordinates, sizes, strict=True)
                )
            # A coordinate far outside would not fit an integer.
            index = [cast(te.max(te.min(p, cast(s, COORDINATE_DTYPE)), -1.0), "int64")
                     for p, s in zip(pixel_coordinates, sizes, strict=True)]  # fmt: skip
            inside = [c for k, s in zip(index, sizes, strict=True) for c in (k >= 0, k < s)]
            return cast(
                guarded(data, (n, channel, *index), inside, const(0, data.dtype)), COORDINATE_DTYPE
            )

        if method == "nearest":
            value = pixel(*(call_intrin("round", v) for v in at))
        elif method == "bilinear":
            value = _linear(pixel, [], at)
        else:
            value = _bicubic(pixel, at[0], at[1])
        return cast(value, data.dtype)

    shape = (*data.shape[:2], *grid.shape[2:])
    return te.compute(shape, body, name="grid_sample", tag="injective")


def _reflected(x: PrimExpr, low: float, span: PrimExpr) -> PrimExpr:
    """Reflect x back and forth between low and low + span."""
    safe = te.max(span, const(1e-30, COORDINATE_DTYPE))
    distance = call_intrin("abs", x - low)
    periods = call_intrin("floor", distance / safe)
    offset = distance - periods * safe
    even = binary(EQ, periods - call_intrin("floor", periods * 0.5) * 2.0, 0.0)
    return Select(even, offset, safe - offset, COORDINATE_DTYPE) + low


def _linear(
    pixel: Callable[..., PrimExpr], done: Sequence[PrimExpr], remaining: Sequence[PrimExpr]
) -> PrimExpr:
    """Interpolate linearly along each coordinate in turn."""
    if not remaining:
        return pixel(*done)
    base = call_intrin("floor", remaining[0])
    fraction = remaining[0] - base
    low = _linear(pixel, [*done, base], remaining[1:])
    high = _linear(pixel, [*done, base + 1.0], remaining[1:])
    return low * (1.0 - fraction) + high * fraction


CUBIC_ALPHA = -0.75
"""Of the convolution kernel: PyTorch's and ONNX's."""


def _bicubic(pixel: PixelLoad, y: PrimExpr, x: PrimExpr) -> PrimExpr:
    top, left_column = call_intrin("floor", y), call_intrin("floor", x)
    rows, columns = (_cubic_weights(v - base) for v, base in ((y, top), (x, left_column)))
    total: PrimExpr = const(0.0, COORDINATE_DTYPE)
    for n, wy in enumerate(rows):
        for m, wx in enumerate(columns):
            total = total + pixel(top + float(n - 1), left_column + float(m - 1)) * (wy * wx)
    return total


def _cubic_weights(fraction: PrimExpr) -> list[PrimExpr]:
    a = CUBIC_ALPHA
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
    n, c, h, w = permute(data.shape, layout, "NCHW")
    channels, kh, kw = permute(weight.shape, kernel_layout, "IHW")
    expect_shape("dilation2d", "weight", (channels,), (c,))
    (sy, sx), (dy, dx) = ntuple(stride, 2, "stride"), ntuple(dilations, 2, "dilations")
    top, pad_left, bottom, right = pads(padding, (kh, kw), (dy, dx))
    rows = window_extent(h, kh, sy, top, bottom, dy)
    columns = window_extent(w, kw, sx, pad_left, right, dx)
    ky, kx = te.reduce_axis((0, kh), "ky"), te.reduce_axis((0, kw), "kx")
    dtype = out_dtype or data.dtype
    lowest = te.identity("max", dtype)

    def body(*i: Var) -> PrimExpr:
        """Return the maximum of pixel plus weight over the window. A pixel at the dtype's minimum
        (outside too) stays there: adding would overflow an integer.
        """
        b, channel, y, x = permute(i, layout, "NCHW")
        iy, ix = y * sy + ky * dy - top, x * sx + kx * dx - pad_left
        at = permute((b, channel, iy, ix), "NCHW", layout)
        inside = [iy >= 0, iy < h, ix >= 0, ix < w]
        value = cast(guarded(data, at, inside, te.identity("max", data.dtype)), dtype)
        factor = cast(weight[permute((channel, ky, kx), "IHW", kernel_layout)], dtype)
        outside = binary(EQ, value, lowest)
        return te.max(Select(outside, lowest, value + factor, dtype), (ky, kx))

    shape = permute((n, c, rows, columns), "NCHW", layout)
    return te.compute(shape, body, name="dilation2d", tag="dilation2d")


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
