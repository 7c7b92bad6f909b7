"""Resizing, over one to three spatial axes.

image.resize2d alone takes scales beside the size. Over one axis it resizes images of height 1; over
three axes two passes of it resize a volume, since every method of interpolation is separable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ekiden.frontend.common.node import AttributeNode
from ekiden.ir.dtype import is_float
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.dimensions import Dim, Shape, simplify_dim

Scales: TypeAlias = Sequence[Expr | float]
"""Result per data extent of each axis: numbers, or vectors of one element."""
ImageResize: TypeAlias = Callable[[Expr, Sequence[Dim], Scales | None], Expr]
"""(data [batch, channels, height, width], the result's height and width, scales) -> result."""


def resize_spatial_axes(
    image: ImageResize, data: Expr, shape: Shape, size: Sequence[PrimExpr], scales: Scales | None
) -> Expr:
    """Emit a resize of [batch, channels, *spatial] by a format's resize of images.

    Args:
        image: emits the resize of images with the format's method, coordinates and rounding.
        data: the tensor to resize, with one to three spatial axes.
        shape: the shape of the data.
        size: the result's spatial extents.
        scales: the scale of each spatial axis; None where it is the quotient of the extents.

    Returns:
        The resized tensor [batch, channels, *size].
    """
    if len(size) == 2:
        return image(data, size, scales)
    if len(size) == 1:
        line = op.expand_dims(data, axis=2)
        resized = image(line, (1, *size), None if scales is None else [1.0, *scales])
        return op.squeeze(resized, axis=[2])
    batch, channels, depth, height, width = shape
    slices = op.reshape(
        data, (batch, simplify_dim(channels * depth), height, width), allowzero=True
    )
    flat = image(slices, size[1:], None if scales is None else scales[1:])
    slice_size = simplify_dim(size[1] * size[2])
    rows = op.reshape(flat, (batch, channels, depth, slice_size), allowzero=True)
    resized = image(rows, (size[0], slice_size), None if scales is None else [scales[0], 1.0])
    return op.reshape(resized, (batch, channels, *size), allowzero=True)


def resize(method: str) -> Callable[[AttributeNode], Expr]:
    """Return the converter of a resizing of NHWC images, by the method "linear", "cubic" or
    "nearest_neighbor".
    """

    def convert(node: AttributeNode) -> Expr:
        """Convert a resize of NHWC images.

        Methods other than nearest return floats, as TensorFlow's do. Its cubic kernel has a = -0.5
        and excludes the outside of the image for half-pixel centres, else a = -0.75.
        """
        # The two flags exclude each other in TensorFlow; align_corners is the older one.
        mode = "half_pixel" if node.bool_attribute("half_pixel_centers") else "asymmetric"
        mode = "align_corners" if node.bool_attribute("align_corners") else mode
        data, is_near = node.expr(0), method == "nearest_neighbor"
        if not is_near and not is_float(node.dtype(0)):
            data = op.cast(data, "float32")
        # TensorFlow's nearest kernels floor the legacy coordinates and round half up the half-pixel
        # ones.
        rounding = "" if not is_near else "floor" if mode == "asymmetric" else "round_prefer_ceil"
        return op.image.resize2d(
            data, node.dims(1, "size"), layout="NHWC", method=method,
            coordinate_transformation_mode=mode, rounding_method=rounding,
            cubic_alpha=-0.5 if mode == "half_pixel" else -0.75,
            cubic_exclude=mode == "half_pixel",
        )  # fmt: skip

    return convert
