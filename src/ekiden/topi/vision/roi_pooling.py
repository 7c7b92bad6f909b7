"""Region pooling and alignment on feature maps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Select, Var, cast, const, logical_and
from ekiden.te import Tensor
from ekiden.te.range_checks import RANGE_CHECKS_ATTR_KEY, index_check, normalize_negative_index
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.dimensions import (
    as_dim,
    product_of_dims,
    require_min_extent,
    require_positive,
    require_shape,
    simplify_dim,
)
from ekiden.topi.layout import permute_values
from ekiden.topi.transform import unravel

ROI_COORDINATE_DTYPE = "float32"
PixelLoad = Callable[[PrimExpr, PrimExpr], PrimExpr]
"""Function (line, column) -> pixel."""


def _as_pair(size: int | Sequence[int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _ceil_to_int(value: PrimExpr) -> PrimExpr:
    return cast(call_intrin("ceil", value), "int64")


def _image_checks(name: str, rois: Tensor, count: PrimExpr) -> dict[str, object]:
    """Return the range checks of the regions' image indices."""
    require_shape(name, "rois", rois.shape, (None, 5))
    images = te.compute(
        rois.shape[:1], lambda n: cast(rois[n, 0], "int64"), name="images", tag="injective"
    )
    return {RANGE_CHECKS_ATTR_KEY: (index_check(name, images, count, 0, "image"),)}


MAX_SAMPLES_PER_AXIS = 2**10
"""Maximum samples of a bin per axis with a static sampling ratio."""


def _roi_align(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | Sequence[int],
    spatial_scale: float,
    mode: str,
    sample_ratio: int,
    layout: str,
    aligned: bool,
) -> Tensor:
    if mode not in ("avg", "max", "max_tap"):
        raise ValueError(f"roi_align: mode must be avg, max or max_tap, got {mode!r}")
    if sample_ratio > MAX_SAMPLES_PER_AXIS:
        raise ValueError(
            f"roi_align: expected at most {MAX_SAMPLES_PER_AXIS} samples, got {sample_ratio}"
        )
    _, channels, height, width = permute_values(data.shape, layout, "NCHW")
    require_min_extent("roi_align", "data", (height, width), (1, 1))
    high, wide = _as_pair(pooled_size)
    dtype = data.dtype
    bins = (rois.shape[0], channels, as_dim(high), as_dim(wide))
    shape = permute_values(bins, "NCHW", layout)

    def emit_roi_align(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit bins in parallel, all channels of one together: they share positions and weights."""
        ib = IRBuilder()
        pixels, boxes, out = ib.buffer_ptr(ins[0]), ib.buffer_ptr(ins[1]), ib.buffer_ptr(outs[0])
        bin_shape = (rois.shape[0], as_dim(high), as_dim(wide))
        with ib.for_range(0, product_of_dims(bin_shape), "n", kind="parallel") as n:
            box, row, column = unravel(n, bin_shape)
            image = ib.let("image", normalize_negative_index(boxes[box, 0], data.shape[0]))
            corner = [
                cast(boxes[box, k], ROI_COORDINATE_DTYPE) * spatial_scale for k in range(1, 5)
            ]
            axis_x = _emit_axis_bins(ib, (corner[0], corner[2]), wide, sample_ratio, aligned)
            axis_y = _emit_axis_bins(ib, (corner[1], corner[3]), high, sample_ratio, aligned)
            rows, columns = axis_y[2], axis_x[2]
            total = ib.allocate(ROI_COORDINATE_DTYPE, channels, "total")
            with ib.for_range(0, channels, "c") as c:
                total[c] = (
                    const(0.0, ROI_COORDINATE_DTYPE)
                    if mode == "avg"
                    else te.min_value(ROI_COORDINATE_DTYPE)
                )
            with ib.for_range(0, rows, "iy") as iy, ib.for_range(0, columns, "ix") as ix:
                y, x = _sample_coordinate(axis_y, row, iy), _sample_coordinate(axis_x, column, ix)
                with ib.if_scope(logical_and(_is_near_data(y, height), _is_near_data(x, width))):
                    sample = _bilinear_sampler(
                        ib,
                        ib.let("y", te.max(te.min(y, cast(height - 1, ROI_COORDINATE_DTYPE)), 0.0)),
                        ib.let("x", te.max(te.min(x, cast(width - 1, ROI_COORDINATE_DTYPE)), 0.0)),
                        (height, width),
                        te.max if mode == "max_tap" else operator.add,
                    )
                    with ib.for_range(0, channels, "c") as c:
                        sampled = sample(
                            lambda a, b: cast(
                                pixels[permute_values((image, c, a, b), "NCHW", layout)],
                                ROI_COORDINATE_DTYPE,
                            )
                        )
                        total[c] = (
                            total[c] + sampled if mode == "avg" else te.max(total[c], sampled)
                        )
                # Samples outside count as 0, which changes a maximum but not a sum.
                if mode != "avg":
                    with ib.else_scope(), ib.for_range(0, channels, "c") as c:
                        total[c] = te.max(total[c], 0.0)
            # A bin without samples has the sum 0, and 0 / 0 would be NaN.
            count = ib.let("count", te.max(cast(rows * columns, ROI_COORDINATE_DTYPE), 1.0))
            with ib.for_range(0, channels, "c") as c:
                mean = total[c] / count if mode == "avg" else total[c]
                out[permute_values((box, c, row, column), "NCHW", layout)] = mean
        return ib.get()

    attrs = _image_checks("roi_align", rois, data.shape[layout.index("N")])
    return te.extern_op(
        [shape], [data, rois], emit_roi_align, [dtype], name="roi_align", attrs=attrs
    )[0]


AxisBins = tuple[PrimExpr, PrimExpr, PrimExpr]
"""Bins of a region along an axis: its begin, the bin extent, and the samples per bin."""


def _emit_axis_bins(
    ib: IRBuilder, ends: tuple[PrimExpr, PrimExpr], count: int, sample_ratio: int, aligned: bool
) -> AxisBins:
    move = 0.5 if aligned else 0.0
    first, last = (ib.let("edge", end - move) for end in ends)
    extent = last - first if aligned else te.max(last - first, 1.0)
    size = ib.let("bin", extent / count)
    samples = const(sample_ratio) if sample_ratio > 0 else ib.let("samples", _ceil_to_int(size))
    return first, size, samples


def _sample_coordinate(axis: AxisBins, index: PrimExpr, sample: PrimExpr) -> PrimExpr:
    """Return the coordinate of a bin's sample along an axis."""
    first, size, samples = axis
    return first + size * (
        cast(index, ROI_COORDINATE_DTYPE)
        + (cast(sample, ROI_COORDINATE_DTYPE) + 0.5) / cast(samples, ROI_COORDINATE_DTYPE)
    )


def _is_near_data(coordinate: PrimExpr, size: PrimExpr) -> PrimExpr:
    """Return whether a coordinate is within one pixel of the data."""
    return logical_and(coordinate >= -1.0, coordinate <= cast(size, ROI_COORDINATE_DTYPE))


def _bilinear_sampler(
    ib: IRBuilder,
    y: PrimExpr,
    x: PrimExpr,
    sizes: tuple[PrimExpr, PrimExpr],
    join: Callable[[PrimExpr, PrimExpr], PrimExpr] = operator.add,
) -> Callable[[PixelLoad], PrimExpr]:
    """Return a bilinear interpolation function at a coordinate; `join` replaces the sum of the four
    weighted pixels.
    """
    height, width = sizes
    top = ib.let("top", cast(call_intrin("floor", y), "int64"))
    left_column = ib.let("left", cast(call_intrin("floor", x), "int64"))
    bottom = ib.let("bottom", te.min(top + 1, height - 1))
    right_column = ib.let("right", te.min(left_column + 1, width - 1))
    dy, dx = (
        ib.let("dy", y - cast(top, ROI_COORDINATE_DTYPE)),
        ib.let("dx", x - cast(left_column, ROI_COORDINATE_DTYPE)),
    )

    def sample_pixels(pixel: PixelLoad) -> PrimExpr:
        """Return the four pixels around the coordinate, weighted and joined."""
        upper = join(pixel(top, left_column) * (1.0 - dx), pixel(top, right_column) * dx)
        lower = join(pixel(bottom, left_column) * (1.0 - dx), pixel(bottom, right_column) * dx)
        return join(upper * (1.0 - dy), lower * dy)

    return sample_pixels


def roi_align_nchw(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | Sequence[int],
    spatial_scale: float,
    mode: str = "avg",
    sample_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """Align regions [n, (image, left, top, right, bottom)] of [N, C, H, W] to [n, C,
    ...pooled_size] (Mask R-CNN).

    Each bin is the mean (or maximum) of samples between pixels, `sample_ratio` a side, below 1 as
    many as it has pixels. Mode max_tap takes the greatest of the weighted pixels instead, as ONNX.
    `aligned` moves the region by half a pixel (Mask R-CNN; ONNX's half_pixel).
    """
    return _roi_align(data, rois, pooled_size, spatial_scale, mode, sample_ratio, "NCHW", aligned)


def roi_align_nhwc(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | Sequence[int],
    spatial_scale: float,
    mode: str = "avg",
    sample_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """Align regions as `roi_align_nchw`, channels last."""
    return _roi_align(data, rois, pooled_size, spatial_scale, mode, sample_ratio, "NHWC", aligned)


def roi_pool_nchw(
    data: Tensor, rois: Tensor, pooled_size: int | Sequence[int], spatial_scale: float
) -> Tensor:
    """Return the maximum of every bin of regions [n, (image, left, top, right, bottom)] rounded to
    whole pixels; 0 for an empty bin (Fast R-CNN).
    """
    _, channels, height, width = data.shape
    high, wide = _as_pair(pooled_size)
    shape = (rois.shape[0], channels, high, wide)

    def emit_roi_pool(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit bins in parallel; regions are rounded to whole pixels and contain at least one."""
        ib = IRBuilder()
        pixels, boxes, out = ib.buffer_ptr(ins[0]), ib.buffer_ptr(ins[1]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, product_of_dims(outs[0].shape), "n", kind="parallel") as n:
            box, channel, row, column = output_index = unravel(n, outs[0].shape)
            image = ib.let("image", normalize_negative_index(boxes[box, 0], data.shape[0]))
            edges = [
                ib.let(
                    "edge",
                    _round_half_away(cast(boxes[box, k], ROI_COORDINATE_DTYPE) * spatial_scale),
                )
                for k in range(1, 5)
            ]
            spans = []
            for start, end, index, bins, size in (
                (edges[1], edges[3], row, high, height),
                (edges[0], edges[2], column, wide, width),
            ):
                extent = cast(te.max(end - start + 1, 1), ROI_COORDINATE_DTYPE) / bins
                low = start + cast(
                    call_intrin("floor", cast(index, ROI_COORDINATE_DTYPE) * extent), "int64"
                )
                top = start + _ceil_to_int((cast(index, ROI_COORDINATE_DTYPE) + 1.0) * extent)
                spans.append([ib.let("edge", te.max(te.min(v, size), 0)) for v in (low, top)])
            total = ib.allocate(data.dtype, 1, "total", "local")
            (y0, y1), (x0, x1) = spans
            empty = te.any(y0 >= y1, x0 >= x1)
            lowest = te.min_value(data.dtype)
            total[0] = Select(empty, const(0, data.dtype), lowest, data.dtype)
            # An empty bin has no iterations, never a negative number of them.
            rows, columns = (y0, te.max(y0, y1)), (x0, te.max(x0, x1))
            with ib.for_range(*rows, "y") as y, ib.for_range(*columns, "x") as x:
                total[0] = te.max(total[0], pixels[image, channel, y, x])
            out[output_index] = total[0]
        return ib.get()

    attrs = _image_checks("roi_pool", rois, data.shape[0])
    return te.extern_op(
        [shape], [data, rois], emit_roi_pool, [data.dtype], name="roi_pool", attrs=attrs
    )[0]


def _round_half_away(value: PrimExpr) -> PrimExpr:
    """Round to the nearest integer, halves away from zero."""
    up = call_intrin("floor", value + 0.5)
    down = call_intrin("ceil", value - 0.5)
    return cast(Select(value < 0.0, down, up, ROI_COORDINATE_DTYPE), "int64")


def reorg(data: Tensor, stride: int) -> Tensor:
    """Rearrange [N, C, H, W] so that pixels `stride` apart become channels, stride**2 times as many
    (YOLO's reorg layer, in Darknet's order).
    """
    n, c, h, w = data.shape
    require_positive("reorg", stride=stride)
    require_shape("reorg", "data", (c % (stride * stride), h % stride, w % stride), (0, 0, 0))
    inner = simplify_dim(c // (stride * stride))

    def load_reordered(b: Var, k: Var, y: Var, x: Var) -> PrimExpr:
        """Return the element in Darknet's memory order."""
        # Darknet reads the same memory as [C / stride**2, H * stride, W * stride].
        offset, row = k // inner, (k % inner) * h * stride + y * stride
        flat = (row + offset // stride) * w * stride + x * stride + offset % stride
        return data[(b, *unravel(flat, data.shape[1:]))]

    reordered = te.compute(data.shape, load_reordered, name="reorg_flat", tag="injective")
    shape = (
        n,
        simplify_dim(c * stride * stride),
        simplify_dim(h // stride),
        simplify_dim(w // stride),
    )

    def darknet_element(b: Var, k: Var, y: Var, x: Var) -> PrimExpr:
        """Load the element that Darknet's reorganisation has at this flat offset."""
        flat = (k * shape[2] + y) * shape[3] + x
        return reordered[(b, *unravel(flat, data.shape[1:]))]

    return te.compute(shape, darknet_element, name="reorg", tag="injective")


__all__ = ["reorg", "roi_align_nchw", "roi_align_nhwc", "roi_pool_nchw"]
