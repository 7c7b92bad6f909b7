"""Operations on the bits of elements: bitcasts between any widths, and shorter floats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ekiden.frontend.common.complex import Complex
from ekiden.frontend.common.node import Result
from ekiden.frontend.jax.dtype import narrow_of
from ekiden.frontend.jax.node import Many, Node, Row, own
from ekiden.ir.dtype import itemsize
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

# Bitcasts.


def _bitcast(node: Node) -> Result:
    dtype, wanted = node.dtype(0), node.out_dtype()
    operand, result = node.operation.operands[0], node.operation.results[0]
    if operand.type.element_type == result.type.element_type:
        return node.value(0)
    is_whole = not any(map(narrow_of, (operand.type, result.type))) and "bool" not in (
        dtype,
        wanted,
    )
    if is_whole and itemsize(dtype) == itemsize(wanted):
        return op.reinterpret(node.expr(0), wanted)
    (made,) = _bitcast_parts(node, [node.expr(0)], node.bits(0), node.out_bits(), 1)
    return made


def _complex_bitcast(node: Node) -> Many | Expr | tuple[Expr, Expr]:
    """Return complex numbers as others of another width, or from or to real ones: the real part is
    the low half of the bits.
    """
    operand, result = node.whole[0], node.operation.results[0]
    if node.operation.operands[0].type.element_type == result.type.element_type:
        return [operand]
    parts = list(node.parts(0)) if isinstance(operand, Complex) else [node.expr(0)]
    count = 2 if node.is_complex_out() else 1
    made = _bitcast_parts(node, parts, node.bits(0), node.out_bits(), count)
    return (made[0], made[1]) if count == 2 else made[0]


def _bitcast_parts(
    node: Node, parts: Sequence[Expr], width: int, wanted: int, count: int
) -> list[Expr]:
    """Return the same bits in elements of `count` parts of `wanted` bits each, of elements whose
    parts have `width` bits: cut into words of the largest width that both are made of, the low ones
    first, along a last axis.
    """
    word = math.gcd(width, wanted)
    words = [node.shared(_words(node, part, width, word)) for part in parts]
    both = op.concatenate(words, axis=-1) if len(words) > 1 else words[0]
    whole, element = len(parts) * width, count * wanted
    shape = list(node.shape(0))
    if whole < element:  # the last axis of the operand is of the parts of an element
        both = op.reshape(both, (*shape[:-1], element // word), allowzero=True)
    elif whole > element:
        both = op.reshape(both, (*shape, whole // element, element // word), allowzero=True)
    both = node.shared(both)
    each = wanted // word
    return [_joined(node, both, index * each, each, word) for index in range(count)]


def _words(node: Node, part: Expr, width: int, word: int) -> Expr:
    """Return [..., width / word]: the words of elements, as unsigned integers."""
    plain = _as_integers(node, part, width)
    dtype, target = _unsigned(width), _unsigned(word)
    mask = const(np.array((1 << word) - 1, dtype))
    rows = [
        op.cast(op.bitwise_and(op.right_shift(plain, const(np.array(at, dtype))), mask), target)
        for at in range(0, width, word)
    ]
    return op.stack(rows, axis=-1)


def _as_integers(node: Node, part: Expr, width: int) -> Expr:
    """Return elements as unsigned integers that have their bits."""
    narrow = narrow_of(node.operation.operands[0].type)
    dtype = node.scope.typed(part).dtype
    if dtype == "bool":
        return node.shared(op.cast(part, "uint8"))
    if narrow is not None and not narrow.is_integer:
        if not narrow.stored or narrow.bits < _BYTE:
            node.unsupported(f"the bits of {narrow.name}")
        return node.shared(op.reinterpret(op.cast(part, narrow.stored), "uint8"))
    plain = _unsigned(width)
    return node.shared(part if dtype == plain else op.reinterpret(part, plain))


def _joined(node: Node, words: Expr, first: int, count: int, word: int) -> Expr:
    """Return the elements of the result whose words stand from `first` on in the last axis."""
    wanted, width = node.out_dtype(), node.out_bits()
    plain = _unsigned(width)
    total: Expr | None = None
    for index in range(count):
        at = const(first + index, "int64")
        part = op.cast(op.take(words, at, axis=-1), plain)
        moved = op.left_shift(part, const(np.array(index * word, plain))) if index else part
        total = moved if total is None else op.bitwise_or(total, moved)
    assert total is not None, "an element has a word"
    narrow = narrow_of(node.operation.results[0].type)
    if wanted == "bool":
        return op.not_equal(total, const(np.array(0, plain)))
    if narrow is not None and not narrow.is_integer:
        if not narrow.stored or narrow.bits < _BYTE:
            node.unsupported(f"bits as {narrow.name}")
        return op.cast(op.reinterpret(total, narrow.stored), wanted)
    return total if wanted == plain else op.reinterpret(total, wanted)


_BYTE = 8


def _unsigned(width: int) -> str:
    return f"uint{max(width, _BYTE)}"


# Shorter floats.

_FORMS: Mapping[str, tuple[int, int]] = {
    "float64": (11, 52), "float32": (8, 23), "float16": (5, 10), "bfloat16": (8, 7),
}  # fmt: skip
"""Dtype -> bits of exponent and of mantissa."""


def _reduce_precision(node: Node) -> Result:
    """Return floats rounded to so many bits of exponent and mantissa, as XLA does it: halves to
    even, what is too large becomes infinite, what would be subnormal becomes 0 of its sign.
    """
    bits = (node.integer("exponent_bits"), node.integer("mantissa_bits"))
    dtype = node.dtype(0)
    exponent, mantissa = _FORMS[dtype]
    if bits[0] >= exponent and bits[1] >= mantissa:
        return node.value(0)
    if dtype == "float32" and bits == _FORMS["bfloat16"]:
        return op.cast(op.cast(node.expr(0), "bfloat16"), dtype)
    return _shortened(node, node.expr(0), dtype, bits)


def _shortened(node: Node, data: Expr, dtype: str, bits: tuple[int, int]) -> Expr:
    exponent, mantissa = _FORMS[dtype]
    plain = f"uint{8 * itemsize(dtype)}"

    def word(number: int) -> Expr:
        return const(np.array(number, plain))

    whole = node.shared(op.reinterpret(data, plain))
    infinity = ((1 << exponent) - 1) << mantissa
    sign = node.shared(op.bitwise_and(whole, word(1 << (exponent + mantissa))))
    found = node.shared(op.bitwise_xor(whole, sign))
    cut = mantissa - bits[1]
    if cut > 0:
        last = op.bitwise_and(op.right_shift(found, word(cut)), word(1))
        half = op.add(last, word((1 << (cut - 1)) - 1))
        found = op.bitwise_and(
            op.add(found, half), word(((1 << (exponent + mantissa + 1)) - 1) & -(1 << cut))
        )
        found = node.shared(found)
    if bits[0] < exponent:
        bias, reduced = (1 << (exponent - 1)) - 1, (1 << (bits[0] - 1)) - 1
        level = node.shared(op.bitwise_and(found, word(infinity)))
        is_small = op.less_equal(level, word((bias - reduced) << mantissa))
        is_large = op.greater(level, word((bias + reduced) << mantissa))
        found = op.where(is_large, word(infinity), op.where(is_small, word(0), found))
    made = op.reinterpret(op.bitwise_or(found, sign), dtype)
    of_none = data if bits[1] else op.reinterpret(op.bitwise_or(sign, word(infinity)), dtype)
    return op.where(op.isnan(data), of_none, made)


ROWS: tuple[Row, ...] = (
    Row("stablehlo.bitcast_convert", _bitcast, on_complex=own(_complex_bitcast)),
    Row("stablehlo.reduce_precision", _reduce_precision),
)
