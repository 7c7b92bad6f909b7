"""Upsampling of images and volumes."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import PrimExpr
from ekiden.te import Tensor
from ekiden.topi.dimensions import Dim, as_dim, known_int, simplify_dim
from ekiden.topi.image.resize import resize2d, resize3d
from ekiden.topi.layout import spatial_axis_indices


def _scaled_extent(extent: PrimExpr, factor: float) -> PrimExpr:
    """Return an extent times a factor, rounded. Raises ValueError for a symbol times a
    non-integer.
    """
    number = known_int(extent)
    if number is not None:
        return as_dim(round(number * factor))
    if factor != int(factor):
        raise ValueError(f"upsampling: a symbolic extent needs an integer factor, got {factor}")
    return simplify_dim(extent * int(factor))


def upsampling(
    data: Tensor,
    scale_h: float,
    scale_w: float,
    layout: str = "NCHW",
    method: str = "nearest_neighbor",
    align_corners: bool = False,
    output_shape: Sequence[Dim] | None = None,
) -> Tensor:
    """Enlarge images by factors; method "nearest_neighbor", "bilinear" or "bicubic".

    `output_shape` says the result's shape where the factors do not.
    """
    axes = spatial_axis_indices(layout)
    extents = [data.shape[a] for a in axes]
    size: list[Dim] = (
        [*(output_shape[a] for a in axes)]
        if output_shape is not None
        else [_scaled_extent(d, f) for d, f in zip(extents, (scale_h, scale_w), strict=True)]
    )
    mode = "align_corners" if align_corners else "asymmetric"
    return resize2d(data, None, size, layout, method, mode)


def upsampling3d(
    data: Tensor,
    scale_d: float,
    scale_h: float,
    scale_w: float,
    layout: str = "NCDHW",
    method: str = "nearest_neighbor",
    coordinate_transformation_mode: str = "half_pixel",
    output_shape: Sequence[Dim] | None = None,
) -> Tensor:
    """Enlarge volumes by factors; method "nearest_neighbor" or "trilinear"."""
    axes, factors = spatial_axis_indices(layout), (scale_d, scale_h, scale_w)
    size: list[Dim] = (
        [*(output_shape[a] for a in axes)]
        if output_shape is not None
        else [_scaled_extent(data.shape[a], f) for a, f in zip(axes, factors, strict=True)]
    )
    kind = "linear" if method == "trilinear" else method
    return resize3d(data, None, size, layout, kind, coordinate_transformation_mode)


__all__ = ["upsampling", "upsampling3d"]
