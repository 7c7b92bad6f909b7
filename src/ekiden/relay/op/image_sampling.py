"""Image sampling operators: 1-D and 3-D resize, crop_and_resize, grid_sample, affine_grid,
dilation2d.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import OpPattern
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call_op, lookup_layout
from ekiden.relay.op._declare_topi import declare_topi_op
from ekiden.relay.op._window import WindowAttrs
from ekiden.te import Tensor
from ekiden.topi.dimensions import Dim, Dims, to_attr_dims

Sizes = Dim | Sequence[Dim]


@node("relay.attrs.Resize1DAttrs")
class Resize1DAttrs(Attrs):
    """Attributes of image.resize1d: those of Resize2DAttrs for one axis, with `roi` for
    "tf_crop_and_resize".
    """

    size: Dims = ()
    roi: tuple[float, ...] = ()
    layout: str = "NCW"
    method: str = "linear"
    coordinate_transformation_mode: str = "half_pixel"
    rounding_method: str = ""
    cubic_alpha: float = -0.5
    cubic_exclude: int = 0
    extrapolation_value: float = 0.0
    out_dtype: str = ""


@node("relay.attrs.Resize3DAttrs")
class Resize3DAttrs(Attrs):
    """Attributes of image.resize3d: those of Resize1DAttrs for three axes."""

    size: Dims = ()
    roi: tuple[float, ...] = ()
    layout: str = "NCDHW"
    method: str = "linear"
    coordinate_transformation_mode: str = "half_pixel"
    rounding_method: str = ""
    cubic_alpha: float = -0.5
    cubic_exclude: int = 0
    extrapolation_value: float = 0.0
    out_dtype: str = ""


@node("relay.attrs.CropAndResizeAttrs")
class CropAndResizeAttrs(Attrs):
    """Attributes of image.crop_and_resize: crop size, layout, method, extrapolation value."""

    crop_size: Dims = ()
    layout: str = "NCHW"
    method: str = "bilinear"
    extrapolation_value: float = 0.0
    out_dtype: str = ""


@node("relay.attrs.GridSampleAttrs")
class GridSampleAttrs(Attrs):
    """Attributes of image.grid_sample: method, layout, padding mode, align_corners."""

    method: str = "bilinear"
    layout: str = "NCHW"
    padding_mode: str = "zeros"
    align_corners: bool = True


@node("relay.attrs.AffineGridAttrs")
class AffineGridAttrs(Attrs):
    """Attributes of image.affine_grid: the grid's height and width."""

    target_shape: Dims = ()


@node("relay.attrs.Dilation2DAttrs")
class Dilation2DAttrs(WindowAttrs):
    """Attributes of image.dilation2d: strides, padding (top, left, bottom, right), dilations,
    layouts.
    """

    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilations: tuple[int, ...] = (1, 1)
    data_layout: str = "NCHW"
    kernel_layout: str = "IHW"
    out_dtype: str = ""


def _lower_resize(attrs: Resize1DAttrs | Resize3DAttrs, data: Tensor) -> Tensor:
    resize = topi.image.resize1d if isinstance(attrs, Resize1DAttrs) else topi.image.resize3d
    return resize(
        data, attrs.roi or None, attrs.size, attrs.layout, attrs.method,
        attrs.coordinate_transformation_mode, attrs.rounding_method, attrs.cubic_alpha,
        attrs.cubic_exclude, attrs.extrapolation_value, attrs.out_dtype or None,
    )  # fmt: skip


_RESIZED_RESULT = "data's shape with `size` on the spatial axes"
declare_topi_op(
    "image.resize1d", ("data",), _lower_resize, _RESIZED_RESULT, Resize1DAttrs, OpPattern.INJECTIVE
)
declare_topi_op(
    "image.resize3d", ("data",), _lower_resize, _RESIZED_RESULT, Resize3DAttrs, OpPattern.INJECTIVE
)
declare_topi_op(
    "image.crop_and_resize",
    ("data", "boxes", "box_indices"),
    lambda attrs, data, boxes, box_indices: topi.image.crop_and_resize(
        data,
        boxes,
        box_indices,
        attrs.crop_size,
        attrs.layout,
        attrs.method,
        attrs.extrapolation_value,
        attrs.out_dtype,
    ),
    "an image of `crop_size` per box",
    CropAndResizeAttrs,
    OpPattern.INJECTIVE,
    refuses=True,
    layout="layout",
)
declare_topi_op(
    "image.grid_sample",
    ("data", "grid"),
    lambda attrs, data, grid: topi.image.grid_sample(
        data, grid, attrs.method, attrs.layout, attrs.padding_mode, attrs.align_corners
    ),
    "batch and channels of data, spatial axes of grid",
    GridSampleAttrs,
    OpPattern.INJECTIVE,
)
declare_topi_op(
    "image.affine_grid",
    ("data",),
    lambda attrs, data: topi.image.affine_grid(data, attrs.target_shape),
    "(batch, 2, *target_shape)",
    AffineGridAttrs,
    OpPattern.INJECTIVE,
)
declare_topi_op(
    "image.dilation2d",
    ("data", "weight"),
    lambda attrs, data, weight: lookup_layout(
        (attrs.data_layout, attrs.kernel_layout),
        {
            ("NCHW", "IHW"): topi.image.dilation2d_nchw,
            ("NHWC", "HWI"): topi.image.dilation2d_nhwc,
        },
    )(data, weight, attrs.strides, attrs.padding, attrs.dilations, attrs.out_dtype),
    "data's shape with the number of windows on the spatial axes",
    Dilation2DAttrs,
)


def _target_extents(size: Sizes, rank: int) -> Dims:
    return to_attr_dims((size,) * rank if isinstance(size, Dim) else size)


def resize1d(
    data: Expr,
    size: Sizes,
    roi: Sequence[float] | None = None,
    layout: str = "NCW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    extrapolation_value: float = 0.0,
    out_dtype: str = "",
) -> Call:
    """Resize signals along one axis."""
    attrs = Resize1DAttrs(
        _target_extents(size, 1), tuple(roi or ()), layout, method, coordinate_transformation_mode,
        rounding_method, cubic_alpha, cubic_exclude, extrapolation_value, out_dtype,
    )  # fmt: skip
    return call_op("image.resize1d", data, attrs=attrs)


def resize3d(
    data: Expr,
    size: Sizes,
    roi: Sequence[float] | None = None,
    layout: str = "NCDHW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    extrapolation_value: float = 0.0,
    out_dtype: str = "",
) -> Call:
    """Resize volumes along three axes."""
    attrs = Resize3DAttrs(
        _target_extents(size, 3), tuple(roi or ()), layout, method, coordinate_transformation_mode,
        rounding_method, cubic_alpha, cubic_exclude, extrapolation_value, out_dtype,
    )  # fmt: skip
    return call_op("image.resize3d", data, attrs=attrs)


def crop_and_resize(
    data: Expr,
    boxes: Expr,
    box_indices: Expr,
    crop_size: Sequence[Dim],
    layout: str = "NCHW",
    method: str = "bilinear",
    extrapolation_value: float = 0.0,
    out_dtype: str = "",
) -> Call:
    """Crop boxes with normalised coordinates in [0, 1] out of images, and resize them to
    one size.
    """
    attrs = CropAndResizeAttrs(
        to_attr_dims(crop_size), layout, method, extrapolation_value, out_dtype
    )
    return call_op("image.crop_and_resize", data, boxes, box_indices, attrs=attrs)


def grid_sample(
    data: Expr,
    grid: Expr,
    method: str = "bilinear",
    layout: str = "NCHW",
    padding_mode: str = "zeros",
    align_corners: bool = True,
) -> Call:
    """Sample images at normalised grid positions in [-1, 1]."""
    attrs = GridSampleAttrs(method, layout, padding_mode, align_corners)
    return call_op("image.grid_sample", data, grid, attrs=attrs)


def affine_grid(data: Expr, target_shape: Sequence[Dim]) -> Call:
    """Return the sampling grid of affine transforms [batch, 2, 3]."""
    return call_op("image.affine_grid", data, attrs=AffineGridAttrs(to_attr_dims(target_shape)))


def dilation2d(
    data: Expr,
    weight: Expr,
    strides: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilations: Sequence[int] = (1, 1),
    data_layout: str = "NCHW",
    kernel_layout: str = "IHW",
    out_dtype: str = "",
) -> Call:
    """Return the morphological dilation: the maximum over windows of data plus weight."""
    sides = tuple(padding) * (2 if len(padding) == 2 else 1)
    attrs = Dilation2DAttrs(
        tuple(strides), sides, tuple(dilations), data_layout, kernel_layout, out_dtype
    )
    return call_op("image.dilation2d", data, weight, attrs=attrs)


__all__ = [
    "affine_grid", "crop_and_resize", "dilation2d", "grid_sample", "resize1d", "resize3d",
]  # fmt: skip
