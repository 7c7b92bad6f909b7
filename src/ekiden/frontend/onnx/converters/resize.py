"""ONNX Upsample and Resize, by scales or to sizes.

The image kernels resize rank 4 (or 3, as images of height 1; 5, as slices) over the spatial axes
alone; `emit_resample` does the others. Run-time scales give the result's extents symbolic names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import cast

import numpy as np

from ekiden.frontend.common.converters.resize import Scales, resize_spatial_axes
from ekiden.frontend.common.data_dependent_dims import to_named_dims
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.converters.resample import (
    LEGACY_NEAREST,
    ScalarExpr,
    emit_resample,
    extent_as_float64,
    vector_as_dims,
)
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.ir import prim
from ekiden.ir.dtype import is_float
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Constant, Expr, Tuple, const
from ekiden.topi.dimensions import (
    Dim,
    Shape,
    are_equal_dims,
    are_unequal_dims,
    as_dim,
    known_int,
    simplify_dim,
)

_RESIZE_METHODS = {
    "nearest": "nearest_neighbor",
    "linear": "linear",
    "cubic": "cubic",
    "bilinear": "linear",
}


def _upsample_by_attributes(node: OnnxNode) -> Expr | Value:
    """Convert Upsample 7, whose scales are an attribute."""
    return _emit_resize(node, node.get_floats("scales"), None, "asymmetric", LEGACY_NEAREST)


def _upsample(node: OnnxNode) -> Expr | Value:
    """Convert Upsample 9 and Resize 10: the scales are an input, coordinates are asymmetric.
    Nearest rounds down where an axis grows and up where it shrinks, as ONNX Runtime does for these
    versions.
    """
    if node.value(1).array is None:
        return _resize_by_runtime_scales(node, 1, "asymmetric", LEGACY_NEAREST)
    scales = _constant_scales(node, 1)
    if len(scales) != node.rank(0):
        node.reject(f"expected a scale for each of {node.rank(0)} axes, got {len(scales)}")
    return _emit_resize(node, scales, None, "asymmetric", LEGACY_NEAREST)


def _constant_scales(node: OnnxNode, index: int) -> tuple[float, ...]:
    """Return the constant scales of an input."""
    return tuple(float(s) for s in node.constant_array(index, "scales").ravel())


def _resize(node: OnnxNode) -> Expr | Value:
    """Convert Resize since opset 11, by scales or to sizes. Empty scales count as absent, as older
    exporters wrote them beside sizes.
    """
    scales, sizes = node.optional_value(2), node.optional_value(3)
    has_scales = (
        scales is not None and scales.type.shape != () and known_int(scales.type.shape[0]) != 0
    )
    mode = node.get_string("coordinate_transformation_mode", "half_pixel")
    rounding = node.get_string("nearest_mode", "round_prefer_floor")
    if has_scales and scales is not None and scales.array is None:
        return _resize_by_runtime_scales(node, 2, mode, rounding)
    factors = _expand_to_all_axes(node, _constant_scales(node, 2), 1.0) if has_scales else None
    if sizes is None and factors is None:
        node.reject("one of 'scales' and 'sizes' must be given")
    count = len(node.get_ints("axes", tuple(range(node.rank(0)))))
    sizes_given = None if factors is not None else node.dims(3, "sizes", count)
    extents = None if sizes_given is None else _expand_to_all_axes(node, sizes_given, None)
    return _emit_resize(node, factors, extents, mode, rounding)


def _resize_by_runtime_scales(node: OnnxNode, index: int, mode: str, rounding: str) -> Expr | Value:
    """Emit a resize by run-time scales, whose extents get symbolic names."""
    axes = [node.axis(a, node.rank(0)) for a in node.get_ints("axes", tuple(range(node.rank(0))))]
    scales = op.reshape(op.cast(node.expr(index), "float32"), (len(axes),))
    extents = op.take(op.shape_of(node.expr(0), "int64"), const(np.array(axes)), axis=0)
    # ONNX Resize: output extent = floor(input extent * scale), in float32.
    scaled = op.cast(op.floor(op.multiply(op.cast(extents, "float32"), scales)), "int64")
    extents_scaled = to_named_dims(node.scope, node.as_value(scaled))
    assert extents_scaled is not None, "a vector of known length"
    sizes = list(node.shape(0))
    for axis, extent in zip(axes, extents_scaled, strict=True):
        sizes[axis] = as_dim(extent)
    steps = [
        op.strided_slice(scales, begin=[axes.index(a)], end=[axes.index(a) + 1])
        if a in axes
        else const(np.ones(1, np.float32))
        for a in range(node.rank(0))
    ]
    return _emit_resize(node, None, sizes, mode, rounding, steps)


def _expand_to_all_axes(
    node: OnnxNode, values: Sequence[Dim | float], fill: float | None
) -> Sequence[Dim | float]:
    """Expand values of the axes in attribute `axes` to all axes."""
    axes = node.get_ints("axes", tuple(range(node.rank(0))))
    if len(values) != len(axes):
        node.reject(f"expected a scale or size for each of {len(axes)} axes, got {len(values)}")
    full: list[Dim | float] = [d if fill is None else fill for d in node.shape(0)]
    for axis, value in zip(axes, values, strict=True):
        full[node.axis(axis, node.rank(0))] = value
    return full


def _emit_resize(
    node: OnnxNode,
    scales: Sequence[Dim | float] | None,
    sizes: Sequence[Dim | float] | None,
    mode: str,
    rounding: str,
    by: Sequence[Expr] | None = None,
) -> Expr | Value:
    """Emit a resize by scales or to sizes; `by` are run-time scales per axis, vectors of one
    element.
    """
    shape = node.shape(0)
    factors = None if scales is None else [_as_float(s) for s in scales]
    if factors is not None and not all(0 < f < math.inf for f in factors):
        node.reject(f"scales must be finite and above 0, got {factors}")
    if rounding == LEGACY_NEAREST:
        rounding = _uniform_rounding(node, factors)
    extents = (
        [_scaled_extent(d, f) for d, f in zip(shape, factors, strict=True)]
        if factors
        else [_as_extent(s) for s in sizes or ()]
    )
    if node.get_int("antialias", 0) and node.get_string("mode", "nearest") == "nearest":
        node.reject("'antialias' has a meaning for 'mode' linear and cubic alone")
    if rounding == LEGACY_NEAREST or _needs_resampler(node, shape, extents):
        numbers = _scale_exprs(len(shape), factors, by)
        return _emit_resample(node, shape, extents, numbers, mode, rounding)
    resized = _resize_spatial_axes(node, extents, factors, mode, rounding, by)
    # Run-time scales may resize batch and channels too, which the image kernels cannot.
    if by is not None and not _preserves_batch_and_channels(node, by):
        outer: list[ScalarExpr] = [_float64_scale(s) for s in by[:2]]
        outer += [const(1.0, "float64")] * (len(shape) - 2)
        inner = node.with_inputs([node.as_value(resized)])
        return emit_resample(inner, extents, outer, mode, rounding)
    # The image kernels resize spatial axes only, so the other extents must be equal at run time.
    for old, new in zip(shape[:2], extents[:2], strict=True):
        node.scope.require_condition(prim.fold_binary(prim.EQ, old, new))
    return resized


def _preserves_batch_and_channels(node: OnnxNode, by: Sequence[Expr]) -> bool:
    """Return whether batch and channels provably keep their extents."""
    if all(isinstance(s, Constant) for s in by[:2]):
        return True
    index = 2 if node.op_type == "Resize" and node.opset > 10 else 1
    # PyTorch exports cat([1, 1], scales): its first operand shows the batch's and channels' scale.
    maker = node.producer_node(index)
    if maker is None or maker.op_type != "Concat" or not maker.input:
        return False
    first = node.lookup_value(maker.input[0]).array
    return first is not None and first.ndim == 1 and len(first) > 1 and bool((first[:2] == 1).all())


def _float64_scale(scale: Expr) -> ScalarExpr:
    """Emit a scale, a vector of one element, as a float64 scalar."""
    if isinstance(scale, Constant):
        return const(float(scale.data.item()), "float64")
    return op.cast(op.reshape(scale, ()), "float64")


def _resize_spatial_axes(
    node: OnnxNode,
    extents: Sequence[PrimExpr],
    factors: Sequence[float] | None,
    mode: str,
    rounding: str,
    by: Sequence[Expr] | None,
) -> Expr:
    """Emit a resize of the spatial axes by the image kernels."""
    shape = node.shape(0)
    size = [node.scope.resolve_resized(d) for d in extents[2:]]
    steps: Scales | None = factors[2:] if factors is not None else by and by[2:]
    resize = partial(
        resize_spatial_axes, partial(_resize_image, node, mode, rounding),
        shape=shape, size=size, scales=steps,
    )  # fmt: skip
    return _resize_in_float32(node, resize) if len(shape) == 5 else resize(node.expr(0))


def _uniform_rounding(node: OnnxNode, factors: Sequence[float] | None) -> str:
    """Return the rounding that LEGACY_NEAREST means on all axes; itself where axes differ."""
    # Linear and cubic interpolation do not round coordinates, so every rounding mode serves.
    if node.get_string("mode", "nearest") != "nearest":
        return "floor"
    if factors is None:
        return LEGACY_NEAREST
    if all(f >= 1 for f in factors):
        return "floor"
    return "ceil" if all(f <= 1 for f in factors) else LEGACY_NEAREST


def _scale_exprs(
    rank: int, factors: Sequence[float] | None, by: Sequence[Expr] | None
) -> list[ScalarExpr] | None:
    """Return the scale of each axis as a float64 scalar; None without scales."""
    if factors is not None:
        return [const(f, "float64") for f in factors]
    if by is None:
        return None
    return [_float64_scale(s) for s in by]


def _resize_image(
    node: OnnxNode,
    mode: str,
    rounding: str,
    data: Expr,
    size: Sequence[Dim],
    steps: Scales | None,
) -> Expr:
    """Emit image.resize2d of [batch, channels, height, width]; `steps` are the scales of
    coordinates.
    """
    if steps is not None and any(isinstance(s, Expr) for s in steps):
        ones = [s if isinstance(s, Expr) else const(np.full(1, s, np.float32)) for s in steps]
        scales: Expr | Sequence[float] | None = op.concatenate(Tuple(tuple(ones)), axis=0)
    else:
        scales = cast("Sequence[float] | None", steps)
    return op.image.resize2d(
        data,
        size=list(size),
        method=_RESIZE_METHODS[node.get_string("mode", "nearest")],
        coordinate_transformation_mode=mode,
        rounding_method=rounding,
        cubic_alpha=node.get_float("cubic_coeff_a", -0.75),
        cubic_exclude=bool(node.get_int("exclude_outside", 0)),
        scales=scales,
    )


def _resize_in_float32(node: OnnxNode, resize: Callable[[Expr], Expr]) -> Expr:
    """Emit a multi-pass resize in float32 that is rounded to the data's dtype once."""
    data, kind = node.expr(0), node.dtype(0)
    if kind in ("float32", "float64") or node.get_string("mode", "nearest") == "nearest":
        return resize(data)
    # Integers and float16 would otherwise be rounded after each of the separable passes.
    resized = resize(op.cast(data, "float32"))
    return op.cast(resized if is_float(kind) else op.round(resized), kind)


def _needs_resampler(node: OnnxNode, shape: Shape, extents: Sequence[PrimExpr]) -> bool:
    """Return whether the resize needs the general resampler."""
    mode = node.get_string("coordinate_transformation_mode", "half_pixel")
    if (
        mode in ("tf_crop_and_resize", "half_pixel_symmetric")
        or node.get_int("antialias", 0)
        or node.get_string("keep_aspect_ratio_policy", "stretch") != "stretch"
        or len(shape) not in (3, 4, 5)
    ):
        return True
    pairs = list(zip(shape, extents, strict=True))
    if any(are_unequal_dims(a, b) for a, b in pairs[:2]):
        return True  # batch or channels
    return len(shape) == 5 and all(known_int(d) is not None for pair in pairs for d in pair)


def _emit_resample(
    node: OnnxNode,
    shape: Shape,
    extents_wanted: Sequence[PrimExpr],
    factors: Sequence[ScalarExpr] | None,
    mode: str,
    rounding: str,
) -> Expr:
    """Emit a resize by the general resampler; without scales they are the quotients of the
    sizes.
    """
    if factors is not None:
        return emit_resample(node, extents_wanted, factors, mode, rounding)
    one = const(1.0, "float64")
    ratios: list[ScalarExpr] = [
        one
        if are_equal_dims(new, old)
        # An empty axis would cause a division by zero.
        else op.divide(extent_as_float64(node, new), op.maximum(extent_as_float64(node, old), one))
        for old, new in zip(shape, extents_wanted, strict=True)
    ]
    policy = node.get_string("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return emit_resample(node, extents_wanted, ratios, mode, rounding)
    axes = node.get_ints("axes", tuple(range(len(shape))))
    axis_indices = [node.axis(a, len(shape)) for a in axes]
    choose = op.minimum if policy == "not_larger" else op.maximum
    scale = reduce(choose, [ratios[a] for a in axis_indices])
    # ONNX keep_aspect_ratio_policy: sizes are round(scale * extent), halves up.
    sizes = [
        op.floor(scale * extent_as_float64(node, shape[a]) + const(0.5, "float64"))
        for a in axis_indices
    ]
    extents = list(extents_wanted)
    rounded_sizes = vector_as_dims(node, op.cast(op.stack(sizes, axis=0), "int64"))
    for axis, extent in zip(axis_indices, rounded_sizes, strict=True):
        extents[axis] = as_dim(extent)
    steps = [scale if a in axis_indices else one for a in range(len(shape))]
    return emit_resample(node, extents, steps, mode, rounding)


def _as_float(scale: Dim | float) -> float:
    """Return a constant scale as a float."""
    assert isinstance(scale, (int, float)), "scales are constant"
    return float(scale)


def _as_extent(size: Dim | float) -> PrimExpr:
    """Return a size as a dimension."""
    assert not isinstance(size, float), "sizes are dimensions"
    return simplify_dim(as_dim(size))


def _scaled_extent(extent: PrimExpr, factor: float) -> PrimExpr:
    """Return floor(extent * factor), in float32 like ONNX Runtime."""
    number = known_int(extent)
    if number is not None:
        return as_dim(int(np.floor(np.float32(number) * np.float32(factor))))
    # An integer factor stays a symbolic product, which shape rules can simplify.
    if factor == int(factor):
        return simplify_dim(extent * int(factor))
    if 1 / factor == int(1 / factor):
        return simplify_dim(extent // int(1 / factor))
    return prim.cast(call_intrin("floor", prim.cast(extent, "float32") * factor), "int64")


_RESIZE_MODES = ("nearest", "linear", "bilinear", "cubic")
_COORDINATE_MODES = (
    "half_pixel_symmetric",
    "tf_crop_and_resize",
    "half_pixel",
    "align_corners",
    "asymmetric",
    "pytorch_half_pixel",
    "tf_half_pixel_for_nn",
)
_RESIZE_ATTRIBUTES = (
    "antialias axes coordinate_transformation_mode cubic_coeff_a exclude_outside"
    " extrapolation_value keep_aspect_ratio_policy mode nearest_mode"
)

# fmt: off
ROWS = (
    OnnxRow("Upsample", _upsample_by_attributes, since_version=7, attributes="mode scales",
        supported_values={"mode": _RESIZE_MODES}),
    OnnxRow("Upsample", _upsample, since_version=9, attributes="mode",
        supported_values={"mode": _RESIZE_MODES}),
    OnnxRow("Resize",   _upsample, since_version=10, attributes="mode",
        supported_values={"mode": _RESIZE_MODES}),
    OnnxRow("Resize",   _resize, since_version=11, attributes=_RESIZE_ATTRIBUTES,
        ignorable_inputs="roi scales",
        supported_values={"mode": _RESIZE_MODES,
            "coordinate_transformation_mode": _COORDINATE_MODES,
                "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller")}),
)
# fmt: on
