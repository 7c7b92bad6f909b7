"""Operators on quantised tensors: functions that build them from ordinary operators.

A quantised tensor stands for scale * (bytes - zero_point). What is built here needs no pass to
become ordinary: constants fold, the product of bytes is `nn.dense`, and the terms of the zero
points, which are sums over rows, fuse behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from ekiden.ir.op import Array
from ekiden.relay.expr import Constant, Expr, TupleGetItem, const
from ekiden.relay.op import (
    add,
    cast,
    clip,
    divide,
    greater,
    maximum,
    minimum,
    multiply,
    nn,
    round,
    subtract,
    where,
)
from ekiden.relay.op import max as largest
from ekiden.relay.op import min as smallest
from ekiden.relay.op import sum as total
from ekiden.relay.op._declare import call
from ekiden.relay.op.nn.geometry import Conv2DAttrs, Ints, sides, spread
from ekiden.relay.op.reshape import reshape
from ekiden.relay.op.slice import strided_slice
from ekiden.topi.nn.weights import WORD

EXACT = 1 << 24
"""Whole numbers of less are exact as float32, and so is each sum of such parts."""
MOST = 255
"""How far a byte may be from its zero point."""
SIGN = 128
"""Between the numbers of uint8 and those of int8."""


def _int32(value: int) -> Constant:
    return const(np.int32(value))


def _is_zero(point: Expr) -> bool:
    return isinstance(point, Constant) and not np.any(point.data)


def _as_uint8(data: Expr, point: Expr, dtype: str) -> tuple[Expr, Expr]:
    """Bytes and their zero point as uint8 and int32, a constant if it was one; both move by the
    same number."""
    by = 0 if dtype == "uint8" else SIGN
    if isinstance(point, Constant):
        moved: Expr = const(np.asarray(point.data.astype(np.int32) + by, np.int32))
    else:
        moved = add(cast(point, "int32"), _int32(by)) if by else cast(point, "int32")
    if dtype == "uint8":
        return data, moved
    return cast(add(cast(data, "int16"), const(np.int16(SIGN))), "uint8"), moved


def _as_int8(weight: Constant, point: Expr) -> tuple[Constant, Expr]:
    if weight.data.dtype == np.int8:
        return weight, cast(point, "int32")
    moved = (weight.data.astype(np.int16) - SIGN).astype(np.int8)
    return Constant(moved, span=weight.span), subtract(cast(point, "int32"), _int32(SIGN))


def _is_symmetric(weight: Constant, point: Expr) -> bool:
    """Whether the weight as int8 has no zero point."""
    middle = 0 if weight.data.dtype == np.int8 else SIGN
    return isinstance(point, Constant) and bool(np.all(point.data == middle))


def dense(
    data: Expr,
    weight: Constant,
    input_zero_point: Expr,
    kernel_zero_point: Expr,
    data_dtype: str = "uint8",
) -> Expr:
    """The int32 product (data - input_zero_point) (weight - kernel_zero_point)^T.

    data [..., k] of `data_dtype` (uint8 or int8), weight [n, k] of uint8 or int8, input_zero_point
    a scalar, kernel_zero_point a scalar or [n]. TVM's qnn.dense with out_dtype int32; scales are
    for the caller to multiply.
    """
    data, point = _as_uint8(data, input_zero_point, data_dtype)
    is_symmetric = _is_symmetric(weight, kernel_zero_point)
    weight, kernel_point = _as_int8(weight, kernel_zero_point)
    made: Expr = nn.dense(data, weight, out_dtype="int32")
    if not _is_zero(point):
        rows = const(weight.data.astype(np.int32).sum(axis=1, dtype=np.int32))
        made = subtract(made, multiply(rows, point))
    if is_symmetric:
        return made
    sums = total(subtract(cast(data, "int32"), point), axis=(-1,), keepdims=True)
    return subtract(made, multiply(sums, kernel_point))


def _grouped(
    data: Expr, weight: Constant, points: tuple[Expr, Expr], window: Conv2DAttrs, data_dtype: str
) -> Expr:
    """A convolution of groups whose channels make no words of bytes: in float32 where that is
    exact. One of each channel reads bytes as they are, if their zero point is 0, or has no border
    and is taken off the sums.
    """
    centred = _centred(weight.data, points[1], 0)
    is_exact = centred is not None and len(_exact_parts(centred, 0, 1)) == 1
    wide = "float32" if is_exact else "int32"
    kernel = subtract(cast(weight, wide), reshape(cast(points[1], wide), (-1, 1, 1, 1)))
    is_depthwise = is_exact and weight.data.shape[:2] == (window.groups, 1)
    mixed = window.with_fields(channels=window.groups, out_dtype=wide)
    levels, point = _as_uint8(data, points[0], data_dtype)
    if is_depthwise and not any(window.padding):
        levels, point = data, cast(points[0], "int32")
    elif not _is_zero(point):
        is_depthwise = False
    if not is_depthwise:
        shifted = subtract(cast(data, wide), cast(points[0], wide))
        return cast(call("nn.conv2d", shifted, kernel, attrs=window), "int32")
    made: Expr = cast(call("nn.conv2d", levels, kernel, attrs=mixed), "int32")
    if _is_zero(points[0] if levels is data else point):
        return made
    assert centred is not None
    rows = const(centred.sum(axis=(1, 2, 3)).astype(np.int32)[:, None, None])
    return subtract(made, multiply(rows, point))


def _centred(kernel: Array, point: Expr, channels: int) -> Array | None:
    """Weights less their zero point, one for all or one for each of their channels, as int64; None
    where that is no constant."""
    if not isinstance(point, Constant):
        return None
    shape = [-1 if axis == channels else 1 for axis in range(kernel.ndim)]
    return kernel.astype(np.int64) - point.data.astype(np.int64).reshape(shape)


def _exact_parts(kernel: Array, channels: int, terms: int) -> list[slice]:
    """Parts of the axis `terms` of weights such that float32 holds every sum of products with
    bytes, of each of their channels; none if not even those of one element."""
    others = tuple(axis for axis in range(kernel.ndim) if axis not in (channels, terms))
    each = np.abs(np.moveaxis(kernel, (terms, channels), (0, 1)))
    each = each.reshape(*each.shape[:2], -1).sum(axis=2) if others else each
    parts, begin, so_far = list[slice](), 0, np.zeros_like(each[0])
    for at, one in enumerate(MOST * each):
        if one.max(initial=0) >= EXACT:
            return []
        so_far = so_far + one
        if so_far.max(initial=0) >= EXACT:
            parts.append(slice(begin, at))
            begin, so_far = at, one
    return [*parts, slice(begin, len(each))]


def in_floats(
    data: Expr,
    weight: Expr,
    points: tuple[Expr, Expr],
    axes: tuple[int, int, int],
    product: Callable[[Expr, Expr], Expr],
) -> Expr | None:
    """A product of bytes less their zero points as sums of int32, that is computed in float32, in
    as few parts as are exact; None where the weights are no constants or too large.

    axes: the channels of the data, those of the weights that they are multiplied with, and those of
    the result; product: (data, weight) of float32 -> the product.
    """
    across, terms, channels = axes
    kernel = _centred(weight.data, points[1], channels) if isinstance(weight, Constant) else None
    parts = [] if kernel is None else _exact_parts(kernel, channels, terms)
    if kernel is None or not parts:
        return None
    levels = subtract(cast(data, "float32"), cast(points[0], "float32"))
    made = []
    for part in parts:
        index = tuple(part if axis == terms else slice(None) for axis in range(kernel.ndim))
        one = strided_slice(levels, (part.start,), (part.stop,), axes=(across,))
        taken = levels if len(parts) == 1 else one
        made.append(cast(product(taken, const(kernel[index].astype(np.float32))), "int32"))
    return reduce(add, made)


def conv2d(
    data: Expr,
    weight: Constant,
    input_zero_point: Expr,
    kernel_zero_point: Expr,
    data_dtype: str = "uint8",
    strides: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    groups: int = 1,
) -> Expr:
    """The int32 convolution of data - input_zero_point with weight - kernel_zero_point.

    data [n, c, h, w] of `data_dtype` (uint8 or int8), its border the zero point; weight [o, c /
    groups, kh, kw] of uint8 or int8; input_zero_point a scalar, kernel_zero_point a scalar or [o].
    TVM's qnn.conv2d with out_dtype int32.
    """
    if groups > 1 and weight.data.shape[1] % WORD:
        window = Conv2DAttrs(spread(strides, 2), sides(padding, 2), spread(dilation, 2), groups)
        points = input_zero_point, kernel_zero_point
        return _grouped(data, weight, points, window, data_dtype)
    data, point = _as_uint8(data, input_zero_point, data_dtype)
    is_symmetric = _is_symmetric(weight, kernel_zero_point)
    is_plain = _is_zero(point)
    weight, kernel_point = _as_int8(weight, kernel_zero_point)
    top, left, bottom, right = sides(padding, 2)
    if top or left or bottom or right:
        around = ((0, 0), (0, 0), (top, bottom), (left, right))
        data = nn.pad(data, around, cast(point, "uint8"))

    def convolved(kernel: Array) -> Expr:
        """The convolution of a kernel of one dtype; where the input's zero point is not 0, its
        product with the sums of the kernel is taken off: sum((x - z) * w) = sum(x * w) - z *
        sum(w).
        """
        made: Expr = nn.conv2d(
            data,
            Constant(kernel, span=weight.span),
            strides=strides,
            dilation=dilation,
            groups=groups,
            out_dtype="int32",
        )
        rows = kernel.astype(np.int32).sum(axis=(1, 2, 3), dtype=np.int32)[:, None, None]
        return made if is_plain else subtract(made, multiply(const(rows), point))

    made = convolved(weight.data)
    if is_symmetric:
        return made
    # of one channel where they are those of all, else of each: groups read other data
    sums = convolved(np.ones_like(weight.data[: 1 if groups == 1 else None]))
    return subtract(made, multiply(sums, reshape(kernel_point, (-1, 1, 1))))


def dynamic_quantize(data: Expr) -> tuple[Expr, Expr, Expr]:
    """(bytes of uint8, scale, zero point of uint8) of a float32 tensor: the least range that holds
    its elements and 0 in 256 steps (ONNX DynamicQuantizeLinear 11).
    """
    zero = const(np.float32(0))
    low, high = minimum(smallest(data), zero), maximum(largest(data), zero)
    spread = divide(subtract(high, low), const(np.float32(255)))
    scale = where(greater(spread, zero), spread, const(np.float32(1)))
    point = clip(round(divide(subtract(zero, low), scale)), 0, 255)
    levels = clip(add(round(divide(data, scale)), point), 0, 255)
    return cast(levels, "uint8"), scale, cast(point, "uint8")


def dynamic_lstm(
    data: Expr,
    weight_i: Constant,
    weight_h: Constant,
    scale_i: Expr,
    scale_h: Expr,
    bias: Expr | None = None,
    initial_h: Expr | None = None,
    initial_c: Expr | None = None,
    lengths: Expr | None = None,
    peephole: Expr | None = None,
    **options: object,
) -> tuple[Expr, Expr, Expr]:
    """An LSTM layer whose weights are int8 and whose inputs and states are quantised as they come:
    all hidden states [steps, batch, hidden], the last one, the last cell state.

    data [steps, batch, inputs] of float32; weight_i [4 * hidden, inputs] and weight_h [4 * hidden,
    hidden] of int8 without zero points, gates i, f, g, o; scales and bias (the sum of both)
    [4 * hidden]; the rest as for `nn.lstm` (com.microsoft DynamicQuantizeLSTM 1).
    """
    levels, scale, point = dynamic_quantize(data)
    products = dense(levels, weight_i, point, const(np.int8(0)))
    projected: Expr = multiply(cast(products, "float32"), multiply(scale, scale_i))
    projected = projected if bias is None else add(projected, bias)
    sums = const(weight_h.data.astype(np.int32).sum(axis=1, dtype=np.int32))
    extras = {
        "initial_h": initial_h,
        "initial_c": initial_c,
        "lengths": lengths,
        "peephole": peephole,
        "scale": scale_h,
        "sums": sums,
    }
    layer = nn.recurrent(projected, weight_h, "lstm", extras, **options)  # type: ignore[arg-type]
    return TupleGetItem(layer, 0), TupleGetItem(layer, 1), TupleGetItem(layer, 2)


__all__ = ["conv2d", "dense", "dynamic_lstm", "dynamic_quantize", "in_floats"]
