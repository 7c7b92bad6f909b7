"""Convolutions. Attributes and layouts are TVM's, with our packed weight layouts added (see
topi/nn/weights.py).

    y[n, o, i, j] = sum over c, u, v of x[n, c, s i + d u - top, s j + d v - left] w[o, c, u, v]

with x = 0 outside, s the strides, d the dilation; in a group, c runs over the channels of the group
of o. As in every framework this is a correlation: w is not flipped. Extents are (extent + before +
after - d (k - 1) - 1) // s + 1, and 0 where that is negative.

    transposed:  y[n, o, s i + d u - top, ..] += x[n, c, i, ..] w[c, o, u, v]

is the gradient of the first one with respect to x, with the roles of channels exchanged; several
extents of y have one of x, among which output_padding chooses (Dumoulin and Visin 2016).

One dimension is two of height 1, for type, meaning and kernel alike. Layouts with inner axes
(NCHW16c) are transformed to whole axes and back around the kernel (`by_plain_conv`): kernels are
for NHWC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array, Borders, OpDef, OpPattern, Precision, register_op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    agree,
    attempt,
    attrs_of,
    call,
    one_dtype,
    rank_is,
    summable,
    tensors,
)
from ekiden.relay.op.dynamic_pad import bordered
from ekiden.relay.op.nn._solve import window, window_transposed
from ekiden.relay.op.nn._work import of_convolution, of_transposed
from ekiden.relay.op.nn.geometry import (
    Conv1DAttrs,
    Conv1DTransposeAttrs,
    Conv2DAttrs,
    Conv2DTransposeAttrs,
    Conv3DAttrs,
    Ints,
    check_output_padding,
    check_weight,
    sides,
    spread,
    window_size,
)
from ekiden.te import Tensor
from ekiden.topi.dimensions import as_dim, expect_multiple, transposed_extent, window_extent
from ekiden.topi.layout import (
    is_blocked,
    packed_tile,
    parse,
    permute,
    transform_array,
    transform_shape,
    whole,
)
from ekiden.topi.nn.convolution import conv as convolve
from ekiden.topi.nn.weights import (
    conv_transpose_weight_shape,
    conv_weight_shape,
    unpack_conv_transpose_weight,
    unpack_conv_weight,
)


def as_conv2d(attrs: Conv1DAttrs | Conv1DTransposeAttrs) -> Conv2DAttrs:
    """Return a 1-D convolution as the 2-D one of height 1."""
    left_pad, right_pad = attrs.padding
    return Conv2DAttrs(
        (1, *attrs.strides), (0, left_pad, 0, right_pad), (1, *attrs.dilation), attrs.groups,
        attrs.channels,
        None if attrs.kernel_size is None else (1, *attrs.kernel_size),
        attrs.data_layout.replace("W", "HW"), attrs.kernel_layout.replace("W", "HW"),
        attrs.out_layout.replace("W", "HW"), attrs.out_dtype,
    )  # fmt: skip


def as_conv2d_transpose(attrs: Conv1DTransposeAttrs) -> Conv2DTransposeAttrs:
    """Return a 1-D transposed convolution as the 2-D one of height 1."""
    flat = as_conv2d(attrs)
    return Conv2DTransposeAttrs(
        flat.strides, flat.padding, flat.dilation, flat.groups, flat.channels, flat.kernel_size,
        flat.data_layout, flat.kernel_layout, flat.out_layout, flat.out_dtype,
        (0, *attrs.output_padding),
    )  # fmt: skip


def _conv_shape(
    name: str, attrs: Conv2DAttrs, data: Sequence[PrimExpr], weight: Sequence[PrimExpr]
) -> tuple[PrimExpr, ...]:
    """Return the result shape in the result's layout."""
    plain = plain_conv(attrs)
    if plain is not None:
        data = attempt(name, transform_shape, data, attrs.data_layout, plain.data_layout)
        weight = attempt(name, transform_shape, weight, attrs.kernel_layout, plain.kernel_layout)
        plain_shape = _conv_shape(name, plain, data, weight)
        out_layout = attrs.out_layout or attrs.data_layout
        return attempt(name, transform_shape, plain_shape, plain.data_layout, out_layout)
    n, c, h, w = attempt(name, permute, data, attrs.data_layout, "NCHW")
    out, per_group, kh, kw = attempt(
        name, conv_weight_shape, weight, attrs.kernel_layout, attrs.channels, attrs.groups
    )
    agree(name, c, per_group * attrs.groups, "channels of 'data' and 'weight'")
    attempt(name, check_weight, attrs, out, (kh, kw))
    attempt(name, expect_multiple, "output channels", out, attrs.groups, "groups")
    top, left_pad, bottom, right = attrs.padding
    rows = window_extent(h, kh, attrs.strides[0], top, bottom, attrs.dilation[0])
    columns = window_extent(w, kw, attrs.strides[1], left_pad, right, attrs.dilation[1])
    return permute((n, out, rows, columns), "NCHW", attrs.data_layout)


_Conv = TypeVar("_Conv", bound=Conv2DAttrs | Conv3DAttrs)


def plain_conv(attrs: _Conv) -> _Conv | None:
    """Return the convolution in layouts without inner axes, with a result in the layout of the
    data.

    None if it is such a convolution already.
    """
    keeps = attrs.out_layout in ("", attrs.data_layout)
    if keeps and not any(map(is_blocked, (attrs.data_layout, attrs.kernel_layout))):
        return None
    kernel = attrs.kernel_layout
    plain = attrs.with_fields(
        data_layout=whole(attrs.data_layout),
        kernel_layout=whole(kernel) if is_blocked(kernel) else kernel,
        out_layout="",
    )
    return cast(_Conv, plain)


def by_plain_conv(
    attrs: _Conv, inputs: Sequence[Tensor], compute: Callable[[_Conv, Sequence[Tensor]], Tensor]
) -> Tensor:
    """Return a convolution through kernels for whole axes, whose results have the data's layout."""
    plain = plain_conv(attrs)
    if plain is None:
        return compute(attrs, inputs)
    moves = (attrs.data_layout, plain.data_layout), (attrs.kernel_layout, plain.kernel_layout)
    flat = [
        operand if source == target else topi.layout_transform(operand, source, target)
        for operand, (source, target) in zip(inputs, moves, strict=True)
    ]
    result = compute(plain, flat)
    return topi.layout_transform(result, plain.data_layout, attrs.out_layout or attrs.data_layout)


MIXED = (
    ("uint8", "int8", "int32"),
    ("uint8", "float32", "float32"),
    ("int8", "float32", "float32"),
)
"""Data, weights and results of convolutions that are not of one type."""


def _conv2d_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, weight = tensors("nn.conv2d", types, 2)
    settings = attrs_of(Conv2DAttrs, attrs)
    rank_is("nn.conv2d", data, len(parse(settings.data_layout)), "data")
    is_mixed = (data.dtype, weight.dtype, settings.out_dtype) in MIXED
    dtype = settings.out_dtype if is_mixed else one_dtype("nn.conv2d", (data, weight))
    return TensorType(
        _conv_shape("nn.conv2d", settings, data.shape, weight.shape), settings.out_dtype or dtype
    )


def conv2d_nchw(data: Array, weight: Array, attrs: Conv2DAttrs) -> Array:
    """Return the convolution in NCHW and OIHW, as one matrix product per group over windows."""
    top, left_pad, bottom, right = attrs.padding
    reach = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], attrs.dilation, strict=True)]
    # Data smaller than a window is padded to one window, which is dropped again below.
    low = max(0, reach[0] - data.shape[2] - top - bottom)
    narrow = max(0, reach[1] - data.shape[3] - left_pad - right)
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom + low), (left_pad, right + narrow)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
    windows = windows[:, :, : 0 if low else None, : 0 if narrow else None]  # too few lines: none
    windows = windows[
        :, :, :: attrs.strides[0], :: attrs.strides[1], :: attrs.dilation[0], :: attrs.dilation[1]
    ]
    groups = [
        np.einsum("nchwyx,ocyx->nohw", summable(rows), summable(kernel), optimize=True)
        for rows, kernel in zip(
            np.split(windows, attrs.groups, 1), np.split(weight, attrs.groups, 0), strict=True
        )
    ]
    return np.concatenate(groups, axis=1)


def _conv2d_reference(attrs: Conv2DAttrs, data: Array, weight: Array) -> Array:
    """Return the convolution of operands that are converted to the result's dtype first.

    uint8 and int8 are multiplied in int32, which holds their sums up to 65,793 products.
    """
    dtype = to_numpy(attrs.out_dtype or str(data.dtype))
    if is_blocked(attrs.kernel_layout):
        plain = transform_array(weight, attrs.kernel_layout, "OIHW")
    else:
        plain = unpack_conv_weight(weight, attrs.kernel_layout, attrs.channels, attrs.groups)
    result = conv2d_nchw(
        transform_array(data, attrs.data_layout, "NCHW").astype(dtype), plain.astype(dtype), attrs
    )
    return transform_array(result, "NCHW", attrs.out_layout or attrs.data_layout).astype(
        dtype, copy=False
    )


def _conv2d_plain(attrs: Conv2DAttrs, inputs: Sequence[Tensor]) -> Tensor:
    data, weight = inputs
    return topi.nn.conv(
        data, weight, attrs.strides, attrs.padding, attrs.dilation, attrs.groups,
        attrs.data_layout, attrs.kernel_layout, attrs.out_dtype, attrs.channels,
        attrs.out_layout,
    )  # fmt: skip


def _conv2d_lower(attrs: Conv2DAttrs, inputs: Sequence[Tensor], out: Type) -> list[Tensor]:
    return [by_plain_conv(attrs, inputs, _conv2d_plain)]


register_op(
    OpDef(
        name="nn.conv2d",
        channels=(1, 0),
        borders=Borders.ZEROS,
        precision=Precision.ALWAYS,
        weight_layouts={"NCHW": "OIHW", "NHWC": "HWIO", "HWNC": "HWOI"},
        kernels=("conv_nhwc_pack", "depthwise_conv_nhwc", "default"),
        arguments=("data", "weight"),
        attrs=Conv2DAttrs,
        relation=_conv2d_relation,
        solve=window,
        reference=_conv2d_reference,
        lower=_conv2d_lower,
        layout="data_layout",
        macs=of_convolution(),
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(n, channels, h, w) in `out_layout`, each of h and w (extent + padding - "
        "dilation * (kernel - 1) - 1) // stride + 1; `out_dtype`, if given",
    )
)


def conv2d(
    data: Expr,
    weight: Expr,
    strides: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Ints | None = None,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_layout: str = "",
    out_dtype: str = "",
) -> Call:
    """Return a 2-D convolution (correlation).

    Operands are of one dtype, or uint8 and int8 with out_dtype int32, or uint8 and float32 with
    out_dtype float32. `channels` is needed where the weight is packed and padded.
    """
    attrs = Conv2DAttrs(
        spread(strides, 2), sides(padding, 2), spread(dilation, 2), groups, channels,
        window_size(kernel_size, 2), data_layout, kernel_layout, out_layout, out_dtype,
    )  # fmt: skip
    return call("nn.conv2d", data, weight, attrs=attrs)


def contrib_conv2d_nchwc(
    data: Expr,
    kernel: Expr,
    strides: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Ints | None = None,
    data_layout: str = "NCHW8c",
    kernel_layout: str = "OIHW",
    out_layout: str = "",
    out_dtype: str = "",
) -> Call:
    """Return `conv2d` of data and weights in blocks of channels, such as `NCHW8c` and `OIHW8i8o`.

    With `groups` as many as channels the weight is `OIHW1i8o` (TVM's name).
    """
    return conv2d(
        data, kernel, strides, padding, dilation, groups, channels, kernel_size,
        data_layout, kernel_layout, out_layout, out_dtype,
    )  # fmt: skip


contrib_depthwise_conv2d_nchwc = contrib_conv2d_nchwc


def _conv1d_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, weight = tensors("nn.conv1d", types, 2)
    settings = attrs_of(Conv1DAttrs, attrs)
    rank_is("nn.conv1d", data, 3, "data")
    rank_is("nn.conv1d", weight, 3, "weight")
    dtype = one_dtype("nn.conv1d", (data, weight))
    flat = as_conv2d(settings)
    shape = _conv_shape(
        "nn.conv1d",
        flat,
        _with_height(data.shape, settings.data_layout),
        _with_height(weight.shape, settings.kernel_layout),
    )
    height = (flat.out_layout or flat.data_layout).index("H")
    return TensorType((*shape[:height], *shape[height + 1 :]), settings.out_dtype or dtype)


def _with_height(shape: Sequence[PrimExpr], layout: str) -> tuple[PrimExpr, ...]:
    at = layout.index("W")
    return (*shape[:at], as_dim(1), *shape[at:])


def _conv1d_reference(attrs: Conv1DAttrs, data: Array, weight: Array) -> Array:
    flat = as_conv2d(attrs)
    rows = np.expand_dims(data, attrs.data_layout.index("W"))
    kernel = np.expand_dims(weight, attrs.kernel_layout.index("W"))
    result = _conv2d_reference(flat, rows, kernel)
    return result.squeeze((flat.out_layout or flat.data_layout).index("H"))


register_op(
    OpDef(
        name="nn.conv1d",
        channels=(1, 0),
        borders=Borders.ZEROS,
        precision=Precision.ALWAYS,
        weight_layouts={"NCW": "OIW", "NWC": "WIO"},
        arguments=("data", "weight"),
        attrs=Conv1DAttrs,
        relation=_conv1d_relation,
        solve=window,
        reference=_conv1d_reference,
        macs=of_convolution(),
        lower=lambda attrs, inputs, out: [
            convolve(
                inputs[0],
                inputs[1],
                attrs.strides,
                attrs.padding,
                attrs.dilation,
                attrs.groups,
                attrs.data_layout,
                attrs.kernel_layout,
                attrs.out_dtype,
                out_layout=attrs.out_layout,
            )
        ],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(n, channels, w), w as in nn.conv2d",
    )
)


def conv1d(
    data: Expr,
    weight: Expr,
    strides: int = 1,
    padding: Ints = 0,
    dilation: int = 1,
    groups: int = 1,
    channels: int | None = None,
    kernel_size: int | None = None,
    data_layout: str = "NCW",
    kernel_layout: str = "OIW",
    out_layout: str = "",
    out_dtype: str = "",
) -> Call:
    """Return a 1-D convolution (correlation); padding is one number or (left, right)."""
    attrs = Conv1DAttrs(
        spread(strides, 1), sides(padding, 1), spread(dilation, 1), groups, channels,
        window_size(kernel_size, 1), data_layout, kernel_layout, out_layout, out_dtype,
    )  # fmt: skip
    return call("nn.conv1d", data, weight, attrs=attrs)


def _transpose_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "nn.conv2d_transpose"
    data, weight = tensors(name, types, 2)
    settings = attrs_of(Conv2DTransposeAttrs, attrs)
    rank_is(name, data, 4, "data")
    dtype = one_dtype(name, (data, weight))
    n, c, h, w = attempt(name, permute, data.shape, settings.data_layout, "NCHW")
    if not packed_tile(settings.kernel_layout):
        rank_is(name, weight, 4, "weight")
    channels, per_group, kh, kw = attempt(
        name,
        conv_transpose_weight_shape,
        weight.shape,
        settings.kernel_layout,
        settings.channels,
        settings.groups,
    )
    agree(name, c, channels, "channels of 'data' and 'weight'")
    attempt(name, expect_multiple, "channels", c, settings.groups, "groups")
    out = per_group * settings.groups
    attempt(name, check_weight, settings, out, (kh, kw))
    attempt(name, check_output_padding, settings)
    (top, left_pad, bottom, right), (sh, sw) = settings.padding, settings.strides
    rows = transposed_extent(
        h, kh, sh, top, bottom, settings.dilation[0], settings.output_padding[0]
    )
    columns = transposed_extent(
        w, kw, sw, left_pad, right, settings.dilation[1], settings.output_padding[1]
    )
    shape = permute((n, out, rows, columns), "NCHW", settings.out_layout or settings.data_layout)
    return TensorType(shape, settings.out_dtype or dtype)


def _scatter(attrs: Conv2DTransposeAttrs, data: Array, weight: Array) -> Array:
    """Return the uncropped result: every input pixel adds its multiple of the kernel."""
    (kh, kw), (sh, sw), (dh, dw) = weight.shape[2:], attrs.strides, attrs.dilation
    n, _c, h, w = data.shape
    full = np.zeros(
        (n, weight.shape[1], max((h - 1) * sh + (kh - 1) * dh + 1 + attrs.output_padding[0], 0),
         max((w - 1) * sw + (kw - 1) * dw + 1 + attrs.output_padding[1], 0)), data.dtype,
    )  # fmt: skip
    # For one position in the kernel, the contributions of all pixels are one strided slice.
    for y in range(kh if h and w else 0):
        for x in range(kw if w else 0):
            tap = summable(weight[:, :, y, x])
            taps = np.einsum("nchw,co->nohw", summable(data), tap, optimize=True)
            full[
                :,
                :,
                y * dh : y * dh + (h - 1) * sh + 1 : sh,
                x * dw : x * dw + (w - 1) * sw + 1 : sw,
            ] += taps.astype(data.dtype, copy=False)
    return full


def _transpose_reference(attrs: Conv2DTransposeAttrs, data: Array, weight: Array) -> Array:
    dtype = to_numpy(attrs.out_dtype or str(data.dtype))
    plain = transform_array(data, attrs.data_layout, "NCHW").astype(dtype)
    kernel = unpack_conv_transpose_weight(
        weight, attrs.kernel_layout, attrs.channels, attrs.groups
    ).astype(dtype)
    groups = zip(np.split(plain, attrs.groups, 1), np.split(kernel, attrs.groups, 0), strict=True)
    full = np.concatenate([_scatter(attrs, d, w) for d, w in groups], axis=1)
    top, left_pad, bottom, right = attrs.padding
    width = [(0, 0), (0, 0), (-top, -bottom), (-left_pad, -right)]
    cropped = bordered("nn.conv2d_transpose", full, width, "constant", np.zeros((), dtype))
    return transform_array(cropped, "NCHW", attrs.out_layout or attrs.data_layout)


def _transpose_lower(
    attrs: Conv2DTransposeAttrs, inputs: Sequence[Tensor], out: Type
) -> list[Tensor]:
    data, weight = inputs
    return [
        topi.nn.conv_transpose(
            data, weight, attrs.strides, attrs.padding, attrs.output_padding, attrs.dilation,
            attrs.groups, attrs.data_layout, attrs.kernel_layout, attrs.out_dtype, attrs.out_layout,
            attrs.channels,
        )
    ]  # fmt: skip


register_op(
    OpDef(
        name="nn.conv2d_transpose",
        weight_layouts={"NCHW": "IOHW", "NHWC": "HWIO"},
        precision=Precision.ALWAYS,
        arguments=("data", "weight"),
        attrs=Conv2DTransposeAttrs,
        relation=_transpose_relation,
        solve=window_transposed,
        reference=_transpose_reference,
        lower=_transpose_lower,
        layout="data_layout",
        macs=of_transposed,
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(n, channels, h, w), each of h and w (extent - 1) * stride - padding + dilation "
        "* (kernel - 1) + output_padding + 1",
    )
)


def conv2d_transpose(
    data: Expr,
    weight: Expr,
    strides: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Ints | None = None,
    data_layout: str = "NCHW",
    kernel_layout: str = "IOHW",
    out_layout: str = "",
    output_padding: Ints = (0, 0),
    out_dtype: str = "",
) -> Call:
    """Return the gradient of a convolution with respect to its data.

    The weight is (in, out / groups, height, width).
    """
    attrs = Conv2DTransposeAttrs(
        spread(strides, 2), sides(padding, 2), spread(dilation, 2), groups, channels,
        window_size(kernel_size, 2), data_layout, kernel_layout, out_layout, out_dtype,
        spread(output_padding, 2),
    )  # fmt: skip
    return call("nn.conv2d_transpose", data, weight, attrs=attrs)


__all__ = [
    "contrib_conv2d_nchwc",
    "contrib_depthwise_conv2d_nchwc",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
]
