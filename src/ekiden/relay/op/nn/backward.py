"""Gradients of pooling and convolution as operators (TVM's names): what training programs, and
backward passes written elsewhere, call. The pass ExpandOps writes them as other operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, register_op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    agree,
    attempt,
    attrs_of,
    call,
    fail,
    rank_is,
    summable,
    tensors,
)
from ekiden.relay.op.nn.geometry import (
    AvgPool2DAttrs,
    Conv2DAttrs,
    Ints,
    MaxPool2DAttrs,
    sides,
    spread,
    window_size,
)
from ekiden.relay.op.nn.pool import pool_shape
from ekiden.topi.dimensions import as_dim, known, tidy, window_extent
from ekiden.topi.dimensions import product as product_of


@node("relay.attrs.Conv2DBackwardWeightAttrs")
class Conv2DBackwardWeightAttrs(Conv2DAttrs):
    """Those of the convolution; `grad_layout` is that of the gradient, which must be the data's."""

    grad_layout: str = "NCHW"


def _check_gradient(
    name: str, grad: TensorType, data: TensorType, extents: Sequence[PrimExpr]
) -> None:
    """Check that the gradient has the type of the operator's result for such data."""
    if grad.dtype != data.dtype:
        fail(name, f"the gradient must be {data.dtype} as the data, got {grad.dtype}")
    rank_is(name, grad, len(extents), "out_grad")
    for at, (actual, extent) in enumerate(zip(grad.shape, extents, strict=True)):
        agree(name, actual, extent, f"axis {at} of the gradient and of the result")
        if known(extent) == 0:
            fail(name, f"axis {at} of the result has no elements")


def _like_data(
    name: str, kind: type[MaxPool2DAttrs | AvgPool2DAttrs]
) -> Callable[[Sequence[Type], Attrs | None], Type]:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the data's type.

        Raises:
            TypeInferenceError: The layout is not NCHW, windows are rounded up, or the gradient has
                another shape than the pooling's result.
        """
        grad, data = tensors(name, types, 2)
        settings = attrs_of(kind, attrs)
        if settings.layout != "NCHW" or settings.ceil_mode:
            fail(
                name,
                f"layout {settings.layout}, ceil_mode {settings.ceil_mode}: only NCHW floor is",
            )
        rank_is(name, data, 4, "data")
        _check_gradient(name, grad, data, attempt(name, pool_shape, name, settings, data.shape))
        return data

    return relation


def _windows(
    attrs: MaxPool2DAttrs | AvgPool2DAttrs, grad: Array, data: Array
) -> Iterator[tuple[int, int, list[int], list[int]]]:
    """Yield row and column of the gradient, and the rows and columns of data in its window."""
    (sh, sw), (top, left_pad, _, _) = attrs.strides, attrs.padding
    (kh, kw), (dh, dw) = attrs.pool_size, attrs.dilation
    for i, j in product(*map(range, grad.shape[2:])):
        y, x = i * sh - top, j * sw - left_pad
        rows = [r for r in range(y, y + kh * dh, dh) if 0 <= r < data.shape[2]]
        columns = [c for c in range(x, x + kw * dw, dw) if 0 <= c < data.shape[3]]
        yield i, j, rows, columns


def _max_reference(attrs: MaxPool2DAttrs, grad: Array, data: Array) -> Array:
    data_grad = np.zeros_like(data)
    for i, j, rows, columns in _windows(attrs, grad, data):
        window = data[:, :, rows][:, :, :, columns].reshape(*data.shape[:2], -1)
        best = window.argmax(-1)
        for n, c in np.ndindex(*data.shape[:2]):
            row, column = divmod(int(best[n, c]), len(columns))
            data_grad[n, c, rows[row], columns[column]] += grad[n, c, i, j]
    return data_grad


def _avg_reference(attrs: AvgPool2DAttrs, grad: Array, data: Array) -> Array:
    data_grad = np.zeros_like(data)
    for i, j, rows, columns in _windows(attrs, grad, data):
        count = math.prod(attrs.pool_size) if attrs.count_include_pad else len(rows) * len(columns)
        for r, c in product(rows, columns):
            data_grad[:, :, r, c] += grad[:, :, i, j] / count
    return data_grad


def _weight_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "nn.conv2d_backward_weight"
    grad, data = tensors(name, types, 2)
    settings = attrs_of(Conv2DBackwardWeightAttrs, attrs)
    layouts = settings.grad_layout, settings.data_layout, settings.kernel_layout
    if layouts != ("NCHW", "NCHW", "OIHW"):
        fail(name, f"layouts must be NCHW, NCHW and OIHW, got {', '.join(layouts)}")
    if settings.kernel_size is None:
        fail(name, "'kernel_size' must be given")
    for kind, what in ((grad, "grad"), (data, "data")):
        rank_is(name, kind, 4, what)
    channels = grad.shape[1] if settings.channels is None else as_dim(settings.channels)
    for count in (known(channels), known(data.shape[1])):
        if count is not None and count % settings.groups:
            fail(name, f"channels must be multiples of groups, got {count} and {settings.groups}")
    kernel, sides_of = tuple(map(as_dim, settings.kernel_size)), settings.padding
    extents = [
        attempt(name, window_extent, data.shape[2 + i], kernel[i], settings.strides[i], sides_of[i],
                sides_of[i + 2], settings.dilation[i])
        for i in range(2)
    ]  # fmt: skip
    _check_gradient(name, grad, data, (data.shape[0], channels, *extents))
    shape = (channels, data.shape[1] // settings.groups, *kernel)
    return TensorType(shape, settings.out_dtype or data.dtype)


def _weight_reference(attrs: Conv2DBackwardWeightAttrs, grad: Array, data: Array) -> Array:
    assert attrs.kernel_size is not None
    (kh, kw), (sh, sw), (dh, dw) = attrs.kernel_size, attrs.strides, attrs.dilation
    top, left_pad, bottom, right = attrs.padding
    around = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left_pad, right)))
    rows, columns = grad.shape[2:]
    split_tensors = (np.split(summable(array), attrs.groups, 1) for array in (grad, around))
    groups = zip(*split_tensors, strict=True)
    weights = []
    for out, read in groups:
        # For each position in the window, the data under it at all positions of the window is one
        # slice.
        taps = np.empty((out.shape[1], read.shape[1], kh, kw), out.dtype)
        for y, x in np.ndindex(kh, kw):
            shifted = read[:, :, y * dh :: sh, x * dw :: sw][:, :, :rows, :columns]
            taps[:, :, y, x] = np.einsum("nohw,nihw->oi", out, shifted)
        weights.append(taps)
    return np.concatenate(weights).astype(attrs.out_dtype or data.dtype)


register_op(
    OpDef(
        name="nn.max_pool2d_grad",
        arguments=("out_grad", "data"),
        attrs=MaxPool2DAttrs,
        relation=_like_data("nn.max_pool2d_grad", MaxPool2DAttrs),
        reference=_max_reference,
        gradient_of=("nn.max_pool2d", 0),
        result="the type of data",
    )
)
register_op(
    OpDef(
        name="nn.avg_pool2d_grad",
        arguments=("out_grad", "data"),
        attrs=AvgPool2DAttrs,
        relation=_like_data("nn.avg_pool2d_grad", AvgPool2DAttrs),
        reference=_avg_reference,
        gradient_of=("nn.avg_pool2d", 0),
        result="the type of data",
    )
)
register_op(
    OpDef(
        name="nn.conv2d_backward_weight",
        arguments=("grad", "data"),
        attrs=Conv2DBackwardWeightAttrs,
        relation=_weight_relation,
        reference=_weight_reference,
        gradient_of=("nn.conv2d", 1),
        macs=lambda attrs, shapes, out: tidy(product_of((*out, shapes[0][0], *shapes[0][2:]))),
        result="the shape of the weight; `out_dtype`, if given",
    )
)


def max_pool2d_grad(
    out_grad: Expr,
    data: Expr,
    pool_size: Ints = (1, 1),
    strides: Ints = (1, 1),
    padding: Ints = (0, 0),
    layout: str = "NCHW",
    out_layout: str = "",
    ceil_mode: bool = False,
) -> Call:
    """Return the gradient of nn.max_pool2d.

    The first position of each window that holds its maximum takes the gradient of the window. NCHW,
    without windows rounded up.
    """
    attrs = MaxPool2DAttrs(
        pool_size=spread(pool_size, 2), strides=spread(strides, 2), padding=sides(padding, 2),
        layout=layout, out_layout=out_layout, ceil_mode=ceil_mode,
    )  # fmt: skip
    return call("nn.max_pool2d_grad", out_grad, data, attrs=attrs)


def avg_pool2d_grad(
    out_grad: Expr,
    data: Expr,
    pool_size: Ints = (1, 1),
    strides: Ints = (1, 1),
    padding: Ints = (0, 0),
    layout: str = "NCHW",
    out_layout: str = "",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Call:
    """Return the gradient of nn.avg_pool2d.

    All positions of a window share the gradient of the window. NCHW, without windows rounded up.
    """
    attrs = AvgPool2DAttrs(
        pool_size=spread(pool_size, 2), strides=spread(strides, 2), padding=sides(padding, 2),
        layout=layout, out_layout=out_layout, ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
    )  # fmt: skip
    return call("nn.avg_pool2d_grad", out_grad, data, attrs=attrs)


def conv2d_backward_weight(
    grad: Expr,
    data: Expr,
    strides: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Ints | None = None,
    grad_layout: str = "NCHW",
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_dtype: str = "",
) -> Call:
    """Return the gradient of nn.conv2d for its weight, from that of its result and its
    data. NCHW.
    """
    attrs = Conv2DBackwardWeightAttrs(
        spread(strides, 2), sides(padding, 2), spread(dilation, 2), groups, channels,
        window_size(kernel_size, 2), data_layout, kernel_layout, "", out_dtype, grad_layout,
    )  # fmt: skip
    return call("nn.conv2d_backward_weight", grad, data, attrs=attrs)


__all__ = ["avg_pool2d_grad", "conv2d_backward_weight", "max_pool2d_grad"]
