"""Lower quantised products to Relay operators with zero-point corrections.

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
    repeat,
    round,
    subtract,
    where,
)
from ekiden.relay.op import max as largest
from ekiden.relay.op import min as smallest
from ekiden.relay.op import sum as total
from ekiden.relay.op._declare import call_op
from ekiden.relay.op.nn.window_attrs import Conv2DAttrs, Ints, expand_padding, expand_per_axis
from ekiden.relay.op.reshaping import reshape
from ekiden.relay.op.slice import strided_slice
from ekiden.topi.nn.weight_packing import DOT_WORD_CHANNELS

MAX_EXACT_FLOAT32_INT = 1 << 24
"""Exclusive bound of integers that float32 represents exactly, partial sums included."""
MAX_UINT8 = 255
"""Maximum distance of an 8-bit value from its zero point."""
UINT8_TO_INT8_OFFSET = 128
"""Offset between uint8 and int8 values."""


def _int32_constant(value: int) -> Constant:
    return const(np.int32(value))


def _is_zero_point_zero(point: Expr) -> bool:
    return isinstance(point, Constant) and not np.any(point.data)


def _as_uint8(data: Expr, point: Expr, dtype: str) -> tuple[Expr, Expr]:
    """Return 8-bit data and its zero point as uint8 and int32, both shifted alike.

    The zero point is a constant if it was one.
    """
    by = 0 if dtype == "uint8" else UINT8_TO_INT8_OFFSET
    if isinstance(point, Constant):
        moved: Expr = const(np.asarray(point.data.astype(np.int32) + by, np.int32))
    else:
        moved = add(cast(point, "int32"), _int32_constant(by)) if by else cast(point, "int32")
    if dtype == "uint8":
        return data, moved
    # In int16, in which the sum cannot wrap around.
    return cast(add(cast(data, "int16"), const(np.int16(UINT8_TO_INT8_OFFSET))), "uint8"), moved


def _as_int8(weight: Constant, point: Expr) -> tuple[Constant, Expr]:
    if weight.data.dtype == np.int8:
        return weight, cast(point, "int32")
    # uint8 - 128 fits int8; the zero point moves along.
    moved = (weight.data.astype(np.int16) - UINT8_TO_INT8_OFFSET).astype(np.int8)
    return Constant(moved, span=weight.span), subtract(
        cast(point, "int32"), _int32_constant(UINT8_TO_INT8_OFFSET)
    )


def _is_symmetric(weight: Constant, point: Expr) -> bool:
    """Return whether the weight as int8 has zero point 0."""
    middle = 0 if weight.data.dtype == np.int8 else UINT8_TO_INT8_OFFSET
    return isinstance(point, Constant) and bool(np.all(point.data == middle))


def dense(
    data: Expr,
    weight: Constant,
    input_zero_point: Expr,
    kernel_zero_point: Expr,
    data_dtype: str = "uint8",
) -> Expr:
    """Return the int32 product (data - input_zero_point) (weight - kernel_zero_point)^T.

    data [..., k] of `data_dtype` (uint8 or int8), weight [n, k] of uint8 or int8, input_zero_point
    a scalar, kernel_zero_point a scalar or [n]. TVM's qnn.dense with out_dtype int32; scales are
    for the caller to multiply.
    """
    data, point = _as_uint8(data, input_zero_point, data_dtype)
    is_symmetric = _is_symmetric(weight, kernel_zero_point)
    weight, kernel_point = _as_int8(weight, kernel_zero_point)
    int_product: Expr = nn.dense(data, weight, out_dtype="int32")
    if not _is_zero_point_zero(point):
        # sum(w * (q - z)) = sum(w * q) - z * sum(w): the second term is known but for z.
        rows = const(weight.data.astype(np.int32).sum(axis=1, dtype=np.int32))
        int_product = subtract(int_product, multiply(rows, point))
    if is_symmetric:
        return int_product
    # A zero point of the weight needs the sums of the data's rows, at run time.
    sums = total(subtract(cast(data, "int32"), point), axis=(-1,), keepdims=True)
    return subtract(int_product, multiply(sums, kernel_point))


def _expand_grouped_conv(
    data: Expr, weight: Constant, points: tuple[Expr, Expr], window: Conv2DAttrs, data_dtype: str
) -> Expr:
    """Return a grouped convolution whose channels do not fill words of four bytes.

    It is computed in float32 where that is exact. One of each channel reads bytes as they are, if
    their zero point is 0, or has no border and is subtracted from the sums.
    """
    centred = _subtract_zero_point(weight.data, points[1], 0)
    is_exact = centred is not None and len(_exact_slices(centred, 0, 1)) == 1
    # A float kernel serves where float32 holds every sum exactly: below 2**24.
    wide = "float32" if is_exact else "int32"
    kernel = subtract(cast(weight, wide), reshape(cast(points[1], wide), (-1, 1, 1, 1)))
    # One channel per group: the kernel for bytes times floats needs no words.
    is_depthwise = is_exact and weight.data.shape[:2] == (window.groups, 1)
    # The kernel takes the bytes without a conversion.
    mixed = window.with_fields(channels=window.groups, out_dtype=wide)
    levels, point = _as_uint8(data, points[0], data_dtype)
    if is_depthwise and not any(window.padding):
        levels, point = data, cast(points[0], "int32")
    elif not _is_zero_point_zero(point):
        is_depthwise = False
    if not is_depthwise:
        shifted = subtract(cast(data, wide), cast(points[0], wide))
        return cast(call_op("nn.conv2d", shifted, kernel, attrs=window), "int32")
    sums: Expr = cast(call_op("nn.conv2d", levels, kernel, attrs=mixed), "int32")
    if _is_zero_point_zero(points[0] if levels is data else point):
        return sums
    assert centred is not None
    rows = const(centred.sum(axis=(1, 2, 3)).astype(np.int32)[:, None, None])
    return subtract(sums, multiply(rows, point))


def _subtract_zero_point(kernel: Array, point: Expr, channels: int) -> Array | None:
    """Return weights minus their zero point in int64, or None if that is not constant.

    The zero point is one for all or one for each of their channels.
    """
    if not isinstance(point, Constant):
        return None
    shape = [-1 if axis == channels else 1 for axis in range(kernel.ndim)]
    return kernel.astype(np.int64) - point.data.astype(np.int64).reshape(shape)


def _exact_slices(kernel: Array, channels: int, terms: int) -> list[slice]:
    """Return slices of the reduction axis small enough that float32 accumulates each exactly.

    The list is empty if not even the sums of one element fit.
    """
    inner_axes = tuple(axis for axis in range(kernel.ndim) if axis not in (channels, terms))
    magnitudes = np.abs(np.moveaxis(kernel, (terms, channels), (0, 1)))
    magnitudes = (
        magnitudes.reshape(*magnitudes.shape[:2], -1).sum(axis=2) if inner_axes else magnitudes
    )
    slices, begin, so_far = list[slice](), 0, np.zeros_like(magnitudes[0])
    # The worst case: each byte is MOST away from its zero point, all products of one sign.
    for index, one in enumerate(MAX_UINT8 * magnitudes):
        # A single element may overflow already: no slice is exact.
        if one.max(initial=0) >= MAX_EXACT_FLOAT32_INT:
            return []
        so_far = so_far + one
        # Any channel may exceed the range first: the slice ends there for all.
        if so_far.max(initial=0) >= MAX_EXACT_FLOAT32_INT:
            slices.append(slice(begin, index))
            begin, so_far = index, one
    return [*slices, slice(begin, len(magnitudes))]


def product_in_float32(
    data: Expr,
    weight: Expr,
    points: tuple[Expr, Expr],
    axes: tuple[int, int, int],
    product: Callable[[Expr, Expr], Expr],
) -> Expr | None:
    """Compute a product of shifted 8-bit operands exactly in float32, or return None.

    As few slices as are exact are computed; None means that the weights are no constants or too
    large.

    Args:
        data: The bytes.
        weight: The weights.
        points: The zero points of both.
        axes: The channels of the data, those of the weights that they are multiplied with, and
            those
            of the result.
        product: Computes the product of float32 data and weights.
    """
    across, terms, channels = axes
    kernel = (
        _subtract_zero_point(weight.data, points[1], channels)
        if isinstance(weight, Constant)
        else None
    )
    slices = [] if kernel is None else _exact_slices(kernel, channels, terms)
    if kernel is None or not slices:
        return None
    levels = subtract(cast(data, "float32"), cast(points[0], "float32"))
    sums = []
    for piece in slices:
        index = tuple(piece if axis == terms else slice(None) for axis in range(kernel.ndim))
        one = strided_slice(levels, (piece.start,), (piece.stop,), axes=(across,))
        operand = levels if len(slices) == 1 else one
        sums.append(cast(product(operand, const(kernel[index].astype(np.float32))), "int32"))
    return reduce(add, sums)


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
    """Return the int32 convolution of data - input_zero_point with weight - kernel_zero_point.

    data [n, c, h, w] of `data_dtype` (uint8 or int8), its border the zero point; weight [o, c /
    groups, kh, kw] of uint8 or int8; input_zero_point a scalar, kernel_zero_point a scalar or [o].
    TVM's qnn.conv2d with out_dtype int32.
    """
    if groups > 1 and weight.data.shape[1] % DOT_WORD_CHANNELS:
        window = Conv2DAttrs(
            expand_per_axis(strides, 2),
            expand_padding(padding, 2),
            expand_per_axis(dilation, 2),
            groups,
        )
        points = input_zero_point, kernel_zero_point
        return _expand_grouped_conv(data, weight, points, window, data_dtype)
    data, point = _as_uint8(data, input_zero_point, data_dtype)
    is_symmetric = _is_symmetric(weight, kernel_zero_point)
    is_plain = _is_zero_point_zero(point)
    weight, kernel_point = _as_int8(weight, kernel_zero_point)
    top, left_pad, bottom, right = expand_padding(padding, 2)
    if top or left_pad or bottom or right:
        around = ((0, 0), (0, 0), (top, bottom), (left_pad, right))
        # The border stands for 0, which is the zero point in bytes.
        data = nn.pad(data, around, cast(point, "uint8"))

    def convolve(kernel: Array) -> Expr:
        """Convolve with a kernel of one dtype, corrected for the input's zero point.

        sum((x - z) * w) = sum(x * w) - z * sum(w).
        """
        result: Expr = nn.conv2d(
            data,
            Constant(kernel, span=weight.span),
            strides=strides,
            dilation=dilation,
            groups=groups,
            out_dtype="int32",
        )
        rows = kernel.astype(np.int32).sum(axis=(1, 2, 3), dtype=np.int32)[:, None, None]
        return result if is_plain else subtract(result, multiply(const(rows), point))

    total = convolve(weight.data)
    if is_symmetric:
        return total
    # All channels of a group multiply the same data: one column of ones is enough for it.
    per_group = len(weight.data) // groups
    sums = convolve(np.ones_like(weight.data[::per_group]))
    if groups > 1:
        sums = repeat(sums, per_group, axis=1)
    return subtract(total, multiply(sums, reshape(kernel_point, (-1, 1, 1))))


def dynamic_quantize(data: Expr) -> tuple[Expr, Expr, Expr]:
    """Quantise a float32 tensor at run time: return uint8 data, scale and uint8 zero point.

    The least range that holds its elements and 0 is divided into 256 steps (ONNX
    DynamicQuantizeLinear 11).
    """
    zero = const(np.float32(0))
    # The range includes 0, so that 0 is a level: padding and ReLU stay exact.
    low, high = minimum(smallest(data), zero), maximum(largest(data), zero)
    spread = divide(subtract(high, low), const(np.float32(255)))
    # A tensor of zeros has no range; any scale serves.
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
    """Return a dynamically quantised LSTM layer: hidden states, last hidden state, last cell state.

    Weights are int8; inputs and states are quantised as they come (com.microsoft
    DynamicQuantizeLSTM 1).

    Args:
        data: [steps, batch, inputs] of float32.
        weight_i: [4 * hidden, inputs] of int8 without zero points, gates i, f, g, o.
        weight_h: [4 * hidden, hidden] of int8 without zero points.
        scale_i: The scales of weight_i, [4 * hidden].
        scale_h: The scales of weight_h, [4 * hidden].
        bias: The sum of both biases, [4 * hidden].
        initial_h: As for `nn.lstm`.
        initial_c: As for `nn.lstm`.
        lengths: As for `nn.lstm`.
        peephole: As for `nn.lstm`.
        options: As for `nn.lstm`.
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


__all__ = ["conv2d", "dense", "dynamic_lstm", "dynamic_quantize", "product_in_float32"]
