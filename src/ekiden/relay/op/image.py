"""Image resizing operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import to_numpy
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, PrecisionPolicy, register_op
from ekiden.ir.prim import AnyDim, PrimExpr
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr, const
from ekiden.relay.op import image_sampling
from ekiden.relay.op._declare import (
    call_op,
    call_shape_rule,
    check_attrs,
    check_rank,
    check_tensors,
    raise_type_error,
)
from ekiden.relay.op.broadcast import multiply
from ekiden.relay.op.create import shape_of
from ekiden.relay.op.dynamic import (
    call_dynamic,
    check_non_negative,
    constant_value,
    declare_dynamic_op,
    dims_from_shape_argument,
)
from ekiden.relay.op.elementwise import cast
from ekiden.relay.op.elementwise import round as rounded
from ekiden.relay.op.image_sampling import *  # noqa: F403
from ekiden.relay.op.index import take
from ekiden.relay.op.join import concatenate
from ekiden.relay.op.reshaping import reshape
from ekiden.te import Tensor
from ekiden.tir.data_layout import parse_layout
from ekiden.topi.dimensions import (
    Dim,
    Dims,
    Shape,
    as_dim,
    as_ints,
    known_int,
    require_min_extent,
    require_shape,
    simplify_dim,
    to_attr_dims,
)
from ekiden.topi.image.resize import (
    INTEGER_TOLERANCE,
    ResizeSampling,
    nearest_rounding_method,
    resize,
)
from ekiden.topi.layout import spatial_axis_indices

RESIZE_METHODS = ("nearest_neighbor", "linear", "cubic")


@node("relay.attrs.Resize2DAttrs")
class Resize2DAttrs(Attrs):
    """Attributes of image.resize2d: the output size and the interpolation.

    scales: result per data extent where that is not the quotient of the extents (ONNX gives the
    factor itself); "align_corners" then goes by the scaled extents unrounded. rounding_method: how
    the nearest pixel is found, of "floor", "ceil", "round" (halves go up) and ONNX's
    "round_prefer_floor" and "round_prefer_ceil"; "" is "round" for "align_corners", else "floor".
    roi: the part that "tf_crop_and_resize" reads, begins, then ends, in [0, 1]; what it shows
    outside of the data is the extrapolation value.
    """

    size: Dims = ()
    layout: str = "NCHW"
    method: str = "linear"
    coordinate_transformation_mode: str = "half_pixel"
    rounding_method: str = ""
    cubic_alpha: float = -0.5
    cubic_exclude: bool = False
    scales: tuple[float, ...] | None = None
    out_dtype: str = ""
    roi: tuple[float, ...] = ()
    extrapolation_value: float = 0.0


def resized_shape(shape: Shape, layout: str, size: Dims) -> Shape:
    """Return the shape of a resized image."""
    result_shape: list[PrimExpr] = list(shape)
    for extent, position in zip(size, spatial_axis_indices(layout), strict=True):
        result_shape[position] = as_dim(extent)
    return tuple(result_shape)


def _check_non_empty(name: str, data: TensorType, layout: str) -> None:
    """Raise a type error for empty images."""
    minimums = [1 if letter in "HW" else None for letter, _ in parse_layout(layout)]
    call_shape_rule(name, require_min_extent, name, "data", data.shape, minimums)


def _check_resize_attrs(name: str, settings: Resize2DAttrs, data: TensorType) -> None:
    """Raise a type error for invalid resize attributes or empty images."""
    check_rank(name, data, len(call_shape_rule(name, parse_layout, settings.layout)), "data")
    if settings.method not in RESIZE_METHODS:
        raise_type_error(
            name, f"method must be one of {', '.join(RESIZE_METHODS)}, got {settings.method!r}"
        )
    mode = settings.coordinate_transformation_mode
    call_shape_rule(name, nearest_rounding_method, settings.rounding_method, mode)
    if mode == "tf_crop_and_resize" and len(settings.roi) != 4:
        raise_type_error(name, f"tf_crop_and_resize needs 4 numbers in roi, got {settings.roi}")
    scales: object = settings.scales
    if scales is not None and not (isinstance(scales, Sequence) and len(scales) == 2):
        raise_type_error(name, f"scales must be of height and width, got {scales}")
    _check_non_empty(name, data, settings.layout)


def _resize_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("image.resize2d", types, 1)
    settings = check_attrs(Resize2DAttrs, attrs)
    if len(settings.size) != 2:
        raise_type_error("image.resize2d", f"size must be (height, width), got {settings.size}")
    _check_resize_attrs("image.resize2d", settings, data)
    return TensorType(
        resized_shape(data.shape, settings.layout, settings.size), settings.out_dtype or data.dtype
    )


def _source_coordinates(
    mode: str, size: int, extent: int, scale: float | None, region: tuple[float, ...]
) -> Array:
    """Return the source coordinate of each output pixel, in float32 as kernels compute it."""
    x, half = np.arange(extent, dtype=np.float32), np.float32(0.5)
    # float32 throughout: a position computed in float64 could fall on the other side of a pixel's
    # edge.
    factor = np.float32(extent / max(size, 1) if scale is None else scale)
    if mode == "tf_crop_and_resize":
        begin, end = (np.float32(edge) * np.float32(size - 1) for edge in region)
        if extent == 1:
            return np.full(1, (begin + end) * half, np.float32)
        return np.asarray(begin + x * ((end - begin) / np.float32(extent - 1)))
    if mode == "align_corners":
        # The corners of data and result are aligned: n pixels have n - 1 distances.
        wide = np.float32(extent) if scale is None else np.float32(size) * factor
        return np.asarray(x * np.float32(size - 1) / max(wide - np.float32(1), np.float32(1)))
    if mode == "asymmetric":
        return np.asarray(x / factor)
    if mode == "tf_half_pixel_for_nn":
        return np.asarray((x + half) / factor)
    if mode == "pytorch_half_pixel" and extent == 1:
        return np.zeros(1, np.float32)
    return np.asarray((x + half) / factor - half)


def _round_to_pixel(x: Array, rounding: str) -> Array:
    if rounding == "round_prefer_floor":
        return np.ceil(x - np.float32(0.5))
    if rounding in ("round", "round_prefer_ceil"):
        return np.floor(x + np.float32(0.5))
    if not rounding:
        # A position that should be a whole number may be just below it in float32.
        return np.asarray(np.floor(x + np.float32(INTEGER_TOLERANCE)))
    return np.asarray(np.floor(x) if rounding == "floor" else np.ceil(x))


def _cubic_weight(distance: Array, alpha: float) -> Array:
    """Return the weight of the cubic convolution kernel at a distance."""
    d = np.abs(distance.astype(np.float64))
    # Keys' convolution kernel, with a as its free parameter: -0.5 (TensorFlow, exact for
    # quadratics) or -0.75 (PyTorch).
    near = ((alpha + 2) * d - (alpha + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * alpha - 4 * alpha
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _interpolation_taps(attrs: Resize2DAttrs, x: Array, size: int) -> list[tuple[Array, Array]]:
    """Return the (indices, weights) of the source pixels that each output position interpolates
    along one axis.
    """
    if attrs.method == "nearest_neighbor":
        rounding = nearest_rounding_method(
            attrs.rounding_method, attrs.coordinate_transformation_mode
        )
        return [(_clamp_index(_round_to_pixel(x, rounding), size), np.ones(len(x)))]
    base = np.floor(x)
    positions, weights = [], []
    for offset in range(-1, 3) if attrs.method == "cubic" else range(2):
        distance = (x - base) - offset  # where x is large, base + offset would be base
        weight = (
            _cubic_weight(distance, attrs.cubic_alpha)
            if attrs.method == "cubic"
            else 1 - np.abs(distance)
        )
        position = base + offset
        if attrs.method == "cubic" and attrs.cubic_exclude:
            # Pixels outside of the data count nothing, and the others are scaled to a sum of 1.
            weight = np.where((position < 0) | (position > size - 1), 0, weight)
        positions.append(_clamp_index(position, size))
        weights.append(weight)
    if attrs.method == "cubic" and attrs.cubic_exclude:
        weights = list(np.stack(weights) / np.sum(weights, axis=0))
    return list(zip(positions, weights, strict=True))


def _clamp_index(at: Array, size: int) -> Array:
    """Clamp indices to the data; NaN maps to index 0."""
    return np.asarray(np.nan_to_num(np.clip(at, 0, size - 1)), np.int64)


def _weighted_sum(data: Array, axis: int, taps: Sequence[tuple[Array, Array]]) -> Array:
    """Return the weighted sum of pixels along an axis."""
    shape = [-1 if n == axis else 1 for n in range(data.ndim)]
    terms = [np.take(data, position, axis) * weight.reshape(shape) for position, weight in taps]
    return np.asarray(sum(terms[1:], terms[0]))


def _resize_reference(attrs: Resize2DAttrs, data: Array) -> Array:
    resized = data.astype(np.float64)
    for i, (extent, position) in enumerate(
        zip(as_ints(attrs.size), spatial_axis_indices(attrs.layout), strict=True)
    ):
        size = data.shape[position]
        scale = None if attrs.scales is None else attrs.scales[i]
        mode = attrs.coordinate_transformation_mode
        # The region is (y1, x1, y2, x2): one axis has every second number.
        x = _source_coordinates(mode, size, extent, scale, attrs.roi[i::2])
        resized = _weighted_sum(resized, position, _interpolation_taps(attrs, x, size))
        if mode == "tf_crop_and_resize":
            # Only this mode reads beyond the data on purpose.
            outside = np.expand_dims(
                ((x < 0) | (x > size - 1)), tuple(range(1, data.ndim - position))
            )
            resized = np.where(outside, attrs.extrapolation_value, resized)
    dtype = to_numpy(attrs.out_dtype or str(data.dtype))
    return (np.rint(resized) if dtype.kind in "iu" else resized).astype(dtype)


def lower_resize(
    attrs: Resize2DAttrs, data: Tensor, out: TensorType, scales: Sequence[PrimExpr] | None = None
) -> Tensor:
    """Lower a resize to topi, with run-time scales if given."""
    sampling = ResizeSampling(
        attrs.method,
        attrs.coordinate_transformation_mode,
        nearest_rounding_method(attrs.rounding_method, attrs.coordinate_transformation_mode),
        attrs.cubic_alpha,
        attrs.cubic_exclude,
    )
    crop = attrs.coordinate_transformation_mode == "tf_crop_and_resize"
    region = [(attrs.roi[n], attrs.roi[n + 2]) for n in range(2)] if crop else None
    return resize(
        data,
        out.shape,
        spatial_axis_indices(attrs.layout),
        sampling,
        scales or attrs.scales,
        out.dtype,
        region,
        attrs.extrapolation_value,
    )


register_op(
    OpDef(
        name="image.resize2d",
        precision=PrecisionPolicy.FOLLOW,
        arguments=("data",),
        attrs=Resize2DAttrs,
        relation=_resize_relation,
        reference=_resize_reference,
        lower=lambda attrs, inputs, out: [lower_resize(attrs, inputs[0], out)],
        pattern=OpPattern.INJECTIVE,
        layout="layout",
        result="data with the extents `size` along H and W of its layout; `out_dtype`, if given",
    )
)


def _resize_scaled_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "image.resize2d_scaled"
    data, scales = check_tensors(name, types, 2)
    if scales.dtype != "float32":
        raise_type_error(name, f"'scales' must be float32, got {scales.dtype}")
    call_shape_rule(name, require_shape, name, "scales", scales.shape, (2,))
    return _resize_relation((data,), attrs)


def _resize_scaled_reference(attrs: Resize2DAttrs, data: Array, scales: Array) -> Array:
    with np.errstate(over="ignore"):  # by tiny scales places are infinite
        return _resize_reference(attrs.with_fields(scales=tuple(map(float, scales))), data)


register_op(
    OpDef(
        name="image.resize2d_scaled",
        precision=PrecisionPolicy.NEVER,
        arguments=("data", "scales"),
        attrs=Resize2DAttrs,
        relation=_resize_scaled_relation,
        reference=_resize_scaled_reference,
        lower=lambda attrs, inputs, out: [
            lower_resize(attrs, inputs[0], out, [inputs[1][n] for n in range(2)])
        ],
        pattern=OpPattern.INJECTIVE,
        layout="layout",
        result="data with the extents `size` along H and W of its layout; `out_dtype`, if given",
        description="`image.resize2d`, where the scales by which pixels are found are data.",
    )
)


@node("relay.attrs.DynResize2DAttrs")
class DynResize2DAttrs(Resize2DAttrs):
    """Attributes of dyn.image.resize2d: those of image.resize2d with the size as an argument."""

    symbols: tuple[PrimExpr, ...] = ()


def _dyn_resize_type(attrs: DynResize2DAttrs, types: Sequence[TensorType]) -> TensorType:
    data, size = types
    if [known_int(d) for d in size.shape] != [2]:
        raise_type_error("dyn.image.resize2d", f"size must be (height, width), got {size.shape}")
    _check_resize_attrs("dyn.image.resize2d", attrs, data)
    axes = spatial_axis_indices(attrs.layout)
    shape = tuple(AnyDim() if index in axes else d for index, d in enumerate(data.shape))
    return TensorType(shape, attrs.out_dtype or data.dtype)


def _dyn_resize_reference(attrs: DynResize2DAttrs, data: Array, size: Array) -> Array:
    extents = check_non_negative(
        "dyn.image.resize2d", "a dimension of the result", tuple(size.tolist())
    )
    return _resize_reference(attrs.with_fields(size=extents), data)


declare_dynamic_op(
    "dyn.image.resize2d",
    ("data", "size"),
    DynResize2DAttrs,
    _dyn_resize_type,
    dims_from_shape_argument,
    lambda attrs, inputs, out: [lower_resize(attrs, inputs[0], out)],
    _dyn_resize_reference,
    "data with the extents `size` along H and W of its layout; `out_dtype`, if given",
    layout="layout",
)


def resize2d(
    data: Expr,
    size: Sequence[Dim] | Dim | Expr,
    roi: Sequence[float] | None = None,
    layout: str = "NCHW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    cubic_alpha: float = -0.5,
    cubic_exclude: bool | int = False,
    extrapolation_value: float = 0.0,
    out_dtype: str = "",
    scales: Sequence[float] | Expr | None = None,
) -> Call:
    """Resize images to (height, width), which may be symbolic or a tensor.

    See Resize2DAttrs for the options. `scales` may be an expression too, of a vector, if `size` is
    none.
    """
    constant_size = constant_value(size)
    extents = (
        ()
        if constant_size is None
        else constant_size
        if isinstance(constant_size, Sequence)
        else (constant_size, constant_size)
    )
    constant_scales = (
        None if scales is None or isinstance(scales, Expr) else tuple(map(float, scales))
    )
    options = (
        to_attr_dims(extents), layout, method, coordinate_transformation_mode, rounding_method,
        cubic_alpha, bool(cubic_exclude),
        constant_scales, out_dtype, tuple(roi or ()),
        extrapolation_value,
    )  # fmt: skip
    if constant_size is None:
        assert isinstance(size, Expr)
        return call_dynamic("image.resize2d", data, size, attrs=DynResize2DAttrs(*options))
    if isinstance(scales, Expr):
        return call_op("image.resize2d_scaled", data, scales, attrs=Resize2DAttrs(*options))
    return call_op("image.resize2d", data, attrs=Resize2DAttrs(*options))


@node("relay.attrs.UpSamplingAttrs")
class UpSamplingAttrs(Attrs):
    """Attributes of nn.upsampling: scale factors, layout, method ("nearest_neighbor", "bilinear",
    "bicubic").
    """

    scale_h: float = 1.0
    scale_w: float = 1.0
    layout: str = "NCHW"
    method: str = "nearest_neighbor"
    align_corners: bool = False


UPSAMPLING_METHODS = {
    "nearest_neighbor": "nearest_neighbor",
    "bilinear": "linear",
    "bicubic": "cubic",
}


def scale_extent(extent: PrimExpr, factor: float) -> PrimExpr:
    """Return an extent scaled by a factor and rounded.

    Raises:
        ValueError: The extent is symbolic and the factor no integer.
    """
    number = known_int(extent)
    if number is not None:
        return as_dim(round(number * factor))
    # The extents of a type are integer expressions, which have no rounding.
    if factor != int(factor):
        raise ValueError(f"a symbolic extent needs an integer factor, got {factor}")
    return simplify_dim(extent * int(factor))


def upsampling_to_resize(attrs: UpSamplingAttrs, shape: Shape) -> Resize2DAttrs:
    """Return the resize attributes equivalent to an upsampling of the given shape."""
    rows, columns = (shape[position] for position in spatial_axis_indices(attrs.layout))
    corners = "align_corners" if attrs.align_corners else "asymmetric"
    # TVM repeats pixels: pixel i of the result shows floor(i / scale).
    rounding = "floor" if attrs.method == "nearest_neighbor" and not attrs.align_corners else ""
    return Resize2DAttrs(
        to_attr_dims((scale_extent(rows, attrs.scale_h), scale_extent(columns, attrs.scale_w))),
        attrs.layout,
        UPSAMPLING_METHODS[attrs.method],
        corners,
        rounding,
    )


def _upsampling_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("nn.upsampling", types, 1)
    settings = check_attrs(UpSamplingAttrs, attrs)
    check_rank(
        "nn.upsampling",
        data,
        len(call_shape_rule("nn.upsampling", parse_layout, settings.layout)),
        "data",
    )
    if settings.method not in UPSAMPLING_METHODS:
        raise_type_error(
            "nn.upsampling",
            f"method must be one of {', '.join(UPSAMPLING_METHODS)}, got {settings.method!r}",
        )
    try:
        size = upsampling_to_resize(settings, data.shape).size
    except ValueError as error:
        raise_type_error("nn.upsampling", str(error))
    return TensorType(resized_shape(data.shape, settings.layout, size), data.dtype)


def _upsampling_reference(attrs: UpSamplingAttrs, data: Array) -> Array:
    return _resize_reference(upsampling_to_resize(attrs, tuple(map(as_dim, data.shape))), data)


register_op(
    OpDef(
        name="nn.upsampling",
        precision=PrecisionPolicy.FOLLOW,
        arguments=("data",),
        attrs=UpSamplingAttrs,
        relation=_upsampling_relation,
        reference=_upsampling_reference,
        lower=lambda attrs, inputs, out: [
            lower_resize(upsampling_to_resize(attrs, inputs[0].shape), inputs[0], out)
        ],
        layout="layout",
        pattern=OpPattern.INJECTIVE,
        result="data with H and W times the scales, rounded",
    )
)


def _static_factor(scale: float | Expr) -> float | None:
    """Return a static scale factor, or None if it is a tensor."""
    value = constant_value(scale)
    return None if value is None else float(np.asarray(value).reshape(()))


def _scaled_size(data: Expr, layout: str, scales: Sequence[float | Expr]) -> Expr:
    """Return image extents times run-time factors, rounded."""
    spatial_axes = const(np.array(spatial_axis_indices(layout), np.int64))
    # Computed at run time, by operators: the factors are data.
    extents = cast(take(shape_of(data, "int64"), spatial_axes), "float32")
    scale_exprs = [s if isinstance(s, Expr) else const(np.float32(s)) for s in scales]
    factors = concatenate([reshape(cast(s, "float32"), (1,)) for s in scale_exprs], 0)
    return cast(rounded(multiply(extents, factors)), "int64")


def upsampling(
    data: Expr,
    scale_h: float | Expr = 1.0,
    scale_w: float | Expr = 1.0,
    layout: str = "NCHW",
    method: str = "nearest_neighbor",
    align_corners: bool = False,
) -> Call:
    """Upsample images by factors, which may be float scalars given as tensors."""
    rows, columns = _static_factor(scale_h), _static_factor(scale_w)
    if rows is None or columns is None:
        attrs = UpSamplingAttrs(1.0, 1.0, layout, method, align_corners)
        how = upsampling_to_resize(attrs, tuple(as_dim(1) for _ in layout))
        modes = how.coordinate_transformation_mode, how.rounding_method
        size = _scaled_size(data, layout, (scale_h, scale_w))
        return resize2d(data, size, None, layout, how.method, *modes)
    attrs = UpSamplingAttrs(rows, columns, layout, method, align_corners)
    return call_op("nn.upsampling", data, attrs=attrs)


__all__ = ["resize2d", *image_sampling.__all__]
