"""gemmlowp's fixed-point functions: on Relay expressions of int64 with 31 fraction bits, on arrays
also with 15.

They are Taylor and Newton steps whose roundings are part of the definition of a quantised softmax
and of an integer LSTM's gates (google/gemmlowp, fixedpoint/fixedpoint.h).
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass

_MAX_INT32 = (1 << 31) - 1


def _i64_const(value: int) -> Expr:
    return const(np.int64(value))


def doubling_high_mul(a: Expr, b: Expr) -> Expr:
    """Emit a * b, rounded half up (gemmlowp: SaturatingRoundingDoublingHighMul)."""
    # a * b has at most 62 bits in int64; only -1 * -1 would need saturation, which callers never
    # pass.
    wide = op.add(op.multiply(a, b), _i64_const(1 << 30))
    return op.right_shift(wide, _i64_const(31))


def rounding_divide_by_pot(data: Expr, by: Expr) -> Expr:
    """Emit data / 2**by, rounded half away from zero (gemmlowp: RoundingDivideByPOT); `by` is at
    least 0.
    """
    half = op.right_shift(op.left_shift(_i64_const(1), by), _i64_const(1))
    is_below = op.logical_and(op.less(data, _i64_const(0)), op.greater(by, _i64_const(0)))
    moved = op.subtract(op.add(data, half), op.cast(is_below, "int64"))
    return op.right_shift(moved, by)


def _saturate_int32(data: Expr) -> Expr:
    return op.minimum(op.maximum(data, _i64_const(-_MAX_INT32 - 1)), _i64_const(_MAX_INT32))


def _saturating_shift_left(data: Expr, bits: int) -> Expr:
    return _saturate_int32(op.left_shift(data, _i64_const(bits)))


def count_leading_zeros(data: Expr) -> Expr:
    """Emit the number of leading zeros of non-negative 32-bit numbers."""
    # Relay has no count-leading-zeros operator.
    return reduce(op.add, (op.cast(op.less(data, _i64_const(1 << k)), "int64") for k in range(32)))


def _one_over_one_plus_x(fraction: Expr) -> Expr:
    """Emit 1 / (1 + x) for x in [0, 1] by three Newton steps."""
    half = op.right_shift(op.add(fraction, _i64_const(_MAX_INT32 + 1)), _i64_const(1))
    x = op.add(_i64_const(1515870810), doubling_high_mul(half, _i64_const(-1010580540)))
    # Newton's method from 48 / 17 - 32 / 17 x doubles the correct bits in each step.
    for _ in range(3):
        error = op.subtract(_i64_const(1 << 29), doubling_high_mul(half, x))
        x = op.add(x, _saturating_shift_left(doubling_high_mul(x, error), 2))
    return _saturating_shift_left(x, 1)


def emit_reciprocal(data: Expr) -> tuple[Expr, Expr]:
    """Emit (leading zeros, 1 / (1 + x)), where 1 + x is the number normalized to its
    leading bit.
    """
    zeros = count_leading_zeros(data)
    fraction = op.subtract(op.left_shift(data, zeros), _i64_const(1 << 31))
    return zeros, _one_over_one_plus_x(fraction)


def emit_log(data: Expr, integer_bits: int, result: int) -> Expr:
    """Emit the logarithm of numbers >= 1 with `integer_bits` integer bits, as `result` integer
    bits.

    A number is a power of two, or of two and a half, times one near sqrt(sqrt(1 / 2)), around which
    a rational function approximates the logarithm. Sums have one more integer bit.
    """
    behind = 31 - (result + 1)
    middle, quarter = _i64_const(_ROOT_OF_ROOT), _i64_const(1 << 29 >> (result + 1))
    zeros = count_leading_zeros(data)
    near = doubling_high_mul(
        op.left_shift(data, op.subtract(zeros, _i64_const(1))), _i64_const(_ROOT)
    )
    power = op.add(
        op.left_shift(op.subtract(_i64_const(integer_bits), zeros), _i64_const(behind)), quarter
    )
    room = op.subtract(
        count_leading_zeros(doubling_high_mul(data, _i64_const(_ROOT))), _i64_const(1)
    )
    alternative = _saturate_int32(op.left_shift(data, room))
    alternative_power = op.left_shift(
        op.subtract(_i64_const(integer_bits), room), _i64_const(behind)
    )
    x = op.minimum(_saturating_shift_left(near, 1), alternative)
    power = op.maximum(
        _saturate_int32(power), _saturate_int32(op.subtract(alternative_power, quarter))
    )
    p = op.right_shift(op.add(op.add(x, middle), _i64_const(1)), _i64_const(1))
    q = op.left_shift(op.subtract(x, middle), _i64_const(1))
    square = doubling_high_mul(q, q)
    above = op.add(
        doubling_high_mul(q, x),
        doubling_high_mul(doubling_high_mul(q, square), _i64_const(117049297)),
    )
    inner = op.add(
        op.add(_i64_const(1057819769), q), doubling_high_mul(_i64_const(127690142), square)
    )
    below = op.add(doubling_high_mul(p, inner), doubling_high_mul(_i64_const(638450708), q))
    quotient = doubling_high_mul(
        rounding_divide_by_pot(above, _i64_const(result + 1)), _one_over_one_plus_x(below)
    )
    return _saturating_shift_left(
        op.add(doubling_high_mul(power, _i64_const(_LOG_TWO)), quotient), 1
    )


_LOG_TWO, _ROOT, _ROOT_OF_ROOT = 1488522236, 1518500250, 1805811301
"""log(2), sqrt(1 / 2) and the root of that."""


def inverse_sqrt(data: Expr) -> tuple[Expr, Expr]:
    """Emit (factor, shift) with 1 / sqrt(n) = factor / 2**(31 + shift) for n below 2**31.

    By five Newton steps with 3 integer bits. For numbers not above 1 the result is nearly 1.
    """
    is_large = op.greater_equal(data, _i64_const(1 << 29))
    x = op.where(is_large, op.right_shift(data, _i64_const(2)), data)
    pairs = op.subtract(op.right_shift(op.subtract(count_leading_zeros(x), _i64_const(1)),
        _i64_const(1)),
                        _i64_const(1))  # fmt: skip
    shift = op.subtract(op.add(_i64_const(11), op.cast(is_large, "int64")), pairs)
    moved = op.left_shift(x, op.multiply(pairs, _i64_const(2)))
    x = op.right_shift(moved, _i64_const(1))
    half = rounding_divide_by_pot(x, _i64_const(1))
    root: Expr = op.full_like(x, _i64_const(1 << 28))
    # Five Newton iterations, as TensorFlow Lite's GetInvSqrtQuantizedMultiplierExp.
    for _ in range(5):
        cube = _saturating_shift_left(doubling_high_mul(doubling_high_mul(root, root), root), 6)
        apart = op.subtract(
            doubling_high_mul(_i64_const(3 << 27), root), doubling_high_mul(half, cube)
        )
        root = _saturating_shift_left(apart, 3)
    # sqrt(1 / 2) with 31 fraction bits.
    root = doubling_high_mul(root, _i64_const(1518500250))
    short = op.minimum(shift, _i64_const(0))
    root = op.left_shift(root, op.subtract(_i64_const(0), short))
    is_one = op.less_equal(data, _i64_const(1))
    return (op.where(is_one, _i64_const(_MAX_INT32), root),
            op.where(is_one, _i64_const(0), op.maximum(shift, _i64_const(0))))  # fmt: skip


# --- the same on arrays --------------------------------------------------------------------------


_EXP_FACTORS = ((-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535),
                (3, 720401), (4, 242))  # fmt: skip
"""(k, exp(-2**k) of 31 bits)."""
_EXP_UNDERFLOW_BITS = 5
"""Bits before the point from which on a number may be below -32, where exp is 0."""


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Fixed-point arithmetic on signed integers with `bits` fraction bits: 31 or 15."""

    bits: int

    def round_constant(self, value: int) -> int:
        """Round a constant from 31 to `bits` fraction bits, half away from zero."""
        return int(rounding_shift_right(np.asarray(value, np.int64), 31 - self.bits))

    def rounded_product(self, a: Array, b: Array | int) -> Array:
        """Return a * b, rounded half up and saturated."""
        half = 1 << (self.bits - 1)
        return self.saturate(np.right_shift(np.asarray(a * b + half, np.int64), self.bits))

    def saturate(self, data: Array) -> Array:
        """Saturate numbers to the sign and `bits` bits."""
        return np.clip(data, -1 << self.bits, (1 << self.bits) - 1)

    def exp(self, data: Array, integer_bits: int) -> Array:
        """Return exp of non-positive numbers with `integer_bits` integer bits."""
        data = data.astype(np.int64)
        behind = self.bits - integer_bits
        quarter = 1 << (behind - 2)
        remainder = (data & (quarter - 1)) - quarter
        exponential = self._exp_near_zero(remainder << integer_bits)
        quarters = remainder - data
        # Barrel shifter: each set bit of the quarters multiplies by its precomputed exponential.
        for exponent, factor in _EXP_FACTORS:
            if exponent < integer_bits:
                is_set = (quarters & (1 << (behind + exponent))) != 0
                exponential = np.where(
                    is_set,
                    self.rounded_product(exponential, self.round_constant(factor)),
                    exponential,
                )
        if integer_bits > _EXP_UNDERFLOW_BITS:
            exponential = np.where(data < -32 << behind, 0, exponential)
        return np.where(data == 0, (1 << self.bits) - 1, exponential)

    def _exp_near_zero(self, data: Array) -> Array:
        """Return exp on [-1/4, 0] by Taylor expansion around -1/8."""
        start, third = self.round_constant(1895147668), self.round_constant(715827883)
        x = data + (1 << (self.bits - 3))
        x2 = self.rounded_product(x, x)
        x3, x4 = self.rounded_product(x2, x), self.rounded_product(x2, x2)
        tail = rounding_shift_right(
            self.rounded_product(rounding_shift_right(x4, 2) + x3, third) + x2, 1
        )
        return self.saturate(start + self.rounded_product(x + tail, start))

    def _inverse(self, data: Array) -> Array:
        """Return 2 / (1 + x) for x in [0, 1] with 2 integer bits, by Newton steps."""
        half = (data + (1 << self.bits)) >> 1
        x = self.round_constant(1515870810) + self.rounded_product(
            half, self.round_constant(-1010580540)
        )
        one = 1 << (self.bits - 2)
        for _ in range(3):
            error = one - self.rounded_product(half, x)
            x = x + self.saturate(self.rounded_product(x, error) << 2)
        return x

    def reciprocal(self, data: Array) -> tuple[Array, Array]:
        """Return (leading zeros, 1 / (1 + x)) of positive integers, where 1 + x is the number
        normalized to its leading bit.
        """
        zeros = self.bits + 1 - np.frexp(data.astype(np.float64))[1].astype(np.int64)
        fraction = (data << zeros) - (1 << self.bits)
        return zeros, self.saturate(self._inverse(fraction) << 1)

    def sigmoid(self, data: Array, integer_bits: int) -> Array:
        """Return 1 / (1 + exp(-x)) of numbers with `integer_bits` integer bits."""
        above = self.saturate(self._inverse(self.exp(-np.abs(data), integer_bits)) << 1)
        logistic = np.where(data > 0, above, (1 << self.bits) - 1 - above)
        return np.where(data == 0, 1 << (self.bits - 1), logistic)

    def tanh(self, data: Array, integer_bits: int) -> Array:
        """Return (1 - exp(-2 x)) / (1 + exp(-2 x)) of numbers with `integer_bits` integer bits."""
        inverse = self._inverse(self.exp(-np.abs(data), integer_bits + 1))
        magnitude = self.saturate((inverse - (1 << (self.bits - 2))) << 2)
        return np.where(data == 0, 0, np.where(data < 0, -magnitude, magnitude))


def rounding_shift_right(data: Array, bits: int | Array) -> Array:
    """Return data / 2**bits, rounded half away from zero; `bits` is in [0, 62]."""
    moved = np.asarray(data + (1 << bits >> 1) - (data < 0), np.int64)
    return np.right_shift(moved, bits)
