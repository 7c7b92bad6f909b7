"""Special functions as decompositions to plain arithmetic, in the argument's dtype.

DLMF: NIST Digital Library of Mathematical Functions, https://dlmf.nist.gov. Sums are cut where the
next term is below the rounding of float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ekiden.frontend.torch.selection_decompositions import broadcast_tensors

_ASYMPTOTIC_FROM = 8
"""Arguments of gamma functions are moved up to here, where the asymptotic sums hold."""
_BERNOULLI_NUMBERS = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""B_2, B_4, ..."""


def lgamma(x: Tensor) -> Tensor:
    """Return log |gamma(x)|, computed in float64, since it cancels near 1 and 2.

    Stirling's series (DLMF 5.11.1) from 8 on, the recurrence (5.5.1) below, the reflection formula
    (5.5.3) below 1/2.
    """
    wide = x.double()
    low = wide < 0.5
    y = torch.where(low, 1 - wide, wide)
    # The recurrence shifts the argument up to where the asymptotic series converges to float64.
    between = torch.ones_like(y)
    for step in range(_ASYMPTOTIC_FROM):
        between = between * torch.where(y + step < _ASYMPTOTIC_FROM, y + step, 1.0)
    z = y + (_ASYMPTOTIC_FROM - y).clamp(min=0).ceil()
    value = (z - 0.5) * z.log() - z + 0.5 * math.log(2 * math.pi)
    value = value + stirling_remainder(z) - between.log()
    # Reflection formula; the reduced argument keeps sin(pi x) exact near integers.
    sine = (math.pi * (wide - wide.round())).sin().abs()
    value = torch.where(low, math.log(math.pi) - sine.log() - value, value)
    return torch.where(wide.isinf(), math.inf, value).to(x.dtype)


def stirling_remainder(z: Tensor) -> Tensor:
    """Return the remainder of Stirling's formula for log gamma(z), z >= 8: the sum of DLMF
    5.11.1.
    """
    total = torch.zeros_like(z)
    for k, b in enumerate(_BERNOULLI_NUMBERS, 1):
        total = total + b / (2 * k * (2 * k - 1)) * z ** (1 - 2 * k)
    return total


def digamma(x: Tensor) -> Tensor:
    """Return the derivative of lgamma (DLMF 5.11.2, 5.5.2 and 5.5.4): NaN at -1, -2, ...; -inf at
    0.
    """
    wide = x.double()
    low = wide < 0.5
    y = torch.where(low, 1 - wide, wide)
    between = torch.zeros_like(y)
    for step in range(_ASYMPTOTIC_FROM):
        between = between + torch.where(y + step < _ASYMPTOTIC_FROM, 1 / (y + step), 0.0)
    z = y + (_ASYMPTOTIC_FROM - y).clamp(min=0).ceil()
    value = z.log() - 0.5 / z
    for k, b in enumerate(_BERNOULLI_NUMBERS, 1):
        value = value - b / (2 * k) * z ** (-2 * k)
    value = value - between
    value = torch.where(low, value - math.pi / (math.pi * (wide - wide.round())).tan(), value)
    value = torch.where((wide < 0) & (wide == wide.round()), math.nan, value)
    # The pole at 0 has the sign of the zero: digamma(-0.0) is +inf.
    at_zero = -torch.copysign(torch.full_like(wide, math.inf), wide)
    return torch.where(wide == 0, at_zero, value).to(x.dtype)


def erfinv(x: Tensor) -> Tensor:
    """Return the inverse of erf, exact to 1e-7 except within 1e-10 of 1.

    Winitzki's guess ("A handy approximation for the error function and its inverse", 2008), then
    three Halley steps in float64.
    """
    wide = x.double()
    size = wide.abs()
    log_gap = torch.log1p(-size) + torch.log1p(size)  # log(1 - x x)
    a = 0.147
    middle = 2 / (math.pi * a) + log_gap / 2
    y = ((middle * middle - log_gap / a).sqrt() - middle).clamp(min=0).sqrt()
    # Halley's method converges cubically: three steps from Winitzki's guess suffice.
    for _ in range(3):
        slope = 2 / math.sqrt(math.pi) * (-y * y).exp()
        error = (torch.special.erf(y) - size) / slope
        y = y - error / (1 + y * error)
    y = torch.where(size == 1, math.inf, torch.where(size > 1, math.nan, y))
    return torch.copysign(y, wide).to(x.dtype)


# fmt: off
_NORMAL_QUANTILE_COEFFICIENTS = (
    ((3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
      1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
      3.3430575583588128105e4, 2.5090809287301226727e3),
     (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
      2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
      5.2264952788528545610e3)),
    ((1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
      3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
      2.27238449892691845833e-2, 7.74545014278341407640e-4),
     (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
      1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
      1.05075007164441684324e-9)),
    ((6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
      2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
      2.71155556874348757815e-5, 2.01033439929228813265e-7),
     (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
      7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
      2.04426310338993978564e-15)),
)
# fmt: on
"""Of quotients of polynomials, lowest power first: in the middle, out to 1e-11, and beyond."""


def ndtri(x: Tensor) -> Tensor:
    """Return the quantile function of the normal distribution, exact to 1e-15.

    Wichura's rational approximations ("Algorithm AS 241: The percentage points of the normal
    distribution", 1988).
    """
    wide = x.double()
    away = wide - 0.5
    low = torch.minimum(wide, 1 - wide)
    root = (-torch.where((low > 0) & (low < 0.5), low, 0.5).log()).sqrt()
    middle = away * _rational_approximation(0, 0.180625 - away * away)
    tail = torch.where(
        root <= 5, _rational_approximation(1, root - 1.6), _rational_approximation(2, root - 5)
    )
    tail = torch.where(low > 0, tail, torch.where(low == 0, math.inf, math.nan))
    quantile = torch.where(away.abs() <= 0.425, middle, tail * away.sign())
    return quantile.to(_result_dtype(x))


def _rational_approximation(which: int, r: Tensor) -> Tensor:
    above, below = (
        _horner(coefficients, r) for coefficients in _NORMAL_QUANTILE_COEFFICIENTS[which]
    )
    return above / below


def _horner(factors: Sequence[float], r: Tensor) -> Tensor:
    """Evaluate a polynomial by Horner's rule; coefficients from the lowest power."""
    total = torch.full_like(r, factors[-1])
    for coefficient in factors[-2::-1]:
        total = total * r + coefficient
    return total


def _bessel_i(x: Tensor, order: int, scaled: bool) -> Tensor:
    """Return I_0 or I_1, times exp(-|x|) if scaled: DLMF 10.25.2 up to 15, 10.40.1 above."""
    wide = x.double()
    size = wide.abs()
    square = (size.clamp(max=15) / 2) ** 2
    term = torch.ones_like(size) if order == 0 else size.clamp(max=15) / 2
    near = term
    # The power series (DLMF 10.25.2): 40 terms suffice in float64 for |x| up to 15.
    for k in range(1, 40):
        term = term * square / (k * (k + order))
        near = near + term
    large = size.clamp(min=15)
    term, far = torch.ones_like(large), torch.ones_like(large)
    for k in range(1, 14):
        term = -term * (4 * order * order - (2 * k - 1) ** 2) / (8 * k * large)
        far = far + term
    # DLMF 10.40.1, the expansion for large arguments, without its factor exp(|x|).
    far = far / (2 * math.pi * large).sqrt()
    if scaled:
        near = near * (-size).exp()
    else:
        far = far * large.exp()
    value = torch.where(size <= 15, near, far)
    return value * wide.sign() if order else value


def i0(x: Tensor) -> Tensor:
    """Return the modified Bessel function of the first kind of order 0."""
    return _bessel_i(x, 0, False).to(x.dtype)


def i1(x: Tensor) -> Tensor:
    """Return the modified Bessel function of the first kind of order 1."""
    return _bessel_i(x, 1, False).to(x.dtype)


def i0e(x: Tensor) -> Tensor:
    """Return exp(-|x|) I_0(x)."""
    return _bessel_i(x, 0, True).to(x.dtype)


def i1e(x: Tensor) -> Tensor:
    """Return exp(-|x|) I_1(x)."""
    return _bessel_i(x, 1, True).to(x.dtype)


_INTEGRATION_STEPS = 256
"""Steps of the integral below: more change nothing in float64 but below 1e-30, by 1e-11 there."""


def _bessel_k(x: Tensor, order: int, scaled: bool) -> Tensor:
    """Return K_0 or K_1, times exp(x) if scaled: the trapezoidal sum of exp(-x cosh t) cosh(order
    t) (DLMF 10.32.9).
    """
    wide = x.double()
    edge = (20 / wide).sqrt()
    step = 2 * (edge + (edge * edge + 1).sqrt()).log() / _INTEGRATION_STEPS
    position = step.unsqueeze(-1) * torch.arange(_INTEGRATION_STEPS + 1)
    half = (position / 2).sinh()
    # cosh t - 1 = 2 sinh(t / 2)^2 keeps the digits near t = 0, where the integrand is largest.
    term = (-2 * wide.unsqueeze(-1) * half * half).exp()
    term = term * (1 + 2 * half * half) if order else term
    value = step * (term.sum(-1) - 0.5)
    value = value if scaled else value * (-wide).exp()
    value = torch.where(wide.isinf(), 0.0, torch.where(wide == 0, math.inf, value))
    return torch.where(wide < 0, math.nan, value).to(x.dtype)


def k0(x: Tensor) -> Tensor:
    """Return the modified Bessel function of the second kind of order 0."""
    return _bessel_k(x, 0, False)


def k1(x: Tensor) -> Tensor:
    """Return the modified Bessel function of the second kind of order 1."""
    return _bessel_k(x, 1, False)


def k0e(x: Tensor) -> Tensor:
    """Return exp(x) K_0(x)."""
    return _bessel_k(x, 0, True)


def k1e(x: Tensor) -> Tensor:
    """Return exp(x) K_1(x)."""
    return _bessel_k(x, 1, True)


def spherical_j0(x: Tensor) -> Tensor:
    """Return sin(x) / x, 1 at 0 and 0 at infinity."""
    quotient = torch.where(x == 0, 1.0, x.sin() / x)
    return torch.where(x.isinf(), 0.0, quotient)


def _erfcx_continued_fraction(x: Tensor) -> Tensor:
    """Return exp(x x) erfc(x) for x >= 2 by its continued fraction (DLMF 7.9.3)."""
    denominator = x
    for k in range(60, 0, -1):
        denominator = x + k / 2 / denominator
    return 1 / (math.sqrt(math.pi) * denominator)


def erfc(x: Tensor) -> Tensor:
    """Return 1 - erf(x), accurate where it is small."""
    wide = x.double()
    # 1 - erf(x) cancels for large x; the continued fraction keeps the relative accuracy.
    far = (-wide * wide).exp() * _erfcx_continued_fraction(wide.clamp(min=2))
    return torch.where(wide < 2, 1 - torch.erf(wide), far).to(_result_dtype(x))


def erfcx(x: Tensor) -> Tensor:
    """Return exp(x x) erfc(x), the scaled complementary error function."""
    wide = x.double()
    near = (wide * wide).exp() * (1 - torch.erf(wide))
    return torch.where(wide < 2, near, _erfcx_continued_fraction(wide.clamp(min=2))).to(
        _result_dtype(x)
    )


def _result_dtype(x: Tensor) -> torch.dtype:
    return x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()


_ZETA_DIRECT_TERMS = 12
"""Of Hurwitz' sum, before the sums of Euler and Maclaurin take over."""


def zeta(x: Tensor | float, q: Tensor | float) -> Tensor:
    """Return the Hurwitz zeta function, the sum of (n + q)**-x, by Euler-Maclaurin (DLMF 25.11.5).
    As in PyTorch it is infinite at x = 1 and at q = 0, -1, ..., and NaN for x < 1 and where a
    negative base would be raised to a fraction.
    """
    order, first = broadcast_tensors(_to_float64(x, q), _to_float64(q, x))
    total = first.pow(-order)
    for n in range(1, _ZETA_DIRECT_TERMS):
        total = total + (first + n).pow(-order)
    # Euler-Maclaurin: the tail integral, half the first term, then Bernoulli corrections.
    last = first + _ZETA_DIRECT_TERMS
    total = total + last.pow(1 - order) / (order - 1) + last.pow(-order) / 2
    rising, factorial = order, 2.0
    for k, b in enumerate(_BERNOULLI_NUMBERS, 1):
        total = total + b / factorial * rising * last.pow(-order - 2 * k + 1)
        rising = rising * (order + 2 * k - 1) * (order + 2 * k)
        factorial *= (2 * k + 1) * (2 * k + 2)
    is_whole = first == first.floor()
    total = torch.where((first <= 0) & (order != order.floor()), math.nan, total)
    total = torch.where((first <= 0) & is_whole, math.inf, total)
    total = torch.where(order == 1, math.inf, torch.where(order < 1, math.nan, total))
    dtype = torch.result_type(x, q)
    return total.to(dtype if dtype.is_floating_point else torch.get_default_dtype())


def _to_float64(value: Tensor | float, like: Tensor | float) -> Tensor:
    """Return a tensor in float64, or a number as a tensor shaped like the other operand."""
    if isinstance(value, Tensor):
        return value.double()
    assert isinstance(like, Tensor)
    return torch.full_like(like, value, dtype=torch.float64)


def polygamma(n: int, x: Tensor) -> Tensor:
    """Return the n-th derivative of digamma (DLMF 5.15.1; for n = 1 below 1/2, the reflection
    5.15.6).
    """
    if n == 0:
        return digamma(x)
    wide = x.double()
    if n > 1:
        size = math.factorial(n) if n % 2 else -math.factorial(n)
        return (size * zeta(float(n + 1), wide)).to(_result_dtype(x))
    low = wide < 0.5
    value = zeta(2.0, torch.where(low, 1 - wide, wide))
    # The reflection formula of the trigamma function.
    turned = (math.pi / (math.pi * wide).sin()) ** 2 - value
    return torch.where(low, turned, value).to(_result_dtype(x))


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Return the logarithm of running sums of exponentials by a parallel prefix scan
    (Hillis-Steele).

    Hillis and Steele ("Data parallel algorithms", 1986); each logaddexp is relative to its own
    maximum.
    """
    if not x.dim():
        return x.clone()
    extent, step, scanned = x.shape[dim], 1, x
    # Hillis-Steele scan: log2(extent) passes of logaddexp, which cannot overflow.
    while step < extent:
        before = scanned.narrow(dim, 0, extent - step)
        later = torch.logaddexp(scanned.narrow(dim, step, extent - step), before)
        scanned = torch.cat([scanned.narrow(dim, 0, step), later], dim)
        step *= 2
    return scanned


__all__ = [
    "digamma", "erfc", "erfcx", "erfinv", "i0", "i0e", "i1", "i1e", "lgamma", "logcumsumexp",
    "ndtri", "polygamma", "stirling_remainder", "zeta",
]  # fmt: skip
