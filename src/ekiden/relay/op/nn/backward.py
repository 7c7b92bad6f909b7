"""Backward operators of pooling and convolution (TVM's names), for training programs. The pass
ExpandOps rewrites them in terms of other operators.
"""

from __future__ import annotations

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
    call_op,
    call_shape_rule,
    check_attrs,
    check_rank,
    check_tensors,
    raise_type_error,
    unify_dims,
    widen_for_numpy,
)
from ekiden.relay.op.nn.pool import infer_pool_shape
from ekiden.relay.op.nn.window_attrs import (
    AvgPool2DAttrs,
    Conv2DAttrs,
    Ints,
    MaxPool2DAttrs,
    expand_kernel_size,
    expand_padding,
    expand_per_axis,
)
from ekiden.topi.dimensions import as_dim, known_int, simplify_dim, window_extent
from ekiden.topi.dimensions import product_of_dims as product_of


@node("relay.attrs.Conv2DBackwardWeightAttrs")
class Conv2DBackwardWeightAttrs(Conv2DAttrs):
    """Attributes of conv2d_backward_weight: those of conv2d, and the gradient's layout (the
    data's).
    """

    grad_layout: str = "NCHW"


def _check_gradient(
    name: str, grad: TensorType, data: TensorType, extents: Sequence[PrimExpr]
) -> None:
    """Check that the gradient has the type of the forward result for such data."""
    if grad.dtype != data.dtype:
        raise_type_error(name, f"the gradient must be {data.dtype} as the data, got {grad.dtype}")
    check_rank(name, grad, len(extents), "out_grad")
    for index, (actual, extent) in enumerate(zip(grad.shape, extents, strict=True)):
        unify_dims(name, actual, extent, f"axis {index} of the gradient and of the result")
        # An empty result has no gradient; NumPy's reductions of it would raise.
        if known_int(extent) == 0:
            raise_type_error(name, f"axis {index} of the result has no elements")


def _like_data_relation(
    name: str, kind: type[MaxPool2DAttrs | AvgPool2DAttrs]
) -> Callable[[Sequence[Type], Attrs | None], Type]:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the data's type.

        Raises:
            TypeInferenceError: The layout is not NCHW, windows are rounded up, or the gradient has
                another shape than the pooling's result.
        """
        grad, data = check_tensors(name, types, 2)
        settings = check_attrs(kind, attrs)
        if settings.layout != "NCHW" or settings.ceil_mode:
            raise_type_error(
                name,
                f"layout {settings.layout}, ceil_mode {settings.ceil_mode}: only NCHW floor is",
            )
        check_rank(name, data, 4, "data")
        _check_gradient(
            name, grad, data, call_shape_rule(name, infer_pool_shape, name, settings, data.shape)
        )
        return data

    return relation


def _iter_windows(attrs: MaxPool2DAttrs | AvgPool2DAttrs, grad: Array) -> Iterator[tuple[int, ...]]:
    """Yield the (row, column) of each gradient element, and the (row, column) where its window
    starts.
    """
    (sh, sw), (top, left_pad, _, _) = attrs.strides, attrs.padding
    for i, j in product(*map(range, grad.shape[2:])):
        # The first index of a window lies before the data by the width of the border.
        yield i, j, i * sh - top, j * sw - left_pad


def _max_reference(attrs: MaxPool2DAttrs, grad: Array, data: Array) -> Array:
    data_grad = np.zeros_like(data)
    (kh, kw), (dh, dw) = attrs.pool_size, attrs.dilation
    for i, j, y, x in _iter_windows(attrs, grad):
        rows = [r for r in range(y, y + kh * dh, dh) if 0 <= r < data.shape[2]]
        columns = [c for c in range(x, x + kw * dw, dw) if 0 <= c < data.shape[3]]
        window = data[:, :, rows][:, :, :, columns].reshape(*data.shape[:2], -1)
        # argmax takes the first of equal maxima, as the operator says.
        best = window.argmax(-1)
        for n, c in np.ndindex(*data.shape[:2]):
            # The window has lost what lies in the border: its width is that of the columns left.
            row, column = divmod(int(best[n, c]), len(columns))
            # Added: windows overlap where the stride is below their extent.
            data_grad[n, c, rows[row], columns[column]] += grad[n, c, i, j]
    return data_grad


def _avg_reference(attrs: AvgPool2DAttrs, grad: Array, data: Array) -> Array:
    data_grad = np.zeros_like(data)
    (kh, kw), (dh, dw) = attrs.pool_size, attrs.dilation
    for i, j, y, x in _iter_windows(attrs, grad):
        rows = [r for r in range(y, y + kh * dh, dh) if 0 <= r < data.shape[2]]
        columns = [c for c in range(x, x + kw * dw, dw) if 0 <= c < data.shape[3]]
        # What the forward operator divided by.
        count = kh * kw if attrs.count_include_pad else len(rows) * len(columns)
        for r, c in product(rows, columns):
            data_grad[:, :, r, c] += grad[:, :, i, j] / count
    return data_grad


def _conv_weight_grad_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "nn.conv2d_backward_weight"
    grad, data = check_tensors(name, types, 2)
    settings = check_attrs(Conv2DBackwardWeightAttrs, attrs)
    layouts = settings.grad_layout, settings.data_layout, settings.kernel_layout
    if layouts != ("NCHW", "NCHW", "OIHW"):
        raise_type_error(name, f"layouts must be NCHW, NCHW and OIHW, got {', '.join(layouts)}")
    # A stride leaves several window extents possible for one pair of shapes.
    if settings.kernel_size is None:
        raise_type_error(name, "'kernel_size' must be given")
    for kind, what in ((grad, "grad"), (data, "data")):
        check_rank(name, kind, 4, what)
    channels = grad.shape[1] if settings.channels is None else as_dim(settings.channels)
    for count in (known_int(channels), known_int(data.shape[1])):
        if count is not None and count % settings.groups:
            raise_type_error(
                name, f"channels must be multiples of groups, got {count} and {settings.groups}"
            )
    kernel, sides_of = tuple(map(as_dim, settings.kernel_size)), settings.padding
    extents = [
        call_shape_rule(
            name,
            window_extent,
            data.shape[2 + i],
            kernel[i],
            settings.strides[i],
            sides_of[i],
            sides_of[i + 2],
            settings.dilation[i],
        )
        for i in range(2)
    ]
    _check_gradient(name, grad, data, (data.shape[0], channels, *extents))
    shape = (channels, data.shape[1] // settings.groups, *kernel)
    return TensorType(shape, settings.out_dtype or data.dtype)


def _conv_weight_grad_reference(
    attrs: Conv2DBackwardWeightAttrs, grad: Array, data: Array
) -> Array:
    assert attrs.kernel_size is not None
    (kh, kw), (sh, sw), (dh, dw) = attrs.kernel_size, attrs.strides, attrs.dilation
    top, left_pad, bottom, right = attrs.padding
    # The border takes part as zeros, so that all slices have one shape.
    around = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left_pad, right)))
    rows, columns = grad.shape[2:]
    split_tensors = (np.split(widen_for_numpy(array), attrs.groups, 1) for array in (grad, around))
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
        relation=_like_data_relation("nn.max_pool2d_grad", MaxPool2DAttrs),
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
        relation=_like_data_relation("nn.avg_pool2d_grad", AvgPool2DAttrs),
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
        relation=_conv_weight_grad_relation,
        reference=_conv_weight_grad_reference,
        gradient_of=("nn.conv2d", 1),
        macs=lambda attrs, shapes, out: simplify_dim(
            product_of((*out, shapes[0][0], *shapes[0][2:]))
        ),
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
    """Return the gradient of nn.max_pool2d with respect to its data.

    The first position of each window that holds its maximum takes the gradient of the window. NCHW,
    without windows rounded up.
    """
    attrs = MaxPool2DAttrs(
        pool_size=expand_per_axis(pool_size, 2),
        strides=expand_per_axis(strides, 2),
        padding=expand_padding(padding, 2),
        layout=layout,
        out_layout=out_layout,
        ceil_mode=ceil_mode,
    )
    return call_op("nn.max_pool2d_grad", out_grad, data, attrs=attrs)


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
    """Return the gradient of nn.avg_pool2d with respect to its data.

    All positions of a window share the gradient of the window. NCHW, without windows rounded up.
    """
    attrs = AvgPool2DAttrs(
        pool_size=expand_per_axis(pool_size, 2),
        strides=expand_per_axis(strides, 2),
        padding=expand_padding(padding, 2),
        layout=layout,
        out_layout=out_layout,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
    )
    return call_op("nn.avg_pool2d_grad", out_grad, data, attrs=attrs)


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
    """Return the gradient of nn.conv2d with respect to its weight. NCHW."""
    attrs = Conv2DBackwardWeightAttrs(
        expand_per_axis(strides, 2),
        expand_padding(padding, 2),
        expand_per_axis(dilation, 2),
        groups,
        channels,
        expand_kernel_size(kernel_size, 2),
        data_layout,
        kernel_layout,
        "",
        out_dtype,
        grad_layout,
    )
    return call_op("nn.conv2d_backward_weight", grad, data, attrs=attrs)


__all__ = ["avg_pool2d_grad", "conv2d_backward_weight", "max_pool2d_grad"]
