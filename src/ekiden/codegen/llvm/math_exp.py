"""exp, sigmoid and tanh. Coefficients are our own minimax fits; errors are measured in
tests/codegen/test_math.py.
"""

from __future__ import annotations

from ekiden.codegen.llvm.builder import Operand
from ekiden.codegen.llvm.float_math import FloatMath

LOG2_E = 1.4426950408889634
# ln 2 in two parts (Cody and Waite): the first has trailing zero bits, so that n * LN2_HIGH is
# exact for every n of EXP_RANGE
LN2_HIGH = {"float32": 0.693145751953125, "float64": 0.693147180369123816490}
LN2_LOW = {"float32": 1.42860682030941723212e-6, "float64": 1.90821492927058770002e-10}
# arguments beyond which exp(x) rounds to 0 or overflows to infinity; clamping to them keeps n
# within the exponents that round_to_split_powers can represent
EXP_RANGE = {"float32": (-106.0, 90.0), "float64": (-750.0, 711.0)}
# arguments for which exp(x) and 2 / exp(x) are normal numbers: a microcode assist for a subnormal
# takes 100 cycles and more
EXP_NORMAL_RANGE = {"float32": (-87.33, 80.0), "float64": (-708.39, 700.0)}
# within 1/2 of the argument for which the biased exponent of 2**n is 0, so that the bit pattern
# built by _power_of_biased_exponent is +0.0
EXP_UNDERFLOW_LIMIT = {"float32": -88.0, "float64": -709.06}
# for r below it, r**2 / 2 is less than half an ulp of r and may be subnormal; adding it first keeps
# the product normal
TANH_ZERO_GUARD = {"float32": 1e-8, "float64": 1e-17}

# (exp(r) - 1 - r) / r**2 on |r| <= ln(2)/2; the relative error of exp is 2^-28.2 in float32 and
# 2^-59.9 in float64, below half an ulp, so that rounding decides (scripts/fit_polynomials.py)
EXP_POLYNOMIAL = {
    "float32": (
        0.4999999305049137, 0.16666514789120923, 0.0416684568332621, 0.008369419043271245,
        0.0013813142358422628,
    ),
    "float64": (
        0.5, 0.16666666666666685, 0.04166666666666589, 0.008333333333314848, 0.0013888888889187912,
        0.00019841269901596883, 2.4801586814899023e-05, 2.7557229828540865e-06,
        2.7557660405116254e-07, 2.5113740153661464e-08, 2.0806085033485754e-09,
    ),
}  # fmt: skip


def exp(m: FloatMath, x: Operand) -> Operand:
    """Return exp(x) = 2**n * exp(r), n = round(x / ln 2), r = x - n ln 2 (Cody and Waite). NaN
    stays NaN; subnormal results are rounded once. Arguments that underflow are replaced by 0
    before the computation: subnormal results cost 100 cycles, and a masked softmax has many.
    """
    low, high = EXP_RANGE[m.element]
    vanishes, zero = m.less(x, m.const(low)), m.const(0.0)
    exponential = exp_in_range(m, m.at_most(m.select(vanishes, zero, x), high))
    return m.select(vanishes, zero, exponential)


def exp_nonpositive(m: FloatMath, x: Operand) -> Operand:
    """Return exp(x) for x <= 0, or NaN, in fewer steps. Results below the least normal number over
    the root of 2 are 0: to round those once takes a product more, and 8 percent of a softmax
    (Zen 3). Arguments raised to where the power of two is 0 cost one step, results set to 0
    three, which is why AVX-512's instruction that scales is not used (Zen 4: a softmax takes
    1.16 of the time).
    """
    return exp_normal(m, m.at_least(x, EXP_UNDERFLOW_LIMIT[m.element]))


def _exp_flush_subnormal(m: FloatMath, x: Operand) -> Operand:
    """Return exp(x) for x <= 0, or NaN; results that would be subnormal are 0."""
    vanishes = m.less(x, m.const(EXP_NORMAL_RANGE[m.element][0]))
    return exp_normal(m, m.select(vanishes, m.const(EXP_UNDERFLOW_LIMIT[m.element]), x))


def exp_in_range(m: FloatMath, x: Operand) -> Operand:
    """Return exp(x) for x in EXP_RANGE."""
    if m.has_scale:
        n = m.emit_intrinsic("roundeven", m.mul(x, m.const(LOG2_E)))
        return m.scale(m.add(m.const(1.0), _expm1_reduced(m, x, n)), n)
    # 2**n alone may leave the normal range near both ends; its two halves do not.
    n, first, second = m.round_to_split_powers(x, LOG2_E)
    return m.mul(m.multiply_add(_expm1_reduced(m, x, n), first, first), second)


def exp_normal(m: FloatMath, x: Operand) -> Operand:
    """Return exp(x) for x in EXP_NORMAL_RANGE, or 0 for x = EXP_UNDERFLOW_LIMIT. NaN stays."""
    n, power = m.round_to_power(x, LOG2_E)
    return m.multiply_add(_expm1_reduced(m, x, n), power, power)


def _expm1_reduced(m: FloatMath, x: Operand, n: Operand) -> Operand:
    """Return exp(r) - 1 for r = x - n ln 2, accurate to the last place of exp(r)."""
    r = _reduce_argument(m, x, n)
    square = m.square_below_one(r)
    return m.multiply_add(m.paired_polynomial(r, square, EXP_POLYNOMIAL[m.element]), square, r)


def _reduce_argument(m: FloatMath, x: Operand, n: Operand) -> Operand:
    """Return the reduced argument x - n ln 2."""
    r = m.multiply_add(n, m.const(-LN2_HIGH[m.element]), x)
    return m.multiply_add(n, m.const(-LN2_LOW[m.element]), r)


def sigmoid(m: FloatMath, x: Operand) -> Operand:
    """Return 1 / (1 + e) or e / (1 + e) with e = exp(-|x|), so that nothing overflows. Results
    below the smallest normal number are 0: subnormals would slow the next layer's arithmetic.
    """
    one, zero = m.const(1.0), m.const(0.0)
    e = _exp_flush_subnormal(m, m.neg(m.abs(x)))
    return m.div(m.select(m.less(x, zero), e, one), m.add(one, e))


def tanh(m: FloatMath, x: Operand) -> Operand:
    """Return e / (e + 2) with e = exp(2|x|) - 1 and the sign of x. e is computed as (2**n - 1) +
    2**n (exp(r) - 1), which is exact to its own last place near 0 too: n is 0 there, and exp(r)
    - 1 is r + r (r q), whose product with r is not rounded separately. Three roundings remain.
    """
    size, one = m.abs(x), m.const(1.0)
    # tanh(x) rounds to 1 long before exp(2|x|) overflows.
    twice = m.at_most(m.add(size, size), EXP_NORMAL_RANGE[m.element][1])
    n, power = m.round_to_power(twice, LOG2_E)
    r = _reduce_argument(m, twice, n)
    square = m.square_below_one(r)
    q = m.paired_polynomial(r, square, EXP_POLYNOMIAL[m.element])
    again = r if m.b.module.has("fma") else m.add(r, m.const(TANH_ZERO_GUARD[m.element]))
    expm1 = m.multiply_add(m.mul(q, r), again, r)
    e = m.multiply_add(expm1, power, m.sub(power, one))
    return m.copysign(m.div(e, m.add(e, m.const(2.0))), x)
