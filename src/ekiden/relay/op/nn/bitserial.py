"""Bit-serial operators: bit-plane packing, and products of low-bit integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpPattern
from ekiden.relay.expr import Call, Expr, const
from ekiden.relay.op._declare import call_op
from ekiden.relay.op._declare_topi import declare_topi_op
from ekiden.relay.op.broadcast import bitwise_and, multiply, subtract
from ekiden.relay.op.elementwise import cast
from ekiden.relay.op.nn.conv import conv2d
from ekiden.relay.op.nn.matrix_products import dense


@node("relay.attrs.BitPackAttrs")
class BitPackAttrs(Attrs):
    """Attributes of bitpack: number of bits, pack and bit axes, pack dtype."""

    bits: int = 1
    pack_axis: int = 1
    bit_axis: int = 2
    pack_type: str = "uint32"
    name: str = "BitPack"


def _pack_bits_reference(attrs: BitPackAttrs, data: Array) -> Array:
    """Return the bits of each word, weighted by position and summed."""
    width = int(attrs.pack_type[4:])
    planes = []
    for bit in range(attrs.bits):
        ones = np.moveaxis(data >> bit & 1, attrs.pack_axis, -1).astype(attrs.pack_type)
        # The first element becomes the most significant bit, as TVM's bitpack has it.
        shifts = np.arange(width - 1, -1, -1).astype(attrs.pack_type)
        words = (ones.reshape(*ones.shape[:-1], -1, width) << shifts).sum(-1, attrs.pack_type)
        planes.append(np.moveaxis(words, -1, attrs.pack_axis))
    return np.stack(planes, attrs.bit_axis)


declare_topi_op(
    "nn.bitpack",
    ("data",),
    lambda attrs, data: topi.nn.bitpack(
        data, attrs.bits, attrs.pack_axis, attrs.bit_axis, attrs.pack_type
    ),
    "a word for as many elements along pack_axis as it has bits; bit_axis counts the bits kept",
    BitPackAttrs,
    OpPattern.COMM_REDUCE,
    _pack_bits_reference,
    takes={"data": "integer"},
)


def bitpack(
    data: Expr,
    bits: int = 1,
    pack_axis: int = 1,
    bit_axis: int = 2,
    pack_type: str = "uint32",
    name: str = "BitPack",
) -> Call:
    """Pack the low bits of integers into bit planes of machine words."""
    attrs = BitPackAttrs(bits, pack_axis, bit_axis, pack_type, name)
    return call_op("nn.bitpack", data, attrs=attrs)


def bitserial_conv2d(
    data: Expr,
    weight: Expr,
    strides: int | Sequence[int] = (1, 1),
    padding: int | Sequence[int] = (0, 0),
    channels: int | None = None,
    kernel_size: int | Sequence[int] | None = (3, 3),
    activation_bits: int = 1,
    weight_bits: int = 1,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    pack_dtype: str = "uint32",
    out_dtype: str = "int16",
    unipolar: bool = True,
) -> Call:
    """Return a bit-serial convolution of low-bit integers, composed of other operators.

    Kernels multiply integers, so `pack_dtype`, the word type of TVM's kernels, changes nothing.

    Args:
        data: The data.
        weight: The weight.
        strides: The distance of windows.
        padding: The widths of borders.
        channels: The number of results.
        kernel_size: The extents of a window.
        activation_bits: How many bits of the data count.
        weight_bits: How many bits of the weight count.
        data_layout: The layout of the data.
        kernel_layout: The layout of the weight.
        pack_dtype: Not used.
        out_dtype: The dtype of the result.
        unipolar: A bit of the weight stands for 1 or -1, else for 1 or 0.
    """
    lowest_bits = _low_bits(data, activation_bits, out_dtype)
    numbers = _decode_weight_bits(weight, weight_bits, out_dtype, unipolar)
    return conv2d(
        lowest_bits, numbers, strides, padding, 1, 1, channels, kernel_size, data_layout,
        kernel_layout,
        "", out_dtype,
    )  # fmt: skip


def bitserial_dense(
    data: Expr,
    weight: Expr,
    units: int | None = None,
    data_bits: int = 1,
    weight_bits: int = 1,
    pack_dtype: str = "uint32",
    out_dtype: str = "int16",
    unipolar: bool = True,
) -> Call:
    """Return a bit-serial dense layer of low-bit integers with weight [units, k].

    The options are those of `bitserial_conv2d`.
    """
    lowest_bits = _low_bits(data, data_bits, out_dtype)
    return dense(
        lowest_bits, _decode_weight_bits(weight, weight_bits, out_dtype, unipolar), units, out_dtype
    )


def _low_bits(data: Expr, bits: int, dtype: str) -> Expr:
    return bitwise_and(cast(data, dtype), const((1 << bits) - 1, dtype))


def _decode_weight_bits(weight: Expr, bits: int, dtype: str, unipolar: bool) -> Expr:
    """Decode the integers that a weight's bits represent."""
    plain = _low_bits(weight, bits, dtype)
    if not unipolar:
        return plain
    # 2 * q - (2**bits - 1): with one bit, 1 and -1.
    return subtract(multiply(plain, const(2, dtype)), const((1 << bits) - 1, dtype))


__all__ = ["bitpack", "bitserial_conv2d", "bitserial_dense"]
