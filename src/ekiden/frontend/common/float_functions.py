"""Elementwise float functions composed of Relay operators, each on tensors of one dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ekiden.ir.dtype import int_range, is_float, itemsize, wrap_to_dtype
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def expm1(x: Expr, dtype: str) -> Expr:
    """Emit exp(x) - 1 without cancellation near 0: (u - 1) (x / log u) with u = exp(x) (Kahan).

    The quotient is near 1, where a product of both small numbers would underflow in float16.
    """
    one = const(1, dtype)
    u = op.exp(x)
    near = op.multiply(op.subtract(u, one), op.divide(x, op.log(u)))
    plain = op.subtract(u, one)
    far = op.logical_or(op.greater(op.abs(x), one), op.isnan(x))
    # Where exp(x) rounds to 1, x is the answer to full precision and log(u) would be 0.
    return op.where(op.equal(u, one), x, op.where(far, plain, near))


def log1p(x: Expr, dtype: str) -> Expr:
    """Emit log(1 + x) without cancellation near 0: log(u) (x / (u - 1)) with u = 1 + x (Kahan)."""
    one = const(1, dtype)
    u = op.add(one, x)
    near = op.multiply(op.log(u), op.divide(x, op.subtract(u, one)))
    far = op.logical_or(op.greater(op.abs(x), one), op.isnan(x))
    return op.where(op.equal(u, one), x, op.where(far, op.log(u), near))


def saturating_cast(x: Expr, dtype: str, target: str, of_none: float = 0) -> Expr:
    """Emit a cast of floats to integers that truncates and saturates at the dtype's limits; NaN
    becomes `of_none`.

    The float just above the largest integer is a power of two, which is exact.
    """
    ends = int_range(target)
    assert ends is not None, f"{target} are no integers"
    lowest, largest = (const(np.array(end, target)) for end in ends)
    none = op.isnan(x)
    truncated = op.cast(op.where(none, const(0, dtype), x), target)
    # 2**31 is exact in float32, 2**31 - 1 is not: compare with >= the former.
    above = op.greater_equal(x, const(wrap_to_dtype(ends[1] + 1, dtype), dtype))
    below = op.less_equal(x, const(wrap_to_dtype(ends[0], dtype), dtype))
    truncated = op.where(above, largest, op.where(below, lowest, truncated))
    return (
        truncated if of_none == 0 else op.where(none, const(np.array(of_none, target)), truncated)
    )


def clamped_shift(function: Callable[[Expr, Expr], Expr], x: Expr, bits: Expr, dtype: str) -> Expr:
    """Emit a shift by `bits` clamped to [0, width - 1]; C and LLVM leave larger shifts
    undefined.
    """
    return function(x, op.clip(bits, 0, 8 * itemsize(dtype) - 1))


def erfc(x: Expr, dtype: str) -> Expr:
    """Emit the complementary error function 1 - erf(x) without cancellation for large x."""
    wide = op.cast(x, "float64")
    far = op.maximum(wide, const(1.0, "float64"))
    factor = _erfcx_continued_fraction(far) if dtype == "float64" else _erfcx_polynomial(far)
    tail = op.multiply(op.exp(op.negative(op.multiply(far, far))), factor)
    near = op.subtract(const(1, dtype), op.erf(x))
    return op.where(op.greater(x, const(1, dtype)), op.cast(tail, dtype), near)


_ERFC_COEFFICIENTS = (
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418,
    0.37409196, 1.00002368, -1.26551223,
)  # fmt: skip


def _erfcx_polynomial(x: Expr) -> Expr:
    """Return exp(x x) erfc(x) to 1.2e-7 (Numerical Recipes, erfcc): t exp(p(t)), t = 1 / (1 + x /
    2).
    """
    one, half = const(1.0, "float64"), const(0.5, "float64")
    t = op.divide(one, op.add(one, op.multiply(x, half)))
    sums: Expr = const(_ERFC_COEFFICIENTS[0], "float64")
    for coefficient in _ERFC_COEFFICIENTS[1:]:
        sums = op.add(op.multiply(sums, t), const(coefficient, "float64"))
    return op.multiply(t, op.exp(sums))


def _erfcx_continued_fraction(x: Expr) -> Expr:
    """Return exp(x x) erfc(x) by its continued fraction (DLMF 7.9.3)."""
    fraction = x
    for k in range(120, 0, -1):
        fraction = op.add(x, op.divide(const(k / 2, "float64"), fraction))
    return op.divide(const(1 / math.sqrt(math.pi), "float64"), fraction)


def fmod(x: Expr, y: Expr, dtype: str) -> Expr:
    """Emit C's fmod, whose sign is the dividend's.

    Of floats by infinity it is the dividend, which a kernel's x - trunc(x / y) * y would make NaN.
    """
    if not is_float(dtype):
        return op.trunc_mod(x, y)
    # fmod(x, inf) is x (C99 F.10.7.1), where x - trunc(x / y) * y would be NaN.
    alone = op.logical_and(op.isinf(y), op.isfinite(x))
    return op.where(alone, x, op.mod(x, y))


def python_mod(x: Expr, y: Expr, dtype: str) -> Expr:
    """Emit Python's %, whose sign is the divisor's."""
    if not is_float(dtype):
        return op.floor_mod(x, y)
    remainder = fmod(x, y, dtype)
    return op.where(nonzero_signs_differ(remainder, y, dtype), op.add(remainder, y), remainder)


def nonzero_signs_differ(remainder: Expr, y: Expr, dtype: str) -> Expr:
    """Emit the mask of non-zero remainders whose sign differs from the divisor's."""
    zero = const(0, dtype)
    differs = op.not_equal(op.less(remainder, zero), op.less(y, zero))
    return op.logical_and(op.not_equal(remainder, zero), differs)


def atan2(y: Expr, x: Expr, dtype: str) -> Expr:
    """Emit the angle of (x, y): atan of the smaller over the larger magnitude, mapped to its
    octant.
    """
    zero, half, pi = const(0, dtype), const(math.pi / 2, dtype), const(math.pi, dtype)
    up, right = op.abs(y), op.abs(x)
    low, high = op.minimum(up, right), op.maximum(up, right)
    # inf / inf is NaN: two infinities are on the diagonal, whose ratio is 1.
    both_infinite = op.logical_and(op.isinf(up), op.isinf(right))
    ratio = op.where(op.equal(high, zero), zero, op.divide(low, high))
    ratio = op.where(both_infinite, const(1, dtype), ratio)
    angle = op.atan(ratio)
    angle = op.where(op.greater(up, right), op.subtract(half, angle), angle)
    angle = op.where(signbit(x, dtype), op.subtract(pi, angle), angle)
    signed = op.where(signbit(y, dtype), op.negative(angle), angle)
    return op.where(op.logical_or(op.isnan(x), op.isnan(y)), op.add(x, y), signed)


def signbit(x: Expr, dtype: str) -> Expr:
    """Emit the sign bit as bool; the reciprocal tells -0 from 0."""
    zero = const(0, dtype)
    below = op.less(op.divide(const(1, dtype), x), zero)
    return op.logical_or(op.less(x, zero), op.logical_and(op.equal(x, zero), below))


def reciprocal(x: Expr, dtype: str) -> Expr:
    """Return 1 / x."""
    return op.divide(const(1, dtype), x)


def square(x: Expr) -> Expr:
    """Return x * x."""
    return op.multiply(x, x)


def squared_difference(x: Expr, y: Expr) -> Expr:
    """Return (x - y) ** 2."""
    return square(op.subtract(x, y))


# Activations.


def relu6(x: Expr) -> Expr:
    """Return x between 0 and 6."""
    return op.clip(x, 0.0, 6.0)


def elu(
    x: Expr, dtype: str, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Expr:
    """Return scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1))."""
    zero = const(0, dtype)
    below = expm1(_scale(op.minimum(x, zero), input_scale, dtype), dtype)
    return _scale(op.where(op.greater(x, zero), x, _scale(below, alpha, dtype)), scale, dtype)


def _scale(x: Expr, factor: float, dtype: str) -> Expr:
    """Multiply by a constant; a factor of 1 emits nothing."""
    return x if factor == 1 else op.multiply(x, const(factor, dtype))


def selu(
    x: Expr, dtype: str, alpha: float = 1.6732632423543772, scale: float = 1.0507009873554805
) -> Expr:
    """Return elu with the constants of "Self-Normalizing Neural Networks" (Klambauer 2017)."""
    return elu(x, dtype, alpha, scale)


def prelu(x: Expr, slope: Expr, dtype: str) -> Expr:
    """Emit x where it is at least 0, else slope * x; the slope is a tensor."""
    return op.where(op.less(x, const(0, dtype)), op.multiply(x, slope), x)


def softplus(x: Expr, dtype: str) -> Expr:
    """Emit log(1 + exp(x)) as max(x, 0) + log1p(exp(-|x|)), which neither overflows nor loses small
    results.
    """
    tail = log1p(op.exp(op.negative(op.abs(x))), dtype)
    return op.add(op.maximum(x, const(0, dtype)), tail)


def softsign(x: Expr, dtype: str) -> Expr:
    """Return x / (1 + |x|)."""
    return op.divide(x, op.add(const(1, dtype), op.abs(x)))


def silu(x: Expr) -> Expr:
    """Return x * sigmoid(x)."""
    return op.multiply(x, op.sigmoid(x))


def swish(x: Expr, dtype: str, alpha: float) -> Expr:
    """Return x * sigmoid(alpha * x)."""
    return op.multiply(x, op.sigmoid(_scale(x, alpha, dtype)))


def scaled_hard_sigmoid(x: Expr, dtype: str, alpha: float, beta: float) -> Expr:
    """Emit clip(alpha * x + beta, 0, 1), ONNX's HardSigmoid."""
    sloped = op.multiply(x, const(alpha, dtype))
    return op.clip(op.add(sloped, const(beta, dtype)), 0.0, 1.0)


def hard_sigmoid(x: Expr, dtype: str) -> Expr:
    """Return relu6(x + 3) / 6."""
    return op.divide(relu6(op.add(x, const(3, dtype))), const(6, dtype))


def hard_swish(x: Expr, dtype: str) -> Expr:
    """Return x * relu6(x + 3) / 6."""
    return op.multiply(x, hard_sigmoid(x, dtype))


def gelu(x: Expr, dtype: str, by_tanh: bool = False) -> Expr:
    """Emit x * Phi(x) with the normal distribution function Phi, exactly by erf or by the tanh
    approximation.
    """
    if by_tanh:
        # The approximation of Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
        cubic = op.multiply(const(0.044715, dtype), op.multiply(x, op.multiply(x, x)))
        inner = op.tanh(op.multiply(const((2 / math.pi) ** 0.5, dtype), op.add(x, cubic)))
    else:
        inner = op.erf(op.multiply(x, const(0.5**0.5, dtype)))
    return op.multiply(op.multiply(const(0.5, dtype), x), op.add(const(1, dtype), inner))


FUSED_ACTIVATIONS: Mapping[str, Callable[[Expr], Expr]] = {
    "linear": lambda x: x,
    "relu": op.nn.relu,
    "relu_n1_to_1": lambda x: op.clip(x, -1.0, 1.0),
    "relu6": relu6,
    "tanh": op.tanh,
}
"""Activations that operators and cells apply to their results, by name."""
