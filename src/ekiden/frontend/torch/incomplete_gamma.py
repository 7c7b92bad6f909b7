"""Regularized incomplete gamma functions, decomposed to float64 arithmetic.

Up to `_QUOTIENT_BITS` by a series (DLMF 8.11.4) left of the middle and a continued fraction (8.9.2)
right of it; above, where both need as many terms as the root of the order, by an integral over the
peak.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ekiden.frontend.torch.selection_decompositions import broadcast_tensors
from ekiden.frontend.torch.special_functions import lgamma, stirling_remainder

_MAX_SERIES_ORDER = 30.0
_SERIES_TERMS = 60
"""What the series and the fraction need for 1e-14 up to there."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)


def _lower_series(a: Tensor, x: Tensor) -> Tensor:
    """Return P(a, x) by its series, for x up to a + 1."""
    term = 1 / a
    total = term
    for n in range(1, _SERIES_TERMS):
        term = term * x / (a + n)
        total = total + term
    return total * (a * x.log() - x - lgamma(a)).exp()


def _upper_continued_fraction(a: Tensor, x: Tensor) -> Tensor:
    """Return Q(a, x) by its continued fraction, for x above a + 1."""
    denominator = x + 2 * _SERIES_TERMS + 1 - a
    # The continued fraction is evaluated from its tail, a fixed number of terms deep.
    for n in range(_SERIES_TERMS, 0, -1):
        denominator = x + 2 * n - 1 - a - n * (n - a) / denominator
    return (a * x.log() - x - lgamma(a)).exp() / denominator


def _large_order_integral(a: Tensor, x: Tensor) -> Tensor:
    """Return P(a, x) left of the peak and Q(a, x) right of it for large a, by Gauss-Legendre
    quadrature of the tail. It is below the rounding some standard deviations away.
    """
    # Beyond this many standard deviations the integrand is below float64's resolution.
    width = (9 + 20 * a.rsqrt()) * a.rsqrt()
    position = (x - a) / a
    low = torch.where(position > 0, position, (position.clamp(max=0) - width).clamp(min=-1))
    high = torch.where(position > 0, position + width, position)
    middle, half = (low + high) / 2, (high - low) / 2
    area = torch.zeros_like(a)
    for node, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
        u = middle + half * node
        area = area + weight * half * (a * (u.log1p() - u)).exp() / (1 + u)
    return area * (a / (2 * math.pi)).sqrt() * (-stirling_remainder(a)).exp()


def _smaller_half(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return min(P(a, x), Q(a, x)), which avoids cancellation, and whether it is Q.

    NaN outside the domain.
    """
    order, where = broadcast_tensors(a.double(), x.double())
    small = (order > 0) & (order <= _MAX_SERIES_ORDER)
    is_upper = torch.where(small, where > order + 1, where > order)
    inside = (where > 0) & where.isfinite()
    plain = torch.where(inside, where, 1.0)
    little = torch.where(small, order, 1.0)
    large_order = torch.where(
        (order > _MAX_SERIES_ORDER) & order.isfinite(), order, _MAX_SERIES_ORDER
    )
    lower = _lower_series(little, torch.minimum(plain, little + 1))
    upper = _upper_continued_fraction(little, torch.maximum(plain, little + 1))
    value = torch.where(
        small, torch.where(is_upper, upper, lower), _large_order_integral(large_order, plain)
    )
    value = torch.where(where == 0, 0.0, value)
    # All of the weight is left of an infinite x and for an order of 0, none for an infinite one.
    ended = (order == 0) | where.isinf() | order.isinf()
    is_upper = torch.where(ended, ~order.isinf(), is_upper)
    value = torch.where(ended, 0.0, value)
    unknown = (order < 0) | (where < 0) | (order != order) | (where != where)
    unknown = unknown | ((order == 0) & (where == 0)) | (order.isinf() & where.isinf())
    return torch.where(unknown, math.nan, value), is_upper


def igamma(a: Tensor, x: Tensor) -> Tensor:
    """Return P(a, x), the regularized lower function; NaN for negative arguments, as in PyTorch."""
    value, is_upper = _smaller_half(a, x)
    return torch.where(is_upper, 1 - value, value).to(torch.result_type(a, x))


def igammac(a: Tensor, x: Tensor) -> Tensor:
    """Return Q(a, x) = 1 - P(a, x)."""
    value, is_upper = _smaller_half(a, x)
    return torch.where(is_upper, value, 1 - value).to(torch.result_type(a, x))


__all__ = ["igamma", "igammac"]
