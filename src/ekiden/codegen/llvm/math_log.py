"""log and pow."""

from __future__ import annotations

from ekiden.codegen.llvm.builder import Operand
from ekiden.codegen.llvm.float_math import EXPONENT_BIAS, MANTISSA_BITS, FloatMath
from ekiden.codegen.llvm.math_exp import LN2_HIGH, LN2_LOW, exp

SQRT_HALF = {"float32": 0x3F3504F3, "float64": 0x3FE6A09E667F3BCD}
# (log(1 + f) - f + f**2 / 2) / f**3 on [sqrt(1/2) - 1, sqrt(2) - 1]; relative error of log 2^-30.3
# (scripts/fit_polynomials.py)
LOG_POLYNOMIAL_FLOAT32 = (
    0.33333312602497794, -0.2500000960467403, 0.20002118749950612, -0.1666799562240262,
    0.14219550557701416, -0.12405592013076278, 0.1188817756558814, -0.11675638799841145,
    0.06746591932222609,
)  # fmt: skip
# (2 atanh(s) - 2 s) / s**3 as a polynomial in s**2 on |s| <= 0.1716; relative error 2^-62.9, nine
# bits below an ulp, since pow multiplies the error of log by y log(x)
LOG_POLYNOMIAL_FLOAT64 = (
    0.6666666666666662, 0.4000000000003342, 0.28571428563243784, 0.22222223246422315,
    0.18181742584500096, 0.15388092971643821, 0.13234510248766568, 0.13348038372461044,
)  # fmt: skip


def log(m: FloatMath, x: Operand) -> Operand:
    """Return e ln 2 + log(1 + f), where x = 2**e (1 + f). -inf at 0, NaN below."""
    e, f = _frexp(m, x)
    square = m.mul(f, f)
    last = m.mul(e, m.const(LN2_LOW[m.element]))
    if m.is_double:
        half = m.mul(square, m.const(0.5))
        tail = m.sub(half, m.add(_log1p_remainder(m, f, half), last))
        result = m.sub(f, tail)
    else:
        tail = m.multiply_add(m.mul(f, square), m.polynomial(f, LOG_POLYNOMIAL_FLOAT32), last)
        result = m.add(f, m.multiply_add(square, m.const(-0.5), tail))
    result = m.multiply_add(e, m.const(LN2_HIGH[m.element]), result)
    return _log_special_cases(m, x, result)


def _log1p_remainder(m: FloatMath, f: Operand, half: Operand) -> Operand:
    """Return log(1 + f) - f + f**2 / 2 in float64, given `half` = f**2 / 2. With s = f / (2 + f),
    the series of 2 atanh(s) begins with 2 s = f - f**2 / 2 + s f**2 / 2.
    """
    s = m.div(f, m.add(m.const(2.0), f))
    square = m.mul(s, s)
    higher_terms = m.mul(square, m.polynomial(square, LOG_POLYNOMIAL_FLOAT64))
    return m.mul(s, m.add(half, higher_terms))


def _frexp(m: FloatMath, x: Operand) -> tuple[Operand, Operand]:
    """Decompose x = 2**e * (1 + f) with 1 + f within a factor sqrt(2) of 1; return (e, f).
    Subnormals are scaled up first.
    """
    mantissa = MANTISSA_BITS[m.element]
    tiny = m.less(x, m.const(2.0 ** (1 - EXPONENT_BIAS[m.element])))
    x = m.select(tiny, m.mul(x, m.const(2.0 ** (mantissa + 2))), x)
    # Subtracting the bits of sqrt(1/2) makes the exponent change there instead of at 1.
    bits = m.int_op("sub", m.bits(x), m.int_const(SQRT_HALF[m.element]))
    e = m.to_float(m.int_op("ashr", bits, m.int_const(mantissa)))
    e = m.sub(e, m.select(tiny, m.const(mantissa + 2.0), m.const(0.0)))
    mantissa_bits = m.int_op("and", bits, m.int_const((1 << mantissa) - 1))
    return e, m.sub(
        m.from_bits(m.int_op("add", mantissa_bits, m.int_const(SQRT_HALF[m.element]))), m.const(1.0)
    )


def _log_special_cases(m: FloatMath, x: Operand, result: Operand) -> Operand:
    zero, infinity = m.const(0.0), m.const(float("inf"))
    result = m.select(m.b.compare("oeq", m.dtype, x, infinity), infinity, result)
    result = m.select(m.b.compare("oeq", m.dtype, x, zero), m.const(float("-inf")), result)
    valid = m.b.compare("oge", m.dtype, x, zero)
    return m.select(valid, result, m.const(float("nan")))


def _log1p_double_double(m: FloatMath, f: Operand) -> tuple[Operand, Operand]:
    """Return log(1 + f) as a sum high + low with about ten extra bits. 2 atanh(f / (2 + f)).
    float64 only.
    """
    two = m.const(2.0)
    u = m.add(two, f)
    u_low = m.sub(f, m.sub(u, two))
    s = m.div(f, u)
    # The quotient's rounding error s_low satisfies f = (s + s_low) * (u + u_low) up to second
    # order.
    s_low = m.div(m.multiply_add(m.neg(s), u_low, m.exact_residual(f, s, u)), u)
    square = m.mul(s, s)
    tail = m.mul(m.mul(square, s), m.polynomial(square, LOG_POLYNOMIAL_FLOAT64))
    doubled = m.add(s, s)
    high = m.add(doubled, tail)
    low = m.add(m.sub(tail, m.sub(high, doubled)), m.add(s_low, s_low))
    return high, low


def power(m: FloatMath, x: Operand, y: Operand) -> Operand:
    """Return x**y with the special cases of C's pow; float32 is computed in float64."""
    wide = m.widen()
    a, b = m.cast(x, wide), m.cast(y, wide)
    size = wide.abs(a)
    magnitude = (
        _power_double_double(wide, size, b) if m.is_double else _power_float64(wide, size, b)
    )
    return wide.cast(_signed_power(wide, a, b, magnitude), m)


def _signed_power(m: FloatMath, x: Operand, y: Operand, magnitude: Operand) -> Operand:
    """Return x**y from the magnitude |x|**y, with the special cases of C's pow."""
    one, zero = m.const(1.0), m.const(0.0)
    size, limitless = m.abs(x), m.b.compare("oeq", m.dtype, m.abs(y), m.const(float("inf")))
    # C's pow gives 1 for (+-1)**(+-inf), where y log|x| would be inf * 0, a NaN.
    neutral = m.b.binary("and", _mask_dtype(m), limitless, m.b.compare("oeq", m.dtype, size, one))
    result = m.select(neutral, one, magnitude)
    y_is_integer = m.b.compare("oeq", m.dtype, m.emit_intrinsic("trunc", y), y)
    half = m.mul(y, m.const(0.5))
    half_whole = m.b.compare("oeq", m.dtype, m.emit_intrinsic("trunc", half), half)
    # An integer is odd if half of it is not whole.
    odd = m.b.select(half_whole, _mask_dtype(m), _constant_bool(m, False), y_is_integer, m.lanes)
    result = m.select(odd, m.copysign(result, x), result)
    finite = m.less(m.abs(x), m.const(float("inf")))
    negative = m.b.binary("and", _mask_dtype(m), m.less(x, zero), finite)
    undefined = m.b.binary(
        "and",
        _mask_dtype(m),
        negative,
        m.b.compare("one", m.dtype, m.emit_intrinsic("trunc", y), y),
    )
    result = m.select(undefined, m.const(float("nan")), result)
    # 1**y and x**0 are 1 even for a NaN (C11, F.10.4.4).
    trivial = m.b.binary(
        "or",
        _mask_dtype(m),
        m.b.compare("oeq", m.dtype, x, one),
        m.b.compare("oeq", m.dtype, y, zero),
    )
    return m.select(trivial, one, result)


def _mask_dtype(m: FloatMath) -> str:
    return "bool" if m.lanes == 1 else f"boolx{m.lanes}"


def _constant_bool(m: FloatMath, value: bool) -> Operand:
    return m.b.const(value, _mask_dtype(m))


def _power_float64(m: FloatMath, x: Operand, y: Operand) -> Operand:
    """Return x**y for x >= 0, accurate to the last place of a float32, as exp(y log(x)) in
    float64.
    """
    e, f = _frexp(m, x)
    s = m.div(f, m.add(m.const(2.0), f))
    square = m.mul(s, s)
    tail = m.multiply_add(
        m.mul(square, s),
        m.polynomial(square, LOG_POLYNOMIAL_FLOAT64),
        m.mul(e, m.const(LN2_LOW["float64"])),
    )
    log_x = m.multiply_add(e, m.const(LN2_HIGH["float64"]), m.add(m.add(s, s), tail))
    return exp(m, m.mul(_log_special_cases(m, x, log_x), y))


def _power_double_double(m: FloatMath, x: Operand, y: Operand) -> Operand:
    """Return x**y for x >= 0: exp(y log(x)) with the logarithm and the product in double-double
    arithmetic.
    """
    e, f = _frexp(m, x)
    high, low = _log1p_double_double(m, f)
    scaled_exponent = m.mul(e, m.const(LN2_HIGH["float64"]))  # whole
    near = m.add(scaled_exponent, high)
    low_part = m.add(m.sub(high, m.sub(near, scaled_exponent)), low)
    low_part = m.multiply_add(e, m.const(LN2_LOW["float64"]), low_part)
    # Renormalise (Fast2Sum, Dekker 1971; |near| >= |low_part|): the rest is small against 1 for all
    # e.
    top = m.add(near, low_part)
    low_part = m.sub(low_part, m.sub(top, near))
    log_x = _log_special_cases(m, x, top)
    product = m.mul(log_x, y)
    error = m.sub(m.mul(low_part, y), m.exact_residual(product, top, y))
    exponential = exp(m, product)
    # Beyond 708, exp may overflow, and infinity times an error of 0 would be NaN.
    ordinary = m.less(m.abs(product), m.const(708.0))
    return m.select(ordinary, m.multiply_add(exponential, error, exponential), exponential)
