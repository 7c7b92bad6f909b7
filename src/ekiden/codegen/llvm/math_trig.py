"""sin and cos, computed in float64 for every type; arguments are reduced exactly whatever their
size.

    x = n * pi / 2 + r    |r| <= pi / 4; n modulo 4 selects sine or cosine and the sign
    sin(r) = r + r**3 S(r**2), cos(r) = 1 - r**2 / 2 + r**4 C(r**2)

Cody-Waite reduction with pi / 2 in three parts loses accuracy for large arguments; those are
reduced by a table of powers of two modulo 2 pi (as by Payne and Hanek). They are rare and the
gathers of the table expensive, so a branch skips it unless some lane needs it. Dialects without
blocks (C, devices) reduce all arguments by the table.
"""

from __future__ import annotations

import functools
from fractions import Fraction

from ekiden.codegen.llvm.builder import Operand
from ekiden.codegen.llvm.float_math import FloatMath

# pi / 2 in parts of 53 bits: a fused multiply-add does not round their products with n
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
# pi / 2 in parts of 23 bits (the last one of a type excepted), whose products with n < 2**30 are
# exact in float64: 23 + 30 = 53 bits
SHORT_HALF_PI = {
    "float32": (1.570796251296997, 7.549789415861596e-08, 5.390302858158119e-15),
    "float64": (
        1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15, 3.2820031633724233e-22,
        3.7950107727212256e-29,
    ),
}  # fmt: skip
TWO_OVER_PI = 0.6366197723675814
# (sin(x) - x) / x**3 and (cos(x) - 1 + x**2 / 2) / x**4 as polynomials in x**2 on |x| <= pi / 4.
# Relative errors: sin 2^-37.5 and 2^-57.3, cos 2^-33.0 and 2^-61.2 (scripts/fit_polynomials.py).
# Those of float32 are evaluated in float64, hence fewer terms and no error of evaluation.
SIN_POLYNOMIAL = {
    "float32": (
        -0.166666666407866, 0.008333329303626642, -0.00019839311876646503, 2.7181178665816127e-06,
    ),
    "float64": (
        -0.16666666666666666, 0.008333333333333305, -0.00019841269841238104,
        2.755731920635165e-06, -2.5052103058720885e-08, 1.6058149676424392e-10,
        -7.568714620417548e-13,
    ),
}  # fmt: skip
COS_POLYNOMIAL = {
    "float32": (0.0416666456765662, -0.0013887315935473437, 2.443311987707331e-05),
    "float64": (
        0.041666666666666574, -0.0013888888888869929, 2.480158728699693e-05,
        -2.7557313663821187e-07, 2.08756328303347e-09, -1.1355096988385465e-11,
    ),
}  # fmt: skip
"""Cosine coefficients, accurate to the last place of each type."""
MAX_CODY_WAITE_ARGUMENT = 2.0**30
"""Largest argument reduced by Cody-Waite; larger ones use the table."""


MAX_EXPONENT = {24: 104, 53: 971}
"""Largest exponent e of m * 2**e, with integer m below 2**24 (float32) or 2**53 (float64)."""
PRODUCT_SPLIT_BITS = 27
"""Number of low bits split off a 53-bit significand, so that partial products stay exact."""


@functools.cache
def _powers_of_two_mod_2pi(largest: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return 2**e modulo 2 pi for e up to `largest`, each as a sum of two numbers."""
    # The quotient magnifies the error of pi by up to 2**largest: 160 correct bits remain.
    full_turn = 2 * _pi_fraction(largest + 160)
    rests = [
        Fraction(2**e) - round(Fraction(2**e) / full_turn) * full_turn for e in range(largest + 1)
    ]
    high = tuple(float(r) for r in rests)
    return high, tuple(float(r - Fraction(h)) for r, h in zip(rests, high, strict=True))


def _pi_fraction(bits: int) -> Fraction:
    """Return pi to some bits, by Machin's formula."""
    one = 1 << bits

    def arctan_reciprocal(n: int) -> int:
        """Return arctan(1 / n) in units of 1 / one, by its series 1/n - 1/(3 n**3) + 1/(5 n**5)
        ..., until terms vanish.
        """
        total, power, k = 0, one // n, 1
        while power:
            total += power // k if k % 4 == 1 else -(power // k)
            power //= n * n
            k += 2
        return total

    # Machin (1706): pi / 4 = 4 arctan(1/5) - arctan(1/239).
    return Fraction(4 * (4 * arctan_reciprocal(5) - arctan_reciprocal(239)), one)


def sin(m: FloatMath, x: Operand) -> Operand:
    """Return the sine of x."""
    return _sin_shifted(m, x, 0)


def cos(m: FloatMath, x: Operand) -> Operand:
    """Return the cosine of x, computed as sin(x + pi / 2)."""
    return _sin_shifted(m, x, 1)


def _sin_shifted(narrow: FloatMath, x: Operand, ahead: int) -> Operand:
    """Return sin(x + ahead * pi / 2); arguments from MAX_CODY_WAITE_ARGUMENT on are reduced through
    a table, in a branch where the builder has blocks.
    """
    b, m = narrow.b, narrow.widen()
    wide, bits = narrow.cast(x, m), 53 if narrow.is_double else 24
    if not b.has_blocks:
        high, low = _modulo_2pi(m, wide, bits)
        return m.cast(_sin_reduced(m, narrow.element, high, low, ahead), narrow)
    small_result = m.cast(_sin_reduced(m, narrow.element, wide, None, ahead), narrow)
    is_large = b.compare("oge", narrow.dtype, narrow.abs(x), narrow.const(MAX_CODY_WAITE_ARGUMENT))
    some = is_large if narrow.lanes == 1 else b.any_lane(is_large, narrow.lanes)
    before, large, after = b.block, b.fresh_name("large"), b.fresh_name("join")
    b.branch_if(some, large, after)
    b.start(large)
    with b.scope():
        high, low = _modulo_2pi(m, wide, bits)
        large_result = m.cast(_sin_reduced(m, narrow.element, high, low, ahead), narrow)
    end = b.block
    b.branch(after)
    b.start(after)
    return b.phi(narrow.dtype, (small_result, before), (large_result, end))


def _sin_reduced(
    m: FloatMath, element: str, x: Operand, low: Operand | None, ahead: int
) -> Operand:
    """Return sin(x + low + ahead * pi / 2) for |x| <= MAX_CODY_WAITE_ARGUMENT, to the last place
    of a type."""
    n, quadrant = m.round_to_int(x, TWO_OVER_PI, 0)
    r = _reduce_by_half_pi(m, element, x, n)
    if low is not None:
        r = m.add(r, low)
    return _sin_in_octant(m, element, r, m.int_op("add", quadrant, m.int_const(ahead)))


def _reduce_by_half_pi(m: FloatMath, element: str, x: Operand, n: Operand) -> Operand:
    """Return x - n pi / 2 for n below 2**30 and a difference of at most 1, to the last place of a
    type (Cody-Waite reduction).
    """
    if m.b.module.has("fma"):
        for constant in HALF_PI[: 2 if element == "float32" else 3]:
            x = m.fma(n, m.const(-constant), x)
        return x
    first, second, third, *smaller = [m.mul(n, m.const(term)) for term in SHORT_HALF_PI[element]]
    with m.without_fast_math():
        x = m.sub(m.sub(x, first), second)  # both subtractions are exact
        if not smaller:
            return m.sub(x, third)
        total = m.add(third, smaller[0])  # summed first, so that the subtraction from x rounds once
        lost = m.sub(smaller[0], m.sub(total, third))
        return m.sub(m.sub(x, total), m.add(lost, smaller[1]))


def _modulo_2pi(m: FloatMath, x: Operand, bits: int) -> tuple[Operand, Operand]:
    """Return x modulo 2 pi as (high, low), |high| < 2**30; x itself if it is below 2**24. `bits` is
    the width of its mantissa (Payne-Hanek reduction by table).
    """
    tables = _powers_of_two_mod_2pi(MAX_EXPONENT[bits] + (0 if bits == 24 else PRODUCT_SPLIT_BITS))
    biased = m.int_op("lshr", m.bits(m.abs(x)), m.int_const(52))
    e = m.int_op("sub", biased, m.int_const(1023 + bits - 1))
    e = _clamp_int(m, e, MAX_EXPONENT[bits])
    integer_mantissa = m.mul(x, m.power_of_two(m.int_op("sub", m.int_const(0), e)))
    if bits == 24:
        return _scaled_modulo_2pi(m, integer_mantissa, e, tables)
    upper = m.emit_intrinsic("trunc", m.mul(integer_mantissa, m.const(2.0**-PRODUCT_SPLIT_BITS)))
    # Exact: the product only shifts the exponent, and the difference has 27 bits.
    lower = m.fma(upper, m.const(-(2.0**PRODUCT_SPLIT_BITS)), integer_mantissa)
    a, a_low = _scaled_modulo_2pi(
        m, upper, m.int_op("add", e, m.int_const(PRODUCT_SPLIT_BITS)), tables
    )
    b, b_low = _scaled_modulo_2pi(m, lower, e, tables)
    total = m.add(a, b)
    b_share = m.sub(total, a)  # TwoSum (Knuth): the part of b that the rounded sum contains
    lost = m.add(m.sub(a, m.sub(total, b_share)), m.sub(b, b_share))
    return total, m.add(lost, m.add(a_low, b_low))


def _scaled_modulo_2pi(
    m: FloatMath, integer: Operand, e: Operand, tables: tuple[tuple[float, ...], tuple[float, ...]]
) -> tuple[Operand, Operand]:
    """Return (high, low): an integer times 2**e, modulo 2 pi."""
    high, low = tables
    factor = m.table_lookup(high, e)
    product = m.mul(integer, factor)
    error = m.fma(integer, factor, m.neg(product))
    return product, m.fma(integer, m.table_lookup(low, e), error)


def _clamp_int(m: FloatMath, n: Operand, top: int) -> Operand:
    """Clamp an integer to [0, top], which keeps the table index in range; the value for infinity
    and NaN does not matter.
    """
    for predicate, bound in (("slt", 0), ("sgt", top)):
        limit = m.int_const(bound)
        outside = m.b.compare(predicate, m.word, n, limit)
        n = m.b.select(outside, m.word, limit, n, m.lanes)
    return n


def _sin_in_octant(m: FloatMath, element: str, r: Operand, quadrant: Operand) -> Operand:
    """Return sin(r + quadrant * pi / 2) for |r| <= pi / 4; the last two bits of the
    quadrant count.
    """
    square = m.mul(r, r)
    sine = m.multiply_add(m.mul(r, square), m.polynomial(square, SIN_POLYNOMIAL[element]), r)
    fourth = m.mul(square, square)
    near_one = m.multiply_add(square, m.const(-0.5), m.const(1.0))
    cosine = m.multiply_add(fourth, m.polynomial(square, COS_POLYNOMIAL[element]), near_one)
    first, sign = m.int_op("shl", quadrant, m.int_const(63)), m.int_const(-(1 << 63))
    swap = m.b.compare("slt", m.word, first, m.int_const(0))
    # Bit 1 of the quadrant becomes the sign bit: the sine is negated in quadrants 2 and 3.
    flip = m.int_op("and", m.int_op("shl", quadrant, m.int_const(62)), sign)
    return m.from_bits(m.int_op("xor", m.bits(m.select(swap, cosine, sine)), flip))
