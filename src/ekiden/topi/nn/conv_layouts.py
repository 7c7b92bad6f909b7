"""Convolutions under TVM's names, one per layout, by `conv` and `conv_transpose`."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.te import Tensor
from ekiden.topi.dimensions import Dim, as_ints
from ekiden.topi.nn.convolution import Padding, conv
from ekiden.topi.nn.transposed_convolution import conv_transpose
from ekiden.topi.transform import reshape

Ints = int | Sequence[int]


def conv2d(
    input: Tensor,
    filter: Tensor,
    strides: Ints,
    padding: Padding,
    dilation: Ints,
    data_layout: str = "NCHW",
    kernel_layout: str = "",
    out_dtype: str | None = None,
) -> Tensor:
    """Return the 2-D convolution; see `conv` for `padding`."""
    return conv(input, filter, strides, padding, dilation, 1, data_layout, kernel_layout, out_dtype)


def conv2d_nchw(
    Input: Tensor,  # noqa: N803
    Filter: Tensor,  # noqa: N803
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    out_dtype: str | None = None,
) -> Tensor:
    """Return the convolution of [N, C, H, W] with weights [O, C, KH, KW]."""
    return conv(Input, Filter, stride, padding, dilation, 1, "NCHW", "OIHW", out_dtype)


def conv2d_nhwc(
    Input: Tensor,  # noqa: N803
    Filter: Tensor,  # noqa: N803
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    out_dtype: str | None = None,
) -> Tensor:
    """Return the convolution of [N, H, W, C] with weights [KH, KW, C, O]."""
    return conv(Input, Filter, stride, padding, dilation, 1, "NHWC", "HWIO", out_dtype)


def conv2d_hwcn(
    Input: Tensor,  # noqa: N803
    Filter: Tensor,  # noqa: N803
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    out_dtype: str | None = None,
) -> Tensor:
    """Return the convolution of [H, W, C, N] with weights [KH, KW, C, O]."""
    return conv(Input, Filter, stride, padding, dilation, 1, "HWCN", "HWIO", out_dtype)


def group_conv2d_nchw(
    Input: Tensor,  # noqa: N803
    Filter: Tensor,  # noqa: N803
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    groups: int,
    out_dtype: str | None = None,
) -> Tensor:
    """Return the convolution of [N, C, H, W] with weights [O, C / groups, KH, KW]."""
    return conv(Input, Filter, stride, padding, dilation, groups, "NCHW", "OIHW", out_dtype)


def group_conv2d_nhwc(
    Input: Tensor,  # noqa: N803
    Filter: Tensor,  # noqa: N803
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    groups: int,
    out_dtype: str | None = None,
) -> Tensor:
    """Return the convolution of [N, H, W, C] with weights [KH, KW, C / groups, O]."""
    return conv(Input, Filter, stride, padding, dilation, groups, "NHWC", "HWIO", out_dtype)


def _depthwise_conv2d(
    data: Tensor,
    weight: Tensor,
    layouts: tuple[str, str],
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    out_dtype: str | None,
) -> Tensor:
    """Return a depthwise convolution; the results of a channel multiplier are adjacent."""
    position = layouts[1].index("O")
    channels, multiplier = as_ints(weight.shape[position : position + 2])
    if multiplier != 1:
        shape: tuple[Dim, ...] = (
            *weight.shape[:position],
            channels * multiplier,
            1,
            *weight.shape[position + 2 :],
        )
        weight = reshape(weight, shape)
    return conv(data, weight, stride, padding, dilation, channels, *layouts, out_dtype)


def depthwise_conv2d_nchw(
    Input: Tensor,  # noqa: N803
    Filter: Tensor,  # noqa: N803
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    out_dtype: str | None = None,
) -> Tensor:
    """Convolve each channel of [N, C, H, W] with its own weights of [C, M, KH, KW]: M results per
    channel.
    """
    return _depthwise_conv2d(Input, Filter, ("NCHW", "OIHW"), stride, padding, dilation, out_dtype)


def depthwise_conv2d_nhwc(
    Input: Tensor,  # noqa: N803
    Filter: Tensor,  # noqa: N803
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    kernel_layout: str = "HWOI",
    out_dtype: str | None = None,
) -> Tensor:
    """Convolve each channel of [N, H, W, C] with its own weights of [KH, KW, C, M]: M results per
    channel.
    """
    return _depthwise_conv2d(
        Input, Filter, ("NHWC", kernel_layout), stride, padding, dilation, out_dtype
    )


def conv1d(
    data: Tensor,
    kernel: Tensor,
    strides: Ints = 1,
    padding: Padding = "VALID",
    dilation: Ints = 1,
    groups: int = 1,
    data_layout: str = "NCW",
    kernel_layout: str = "",
    out_dtype: str | None = None,
) -> Tensor:
    """Return the convolution over one axis."""
    return conv(
        data, kernel, strides, padding, dilation, groups, data_layout, kernel_layout, out_dtype
    )


def conv1d_ncw(
    data: Tensor,
    kernel: Tensor,
    strides: Ints = 1,
    padding: Padding = "VALID",
    dilation: Ints = 1,
    out_dtype: str | None = None,
) -> Tensor:
    """Return the convolution of [N, C, W] with weights [O, C, KW]."""
    return conv(data, kernel, strides, padding, dilation, 1, "NCW", "OIW", out_dtype)


def conv1d_nwc(
    data: Tensor,
    kernel: Tensor,
    strides: Ints = 1,
    padding: Padding = "VALID",
    dilation: Ints = 1,
    out_dtype: str | None = None,
) -> Tensor:
    """Return the convolution of [N, W, C] with weights [KW, C, O]."""
    return conv(data, kernel, strides, padding, dilation, 1, "NWC", "WIO", out_dtype)


def group_conv1d_ncw(
    data: Tensor,
    kernel: Tensor,
    strides: Ints = 1,
    padding: Padding = "VALID",
    dilation: Ints = 1,
    groups: int = 1,
    out_dtype: str | None = None,
) -> Tensor:
    """Return the convolution of [N, C, W] with weights [O, C / groups, KW]."""
    return conv(data, kernel, strides, padding, dilation, groups, "NCW", "OIW", out_dtype)


def group_conv1d_nwc(
    data: Tensor,
    kernel: Tensor,
    strides: Ints = 1,
    padding: Padding = "VALID",
    dilation: Ints = 1,
    groups: int = 1,
    out_dtype: str | None = None,
) -> Tensor:
    """Return the convolution of [N, W, C] with weights [KW, C / groups, O]."""
    return conv(data, kernel, strides, padding, dilation, groups, "NWC", "WIO", out_dtype)


def conv3d_ncdhw(
    Input: Tensor,  # noqa: N803
    Filter: Tensor,  # noqa: N803
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    groups: int,
    out_dtype: str | None = None,
) -> Tensor:
    """Return the convolution of [N, C, D, H, W] with weights [O, C / groups, KD, KH, KW]."""
    return conv(Input, Filter, stride, padding, dilation, groups, "NCDHW", "OIDHW", out_dtype)


def conv3d_ndhwc(
    Input: Tensor,  # noqa: N803
    Filter: Tensor,  # noqa: N803
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    groups: int,
    out_dtype: str | None = None,
) -> Tensor:
    """Return the convolution of [N, D, H, W, C] with weights [KD, KH, KW, C / groups, O]."""
    return conv(Input, Filter, stride, padding, dilation, groups, "NDHWC", "DHWIO", out_dtype)


def conv1d_transpose_ncw(
    data: Tensor,
    kernel: Tensor,
    stride: Ints,
    padding: Padding,
    out_dtype: str | None,
    output_padding: Ints,
) -> Tensor:
    """Return the transposed convolution of [N, C, W] with weights [C, O, KW]."""
    return group_conv1d_transpose_ncw(data, kernel, stride, padding, out_dtype, output_padding, 1)


def group_conv1d_transpose_ncw(
    data: Tensor,
    kernel: Tensor,
    stride: Ints,
    padding: Padding,
    out_dtype: str | None,
    output_padding: Ints,
    groups: int,
) -> Tensor:
    """Return the transposed convolution of [N, C, W] with weights [C, O / groups, KW]."""
    return conv_transpose(
        data, kernel, stride, padding, output_padding, 1, groups, "NCW", "IOW", out_dtype
    )


def conv2d_transpose_nchw(
    Input: Tensor,  # noqa: N803
    Filter: Tensor,  # noqa: N803
    strides: Ints,
    padding: Padding,
    out_dtype: str | None,
    output_padding: Ints,
) -> Tensor:
    """Return the transposed convolution of [N, C, H, W] with weights [C, O, KH, KW]."""
    return group_conv2d_transpose_nchw(
        Input, Filter, strides, padding, out_dtype, output_padding, 1
    )


def group_conv2d_transpose_nchw(
    data: Tensor,
    kernel: Tensor,
    stride: Ints,
    padding: Padding,
    out_dtype: str | None,
    output_padding: Ints,
    groups: int,
) -> Tensor:
    """Return the transposed convolution of [N, C, H, W] with weights [C, O / groups, KH, KW]."""
    return conv_transpose(
        data, kernel, stride, padding, output_padding, 1, groups, "NCHW", "IOHW", out_dtype
    )


def conv3d_transpose_ncdhw(
    Input: Tensor,  # noqa: N803
    Filter: Tensor,  # noqa: N803
    strides: Ints,
    padding: Padding,
    out_dtype: str | None,
    output_padding: Ints,
) -> Tensor:
    """Return the transposed convolution of [N, C, D, H, W] with weights [C, O, KD, KH, KW]."""
    return group_conv3d_transpose_ncdhw(
        Input, Filter, strides, padding, out_dtype, output_padding, 1
    )


def group_conv3d_transpose_ncdhw(
    data: Tensor,
    kernel: Tensor,
    strides: Ints,
    padding: Padding,
    out_dtype: str | None,
    output_padding: Ints,
    groups: int,
) -> Tensor:
    """Return the transposed convolution of [N, C, D, H, W] with weights [C, O / groups, KD, KH,
    KW].
    """
    return conv_transpose(
        data, kernel, strides, padding, output_padding, 1, groups, "NCDHW", "IODHW", out_dtype
    )


__all__ = [
    "conv1d", "conv1d_ncw", "conv1d_nwc", "conv1d_transpose_ncw", "conv2d", "conv2d_hwcn",
    "conv2d_nchw", "conv2d_nhwc", "conv2d_transpose_nchw", "conv3d_ncdhw", "conv3d_ndhwc",
    "conv3d_transpose_ncdhw", "depthwise_conv2d_nchw", "depthwise_conv2d_nhwc", "group_conv1d_ncw",
    "group_conv1d_nwc", "group_conv1d_transpose_ncw", "group_conv2d_nchw", "group_conv2d_nhwc",
    "group_conv2d_transpose_nchw", "group_conv3d_transpose_ncdhw",
]  # fmt: skip
