"""Pooling operators: max, average, global and adaptive.

    y[.., i, ..] = max or mean over u < k of x[.., s i + d u - before, ..]

Outside of the data is the least number for a maximum, and for a mean nothing: it divides by the
elements that are there, or, with count_include_pad, by those of the padded data. A window that lies
in the padding alone gives the least number, or 0 (TVM's; PyTorch refuses such padding).

With ceil_mode the last window may begin inside and end outside; it is left out where it would begin
in the padding behind the data, as in PyTorch and ONNX since opset 19. What it has outside of data
and padding never counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import is_float
from ekiden.ir.node import node
from ekiden.ir.op import (
    Array,
    Lowering,
    OpDef,
    OpPattern,
    PaddingAbsorption,
    PrecisionPolicy,
    register_op,
)
from ekiden.ir.prim import FloatImm, IntImm, PrimExpr
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    call_op,
    call_shape_rule,
    check_attrs,
    check_out_layout,
    check_rank,
    check_tensors,
    raise_type_error,
)
from ekiden.relay.op.nn.window_attrs import (
    AvgPool1DAttrs,
    AvgPool2DAttrs,
    AvgPool3DAttrs,
    AvgPoolAttrs,
    Ints,
    MaxPool1DAttrs,
    MaxPool2DAttrs,
    MaxPool3DAttrs,
    MaxPoolAttrs,
    expand_padding,
    expand_per_axis,
)
from ekiden.relay.op.reduce import max as largest
from ekiden.relay.op.reduce import mean
from ekiden.te import Tensor, identity
from ekiden.tir.data_layout import parse_layout
from ekiden.topi.dimensions import (
    Shape,
    as_dim,
    as_ints,
    require_min_extent,
    window_extent,
    window_extent_ceil,
)
from ekiden.topi.layout import spatial_axis_indices
from ekiden.topi.nn.pool import adaptive_avg_pool

PoolAttrs = MaxPoolAttrs | AvgPoolAttrs


def infer_pool_shape(name: str, attrs: PoolAttrs, shape: Shape) -> Shape:
    """Infer the shape of a pooled tensor in its own layout."""
    extent = window_extent_ceil if attrs.ceil_mode else window_extent
    pooled, axes = list(shape), spatial_axis_indices(attrs.layout)
    count = len(axes)
    for i, position in enumerate(axes):
        before, after = attrs.padding[i], attrs.padding[i + count]
        pooled[position] = extent(
            shape[position], attrs.pool_size[i], attrs.strides[i], before, after, attrs.dilation[i]
        )
    return tuple(pooled)


def _dilated_window_size(attrs: PoolAttrs, i: int) -> int:
    return (attrs.pool_size[i] - 1) * attrs.dilation[i] + 1


def _pool_relation(
    name: str, kind: type[PoolAttrs]
) -> Callable[[Sequence[Type], Attrs | None], Type]:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the pooled shape.

        Raises:
            TypeInferenceError: The data has another rank than the layout.
        """
        (data,) = check_tensors(name, types, 1)
        settings = check_attrs(kind, attrs)
        check_rank(name, data, len(call_shape_rule(name, parse_layout, settings.layout)), "data")
        call_shape_rule(name, check_out_layout, settings)
        return TensorType(infer_pool_shape(name, settings, data.shape), data.dtype)

    return relation


def _sliding_windows(
    attrs: PoolAttrs, data: Array, fill: float | int, extents: Sequence[int]
) -> Array:
    """Return the windows of `data` as trailing axes, padded with `fill`."""
    axes = spatial_axis_indices(attrs.layout)
    reach = [_dilated_window_size(attrs, i) for i in range(len(axes))]
    width = [(0, 0)] * data.ndim
    for i, position in enumerate(axes):
        # The last window may reach beyond the padding, with `ceil_mode`.
        needed = (max(1, extents[i]) - 1) * attrs.strides[i] + reach[i]
        # Behind the data as much as the last window needs, which is less than the padding if
        # strides skip it.
        width[position] = (
            attrs.padding[i],
            max(0, needed - data.shape[position] - attrs.padding[i]),
        )
    padded = np.pad(data, width, constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=axes)
    for i, position in enumerate(axes):
        cut = [slice(None)] * windows.ndim
        cut[position] = slice(
            0, (extents[i] - 1) * attrs.strides[i] + 1 if extents[i] else 0, attrs.strides[i]
        )
        cut[data.ndim + i] = slice(None, None, attrs.dilation[i])
        windows = windows[tuple(cut)]
    return np.asarray(windows)


def _static_extents(name: str, attrs: PoolAttrs, data: Array) -> list[int]:
    shape = infer_pool_shape(name, attrs, tuple(map(as_dim, data.shape)))
    return [as_ints((shape[position],))[0] for position in spatial_axis_indices(attrs.layout)]


def lowest_value(dtype: np.dtype[Any]) -> float | int:
    """Return the lowest value of a dtype, the identity of max."""
    # -inf for floats, the least integer otherwise: what no element is below.
    start = identity("max", str(dtype))
    assert isinstance(start, (IntImm, FloatImm))
    return start.value


def _max_pool_reference(name: str) -> Callable[[MaxPoolAttrs, Array], Array]:
    def reference(attrs: MaxPoolAttrs, data: Array) -> Array:
        """Return the maximum of each window."""
        windows = _sliding_windows(
            attrs, data, lowest_value(data.dtype), _static_extents(name, attrs, data)
        )
        return np.asarray(windows.max(axis=tuple(range(data.ndim, windows.ndim))))

    return reference


def _avg_pool_reference(name: str) -> Callable[[AvgPoolAttrs, Array], Array]:
    def reference(attrs: AvgPoolAttrs, data: Array) -> Array:
        """Return window sums divided by the number of counted elements.

        The same windows are summed over ones, of the padded extent where the padding counts.
        """
        extents = _static_extents(name, attrs, data)
        windows = _sliding_windows(attrs, data, 0, extents)
        trailing = tuple(range(data.ndim, windows.ndim))
        counted = np.ones(data.shape)
        if attrs.count_include_pad:
            axes, half = spatial_axis_indices(attrs.layout), len(attrs.padding) // 2
            width = [(0, 0)] * data.ndim
            for i, position in enumerate(axes):
                width[position] = (attrs.padding[i], attrs.padding[i + half])
            counted = np.ones([d + a + b for d, (a, b) in zip(data.shape, width, strict=True)])
            # The ones have the padding in them already.
            attrs = attrs.with_fields(padding=(0,) * len(attrs.padding))
        # Counting is pooling of ones: both see the same windows.
        counts = _sliding_windows(attrs, counted, 0, extents).sum(trailing)
        # A window that lies in the border alone counts no element, and is 0.
        mean = windows.sum(trailing, dtype=np.float64) / np.maximum(counts, 1)
        return np.asarray(mean).astype(data.dtype)

    return reference


def _compute_pool(
    attrs: PoolAttrs, data: Tensor, kind: str, count_include_pad: bool
) -> list[Tensor]:
    compute = (topi.nn.pool1d, topi.nn.pool2d, topi.nn.pool3d)[len(attrs.pool_size) - 1]
    return [
        compute(
            data, attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding, kind,
            attrs.ceil_mode, attrs.layout, count_include_pad,
        )
    ]  # fmt: skip


def _lower_max_pool(attrs: MaxPoolAttrs, inputs: Sequence[Tensor], out: TensorType) -> list[Tensor]:
    return _compute_pool(attrs, inputs[0], "max", True)


def _lower_avg_pool(attrs: AvgPoolAttrs, inputs: Sequence[Tensor], out: TensorType) -> list[Tensor]:
    return _compute_pool(attrs, inputs[0], "avg", attrs.count_include_pad)


def _declare_pool(
    name: str,
    kind: type[PoolAttrs],
    reference: Callable[..., Array],
    lower: Lowering,
    borders: PaddingAbsorption,
) -> None:
    register_op(
        OpDef(
            name=name,
            padding_absorption=borders,
            arguments=("data",),
            attrs=kind,
            relation=_pool_relation(name, kind),
            reference=reference,
            lower=lower,
            layout="" if "1d" in name else "layout",
            precision=PrecisionPolicy.FOLLOW,
            pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
            kernels=("default",),
            result="data with each pooled extent (extent + padding - dilation * (pool - 1) - 1)"
            " // stride + 1, rounded up with `ceil_mode`",
        )
    )


for _axes, _max, _avg in (
    (1, MaxPool1DAttrs, AvgPool1DAttrs),
    (2, MaxPool2DAttrs, AvgPool2DAttrs),
    (3, MaxPool3DAttrs, AvgPool3DAttrs),
):
    _name = f"nn.max_pool{_axes}d"
    _declare_pool(
        _name, _max, _max_pool_reference(_name), _lower_max_pool, PaddingAbsorption.LOWEST
    )
    _name = f"nn.avg_pool{_axes}d"
    _declare_pool(
        _name, _avg, _avg_pool_reference(_name), _lower_avg_pool, PaddingAbsorption.COUNTED
    )


def max_pool1d(
    data: Expr, pool_size: Ints = 1, strides: Ints = 1, dilation: Ints = 1, padding: Ints = 0,
    layout: str = "NCW", out_layout: str = "", ceil_mode: bool = False,
) -> Call:  # fmt: skip
    """Return 1-D max pooling."""
    attrs = MaxPool1DAttrs(
        expand_per_axis(pool_size, 1),
        expand_per_axis(strides, 1),
        expand_per_axis(dilation, 1),
        expand_padding(padding, 1),
        layout,
        out_layout,
        ceil_mode,
    )
    return call_op("nn.max_pool1d", data, attrs=attrs)


def max_pool2d(
    data: Expr, pool_size: Ints = 1, strides: Ints = 1, dilation: Ints = 1, padding: Ints = 0,
    layout: str = "NCHW", out_layout: str = "", ceil_mode: bool = False,
) -> Call:  # fmt: skip
    """Return 2-D max pooling."""
    attrs = MaxPool2DAttrs(
        expand_per_axis(pool_size, 2),
        expand_per_axis(strides, 2),
        expand_per_axis(dilation, 2),
        expand_padding(padding, 2),
        layout,
        out_layout,
        ceil_mode,
    )
    return call_op("nn.max_pool2d", data, attrs=attrs)


def max_pool3d(
    data: Expr, pool_size: Ints = 1, strides: Ints = 1, dilation: Ints = 1, padding: Ints = 0,
    layout: str = "NCDHW", out_layout: str = "", ceil_mode: bool = False,
) -> Call:  # fmt: skip
    """Return 3-D max pooling."""
    attrs = MaxPool3DAttrs(
        expand_per_axis(pool_size, 3),
        expand_per_axis(strides, 3),
        expand_per_axis(dilation, 3),
        expand_padding(padding, 3),
        layout,
        out_layout,
        ceil_mode,
    )
    return call_op("nn.max_pool3d", data, attrs=attrs)


def avg_pool1d(
    data: Expr, pool_size: Ints = 1, strides: Ints = 1, dilation: Ints = 1, padding: Ints = 0,
    layout: str = "NCW", out_layout: str = "", ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Call:  # fmt: skip
    """Return 1-D average pooling."""
    attrs = AvgPool1DAttrs(
        expand_per_axis(pool_size, 1),
        expand_per_axis(strides, 1),
        expand_per_axis(dilation, 1),
        expand_padding(padding, 1),
        layout,
        out_layout,
        ceil_mode,
        count_include_pad,
    )
    return call_op("nn.avg_pool1d", data, attrs=attrs)


def avg_pool2d(
    data: Expr, pool_size: Ints = 1, strides: Ints = 1, dilation: Ints = 1, padding: Ints = 0,
    layout: str = "NCHW", out_layout: str = "", ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Call:  # fmt: skip
    """Return 2-D average pooling."""
    attrs = AvgPool2DAttrs(
        expand_per_axis(pool_size, 2),
        expand_per_axis(strides, 2),
        expand_per_axis(dilation, 2),
        expand_padding(padding, 2),
        layout,
        out_layout,
        ceil_mode,
        count_include_pad,
    )
    return call_op("nn.avg_pool2d", data, attrs=attrs)


def avg_pool3d(
    data: Expr, pool_size: Ints = 1, strides: Ints = 1, dilation: Ints = 1, padding: Ints = 0,
    layout: str = "NCDHW", out_layout: str = "", ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Call:  # fmt: skip
    """Return 3-D average pooling."""
    attrs = AvgPool3DAttrs(
        expand_per_axis(pool_size, 3),
        expand_per_axis(strides, 3),
        expand_per_axis(dilation, 3),
        expand_padding(padding, 3),
        layout,
        out_layout,
        ceil_mode,
        count_include_pad,
    )
    return call_op("nn.avg_pool3d", data, attrs=attrs)


@node("relay.attrs.GlobalPool2DAttrs")
class GlobalPool2DAttrs(Attrs):
    """Attributes of 2-D global pooling: the layout."""

    layout: str = "NCHW"
    out_layout: str = ""


@node("relay.attrs.AdaptivePool2DAttrs")
class AdaptivePool2DAttrs(Attrs):
    """Attributes of 2-D adaptive pooling: output size (None: the data's) and layout."""

    output_size: tuple[int, ...] | None = None
    layout: str = "NCHW"
    out_layout: str = ""


def _global_pool_relation(name: str) -> Callable[[Sequence[Type], Attrs | None], Type]:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Infer the data's shape with spatial extents of 1."""
        (data,) = check_tensors(name, types, 1)
        layout = check_attrs(GlobalPool2DAttrs, attrs).layout
        axes = call_shape_rule(name, spatial_axis_indices, layout)
        call_shape_rule(name, check_out_layout, attrs)
        check_rank(name, data, len(call_shape_rule(name, parse_layout, layout)), "data")
        return TensorType(
            tuple(as_dim(1) if i in axes else d for i, d in enumerate(data.shape)), data.dtype
        )

    return relation


def _global_pool_reference(
    function: Callable[..., Array],
) -> Callable[[GlobalPool2DAttrs, Array], Array]:
    def reference(attrs: GlobalPool2DAttrs, data: Array) -> Array:
        """Return the reduction over the spatial axes, in the data's dtype."""
        return np.asarray(
            function(data, axis=spatial_axis_indices(attrs.layout), keepdims=True)
        ).astype(data.dtype)

    return reference


def _declare_global_pool(
    name: str,
    function: Callable[..., Array],
    compute: Callable[..., Tensor],
    precision: PrecisionPolicy,
) -> None:
    register_op(
        OpDef(
            name=name,
            arguments=("data",),
            attrs=GlobalPool2DAttrs,
            precision=precision,
            relation=_global_pool_relation(name),
            reference=_global_pool_reference(function),
            lower=lambda attrs, inputs, out: [
                compute(inputs[0], spatial_axis_indices(attrs.layout), True)
            ],
            layout="layout",
            pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
            result="data with 1 along H and W",
        )
    )


def _max_or_lowest(data: Array, axis: Sequence[int], keepdims: bool) -> Array:
    """Return NumPy's max, or the lowest value for an empty reduction."""
    lowest = lowest_value(data.dtype)
    return np.asarray(np.max(data, axis=tuple(axis), keepdims=keepdims, initial=lowest))


_declare_global_pool("nn.global_avg_pool2d", np.mean, topi.mean, PrecisionPolicy.NEVER)
_declare_global_pool("nn.global_max_pool2d", _max_or_lowest, topi.max, PrecisionPolicy.FOLLOW)


def global_avg_pool2d(data: Expr, layout: str = "NCHW", out_layout: str = "") -> Call:
    """Return 2-D global average pooling; spatial extents become 1."""
    return call_op("nn.global_avg_pool2d", data, attrs=GlobalPool2DAttrs(layout, out_layout))


def global_max_pool2d(data: Expr, layout: str = "NCHW", out_layout: str = "") -> Call:
    """Return 2-D global max pooling; spatial extents become 1."""
    return call_op("nn.global_max_pool2d", data, attrs=GlobalPool2DAttrs(layout, out_layout))


def global_avg_pool1d(data: Expr, layout: str = "NCW", out_layout: str = "") -> Call:
    """Return 1-D global average pooling; the spatial extent becomes 1."""
    return _build_global_pool(data, layout, out_layout, mean)


def global_max_pool1d(data: Expr, layout: str = "NCW", out_layout: str = "") -> Call:
    """Return 1-D global max pooling; the spatial extent becomes 1."""
    return _build_global_pool(data, layout, out_layout, largest)


def global_avg_pool3d(data: Expr, layout: str = "NCDHW", out_layout: str = "") -> Call:
    """Return 3-D global average pooling; spatial extents become 1."""
    return _build_global_pool(data, layout, out_layout, mean)


def global_max_pool3d(data: Expr, layout: str = "NCDHW", out_layout: str = "") -> Call:
    """Return 3-D global max pooling; spatial extents become 1."""
    return _build_global_pool(data, layout, out_layout, largest)


def _build_global_pool(
    data: Expr, layout: str, out_layout: str, reduce: Callable[..., Call]
) -> Call:
    """Build a reduction over all spatial axes in the data's layout.

    Raises:
        ValueError: The result is asked for in another layout.
    """
    if out_layout not in ("", layout):
        raise ValueError(f"global pooling: out_layout must be {layout}, got {out_layout}")
    return reduce(data, axis=list(spatial_axis_indices(layout)), keepdims=True)


def infer_adaptive_shape(attrs: AdaptivePool2DAttrs, shape: Shape) -> Shape:
    """Infer the result shape of adaptive pooling in the data's layout."""
    result_shape: list[PrimExpr] = list(shape)
    for extent, position in zip(
        attrs.output_size or (), spatial_axis_indices(attrs.layout), strict=False
    ):
        result_shape[position] = as_dim(extent)
    return tuple(result_shape)


def _adaptive_pool_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("nn.adaptive_avg_pool2d", types, 1)
    settings = check_attrs(AdaptivePool2DAttrs, attrs)
    rank = len(call_shape_rule("nn.adaptive_avg_pool2d", parse_layout, settings.layout))
    check_rank("nn.adaptive_avg_pool2d", data, rank, "data")
    call_shape_rule("nn.adaptive_avg_pool2d", check_out_layout, attrs)
    if not is_float(data.dtype):
        raise_type_error(
            "nn.adaptive_avg_pool2d", f"'data' must be floating point, got {data.dtype}"
        )
    minimums: list[int | None] = [None] * rank
    for position in spatial_axis_indices(settings.layout):
        minimums[position] = 1
    name = "nn.adaptive_avg_pool2d"
    call_shape_rule(name, require_min_extent, name, "data", data.shape, minimums)
    return TensorType(infer_adaptive_shape(settings, data.shape), data.dtype)


def _adaptive_pool_reference(attrs: AdaptivePool2DAttrs, data: Array) -> Array:
    pooled = data.astype(np.float64)
    for extent, position in zip(
        attrs.output_size or (), spatial_axis_indices(attrs.layout), strict=False
    ):
        size = data.shape[position]
        # Windows from floor(i * size / extent) to ceil((i + 1) * size / extent): they overlap where
        # the division leaves a remainder.
        bounds = [(i * size // extent, -(-(i + 1) * size // extent)) for i in range(extent)]
        means = [
            np.take(pooled, range(a, b), axis=position).mean(position, keepdims=True)
            for a, b in bounds
        ]
        # Of no windows there is nothing to concatenate but an empty slice.
        pooled = np.concatenate(
            means or [pooled[(slice(None),) * position + (slice(0, 0),)]], axis=position
        )
    return pooled.astype(data.dtype)


register_op(
    OpDef(
        name="nn.adaptive_avg_pool2d",
        precision=PrecisionPolicy.NEVER,
        arguments=("data",),
        attrs=AdaptivePool2DAttrs,
        relation=_adaptive_pool_relation,
        reference=_adaptive_pool_reference,
        lower=lambda attrs, inputs, out: [
            adaptive_avg_pool(inputs[0], out.shape, spatial_axis_indices(attrs.layout))
        ],
        layout="layout",
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="data with `output_size` along H and W",
    )
)


def adaptive_avg_pool2d(
    data: Expr, output_size: Ints | None = None, layout: str = "NCHW", out_layout: str = ""
) -> Call:
    """Return 2-D adaptive average pooling to `output_size`."""
    size = None if output_size is None else expand_per_axis(output_size, 2)
    return call_op(
        "nn.adaptive_avg_pool2d", data, attrs=AdaptivePool2DAttrs(size, layout, out_layout)
    )


__all__ = [
    "adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "global_avg_pool1d",
    "global_avg_pool2d", "global_avg_pool3d", "global_max_pool1d", "global_max_pool2d",
    "global_max_pool3d", "max_pool1d", "max_pool2d", "max_pool3d",
]  # fmt: skip
