"""exp, sigmoid and tanh. Coefficients are our own minimax fits; errors are measured in
tests/codegen/test_math.py."""

from __future__ import annotations

from ekiden.codegen.llvm.builder import Operand
from ekiden.codegen.llvm.float_math import FloatMath

LOG2_E = 1.4426950408889634
# ln 2 in two parts; the first has trailing zeros, so that n * LN2_HIGH is exact
LN2_HIGH = {"float32": 0.693145751953125, "float64": 0.693147180369123816490}
LN2_LOW = {"float32": 1.42860682030941723212e-6, "float64": 1.90821492927058770002e-10}
# arguments beyond which the result is 0 or infinite whatever happens in between
RANGE = {"float32": (-106.0, 90.0), "float64": (-750.0, 711.0)}
# those beyond which exp(x), or 2 / exp(x), is subnormal: arithmetic on such takes 100 cycles and
# more; and a size of x from which x**2 is far from it, where x and tanh(x) are the same number
NORMAL = {"float32": (-87.33, 80.0), "float64": (-708.39, 700.0)}
TINY = 1e-10
# no subnormal number in float32, and of no weight beside 1 in float64
LOST = 1e-30

# (exp(r) - 1 - r) / r**2 on |r| <= ln(2)/2
EXP = {
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
# (tanh(x) - x) / x**3 as a polynomial in x**2 on |x| <= 0.625
TANH = {
    "float32": (
        -0.3333328118572571, 0.13331420396902824, -0.05373779911831038, 0.020632549433451046,
        -0.005697387128602373,
    ),
    "float64": (
        -0.3333333333333284, 0.13333333333259972, -0.053968253930298075, 0.021869487554110546,
        -0.008863220716737478, 0.0035919868803084877, -0.001454947150084945,
        0.0005862782363491715, -0.00022848688734702344, 7.705649422994373e-05,
        -1.602958783830181e-05,
    ),
}  # fmt: skip


def exp(m: FloatMath, x: Operand) -> Operand:
    """2**n * exp(r), n = round(x / ln 2), r = x - n ln 2. NaN stays; subnormal results are rounded
    once. What is 0 is not computed: results that are lost take 100 cycles, and a softmax has many
    such where it is masked."""
    low, high = RANGE[m.element]
    vanishes, zero = m.less(x, m.const(low)), m.const(0.0)
    made = exp_within(m, m.at_most(m.select(vanishes, zero, x), high))
    return m.select(vanishes, zero, made)


def exp_within(m: FloatMath, x: Operand) -> Operand:
    """exp(x) for x in RANGE."""
    if m.has_scale:
        n = m.llvm("roundeven", m.mul(x, m.const(LOG2_E)))
        return m.scale(m.add(m.const(1.0), _of_rest(m, x, n)), n)
    n, first, second = m.rounded_powers(x, LOG2_E)
    return m.mul(m.madd(_of_rest(m, x, n), first, first), second)


def exp_normal(m: FloatMath, x: Operand) -> Operand:
    """exp(x) for x in NORMAL, whose result no step on the way rounds to a subnormal number. NaN
    stays."""
    if m.has_scale:
        return exp_within(m, x)
    n, power = m.rounded_power(x, LOG2_E)
    return m.madd(_of_rest(m, x, n), power, power)


def _of_rest(m: FloatMath, x: Operand, n: Operand) -> Operand:
    """exp(r) - 1 for r = x - n ln 2, to the last place of exp(r). The square of r is never
    subnormal: what is added to it is lost beside 1."""
    r = m.madd(n, m.const(-LN2_HIGH[m.element]), x)
    r = m.madd(n, m.const(-LN2_LOW[m.element]), r)
    square = m.madd(r, r, m.const(LOST))
    return m.madd(m.paired_polynomial(r, square, EXP[m.element]), square, r)


def sigmoid(m: FloatMath, x: Operand) -> Operand:
    """1 / (1 + e) or e / (1 + e) with e = exp(-|x|), so that nothing overflows. Results below the
    least normal numbers are 0."""
    one, zero, (low, _) = m.const(1.0), m.const(0.0), NORMAL[m.element]
    e = exp_normal(m, m.at_least(m.neg(m.abs(x)), low))
    e = m.select(m.less(x, m.const(low)), zero, e)
    return m.div(m.select(m.less(x, zero), e, one), m.add(one, e))


def tanh(m: FloatMath, x: Operand) -> Operand:
    """An odd polynomial near 0; 1 - 2 / (exp(2|x|) + 1) with the sign of x elsewhere."""
    size = m.abs(x)
    one, two = m.const(1.0), m.const(2.0)
    twice = m.at_most(m.add(size, size), NORMAL[m.element][1])
    far = m.sub(one, m.div(two, m.add(exp_normal(m, twice), one)))
    base = m.select(m.less(size, m.const(TINY)), m.const(TINY), size)
    square = m.mul(base, base)
    near = m.madd(size, m.mul(square, m.polynomial(square, TANH[m.element])), size)
    return m.copysign(m.select(m.less(size, m.const(0.625)), near, far), x)
