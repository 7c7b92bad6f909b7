"""Gradients of neural network operators.

With g the gradient of the result:

    y = a b                    g_a = g b^T,   g_b = a^T g
    y = softmax(x)             g_x = y (g - sum(g y))
    y = log_softmax(x)         g_x = g - exp(y) sum(g)
    h = (x - mean) / sigma     g_x = (g - mean(g) - h mean(g h)) / sigma      over the axes of mean
    y = conv(x, w)             g_x = the transposed convolution of g by w
                               g_w = the convolution of x by g, batches summed over

Transposed convolutions of windows that do not tile the data need to know how many rows at the end
no window reached (`_output_padding`), so under a stride extents must be numbers. Layouts other than
NCHW are refused by name: gradients are taken of programs as they are imported.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.ir.dtype import to_numpy
from ekiden.ir.expr import RelayExpr
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import tensor_type
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Tuple
from ekiden.relay.gradient.data_movement import (
    divide_by_extent,
    divide_by_mask_count,
    divide_by_size,
)
from ekiden.relay.gradient.helpers import (
    broadcast_to_target,
    flatten_to_matrix,
    reshape_static,
    reshape_to,
    scalar_like,
    tensor_type_of,
)
from ekiden.relay.op.gradient import register_gradient
from ekiden.relay.op.nn.matrix_products import BatchMatmulAttrs, MatmulAttrs
from ekiden.relay.op.nn.norm import (
    BatchNormAttrs,
    GroupNormAttrs,
    InstanceNormAttrs,
    LayerNormAttrs,
)
from ekiden.relay.op.nn.window_attrs import AvgPool2DAttrs, Conv2DAttrs, MaxPool2DAttrs
from ekiden.topi.dimensions import known_int

Expr = RelayExpr


# Products.


def _cast_to_operand_dtype(call: Call, grad: Expr) -> Expr:
    """Cast a product's gradient to its operands' dtype, which `out_dtype` may differ from."""
    dtype = tensor_type_of(call.args[0]).dtype
    return grad if tensor_type_of(call).dtype == dtype else op.cast(grad, dtype)


@register_gradient("nn.dense")
def _dense_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    data, weight = call.args
    rows = flatten_to_matrix(_cast_to_operand_dtype(call, grad), tensor_type_of(call).shape)
    return [
        reshape_to(op.nn.matmul(rows, weight), data),
        op.nn.matmul(rows, flatten_to_matrix(data, tensor_type_of(data).shape), transpose_a=True),
    ]


@register_gradient("nn.matmul")
def _matmul_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    a, b = call.args
    attrs = call.attrs
    assert isinstance(attrs, MatmulAttrs)
    rows = flatten_to_matrix(_cast_to_operand_dtype(call, grad), tensor_type_of(call).shape)
    matrix = flatten_to_matrix(a, tensor_type_of(a).shape)
    da, db = _matrix_product_gradients(
        op.nn.matmul, matrix, b, rows, attrs.transpose_a, attrs.transpose_b
    )
    return [reshape_to(da, a), db]


@register_gradient("nn.batch_matmul")
def _batch_matmul_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    """Return the gradients of both operands; an operand with batch 1 gets the sum over the
    batch.
    """
    a, b = call.args
    attrs = call.attrs
    assert isinstance(attrs, BatchMatmulAttrs)
    grad = _cast_to_operand_dtype(call, grad)
    pair = _matrix_product_gradients(
        op.nn.batch_matmul, a, b, grad, attrs.transpose_a, attrs.transpose_b
    )
    batch = known_int(tensor_type_of(call).shape[0])
    return [
        op.sum(d, axis=0, keepdims=True)
        if known_int(tensor_type_of(x).shape[0]) == 1 and batch != 1
        else d
        for d, x in zip(pair, (a, b), strict=True)
    ]


def _matrix_product_gradients(
    product: object, a: Expr, b: Expr, grad: Expr, ta: bool, tb: bool
) -> tuple[Expr, Expr]:
    """Return d(A B) for A and B transposed or not: dA = G Bᵀ, dB = Aᵀ G."""
    assert callable(product)
    da = (
        product(b, grad, transpose_a=tb, transpose_b=True)
        if ta
        else product(grad, b, transpose_a=False, transpose_b=not tb)
    )
    db = (
        product(grad, a, transpose_a=True, transpose_b=ta)
        if tb
        else product(a, grad, transpose_a=not ta, transpose_b=False)
    )
    return da, db


@register_gradient("nn.bias_add")
def _bias_add_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    axis = getattr(call.attrs, "axis", 1)
    return [grad, op.sum(grad, axis=axis % len(tensor_type_of(call).shape), exclude=True)]


# Softmax and normalisation.


def _axis_attr(call: Call) -> int:
    axis = getattr(call.attrs, "axis", -1)
    assert isinstance(axis, int)
    return axis % len(tensor_type_of(call.args[0]).shape)


@register_gradient("nn.softmax")
def _softmax_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    inner = op.sum(op.multiply(grad, call), axis=_axis_attr(call), keepdims=True)
    return [op.multiply(op.subtract(grad, inner), call)]


@register_gradient("nn.log_softmax")
def _log_softmax_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    total = op.sum(grad, axis=_axis_attr(call), keepdims=True)
    return [op.subtract(grad, op.multiply(op.exp(call), total))]


def _reshape_along_axis(vector: Expr, axis: int, rank: int) -> Expr:
    """Reshape a vector to broadcast along one axis."""
    return op.expand_dims(vector, 1, rank - 1 - axis) if axis < rank - 1 else vector


def _standardize_gradient(
    x: Expr, grad: Expr, axes: Sequence[int], epsilon: float
) -> tuple[Expr, Expr]:
    """Return (x̂, dx) for x̂ = (x - mean) / sqrt(variance + epsilon) over axes, given the gradient
    of x̂.
    """

    def mean(value: Expr) -> Expr:
        return divide_by_extent(op.sum(value, axis=axes, keepdims=True), x, axes)

    centred = op.subtract(x, mean(x))
    inverse = op.rsqrt(op.add(mean(op.multiply(centred, centred)), scalar_like(epsilon, x)))
    hat = op.multiply(centred, inverse)
    # What moves the mean or the variance changes no element of the result.
    inner = op.subtract(grad, op.add(mean(grad), op.multiply(hat, mean(op.multiply(grad, hat)))))
    return hat, op.multiply(inner, inverse)


@register_gradient("nn.layer_norm")
def _layer_norm_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    attrs = call.attrs
    assert isinstance(attrs, LayerNormAttrs)
    axis = _axis_attr(call)
    return _norm_gradient(call, grad, axis, [axis], attrs)


@register_gradient("nn.instance_norm")
def _instance_norm_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    attrs = call.attrs
    assert isinstance(attrs, InstanceNormAttrs)
    axis = _axis_attr(call)
    axes = [a for a in range(len(tensor_type_of(call).shape)) if a not in (0, axis)]
    return _norm_gradient(call, grad, axis, axes, attrs)


def _norm_gradient(
    call: Call,
    grad: Expr,
    axis: int,
    axes: Sequence[int],
    attrs: LayerNormAttrs | InstanceNormAttrs,
) -> Sequence[Expr]:
    x, gamma, beta = call.args
    rank = len(tensor_type_of(x).shape)
    scaled = op.multiply(grad, _reshape_along_axis(gamma, axis, rank)) if attrs.scale else grad
    hat, dx = _standardize_gradient(x, scaled, axes, attrs.epsilon)
    return [dx, *_affine_gradients(grad, hat, gamma, beta, axis, attrs.scale, attrs.center)]


def _affine_gradients(
    grad: Expr, hat: Expr, gamma: Expr, beta: Expr, axis: int, scale: bool, center: bool
) -> tuple[Expr, Expr]:
    return (
        op.sum(op.multiply(grad, hat), axis=axis, exclude=True) if scale else op.zeros_like(gamma),
        op.sum(grad, axis=axis, exclude=True) if center else op.zeros_like(beta),
    )


@register_gradient("nn.group_norm")
def _group_norm_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    x, gamma, beta = call.args
    attrs = call.attrs
    assert isinstance(attrs, GroupNormAttrs)
    shape, axis = tensor_type_of(x).shape, _axis_attr(call)
    groups = attrs.num_groups
    split: list[PrimExpr | int] = [
        *shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]
    ]  # fmt: skip
    scaled = (
        op.multiply(grad, _reshape_along_axis(gamma, axis, len(shape))) if attrs.scale else grad
    )
    apart = reshape_static(x, split)
    # Its type is asked for before inference runs again.
    apart.set_checked_type(tensor_type(split, tensor_type_of(x).dtype))
    axes = [a for a in range(len(shape) + 1) if a not in (0, axis)]
    hat, dx = _standardize_gradient(apart, reshape_static(scaled, split), axes, attrs.epsilon)
    ends = _affine_gradients(grad, reshape_to(hat, x), gamma, beta, axis, attrs.scale, attrs.center)
    return [reshape_to(dx, x), *ends]


@register_gradient("nn.batch_norm")
def _batch_norm_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    """Return the gradients of batch_norm with the statistics as independent arguments."""
    x, gamma, _beta, mean, variance = call.args
    attrs = call.attrs
    assert isinstance(attrs, BatchNormAttrs) and isinstance(grad, Tuple)
    g, rank, axis = (
        grad.fields[0],
        len(tensor_type_of(x).shape),
        attrs.axis % len(tensor_type_of(x).shape),
    )
    inverse = op.rsqrt(op.add(variance, scalar_like(attrs.epsilon, x)))
    scale = op.multiply(inverse, gamma) if attrs.scale else inverse
    total = op.sum(g, axis=axis, exclude=True)
    centred = op.subtract(x, _reshape_along_axis(mean, axis, rank))
    inner = op.sum(op.multiply(g, centred), axis=axis, exclude=True)
    # The derivative of (v + eps)**-0.5 is -0.5 * (v + eps)**-1.5.
    d_scale = op.multiply(inner, op.multiply(inverse, op.multiply(inverse, scale)))
    return [
        op.multiply(g, _reshape_along_axis(scale, axis, rank)),
        op.multiply(inner, inverse) if attrs.scale else op.zeros_like(gamma),
        total if attrs.center else op.zeros_like(_beta),
        op.add(grad.fields[1], op.negative(op.multiply(total, scale))),
        op.add(grad.fields[2], op.multiply(d_scale, scalar_like(-0.5, x))),
    ]


# Convolution and pooling.


def _static_dims(dims: Sequence[PrimExpr], what: str) -> list[int]:
    sizes = [known_int(d) for d in dims]
    if None in sizes:
        raise ValueError(f"symbolic {what}")
    return [s for s in sizes if s is not None]


def _unreached_border(
    x: Expr, call: Call, attrs: Conv2DAttrs | MaxPool2DAttrs | AvgPool2DAttrs, kernel: Sequence[int]
) -> list[int]:
    """Return the bottom rows and right columns of x that no window reaches."""
    top, left_pad, bottom, right = attrs.padding
    unreached = []
    for i, around in enumerate((top + bottom, left_pad + right)):
        reach = attrs.dilation[i] * (kernel[i] - 1) + 1
        # Without a stride windows reach every row.
        if attrs.strides[i] == 1:
            unreached.append(0)
            continue
        (size,) = _static_dims(tensor_type_of(x).shape[2 + i : 3 + i], "image size under a stride")
        (out,) = _static_dims(
            tensor_type_of(call).shape[2 + i : 3 + i], "image size under a stride"
        )
        unreached.append(size + around - reach - (out - 1) * attrs.strides[i])
    return unreached


@register_gradient("nn.conv2d")
def _conv2d_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    """Return dX by a transposed convolution and dW by a convolution of x with the gradient.

    For dW the batch takes the role of the channels, with strides and dilation exchanged.
    """
    x, weight = call.args
    attrs = call.attrs
    assert isinstance(attrs, Conv2DAttrs)
    layouts = attrs.data_layout, attrs.kernel_layout, attrs.out_layout or attrs.data_layout
    if layouts != ("NCHW", "OIHW", "NCHW"):
        raise ValueError(f"layouts {', '.join(layouts)}: only those of NCHW and OIHW are")
    grad = _cast_to_operand_dtype(call, grad)
    out, per_group, kh, kw = _static_dims(tensor_type_of(weight).shape, "weight shape")
    dx = op.nn.conv2d_transpose(
        grad, weight, attrs.strides, attrs.padding, attrs.dilation, attrs.groups,
        per_group * attrs.groups, (kh, kw),
        output_padding=_unreached_border(x, call, attrs, (kh, kw)),
    )  # fmt: skip
    # Groups become images: each group of channels meets the gradients of its own results alone.
    n, _c, height, width = tensor_type_of(x).shape
    g = attrs.groups
    images = reshape_static(
        op.transpose(reshape_static(x, (n, g, per_group, height, width)), (2, 1, 0, 3, 4)),
        (per_group, n * g, height, width),
    )
    filters = op.transpose(grad, (1, 0, 2, 3))
    wide = op.nn.conv2d(images, filters, attrs.dilation, attrs.padding, attrs.strides, g, out, None)
    # Rows that no window reached give positions beyond the kernel.
    near = op.strided_slice(wide, [0, 0], [kh, kw], axes=[2, 3])
    return [dx, op.transpose(near, (1, 0, 2, 3))]


def _one_hot_windows(count: int, channels: int, kh: int, kw: int, dtype: str) -> Constant:
    """Return (channels * count, 1, kh, kw) kernels: the k-th of each channel selects window
    position k.
    """
    eye = np.eye(kh * kw, dtype=to_numpy(dtype)).reshape(kh * kw, 1, kh, kw)
    assert count == kh * kw
    return Constant(np.tile(eye, (channels, 1, 1, 1)))


@register_gradient("nn.max_pool2d")
def _max_pool2d_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    """Route the gradient to the first maximum of each window."""
    (x,) = call.args
    attrs = call.attrs
    assert isinstance(attrs, MaxPool2DAttrs)
    if attrs.layout != "NCHW" or attrs.ceil_mode:
        raise ValueError(f"layout {attrs.layout}, ceil_mode {attrs.ceil_mode}: only NCHW floor is")
    (kh, kw), (sh, sw), (dh, dw) = attrs.pool_size, attrs.strides, attrs.dilation
    top, left_pad, bottom, right = attrs.padding
    dtype = tensor_type_of(x).dtype
    lowest = -np.inf
    # With -inf, which no element is below.
    around = op.nn.pad(
        x, ((0, 0), (0, 0), (top, bottom), (left_pad, right)), scalar_like(lowest, x)
    )
    rows, columns = tensor_type_of(call).shape[2:]
    claimed: Expr | None = None
    shares = []
    for i, j in np.ndindex(kh, kw):
        candidate = op.strided_slice(
            around, [i * dh, j * dw],
            [(rows - 1) * sh + (i * dh + 1), (columns - 1) * sw + (j * dw + 1)],
            [sh, sw], [2, 3],
        )  # fmt: skip
        is_it = op.equal(candidate, call)
        # Of several equal maxima only the first position gets the gradient.
        first = is_it if claimed is None else op.logical_and(is_it, op.logical_not(claimed))
        claimed = is_it if claimed is None else op.logical_or(claimed, is_it)
        shares.append(op.where(first, grad, op.zeros_like(grad)))
    (channels,) = _static_dims(tensor_type_of(x).shape[1:2], "number of channels")
    n = tensor_type_of(x).shape[0]
    stacked = reshape_static(op.stack(shares, axis=2), (n, channels * kh * kw, rows, columns))
    windows = _one_hot_windows(kh * kw, channels, kh, kw, dtype)
    return [
        op.nn.conv2d_transpose(
            stacked, windows, attrs.strides, attrs.padding, attrs.dilation, channels, channels,
            (kh, kw), output_padding=_unreached_border(x, call, attrs, (kh, kw)),
        )
    ]  # fmt: skip


@register_gradient("nn.avg_pool2d")
def _avg_pool2d_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    """Distribute each window's gradient evenly over its positions.

    Windows over the border have fewer positions.
    """
    (x,) = call.args
    attrs = call.attrs
    assert isinstance(attrs, AvgPool2DAttrs)
    if attrs.layout != "NCHW" or attrs.ceil_mode:
        raise ValueError(f"layout {attrs.layout}, ceil_mode {attrs.ceil_mode}: only NCHW floor is")
    kh, kw = attrs.pool_size
    (channels,) = _static_dims(tensor_type_of(x).shape[1:2], "number of channels")
    share = divide_by_size(grad, kh * kw, tensor_type_of(x).dtype)
    if not attrs.count_include_pad and any(attrs.padding):
        # The share of positions in a window that are not padding.
        filled = op.nn.avg_pool2d(
            op.ones_like(x), attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding,
            count_include_pad=True,
        )  # fmt: skip
        smallest_share = scalar_like(
            1.0 / (kh * kw), x
        )  # of a window that is not in the padding alone
        share = op.divide(share, op.maximum(filled, smallest_share))
    ones = Constant(np.ones((channels, 1, kh, kw), to_numpy(tensor_type_of(x).dtype)))
    return [
        op.nn.conv2d_transpose(
            share, ones, attrs.strides, attrs.padding, attrs.dilation, channels, channels, (kh, kw),
            output_padding=_unreached_border(x, call, attrs, (kh, kw)),
        )
    ]  # fmt: skip


def _spatial_axes(call: Call) -> list[int]:
    layout = getattr(call.attrs, "layout", "NCHW")
    return [layout.index("H"), layout.index("W")]


@register_gradient("nn.global_avg_pool2d")
def _global_avg_pool2d_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    (x,) = call.args
    return [broadcast_to_target(divide_by_extent(grad, x, _spatial_axes(call)), x)]


@register_gradient("nn.global_max_pool2d")
def _global_max_pool2d_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    (x,) = call.args
    is_extreme, dtype = op.equal(x, call), tensor_type_of(x).dtype
    # All that are the largest share alike.
    share = divide_by_mask_count(grad, is_extreme, _spatial_axes(call), dtype)
    return [op.multiply(share, op.cast(is_extreme, dtype))]


@register_gradient("nn.cross_entropy")
def _cross_entropy_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    """Return the gradients -y / x / batch and -log(x) / batch of -sum(y * log(x)) / batch."""
    x, y = call.args
    share = op.negative(divide_by_extent(grad, x, (0,)))
    return [op.multiply(share, op.divide(y, x)), op.multiply(share, op.log(x))]


@register_gradient("nn.cross_entropy_with_logits")
def _cross_entropy_with_logits_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    """Return the gradients -y / batch and -x / batch of -sum(y * x) / batch."""
    x, y = call.args
    share = op.negative(divide_by_extent(grad, x, (0,)))
    return [op.multiply(share, y), op.multiply(share, x)]
