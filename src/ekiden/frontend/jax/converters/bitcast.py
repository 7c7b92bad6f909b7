"""Bit-level operations: bitcasts between any widths, and reduced-precision floats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ekiden.frontend.common.complex_arithmetic import ComplexValue
from ekiden.frontend.common.node import Result
from ekiden.frontend.jax.dtype import find_narrow_dtype
from ekiden.frontend.jax.node import (
    ImportedValues,
    StablehloNode,
    StablehloRow,
    custom_complex_rule,
)
from ekiden.ir.dtype import itemsize
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

# Bitcasts.


def _bitcast(node: StablehloNode) -> Result:
    dtype, target = node.dtype(0), node.out_dtype()
    operand, result = node.operation.operands[0], node.operation.results[0]
    if operand.type.element_type == result.type.element_type:
        return node.value(0)
    is_whole = not any(map(find_narrow_dtype, (operand.type, result.type))) and "bool" not in (
        dtype,
        target,
    )
    if is_whole and itemsize(dtype) == itemsize(target):
        return op.reinterpret(node.expr(0), target)
    (result_expr,) = _bitcast_parts(node, [node.expr(0)], node.bits(0), node.out_bits(), 1)
    return result_expr


def _complex_bitcast(node: StablehloNode) -> ImportedValues | Expr | tuple[Expr, Expr]:
    """Bitcast between complex and real numbers of any width; the real part is the low half of the
    bits.
    """
    operand, result = node.whole[0], node.operation.results[0]
    if node.operation.operands[0].type.element_type == result.type.element_type:
        return [operand]
    operand_parts = list(node.parts(0)) if isinstance(operand, ComplexValue) else [node.expr(0)]
    count = 2 if node.is_complex_out() else 1
    result_parts = _bitcast_parts(node, operand_parts, node.bits(0), node.out_bits(), count)
    return (result_parts[0], result_parts[1]) if count == 2 else result_parts[0]


def _bitcast_parts(
    node: StablehloNode, operand_parts: Sequence[Expr], width: int, result_bits: int, count: int
) -> list[Expr]:
    """Regroup the bits of elements: operand parts of `width` bits become `count` parts of
    `result_bits` each.

    The bits are cut into words of the greatest common width, the low ones first, along a last axis.
    """
    # The greatest common width divides both layouts; StableHLO puts the low-order word first.
    word = math.gcd(width, result_bits)
    words = [
        node.emit_once(_split_words(node, component, width, word)) for component in operand_parts
    ]
    both = op.concatenate(words, axis=-1) if len(words) > 1 else words[0]
    operand_bits, element = len(operand_parts) * width, count * result_bits
    shape = list(node.shape(0))
    if operand_bits < element:  # the last axis of the operand is of the parts of an element
        both = op.reshape(both, (*shape[:-1], element // word), allowzero=True)
    elif operand_bits > element:
        both = op.reshape(both, (*shape, operand_bits // element, element // word), allowzero=True)
    both = node.emit_once(both)
    words_per_part = result_bits // word
    return [
        _join_words(node, both, index * words_per_part, words_per_part, word)
        for index in range(count)
    ]


def _split_words(node: StablehloNode, data: Expr, width: int, word: int) -> Expr:
    """Split elements into unsigned words: [...] becomes [..., width / word]."""
    plain = _bitcast_to_unsigned(node, data, width)
    dtype, target = _unsigned_dtype(width), _unsigned_dtype(word)
    mask = const(np.array((1 << word) - 1, dtype))
    rows = [
        op.cast(
            op.bitwise_and(op.right_shift(plain, const(np.array(position, dtype))), mask), target
        )
        for position in range(0, width, word)
    ]
    return op.stack(rows, axis=-1)


def _bitcast_to_unsigned(node: StablehloNode, data: Expr, width: int) -> Expr:
    """Bitcast elements to unsigned integers of the same width."""
    narrow = find_narrow_dtype(node.operation.operands[0].type)
    dtype = node.scope.tensor_type_of(data).dtype
    if dtype == "bool":
        return node.emit_once(op.cast(data, "uint8"))
    if narrow is not None and not narrow.is_integer:
        if not narrow.storage_dtype or narrow.bits < _MIN_DTYPE_BITS:
            node.reject(f"the bits of {narrow.name}")
        return node.emit_once(op.reinterpret(op.cast(data, narrow.storage_dtype), "uint8"))
    plain = _unsigned_dtype(width)
    return node.emit_once(data if dtype == plain else op.reinterpret(data, plain))


def _join_words(node: StablehloNode, words: Expr, first: int, count: int, word: int) -> Expr:
    """Join `count` words from `first` on, along the last axis, into elements of the
    result's dtype.
    """
    target, width = node.out_dtype(), node.out_bits()
    plain = _unsigned_dtype(width)
    total: Expr | None = None
    for index in range(count):
        position = const(first + index, "int64")
        word_value = op.cast(op.take(words, position, axis=-1), plain)
        moved = (
            op.left_shift(word_value, const(np.array(index * word, plain))) if index else word_value
        )
        total = moved if total is None else op.bitwise_or(total, moved)
    assert total is not None, "an element has a word"
    narrow = find_narrow_dtype(node.operation.results[0].type)
    if target == "bool":
        return op.not_equal(total, const(np.array(0, plain)))
    if narrow is not None and not narrow.is_integer:
        if not narrow.storage_dtype or narrow.bits < _MIN_DTYPE_BITS:
            node.reject(f"bits as {narrow.name}")
        return op.cast(op.reinterpret(total, narrow.storage_dtype), target)
    return total if target == plain else op.reinterpret(total, target)


_MIN_DTYPE_BITS = 8


def _unsigned_dtype(width: int) -> str:
    return f"uint{max(width, _MIN_DTYPE_BITS)}"


# Shorter floats.

_FLOAT_FORMATS: Mapping[str, tuple[int, int]] = {
    "float64": (11, 52), "float32": (8, 23), "float16": (5, 10), "bfloat16": (8, 7),
}  # fmt: skip
"""Dtype -> bits of exponent and of mantissa."""


def _reduce_precision(node: StablehloNode) -> Result:
    """Round floats to a number of exponent and mantissa bits, as XLA does.

    Halves round to even, overflow becomes infinity, and subnormals become zero of the same sign.
    """
    bits = (node.int_attribute("exponent_bits"), node.int_attribute("mantissa_bits"))
    dtype = node.dtype(0)
    exponent, mantissa = _FLOAT_FORMATS[dtype]
    if bits[0] >= exponent and bits[1] >= mantissa:
        return node.value(0)
    # Two conversion instructions do what the bit arithmetic below does in ten.
    if dtype == "float32" and bits == _FLOAT_FORMATS["bfloat16"]:
        return op.cast(op.cast(node.expr(0), "bfloat16"), dtype)
    return _round_float_bits(node, node.expr(0), dtype, bits)


def _round_float_bits(node: StablehloNode, data: Expr, dtype: str, bits: tuple[int, int]) -> Expr:
    exponent, mantissa = _FLOAT_FORMATS[dtype]
    plain = f"uint{8 * itemsize(dtype)}"

    def word_const(number: int) -> Expr:
        return const(np.array(number, plain))

    float_bits = node.emit_once(op.reinterpret(data, plain))
    infinity = ((1 << exponent) - 1) << mantissa
    sign = node.emit_once(op.bitwise_and(float_bits, word_const(1 << (exponent + mantissa))))
    magnitude = node.emit_once(op.bitwise_xor(float_bits, sign))
    cut = mantissa - bits[1]
    if cut > 0:
        last = op.bitwise_and(op.right_shift(magnitude, word_const(cut)), word_const(1))
        # Round half to even: add half of the last kept place, less one unless that place is odd.
        half = op.add(last, word_const((1 << (cut - 1)) - 1))
        magnitude = op.bitwise_and(
            op.add(magnitude, half),
            word_const(((1 << (exponent + mantissa + 1)) - 1) & -(1 << cut)),
        )
        magnitude = node.emit_once(magnitude)
    if bits[0] < exponent:
        bias, reduced = (1 << (exponent - 1)) - 1, (1 << (bits[0] - 1)) - 1
        level = node.emit_once(op.bitwise_and(magnitude, word_const(infinity)))
        # XLA flushes results below the smallest normal number of the reduced format to zero.
        is_small = op.less_equal(level, word_const((bias - reduced) << mantissa))
        is_large = op.greater(level, word_const((bias + reduced) << mantissa))
        magnitude = op.where(
            is_large, word_const(infinity), op.where(is_small, word_const(0), magnitude)
        )
    rounded = op.reinterpret(op.bitwise_or(magnitude, sign), dtype)
    of_none = data if bits[1] else op.reinterpret(op.bitwise_or(sign, word_const(infinity)), dtype)
    return op.where(op.isnan(data), of_none, rounded)


ROWS: tuple[StablehloRow, ...] = (
    StablehloRow(
        "stablehlo.bitcast_convert",
        _bitcast,
        make_complex_rule=custom_complex_rule(_complex_bitcast),
    ),
    StablehloRow("stablehlo.reduce_precision", _reduce_precision),
)
