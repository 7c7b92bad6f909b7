"""1-D and 2-D convolutions and transposed convolutions. Attributes and layouts are TVM's, with our
packed weight layouts added (see topi/nn/weight_packing.py).

    y[n, o, i, j] = sum over c, u, v of x[n, c, s i + d u - top, s j + d v - left] w[o, c, u, v]

with x = 0 outside, s the strides, d the dilation; in a group, c runs over the channels of the group
of o. As in every framework this is a correlation: w is not flipped. Extents are (extent + before +
after - d (k - 1) - 1) // s + 1, and 0 where that is negative.

    transposed:  y[n, o, s i + d u - top, ..] += x[n, c, i, ..] w[c, o, u, v]

is the gradient of the first one with respect to x, with the roles of channels exchanged; several
extents of y have one of x, among which output_padding chooses (Dumoulin and Visin 2016).

One dimension is two of height 1, for type, meaning and kernel alike. Layouts with inner axes
(NCHW16c) are transformed to whole axes and back around the kernel (`compute_unblocked`):
kernels are for NHWC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array, OpDef, OpPattern, PaddingAbsorption, PrecisionPolicy, register_op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    call_op,
    call_shape_rule,
    check_attrs,
    check_rank,
    check_same_dtype,
    check_tensors,
    unify_dims,
    widen_for_numpy,
)
from ekiden.relay.op.dynamic_pad import pad_or_crop
from ekiden.relay.op.nn._infer_params import infer_conv_transpose_weight, infer_conv_weight
from ekiden.relay.op.nn._macs import count_conv_transpose_macs, make_conv_macs
from ekiden.relay.op.nn.window_attrs import (
    Conv1DAttrs,
    Conv1DTransposeAttrs,
    Conv2DAttrs,
    Conv2DTransposeAttrs,
    Conv3DAttrs,
    Ints,
    check_output_padding,
    check_weight,
    expand_kernel_size,
    expand_padding,
    expand_per_axis,
)
from ekiden.te import Tensor
from ekiden.tir.data_layout import parse_layout
from ekiden.topi.dimensions import as_dim, require_multiple, transposed_window_extent, window_extent
from ekiden.topi.layout import (
    is_blocked,
    packed_tile_size,
    permute_values,
    primal_layout,
    transform_array,
    transform_shape,
)
from ekiden.topi.nn.convolution import conv as convolve
from ekiden.topi.nn.weight_packing import (
    conv_transpose_weight_shape,
    conv_weight_shape,
    unpack_conv_transpose_weight,
    unpack_conv_weight,
)


def conv1d_to_conv2d_attrs(attrs: Conv1DAttrs | Conv1DTransposeAttrs) -> Conv2DAttrs:
    """Return the attributes of a 1-D convolution as a 2-D one of height 1."""
    # Padding is (top, left, bottom, right) in two dimensions: the height gets none.
    left_pad, right_pad = attrs.padding
    return Conv2DAttrs(
        (1, *attrs.strides), (0, left_pad, 0, right_pad), (1, *attrs.dilation), attrs.groups,
        attrs.channels,
        None if attrs.kernel_size is None else (1, *attrs.kernel_size),
        attrs.data_layout.replace("W", "HW"), attrs.kernel_layout.replace("W", "HW"),
        attrs.out_layout.replace("W", "HW"), attrs.out_dtype,
    )  # fmt: skip


def conv1d_transpose_to_conv2d_attrs(attrs: Conv1DTransposeAttrs) -> Conv2DTransposeAttrs:
    """Return the attributes of a 1-D transposed convolution as a 2-D one of height 1."""
    flat = conv1d_to_conv2d_attrs(attrs)
    return Conv2DTransposeAttrs(
        flat.strides, flat.padding, flat.dilation, flat.groups, flat.channels, flat.kernel_size,
        flat.data_layout, flat.kernel_layout, flat.out_layout, flat.out_dtype,
        (0, *attrs.output_padding),
    )  # fmt: skip


def _infer_conv_shape(
    name: str, attrs: Conv2DAttrs, data: Sequence[PrimExpr], weight: Sequence[PrimExpr]
) -> tuple[PrimExpr, ...]:
    """Infer the result shape of a convolution in its output layout."""
    plain = unblocked_conv_attrs(attrs)
    if plain is not None:
        data = call_shape_rule(name, transform_shape, data, attrs.data_layout, plain.data_layout)
        weight = call_shape_rule(
            name, transform_shape, weight, attrs.kernel_layout, plain.kernel_layout
        )
        # Once only: the plain convolution has no blocked layout.
        plain_shape = _infer_conv_shape(name, plain, data, weight)
        out_layout = attrs.out_layout or attrs.data_layout
        return call_shape_rule(name, transform_shape, plain_shape, plain.data_layout, out_layout)
    n, c, h, w = call_shape_rule(name, permute_values, data, attrs.data_layout, "NCHW")
    out, per_group, kh, kw = call_shape_rule(
        name, conv_weight_shape, weight, attrs.kernel_layout, attrs.channels, attrs.groups
    )
    # Weights have the input channels of one group.
    unify_dims(name, c, per_group * attrs.groups, "channels of 'data' and 'weight'")
    call_shape_rule(name, check_weight, attrs, out, (kh, kw))
    call_shape_rule(name, require_multiple, "output channels", out, attrs.groups, "groups")
    top, left_pad, bottom, right = attrs.padding
    rows = window_extent(h, kh, attrs.strides[0], top, bottom, attrs.dilation[0])
    columns = window_extent(w, kw, attrs.strides[1], left_pad, right, attrs.dilation[1])
    return permute_values((n, out, rows, columns), "NCHW", attrs.data_layout)


_Conv = TypeVar("_Conv", bound=Conv2DAttrs | Conv3DAttrs)


def unblocked_conv_attrs(attrs: _Conv) -> _Conv | None:
    """Return the convolution's attributes in unblocked layouts, with the result in the data's
    layout, or None.

    None if it is such a convolution already.
    """
    # Kernels write in the layout of the data; another one needs a transform after them.
    keeps = attrs.out_layout in ("", attrs.data_layout)
    if keeps and not any(map(is_blocked, (attrs.data_layout, attrs.kernel_layout))):
        return None
    kernel = attrs.kernel_layout
    plain = attrs.with_fields(
        data_layout=primal_layout(attrs.data_layout),
        kernel_layout=primal_layout(kernel) if is_blocked(kernel) else kernel,
        out_layout="",
    )
    return cast(_Conv, plain)


def compute_unblocked(
    attrs: _Conv, inputs: Sequence[Tensor], compute: Callable[[_Conv, Sequence[Tensor]], Tensor]
) -> Tensor:
    """Compute a convolution in unblocked layouts, between layout transforms."""
    plain = unblocked_conv_attrs(attrs)
    if plain is None:
        return compute(attrs, inputs)
    moves = (attrs.data_layout, plain.data_layout), (attrs.kernel_layout, plain.kernel_layout)
    # Transforms around the kernel; layout passes cancel those between two such convolutions.
    flat = [
        operand if source == target else topi.layout_transform(operand, source, target)
        for operand, (source, target) in zip(inputs, moves, strict=True)
    ]
    # Layout passes remove the transforms between two such convolutions.
    result = compute(plain, flat)
    return topi.layout_transform(result, plain.data_layout, attrs.out_layout or attrs.data_layout)


MIXED_DTYPES = (
    ("uint8", "int8", "int32"),
    ("uint8", "int16", "int32"),
    ("uint8", "float32", "float32"),
    ("int8", "float32", "float32"),
)
"""Supported (data, weight, result) dtypes of mixed-precision convolutions."""


def _conv2d_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, weight = check_tensors("nn.conv2d", types, 2)
    settings = check_attrs(Conv2DAttrs, attrs)
    check_rank("nn.conv2d", data, len(parse_layout(settings.data_layout)), "data")
    # Combinations that have a kernel of their own; all others need one dtype.
    is_mixed = (data.dtype, weight.dtype, settings.out_dtype) in MIXED_DTYPES
    dtype = settings.out_dtype if is_mixed else check_same_dtype("nn.conv2d", (data, weight))
    return TensorType(
        _infer_conv_shape("nn.conv2d", settings, data.shape, weight.shape),
        settings.out_dtype or dtype,
    )


def conv2d_nchw(data: Array, weight: Array, attrs: Conv2DAttrs) -> Array:
    """Return the NCHW/OIHW convolution by im2col and one matrix product per group."""
    top, left_pad, bottom, right = attrs.padding
    # The window with its holes: the dilation steps over them below.
    reach = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], attrs.dilation, strict=True)]
    # Data smaller than a window is padded to one window, which is dropped again below.
    low = max(0, reach[0] - data.shape[2] - top - bottom)
    narrow = max(0, reach[1] - data.shape[3] - left_pad - right)
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom + low), (left_pad, right + narrow)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
    # The data was padded so that NumPy finds one window at least; there is none in truth.
    windows = windows[:, :, : 0 if low else None, : 0 if narrow else None]  # too few lines: none
    windows = windows[
        :, :, :: attrs.strides[0], :: attrs.strides[1], :: attrs.dilation[0], :: attrs.dilation[1]
    ]
    groups = [
        np.einsum(
            "nchwyx,ocyx->nohw", widen_for_numpy(rows), widen_for_numpy(kernel), optimize=True
        )
        for rows, kernel in zip(
            np.split(windows, attrs.groups, 1), np.split(weight, attrs.groups, 0), strict=True
        )
    ]
    return np.concatenate(groups, axis=1)


def _conv2d_reference(attrs: Conv2DAttrs, data: Array, weight: Array) -> Array:
    """Return the convolution of operands first converted to the result's dtype.

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


def _compute_conv2d(attrs: Conv2DAttrs, inputs: Sequence[Tensor]) -> Tensor:
    data, weight = inputs
    return topi.nn.conv(
        data, weight, attrs.strides, attrs.padding, attrs.dilation, attrs.groups,
        attrs.data_layout, attrs.kernel_layout, attrs.out_dtype, attrs.channels,
        attrs.out_layout,
    )  # fmt: skip


def _lower_conv2d(attrs: Conv2DAttrs, inputs: Sequence[Tensor], out: Type) -> list[Tensor]:
    return [compute_unblocked(attrs, inputs, _compute_conv2d)]


register_op(
    OpDef(
        name="nn.conv2d",
        channels=(1, 0),
        padding_absorption=PaddingAbsorption.ZEROS,
        precision=PrecisionPolicy.ALWAYS,
        weight_layouts={"NCHW": "OIHW", "NHWC": "HWIO", "HWNC": "HWOI"},
        kernels=("conv_nhwc_pack", "depthwise_conv_nhwc", "default"),
        arguments=("data", "weight"),
        attrs=Conv2DAttrs,
        relation=_conv2d_relation,
        solve=infer_conv_weight,
        reference=_conv2d_reference,
        lower=_lower_conv2d,
        layout="data_layout",
        macs=make_conv_macs(),
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
    """Return a 2-D convolution (cross-correlation).

    Operands are of one dtype, or uint8 and int8 with out_dtype int32, or uint8 and float32 with
    out_dtype float32. `channels` is needed where the weight is packed and padded.
    """
    attrs = Conv2DAttrs(
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
    )
    return call_op("nn.conv2d", data, weight, attrs=attrs)


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
    """Return conv2d in channel-blocked layouts such as `NCHW8c` and `OIHW8i8o`.

    With `groups` as many as channels the weight is `OIHW1i8o` (TVM's name).
    """
    return conv2d(
        data, kernel, strides, padding, dilation, groups, channels, kernel_size,
        data_layout, kernel_layout, out_layout, out_dtype,
    )  # fmt: skip


contrib_depthwise_conv2d_nchwc = contrib_conv2d_nchwc


def _conv1d_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, weight = check_tensors("nn.conv1d", types, 2)
    settings = check_attrs(Conv1DAttrs, attrs)
    check_rank("nn.conv1d", data, 3, "data")
    check_rank("nn.conv1d", weight, 3, "weight")
    dtype = check_same_dtype("nn.conv1d", (data, weight))
    flat = conv1d_to_conv2d_attrs(settings)
    shape = _infer_conv_shape(
        "nn.conv1d",
        flat,
        _insert_height(data.shape, settings.data_layout),
        _insert_height(weight.shape, settings.kernel_layout),
    )
    # The axis of extent 1 that was put in goes again.
    height = (flat.out_layout or flat.data_layout).index("H")
    return TensorType((*shape[:height], *shape[height + 1 :]), settings.out_dtype or dtype)


def _insert_height(shape: Sequence[PrimExpr], layout: str) -> tuple[PrimExpr, ...]:
    position = layout.index("W")
    return (*shape[:position], as_dim(1), *shape[position:])


def _conv1d_reference(attrs: Conv1DAttrs, data: Array, weight: Array) -> Array:
    flat = conv1d_to_conv2d_attrs(attrs)
    # A height of 1: the two-dimensional reference serves both.
    rows = np.expand_dims(data, attrs.data_layout.index("W"))
    kernel = np.expand_dims(weight, attrs.kernel_layout.index("W"))
    result = _conv2d_reference(flat, rows, kernel)
    return result.squeeze((flat.out_layout or flat.data_layout).index("H"))


register_op(
    OpDef(
        name="nn.conv1d",
        channels=(1, 0),
        padding_absorption=PaddingAbsorption.ZEROS,
        precision=PrecisionPolicy.ALWAYS,
        weight_layouts={"NCW": "OIW", "NWC": "WIO"},
        arguments=("data", "weight"),
        attrs=Conv1DAttrs,
        relation=_conv1d_relation,
        solve=infer_conv_weight,
        reference=_conv1d_reference,
        macs=make_conv_macs(),
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
    """Return a 1-D convolution (cross-correlation); padding is one number or (left, right)."""
    attrs = Conv1DAttrs(
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
    )
    return call_op("nn.conv1d", data, weight, attrs=attrs)


def _conv2d_transpose_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "nn.conv2d_transpose"
    data, weight = check_tensors(name, types, 2)
    settings = check_attrs(Conv2DTransposeAttrs, attrs)
    check_rank(name, data, 4, "data")
    dtype = check_same_dtype(name, (data, weight))
    n, c, h, w = call_shape_rule(name, permute_values, data.shape, settings.data_layout, "NCHW")
    if not packed_tile_size(settings.kernel_layout):
        check_rank(name, weight, 4, "weight")
    channels, per_group, kh, kw = call_shape_rule(
        name,
        conv_transpose_weight_shape,
        weight.shape,
        settings.kernel_layout,
        settings.channels,
        settings.groups,
    )
    unify_dims(name, c, channels, "channels of 'data' and 'weight'")
    call_shape_rule(name, require_multiple, "channels", c, settings.groups, "groups")
    out = per_group * settings.groups
    call_shape_rule(name, check_weight, settings, out, (kh, kw))
    call_shape_rule(name, check_output_padding, settings)
    (top, left_pad, bottom, right), (sh, sw) = settings.padding, settings.strides
    rows = transposed_window_extent(
        h, kh, sh, top, bottom, settings.dilation[0], settings.output_padding[0]
    )
    columns = transposed_window_extent(
        w, kw, sw, left_pad, right, settings.dilation[1], settings.output_padding[1]
    )
    shape = permute_values(
        (n, out, rows, columns), "NCHW", settings.out_layout or settings.data_layout
    )
    return TensorType(shape, settings.out_dtype or dtype)


def _scatter_kernels(attrs: Conv2DTransposeAttrs, data: Array, weight: Array) -> Array:
    """Return the uncropped transposed convolution: every input pixel adds its scaled copy of the
    kernel.
    """
    (kh, kw), (sh, sw), (dh, dw) = weight.shape[2:], attrs.strides, attrs.dilation
    n, _c, h, w = data.shape
    # The inverse of the forward extent: (n - 1) * stride + (k - 1) * dilation + 1.
    full = np.zeros(
        (n, weight.shape[1], max((h - 1) * sh + (kh - 1) * dh + 1 + attrs.output_padding[0], 0),
         max((w - 1) * sw + (kw - 1) * dw + 1 + attrs.output_padding[1], 0)), data.dtype,
    )  # fmt: skip
    # For one position in the kernel, the contributions of all pixels are one strided slice.
    for y in range(kh if h and w else 0):
        for x in range(kw if w else 0):
            tap = widen_for_numpy(weight[:, :, y, x])
            taps = np.einsum("nchw,co->nohw", widen_for_numpy(data), tap, optimize=True)
            full[
                :,
                :,
                y * dh : y * dh + (h - 1) * sh + 1 : sh,
                x * dw : x * dw + (w - 1) * sw + 1 : sw,
            ] += taps.astype(data.dtype, copy=False)
    return full


def _conv2d_transpose_reference(attrs: Conv2DTransposeAttrs, data: Array, weight: Array) -> Array:
    dtype = to_numpy(attrs.out_dtype or str(data.dtype))
    plain = transform_array(data, attrs.data_layout, "NCHW").astype(dtype)
    kernel = unpack_conv_transpose_weight(
        weight, attrs.kernel_layout, attrs.channels, attrs.groups
    ).astype(dtype)
    groups = zip(np.split(plain, attrs.groups, 1), np.split(kernel, attrs.groups, 0), strict=True)
    # Groups are concatenated along the output channels, in the weight's order.
    full = np.concatenate([_scatter_kernels(attrs, d, w) for d, w in groups], axis=1)
    top, left_pad, bottom, right = attrs.padding
    # Padding of the forward convolution crops here.
    width = [(0, 0), (0, 0), (-top, -bottom), (-left_pad, -right)]
    cropped = pad_or_crop("nn.conv2d_transpose", full, width, "constant", np.zeros((), dtype))
    return transform_array(cropped, "NCHW", attrs.out_layout or attrs.data_layout)


def _lower_conv2d_transpose(
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
        precision=PrecisionPolicy.ALWAYS,
        arguments=("data", "weight"),
        attrs=Conv2DTransposeAttrs,
        relation=_conv2d_transpose_relation,
        solve=infer_conv_transpose_weight,
        reference=_conv2d_transpose_reference,
        lower=_lower_conv2d_transpose,
        layout="data_layout",
        macs=count_conv_transpose_macs,
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
    """Return a 2-D transposed convolution.

    The weight is (in, out / groups, height, width).
    """
    attrs = Conv2DTransposeAttrs(
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
        expand_per_axis(output_padding, 2),
    )
    return call_op("nn.conv2d_transpose", data, weight, attrs=attrs)


__all__ = [
    "contrib_conv2d_nchwc",
    "contrib_depthwise_conv2d_nchwc",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
]
