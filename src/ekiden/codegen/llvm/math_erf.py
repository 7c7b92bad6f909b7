"""Error function; a rational fit in float32 (5 ulp), two pieces in float64."""

from __future__ import annotations

from ekiden.codegen.llvm.builder import Operand
from ekiden.codegen.llvm.float_math import FloatMath
from ekiden.codegen.llvm.math_exp import exp

# erf(x) / x = P(x**2) / Q(x**2) on |x| <= 3.93, where erf rounds to 1. At
# ERF_SATURATION the quotient is exactly 1, with or without fused multiply-adds: one ulp less makes
# x * (1 + erf(x)), as in GELU, -6e22 at -1e30.
ERF_SATURATION = 3.929879665374756
ERF_NUMERATOR = (
    1.1283791696060288, 0.19249151359131664, 0.05559354111111007, 0.00419676690264922,
    0.0004060860092787317, 6.601167988231853e-06,
)  # fmt: skip
ERF_DENOMINATOR = (
    1.0, 0.5039245842598646, 0.11724277648063777, 0.01621875952847197, 0.0014084333892950933,
    7.120062948384711e-05, 2.497171868308637e-07,
)  # fmt: skip
# erf(x) / x as a polynomial in x**2 on |x| <= 1; relative error 2^-56.0
# (scripts/fit_polynomials.py)
ERF_SERIES = (
    1.1283791670955126, -0.3761263890318375, 0.11283791670954924, -0.026866170645083204,
    0.005223977624866591, -0.0008548326983060386, 0.00012055331177513614, -1.4925596568712043e-05,
    1.6461017878885293e-06, -1.6350468170693882e-07, 1.466066746345464e-08,
    -1.1375826336832033e-09, 5.96157638842229e-11,
)  # fmt: skip
# log(1 - erf(x)) as a polynomial in (x - 1) / 5 on [1, 6]; relative error of erf 2^-57.7. The fit
# is most accurate at 1: there erfc is largest, so its relative error weighs most in erf = 1 - erfc.
LOG_ERFC_POLYNOMIAL = (
    -1.8496055099332482, -13.194837571173943, -21.077681408966548, -5.1951372552579125,
    6.271140860510387, -6.180945568827609, 3.7081646323061257, 2.0529473272921415,
    -10.608914506211386, 18.76657014785585, -20.110634322267455, 6.959100101825902,
    23.86668434100381, -63.63670716289321, 91.19660956422722, -87.61472930896787,
    56.35205413770692, -22.058862387683135, 3.979288888753853,
)  # fmt: skip


def erf(m: FloatMath, x: Operand) -> Operand:
    """Return the error function of x."""
    return _erf_float64(m, x) if m.is_double else _erf_float32(m, x)


def _erf_float32(m: FloatMath, x: Operand) -> Operand:
    # Beyond 3.93 erf is 1 in float32, and the rational fit no longer holds.
    x = m.clamp(x, -ERF_SATURATION, ERF_SATURATION)
    square = m.mul(x, x)
    return m.div(
        m.mul(x, m.polynomial(square, ERF_NUMERATOR)), m.polynomial(square, ERF_DENOMINATOR)
    )


def _erf_float64(m: FloatMath, x: Operand) -> Operand:
    size = m.abs(x)
    square = m.mul(x, x)
    near = m.mul(x, m.paired_polynomial(square, m.mul(square, square), ERF_SERIES))
    # The fit covers [1, 6]; erfc(6) = 2e-17 is below half a unit in the last place of 1.
    within = m.clamp(size, 1.0, 6.0)
    scaled = m.mul(m.sub(within, m.const(1.0)), m.const(0.2))
    complement = exp(m, m.paired_polynomial(scaled, m.mul(scaled, scaled), LOG_ERFC_POLYNOMIAL))
    far = m.copysign(m.sub(m.const(1.0), complement), x)
    return m.select(
        m.less(size, m.const(1.0)), near, m.select(m.b.compare("uno", m.dtype, x, x), x, far)
    )
