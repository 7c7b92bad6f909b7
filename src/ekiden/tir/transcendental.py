"""Scalar functions composed of intrinsics: trigonometric, hyperbolic, other logarithms.

Each is accurate to a few ULP of its working type, near zeros too: where a formula would cancel,
another one is used.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import EQ, GT, LT, Or, PrimExpr, Select, const, fold_binary

Scalar = Callable[[PrimExpr], PrimExpr]


def _select_value(condition: PrimExpr, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return Select(condition, a, b, a.dtype)


def _horner(x: PrimExpr, coefficients: Sequence[float]) -> PrimExpr:
    """Return a polynomial in Horner form, constant term first."""
    total = const(coefficients[-1], x.dtype)
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _copy_sign(x: PrimExpr, magnitude: PrimExpr) -> PrimExpr:
    return _select_value(fold_binary(LT, x, 0.0), -magnitude, magnitude)


def _odd_extension(function: Scalar) -> Scalar:
    """Return an odd function from its definition for x >= 0; it keeps the sign of zero and NaN."""

    def odd_function(x: PrimExpr) -> PrimExpr:
        value = _copy_sign(x, function(call_intrin("abs", x)))
        return _select_value(fold_binary(EQ, x, 0.0), x, value)

    return odd_function


def _tan(x: PrimExpr) -> PrimExpr:
    return call_intrin("sin", x) / call_intrin("cos", x)


@functools.cache
def _atan_coefficients(dtype: str) -> tuple[float, ...]:
    """Return (atan(t) / t - 1) / (t * t) in powers of t * t, interpolated at Chebyshev points of
    |t| <= tan(pi / 8).
    """
    top = math.tan(math.pi / 8) ** 2
    # The smallest degrees at which the truncation error is below the rounding error of the dtype.
    degree = 13 if dtype == "float64" else 6
    points = (np.cos((np.arange(degree + 1) + 0.5) * np.pi / (degree + 1)) + 1) / 2
    # Fitted in t * t: atan is odd, so half the coefficients of a fit in t would be 0. Chebyshev
    # points keep the error near the minimax one.
    roots = np.sqrt(points.astype(np.longdouble) * top)
    squares = roots**2
    residuals = (1 - np.arctan(roots) / roots) / squares
    fitted = np.polynomial.chebyshev.Chebyshev.fit(
        squares.astype(np.float64), residuals.astype(np.float64), degree
    )
    plain = fitted.convert(kind=np.polynomial.Polynomial)
    return tuple(-float(c) for c in plain.coef)


def _atan_positive(a: PrimExpr) -> PrimExpr:
    """Return atan(a) for a >= 0: pi / 2 - atan(1 / a) above tan(3 pi / 8), pi / 4 + atan((a - 1) /
    (a + 1)) above tan(pi / 8).
    """
    far, middle = (
        fold_binary(GT, a, math.tan(3 * math.pi / 8)),
        fold_binary(GT, a, math.tan(math.pi / 8)),
    )
    t = _select_value(far, -1.0 / a, _select_value(middle, (a - 1.0) / (a + 1.0), a))
    zero = const(0.0, a.dtype)
    begin = _select_value(far, zero + math.pi / 2, _select_value(middle, zero + math.pi / 4, zero))
    coefficients = _atan_coefficients(a.dtype)
    return begin + (t + t * (t * t * _horner(t * t, coefficients)))


_atan = _odd_extension(_atan_positive)


def _sqrt(x: PrimExpr) -> PrimExpr:
    return call_intrin("sqrt", x)


def _log(x: PrimExpr) -> PrimExpr:
    return call_intrin("log", x)


def _asin(x: PrimExpr) -> PrimExpr:
    # The product form avoids the cancellation of 1 - x * x near |x| = 1.
    return _atan(x / _sqrt((1.0 - x) * (x + 1.0)))


def _acos(x: PrimExpr) -> PrimExpr:
    # acos(x) = 2 atan(sqrt((1 - x) / (1 + x))): near 1 the difference 1 - x is exact.
    return _atan_positive(_sqrt((1.0 - x) / (x + 1.0))) * 2.0


def atan2_scalar(y: PrimExpr, x: PrimExpr) -> PrimExpr:
    """Return the angle of (x, y) in (-pi, pi]."""
    ay, ax = call_intrin("abs", y), call_intrin("abs", x)
    small, large = fold_binary(GT, ay, ax), fold_binary(EQ, ax, 0.0)
    # The smaller by the larger is at most 1; at the origin it is 0 / 1 instead of 0 / 0.
    swapped = _select_value(small, ax / ay, ay / _select_value(large, ax + 1.0, ax))
    first = _atan_positive(swapped)
    first = _select_value(small, math.pi / 2 - first, first)
    return _copy_sign(y, _select_value(fold_binary(LT, x, 0.0), math.pi - first, first))


def _log1p(x: PrimExpr) -> PrimExpr:
    """Return log(1 + x), corrected for the rounding of 1 + x (Kahan)."""
    u = x + 1.0
    d = u - 1.0
    same = fold_binary(Or, fold_binary(EQ, d, 0.0), call_intrin("isinf", u))
    safe = _select_value(same, d * 0.0 + 1.0, d)
    return _select_value(
        fold_binary(EQ, u, 1.0), x, _select_value(same, _log(u), _log(u) * (x / safe))
    )


def _half_exp(a: PrimExpr) -> PrimExpr:
    """Return exp(a / 2): its square does not overflow before a hyperbolic function does."""
    return call_intrin("exp", a * 0.5)


def _sinh_positive(a: PrimExpr) -> PrimExpr:
    terms = 11 if a.dtype == "float64" else 6
    series = a * _horner(a * a, [1 / math.factorial(2 * n + 1) for n in range(terms)])
    t = _half_exp(a)
    # Below 1 the difference of exponentials cancels; the Taylor series is exact to the working
    # precision there.
    return _select_value(fold_binary(LT, a, 1.0), series, (t * 0.5) * t - (0.5 / t) / t)


def _cosh(x: PrimExpr) -> PrimExpr:
    t = _half_exp(call_intrin("abs", x))
    return (t * 0.5) * t + (0.5 / t) / t


_ASYMPTOTIC_LIMIT = 1e9
"""Bound above which 1 + x * x rounds to x * x in every working type."""


def _asinh_positive(a: PrimExpr) -> PrimExpr:
    far = fold_binary(GT, a, _ASYMPTOTIC_LIMIT)
    # 1 where the asymptotic form is chosen, so that b * b does not overflow.
    b = _select_value(far, a * 0.0 + 1.0, a)
    near = _log1p(b + b * b / (_sqrt(b * b + 1.0) + 1.0))
    return _select_value(far, _log(a) + math.log(2), near)


def _acosh(x: PrimExpr) -> PrimExpr:
    far = fold_binary(GT, x, _ASYMPTOTIC_LIMIT)
    t = _select_value(far, x * 0.0 + 1.0, x) - 1.0
    # In t = x - 1, as x * x - 1 = t (t + 2) would cancel near 1.
    near = _log1p(t + _sqrt(t) * _sqrt(t + 2.0))
    return _select_value(far, _log(x) + math.log(2), near)


def _atanh_positive(a: PrimExpr) -> PrimExpr:
    # The quotient (1 + a) / (1 - a) would round away the digits of a small argument.
    return _log1p(a * 2.0 / (1.0 - a)) * 0.5


# fmt: off
TRANSCENDENTAL_FUNCTIONS: dict[str, Scalar] = {
    "tan":   _tan,
    "asin":  _asin,
    "acos":  _acos,
    "atan":  _atan,
    "sinh":  _odd_extension(_sinh_positive),
    "cosh":  _cosh,
    "asinh": _odd_extension(_asinh_positive),
    "acosh": _acosh,
    "atanh": _odd_extension(_atanh_positive),
    "log1p": _log1p,
    "log2":  lambda x: _log(x) * (1 / math.log(2)),
    "log10": lambda x: _log(x) * (1 / math.log(10)),
}
# fmt: on
