"""3-D and transposed convolutions, deformable convolution, correlation.

A deformable convolution (Dai et al. 2017) reads x at the places of its window plus an offset that
is data, by bilinear interpolation; at the border as `border` says, as TVM and ONNX differ there.
Correlation (Dosovitskiy et al. 2015) compares patches of two images at all displacements up to a
largest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import topi
from ekiden.ir.expr_text import format_prim_expr
from ekiden.ir.node import node
from ekiden.ir.op import OpPattern, PaddingAbsorption, PrecisionPolicy
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call_op, lookup_layout
from ekiden.relay.op._declare_topi import declare_topi_op
from ekiden.relay.op._window import WindowAttrs
from ekiden.relay.op.nn._infer_params import (
    infer_conv_transpose_weight,
    infer_conv_weight,
    infer_deformable_conv_params,
)
from ekiden.relay.op.nn._macs import count_conv_transpose_macs, make_conv_macs
from ekiden.relay.op.nn.conv import compute_unblocked
from ekiden.relay.op.nn.window_attrs import (
    Conv1DTransposeAttrs,
    Conv3DAttrs,
    Conv3DTransposeAttrs,
    DeformableConv2DAttrs,
    Ints,
    check_output_padding,
    check_weight,
    expand_kernel_size,
    expand_padding,
    expand_per_axis,
)
from ekiden.te import Tensor
from ekiden.topi.dimensions import require_multiple, simplify_dim, unify_dim
from ekiden.topi.layout import channel_axis
from ekiden.topi.nn.weight_packing import conv_transpose_weight_shape, conv_weight_shape


@node("relay.attrs.CorrelationAttrs")
class CorrelationAttrs(WindowAttrs):
    """Attributes of correlation: kernel size, maximum displacement, strides, padding,
    comparison.
    """

    kernel_size: int = 1
    max_displacement: int = 1
    stride1: int = 1
    stride2: int = 1
    padding: tuple[int, ...] = (0, 0, 0, 0)
    is_multiply: bool = True
    layout: str = "NCHW"


def _compute_conv3d(attrs: Conv3DAttrs, data: Tensor, weight: Tensor) -> Tensor:
    return compute_unblocked(attrs, (data, weight), _compute_conv3d_unblocked)


def _compute_conv3d_unblocked(attrs: Conv3DAttrs, inputs: Sequence[Tensor]) -> Tensor:
    data, weight = inputs
    out, _, *window = conv_weight_shape(
        weight.shape, attrs.kernel_layout, attrs.channels, attrs.groups
    )
    # Declared by its computation: what the attributes promise is checked with the shapes.
    check_weight(attrs, out, window)
    return topi.nn.conv(
        data, weight, attrs.strides, attrs.padding, attrs.dilation, attrs.groups, attrs.data_layout,
        attrs.kernel_layout, attrs.out_dtype, attrs.channels, attrs.out_layout,
    )  # fmt: skip


def _compute_conv_transpose(
    attrs: Conv1DTransposeAttrs | Conv3DTransposeAttrs, data: Tensor, weight: Tensor
) -> Tensor:
    channels, per_group, *window = conv_transpose_weight_shape(
        weight.shape, attrs.kernel_layout, attrs.channels, attrs.groups
    )
    input_channels = data.shape[channel_axis(attrs.data_layout)]
    if unify_dim(input_channels, channels) is None:
        raise ValueError(
            f"channels of 'data' and 'weight' must agree, got {format_prim_expr(input_channels)}"
            f" and {format_prim_expr(channels)}"
        )
    check_weight(attrs, simplify_dim(per_group * attrs.groups), window)
    require_multiple("channels", input_channels, attrs.groups, "groups")
    check_output_padding(attrs)
    return topi.nn.conv_transpose(
        data,
        weight,
        attrs.strides,
        attrs.padding,
        attrs.output_padding,
        attrs.dilation,
        attrs.groups,
        attrs.data_layout,
        attrs.kernel_layout,
        attrs.out_dtype,
        attrs.out_layout,
        attrs.channels,
    )


def _compute_deformable_conv(
    attrs: DeformableConv2DAttrs,
    data: Tensor,
    offset: Tensor,
    weight: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    layouts = attrs.data_layout, attrs.kernel_layout, attrs.out_layout or attrs.data_layout
    computations: dict[tuple[str, ...], Callable[..., Tensor]] = {
        ("NCHW", "OIHW", "NCHW"): topi.nn.deformable_conv2d_nchw
    }
    # Only the NCHW kernel has factors for taps.
    if mask is None:
        computations["NHWC", "HWIO", "NHWC"] = topi.nn.deformable_conv2d_nhwc
    compute = lookup_layout(layouts, computations)
    out, _, *window = conv_weight_shape(weight.shape, layouts[1], attrs.channels, attrs.groups)
    check_weight(attrs, out, window)
    return compute(
        data, offset, weight, attrs.strides, attrs.padding, attrs.dilation,
        attrs.deformable_groups, attrs.groups, attrs.out_dtype,
        *() if mask is None else (mask,), border=attrs.border,
    )  # fmt: skip


_CONV_RESULT = "(batch, channels, windows), in the layout of the result"
_CONV_FUSION_PATTERN = OpPattern.OUT_ELEMWISE_FUSABLE
declare_topi_op(
    "nn.conv3d",
    ("data", "weight"),
    _compute_conv3d,
    _CONV_RESULT,
    Conv3DAttrs,
    _CONV_FUSION_PATTERN,
    solve=infer_conv_weight,
    layout="data_layout",
    precision=PrecisionPolicy.ALWAYS,
    macs=make_conv_macs(),
    channels=(1, 0),
    borders=PaddingAbsorption.ZEROS,
    weight_layouts={"NCDHW": "OIDHW", "NDHWC": "DHWIO"},
)
for _name, _kind, _layout, _weights in (
    ("nn.conv1d_transpose", Conv1DTransposeAttrs, "", {}),
    (
        "nn.conv3d_transpose",
        Conv3DTransposeAttrs,
        "data_layout",
        {"NCDHW": "IODHW", "NDHWC": "DHWOI"},
    ),
):
    declare_topi_op(
        _name,
        ("data", "weight"),
        _compute_conv_transpose,
        _CONV_RESULT,
        _kind,
        _CONV_FUSION_PATTERN,
        solve=infer_conv_transpose_weight,
        macs=count_conv_transpose_macs,
        layout=_layout,
        weight_layouts=_weights,
        precision=PrecisionPolicy.ALWAYS,
    )
declare_topi_op(
    "nn.deformable_conv2d",
    ("data", "offset", "weight"),
    _compute_deformable_conv,
    _CONV_RESULT,
    DeformableConv2DAttrs,
    _CONV_FUSION_PATTERN,
    solve=infer_deformable_conv_params,
    macs=make_conv_macs(2),
    weight_layouts={"NCHW": "OIHW", "NHWC": "HWIO"},
)
declare_topi_op(
    "nn.modulated_deformable_conv2d",
    ("data", "offset", "weight", "mask"),
    _compute_deformable_conv,
    _CONV_RESULT,
    DeformableConv2DAttrs,
    _CONV_FUSION_PATTERN,
    macs=make_conv_macs(2),
    description="A deformable convolution with a factor for each tap (NCHW alone).",
)
declare_topi_op(
    "nn.correlation",
    ("data1", "data2"),
    lambda attrs, data1, data2: lookup_layout(attrs.layout, {"NCHW": topi.nn.correlation_nchw})(
        data1,
        data2,
        attrs.kernel_size,
        attrs.max_displacement,
        attrs.stride1,
        attrs.stride2,
        attrs.padding,
        attrs.is_multiply,
    ),
    "(batch, displacements, windows)",
    CorrelationAttrs,
    _CONV_FUSION_PATTERN,
)


def conv3d(
    data: Expr,
    weight: Expr,
    strides: Ints = (1, 1, 1),
    padding: Ints = (0, 0, 0),
    dilation: Ints = (1, 1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Ints | None = None,
    data_layout: str = "NCDHW",
    kernel_layout: str = "",
    out_layout: str = "",
    out_dtype: str = "",
) -> Call:
    """Return a 3-D convolution."""
    # The order of weights that goes with the layout of the data.
    layout = kernel_layout or ("OIDHW" if data_layout == "NCDHW" else "DHWIO")
    attrs = Conv3DAttrs(
        expand_per_axis(strides, 3),
        expand_padding(padding, 3),
        expand_per_axis(dilation, 3),
        groups,
        channels,
        expand_kernel_size(kernel_size, 3),
        data_layout,
        layout,
        out_layout,
        out_dtype,
    )
    return call_op("nn.conv3d", data, weight, attrs=attrs)


def conv1d_transpose(
    data: Expr,
    weight: Expr,
    strides: Ints = (1,),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Ints | None = None,
    data_layout: str = "NCW",
    kernel_layout: str = "IOW",
    out_layout: str = "",
    output_padding: Ints = (0,),
    out_dtype: str = "",
) -> Call:
    """Return a 1-D transposed convolution."""
    attrs = Conv1DTransposeAttrs(
        expand_per_axis(strides, 1),
        expand_padding(padding, 1),
        expand_per_axis(dilation, 1),
        groups,
        channels,
        expand_kernel_size(kernel_size, 1),
        data_layout,
        kernel_layout,
        out_layout,
        out_dtype,
        expand_per_axis(output_padding, 1),
    )
    return call_op("nn.conv1d_transpose", data, weight, attrs=attrs)


def conv3d_transpose(
    data: Expr,
    weight: Expr,
    strides: Ints = (1, 1, 1),
    padding: Ints = (0, 0, 0),
    dilation: Ints = (1, 1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Ints | None = None,
    data_layout: str = "NCDHW",
    kernel_layout: str = "IODHW",
    out_layout: str = "",
    output_padding: Ints = (0, 0, 0),
    out_dtype: str = "",
) -> Call:
    """Return a 3-D transposed convolution."""
    attrs = Conv3DTransposeAttrs(
        expand_per_axis(strides, 3),
        expand_padding(padding, 3),
        expand_per_axis(dilation, 3),
        groups,
        channels,
        expand_kernel_size(kernel_size, 3),
        data_layout,
        kernel_layout,
        out_layout,
        out_dtype,
        expand_per_axis(output_padding, 3),
    )
    return call_op("nn.conv3d_transpose", data, weight, attrs=attrs)


def deformable_conv2d(
    data: Expr,
    offset: Expr,
    weight: Expr,
    strides: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    deformable_groups: int = 1,
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Ints | None = None,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_layout: str = "",
    out_dtype: str = "",
    mask: Expr | None = None,
    border: str = "inside",
) -> Call:
    """Return a deformable convolution: taps are displaced by offsets and sampled bilinearly.

    With `mask`, each tap is multiplied by a factor (NCHW alone; TVM has none). `border` is "inside"
    or "zeros"; see DeformableConv2DAttrs.
    """
    attrs = DeformableConv2DAttrs(
        expand_per_axis(strides, 2),
        expand_padding(padding, 2),
        expand_per_axis(dilation, 2),
        groups,
        channels,
        expand_kernel_size(kernel_size, 2),
        data_layout,
        kernel_layout,
        out_layout,
        out_dtype,
        deformable_groups,
        border,
    )
    if mask is not None:
        return call_op("nn.modulated_deformable_conv2d", data, offset, weight, mask, attrs=attrs)
    return call_op("nn.deformable_conv2d", data, offset, weight, attrs=attrs)


def correlation(
    data1: Expr,
    data2: Expr,
    kernel_size: int,
    max_displacement: int,
    stride1: int,
    stride2: int,
    padding: Ints,
    is_multiply: bool,
    layout: str = "NCHW",
) -> Call:
    """Return the correlation of patches of two images over displacements (FlowNet)."""
    attrs = CorrelationAttrs(
        kernel_size,
        max_displacement,
        stride1,
        stride2,
        expand_padding(padding, 2),
        is_multiply,
        layout,
    )
    return call_op("nn.correlation", data1, data2, attrs=attrs)


__all__ = [
    "conv1d_transpose", "conv3d", "conv3d_transpose", "correlation", "deformable_conv2d",
]  # fmt: skip
