"""Resizing and sampling of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ekiden.frontend.common.converters.resize import resize_spatial_axes
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.node import Converter, ConverterRow, FxNode
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.dimensions import are_equal_dims

_IMAGE_LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
_RESIZE_OPS = {1: op.image.resize1d, 2: op.image.resize2d, 3: op.image.resize3d}


def _nearest_resize_converter(rank: int, exact: bool) -> Converter:
    """Return the converter of nearest-neighbour resizing: pixel floor(i * scale), or by pixel
    centres if exact.
    """

    def convert(node: FxNode, x: Value, *settings: object) -> Expr:
        """Resize to the nearest pixel; `settings` ends with the scales, if the program has them."""
        scales = _explicit_scales(rank, settings)
        mode = "half_pixel" if exact else "asymmetric"
        rounding = "round_prefer_ceil" if exact else "floor"
        return _emit_resize(node, x, rank, "nearest_neighbor", mode, rounding, scales)

    return convert


def _interpolated_resize_converter(rank: int, method: str = "linear") -> Converter:
    def convert(
        node: FxNode, x: Value, size: object, align_corners: bool, *settings: object
    ) -> Expr:
        """Resize by interpolation; aligned corners ignore the scales."""
        mode = "align_corners" if align_corners else "half_pixel"
        # With align_corners ATen computes coordinates from the sizes and ignores given scales.
        scales = None if align_corners else _explicit_scales(rank, (size, *settings))
        return _emit_resize(node, x, rank, method, mode, "", scales)

    return convert


def _explicit_scales(rank: int, settings: Sequence[object]) -> list[float] | None:
    """Return the scales from (size, scale, ...) or (size or None, scales); None if they are
    missing.
    """
    candidates = settings[1:]
    if len(candidates) == 1 and isinstance(candidates[0], (list, tuple)):
        candidates = candidates[0]
    numbers = [float(s) for s in candidates if isinstance(s, (int, float))]
    return numbers if len(numbers) == rank else None


def _emit_resize(
    node: FxNode, x: Value, rank: int, method: str, mode: str, rounding: str,
    scales: Sequence[float] | None,
) -> Expr:  # fmt: skip
    def resize_axes(data: Expr, axes: int, size: Any, **more: Any) -> Expr:  # noqa: ANN401
        """Resize the 1 to 3 spatial axes after the channels."""
        return _RESIZE_OPS[axes](
            data, size=size, layout=_IMAGE_LAYOUTS[axes], method=method, cubic_alpha=-0.75,
            coordinate_transformation_mode=mode, rounding_method=rounding, **more,
        )  # fmt: skip

    out, data = node.out_shape, node.to_expr(x)
    # linear along an axis that keeps its size: a copy, whatever its scale (ATen/native/UpSample.h)
    if scales is not None and method == "linear":
        pairs = zip(scales, x.type.shape[2:], out[2:], strict=True)
        scales = [1.0 if are_equal_dims(before, after) else s for s, before, after in pairs]
    if scales is None:
        return resize_axes(data, rank, out[2:])
    return resize_spatial_axes(
        lambda image, size, steps: resize_axes(image, 2, size, scales=steps),
        data, x.type.shape, out[2:], scales,
    )  # fmt: skip


_SAMPLE_METHODS = ("bilinear", "nearest", "bicubic")
_PADDING_MODES = ("zeros", "border", "reflection")


def _grid_sample(
    node: FxNode, x: Value, grid: Value, mode: int, padding: int, align_corners: bool
) -> Expr:
    rank = len(x.type.shape) - 2
    order = [0, rank + 1, *range(1, rank + 1)]
    coordinates = op.transpose(node.to_expr(grid), axes=order)
    return op.image.grid_sample(
        node.to_expr(x), coordinates, method=_SAMPLE_METHODS[mode], layout=_IMAGE_LAYOUTS[rank],
        padding_mode=_PADDING_MODES[padding], align_corners=align_corners,
    )  # fmt: skip


# fmt: off
ROWS: tuple[ConverterRow, ...] = (
    *((f"upsample_nearest{n}d", _nearest_resize_converter(n, False)) for n in (1, 2, 3)),
    *((f"_upsample_nearest_exact{n}d", _nearest_resize_converter(n, True)) for n in (1, 2, 3)),
    ("upsample_linear1d", _interpolated_resize_converter(1)),
    ("upsample_bilinear2d", _interpolated_resize_converter(2)),
    ("upsample_trilinear3d", _interpolated_resize_converter(3)),
    ("upsample_bicubic2d", _interpolated_resize_converter(2, "cubic")),
    ("grid_sampler_2d", _grid_sample),
    ("grid_sampler_3d", _grid_sample),
)
# fmt: on
