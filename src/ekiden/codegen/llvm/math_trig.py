"""sin and cos, computed in float64 for every type; arguments up to 2**30 are reduced exactly enough
for float64."""

from __future__ import annotations

from ekiden.codegen.llvm.builder import Operand
from ekiden.codegen.llvm.float_math import FloatMath

# pi / 2 in three parts of 53 bits
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
TWO_OVER_PI = 0.6366197723675814
# (sin(x) - x) / x**3 and (cos(x) - 1 + x**2 / 2) / x**4 as polynomials in x**2 on |x| <= pi / 4
SIN = (
    -0.16666666666666666, 0.008333333333333305, -0.00019841269841238104, 2.755731920635165e-06,
    -2.5052103058720885e-08, 1.6058149676424392e-10, -7.568714620417548e-13,
)  # fmt: skip
COS = (
    0.041666666666666574, -0.0013888888888869929, 2.480158728699693e-05, -2.7557313663821187e-07,
    2.08756328303347e-09, -1.1355096988385465e-11,
)  # fmt: skip


def sin(m: FloatMath, x: Operand) -> Operand:
    """The sine."""
    wide = m.widen()
    return wide.cast(_quarter_turns(wide, m.cast(x, wide), 0), m)


def cos(m: FloatMath, x: Operand) -> Operand:
    """The cosine: the sine a quarter turn ahead."""
    wide = m.widen()
    return wide.cast(_quarter_turns(wide, m.cast(x, wide), 1), m)


def _quarter_turns(m: FloatMath, x: Operand, ahead: int) -> Operand:
    """sin(x + ahead * pi / 2)"""
    n = m.llvm("roundeven", m.mul(x, m.const(TWO_OVER_PI)))
    r = x
    for part in HALF_PI:
        r = m.fma(n, m.const(-part), r)
    square = m.mul(r, r)
    sine = m.fma(m.mul(r, square), m.polynomial(square, SIN), r)
    fourth = m.mul(square, square)
    cosine = m.fma(fourth, m.polynomial(square, COS), m.fma(square, m.const(-0.5), m.const(1.0)))
    # n modulo 4 by subtraction: the conversion to an integer stays in range
    quarter = m.fma(m.llvm("floor", m.mul(n, m.const(0.25))), m.const(-4.0), n)
    turn = m.int_op("add", m.to_int(quarter), m.int_const(ahead))
    swap = m.b.compare("ne", m.word, m.int_op("and", turn, m.int_const(1)), m.int_const(0))
    flip = m.b.compare("ne", m.word, m.int_op("and", turn, m.int_const(2)), m.int_const(0))
    value = m.select(swap, cosine, sine)
    return m.select(flip, m.neg(value), value)
