"""gemmlowp's functions in fixed point: numbers of 31 bits behind the point, as int64.

They are Taylor and Newton steps whose roundings are part of what a quantised softmax means
(google/gemmlowp, fixedpoint/fixedpoint.h describes them).
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

_ONE = (1 << 31) - 1


def _number(value: int) -> Expr:
    return const(np.int64(value))


def product(a: Expr, b: Expr) -> Expr:
    """a * b, midway upward."""
    wide = op.add(op.multiply(a, b), _number(1 << 30))
    return op.right_shift(wide, _number(31))


def shifted(data: Expr, by: Expr) -> Expr:
    """data / 2**by, midway away from zero; `by` is at least 0."""
    half = op.right_shift(op.left_shift(_number(1), by), _number(1))
    is_below = op.logical_and(op.less(data, _number(0)), op.greater(by, _number(0)))
    moved = op.subtract(op.add(data, half), op.cast(is_below, "int64"))
    return op.right_shift(moved, by)


def _saturated(data: Expr) -> Expr:
    return op.minimum(op.maximum(data, _number(-_ONE - 1)), _number(_ONE))


def _raised(data: Expr, bits: int) -> Expr:
    return _saturated(op.left_shift(data, _number(bits)))


def leading_zeros(data: Expr) -> Expr:
    """Of 32 bits; none is below 0."""
    return reduce(op.add, (op.cast(op.less(data, _number(1 << k)), "int64") for k in range(32)))


def reciprocal(data: Expr) -> tuple[Expr, Expr]:
    """(leading zeros of 32 bits, the reciprocal of what stands behind the first one, as 1 + x)."""
    zeros = leading_zeros(data)
    rest = op.subtract(op.left_shift(data, zeros), _number(1 << 31))
    half = op.right_shift(op.add(rest, _number(_ONE + 1)), _number(1))
    x = op.add(_number(1515870810), product(half, _number(-1010580540)))
    for _ in range(3):
        error = op.subtract(_number(1 << 29), product(half, x))
        x = op.add(x, _raised(product(x, error), 2))
    return zeros, _raised(x, 1)


_STEPS = ((-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535),
          (3, 720401), (4, 242))  # fmt: skip
"""(k, exp(-2**k) of 31 bits)."""


def exp_of_negative(data: Array) -> Array:
    """exp of numbers with 26 bits behind the point, none above 0, as 31 bits."""
    data = data.astype(np.int64)
    quarter = 1 << 24
    rest = (data & (quarter - 1)) - quarter
    made = _exp_near_zero(rest << 5)
    left = rest - data
    for exponent, factor in _STEPS:
        made = np.where(left & (1 << (26 + exponent)), _high(made, factor), made)
    return np.where(data == 0, _ONE, made)


def _exp_near_zero(data: Array) -> Array:
    """Of numbers from -1/4 to 0: Taylor's expansion about -1/8."""
    start, third = 1895147668, 715827883
    x = data + (1 << 28)
    x2 = _high(x, x)
    x3, x4 = _high(x2, x), _high(x2, x2)
    tail = _halved(_high(_halved(x4, 2) + x3, third) + x2, 1)
    return start + _high(x + tail, start)


def _high(a: Array, b: Array | int) -> Array:
    return np.right_shift(np.asarray(a * b + (1 << 30), np.int64), 31)


def _halved(data: Array, bits: int) -> Array:
    moved = np.asarray(data + (1 << bits >> 1) - (data < 0), np.int64)
    return np.right_shift(moved, bits)
