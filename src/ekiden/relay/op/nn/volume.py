"""Convolutions over other than two axes; deformable convolution; correlation.

A deformable convolution (Dai et al. 2017) reads x at the places of its window plus an offset that
is data, by bilinear interpolation; at the border as `border` says, as TVM and ONNX differ there.
Correlation (Dosovitskiy et al. 2015) compares patches of two images at all displacements up to a
largest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import topi
from ekiden.ir.node import node
from ekiden.ir.op import Borders, OpPattern, Precision
from ekiden.ir.text import prim_text
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import by_layout, call
from ekiden.relay.op._inventory import declare
from ekiden.relay.op._window import WindowAttrs
from ekiden.relay.op.nn._solve import deformed, window, window_transposed
from ekiden.relay.op.nn._work import of_convolution, of_transposed
from ekiden.relay.op.nn.conv import by_plain_conv
from ekiden.relay.op.nn.geometry import (
    Conv1DTransposeAttrs,
    Conv3DAttrs,
    Conv3DTransposeAttrs,
    DeformableConv2DAttrs,
    Ints,
    check_output_padding,
    check_weight,
    sides,
    spread,
    window_size,
)
from ekiden.te import Tensor
from ekiden.topi.dimensions import expect_multiple, tidy, unify_dim
from ekiden.topi.layout import channel
from ekiden.topi.nn.weights import conv_transpose_weight_shape, conv_weight_shape


@node("relay.attrs.CorrelationAttrs")
class CorrelationAttrs(WindowAttrs):
    """The extent of patches, how far they move, in what steps, and what is compared."""

    kernel_size: int = 1
    max_displacement: int = 1
    stride1: int = 1
    stride2: int = 1
    padding: tuple[int, ...] = (0, 0, 0, 0)
    is_multiply: bool = True
    layout: str = "NCHW"


def _conv3d(attrs: Conv3DAttrs, data: Tensor, weight: Tensor) -> Tensor:
    return by_plain_conv(attrs, (data, weight), _conv3d_plain)


def _conv3d_plain(attrs: Conv3DAttrs, inputs: Sequence[Tensor]) -> Tensor:
    data, weight = inputs
    out, _, *window = conv_weight_shape(
        weight.shape, attrs.kernel_layout, attrs.channels, attrs.groups
    )
    check_weight(attrs, out, window)
    return topi.nn.conv(
        data, weight, attrs.strides, attrs.padding, attrs.dilation, attrs.groups, attrs.data_layout,
        attrs.kernel_layout, attrs.out_dtype, attrs.channels, attrs.out_layout,
    )  # fmt: skip


def _transposed(
    attrs: Conv1DTransposeAttrs | Conv3DTransposeAttrs, data: Tensor, weight: Tensor
) -> Tensor:
    channels, per_group, *window = conv_transpose_weight_shape(
        weight.shape, attrs.kernel_layout, attrs.channels, attrs.groups
    )
    input_channels = data.shape[channel(attrs.data_layout)]
    if unify_dim(input_channels, channels) is None:
        raise ValueError(
            f"channels of 'data' and 'weight' must agree, got {prim_text(input_channels)} and"
            f" {prim_text(channels)}"
        )
    check_weight(attrs, tidy(per_group * attrs.groups), window)
    expect_multiple("channels", input_channels, attrs.groups, "groups")
    check_output_padding(attrs)
    return topi.nn.conv_transpose(
        data, weight, attrs.strides, attrs.padding, attrs.output_padding, attrs.dilation,
        attrs.groups, attrs.data_layout, attrs.kernel_layout, attrs.out_dtype, attrs.out_layout,
        attrs.channels,
    )  # fmt: skip


def _deformable(
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
    if mask is None:
        computations["NHWC", "HWIO", "NHWC"] = topi.nn.deformable_conv2d_nhwc
    compute = by_layout(layouts, computations)
    out, _, *window = conv_weight_shape(weight.shape, layouts[1], attrs.channels, attrs.groups)
    check_weight(attrs, out, window)
    return compute(
        data, offset, weight, attrs.strides, attrs.padding, attrs.dilation,
        attrs.deformable_groups, attrs.groups, attrs.out_dtype,
        *() if mask is None else (mask,), border=attrs.border,
    )  # fmt: skip


_WINDOWS = "(batch, channels, windows), in the layout of the result"
_FUSES = OpPattern.OUT_ELEMWISE_FUSABLE
declare(
    "nn.conv3d",
    ("data", "weight"),
    _conv3d,
    _WINDOWS,
    Conv3DAttrs,
    _FUSES,
    solve=window,
    layout="data_layout",
    precision=Precision.ALWAYS,
    macs=of_convolution(),
    channels=(1, 0),
    borders=Borders.ZEROS,
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
    declare(
        _name,
        ("data", "weight"),
        _transposed,
        _WINDOWS,
        _kind,
        _FUSES,
        solve=window_transposed,
        macs=of_transposed,
        layout=_layout,
        weight_layouts=_weights,
        precision=Precision.ALWAYS,
    )
declare(
    "nn.deformable_conv2d",
    ("data", "offset", "weight"),
    _deformable,
    _WINDOWS,
    DeformableConv2DAttrs,
    _FUSES,
    solve=deformed,
    macs=of_convolution(2),
    weight_layouts={"NCHW": "OIHW", "NHWC": "HWIO"},
)
declare(
    "nn.modulated_deformable_conv2d",
    ("data", "offset", "weight", "mask"),
    _deformable,
    _WINDOWS,
    DeformableConv2DAttrs,
    _FUSES,
    macs=of_convolution(2),
    description="A deformable convolution with a factor for each tap (NCHW alone).",
)
declare(
    "nn.correlation",
    ("data1", "data2"),
    lambda attrs, data1, data2: by_layout(attrs.layout, {"NCHW": topi.nn.correlation_nchw})(
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
    _FUSES,
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
    """Return a convolution over three axes."""
    layout = kernel_layout or ("OIDHW" if data_layout == "NCDHW" else "DHWIO")
    attrs = Conv3DAttrs(
        spread(strides, 3), sides(padding, 3), spread(dilation, 3), groups, channels,
        window_size(kernel_size, 3), data_layout, layout, out_layout, out_dtype,
    )  # fmt: skip
    return call("nn.conv3d", data, weight, attrs=attrs)


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
    """Return a transposed convolution over one axis."""
    attrs = Conv1DTransposeAttrs(
        spread(strides, 1), sides(padding, 1), spread(dilation, 1), groups, channels,
        window_size(kernel_size, 1), data_layout, kernel_layout, out_layout, out_dtype,
        spread(output_padding, 1),
    )  # fmt: skip
    return call("nn.conv1d_transpose", data, weight, attrs=attrs)


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
    """Return a transposed convolution over three axes."""
    attrs = Conv3DTransposeAttrs(
        spread(strides, 3), sides(padding, 3), spread(dilation, 3), groups, channels,
        window_size(kernel_size, 3), data_layout, kernel_layout, out_layout, out_dtype,
        spread(output_padding, 3),
    )  # fmt: skip
    return call("nn.conv3d_transpose", data, weight, attrs=attrs)


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
    """Return a convolution whose taps are moved by offsets and sampled between pixels.

    With `mask`, each tap is multiplied by a factor (NCHW alone; TVM has none). `border` is "inside"
    or "zeros"; see DeformableConv2DAttrs.
    """
    attrs = DeformableConv2DAttrs(
        spread(strides, 2), sides(padding, 2), spread(dilation, 2), groups, channels,
        window_size(kernel_size, 2), data_layout, kernel_layout, out_layout, out_dtype,
        deformable_groups, border,
    )  # fmt: skip
    if mask is not None:
        return call("nn.modulated_deformable_conv2d", data, offset, weight, mask, attrs=attrs)
    return call("nn.deformable_conv2d", data, offset, weight, attrs=attrs)


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
    """Return how patches of one image match those of another, displaced."""
    attrs = CorrelationAttrs(
        kernel_size, max_displacement, stride1, stride2, sides(padding, 2), is_multiply, layout
    )
    return call("nn.correlation", data1, data2, attrs=attrs)


__all__ = [
    "conv1d_transpose", "conv3d", "conv3d_transpose", "correlation", "deformable_conv2d",
]  # fmt: skip
