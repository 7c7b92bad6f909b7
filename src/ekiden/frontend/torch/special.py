"""Special functions as plain arithmetic, in the dtype of the argument.

DLMF: NIST Digital Library of Mathematical Functions, https://dlmf.nist.gov. Sums are cut where the
next term is below the rounding of float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ekiden.frontend.torch.selections import broadcast

_SHIFT = 8
"""Arguments of gamma functions are moved up to here, where the asymptotic sums hold."""
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""B_2, B_4, ..."""


def lgamma(x: Tensor) -> Tensor:
    """log |gamma(x)|: Stirling's sum (DLMF 5.11.1) above 8, the product of what is between below it
    (5.5.1), the reflection below 0 (5.5.3). In float64, since it cancels near 1 and 2."""
    wide = x.double()
    low = wide < 0.5
    y = torch.where(low, 1 - wide, wide)
    between = torch.ones_like(y)
    for step in range(_SHIFT):
        between = between * torch.where(y + step < _SHIFT, y + step, 1.0)
    z = y + (_SHIFT - y).clamp(min=0).ceil()
    found = (z - 0.5) * z.log() - z + 0.5 * math.log(2 * math.pi)
    for k, b in enumerate(_BERNOULLI, 1):
        found = found + b / (2 * k * (2 * k - 1)) * z ** (1 - 2 * k)
    found = found - between.log()
    turn = (math.pi * (wide - wide.round())).sin().abs()
    found = torch.where(low, math.log(math.pi) - turn.log() - found, found)
    return torch.where(wide.isinf(), math.inf, found).to(x.dtype)


def digamma(x: Tensor) -> Tensor:
    """The derivative of lgamma: DLMF 5.11.2, 5.5.2 and 5.5.4. NaN at -1, -2, ...; -inf at 0."""
    wide = x.double()
    low = wide < 0.5
    y = torch.where(low, 1 - wide, wide)
    between = torch.zeros_like(y)
    for step in range(_SHIFT):
        between = between + torch.where(y + step < _SHIFT, 1 / (y + step), 0.0)
    z = y + (_SHIFT - y).clamp(min=0).ceil()
    found = z.log() - 0.5 / z
    for k, b in enumerate(_BERNOULLI, 1):
        found = found - b / (2 * k) * z ** (-2 * k)
    found = found - between
    found = torch.where(low, found - math.pi / (math.pi * (wide - wide.round())).tan(), found)
    found = torch.where((wide < 0) & (wide == wide.round()), math.nan, found)
    at_zero = -torch.copysign(torch.full_like(wide, math.inf), wide)
    return torch.where(wide == 0, at_zero, found).to(x.dtype)


def erfinv(x: Tensor) -> Tensor:
    """The inverse of erf: Winitzki's guess ("A handy approximation for the error function and its
    inverse", 2008), then Halley's steps in float64. Exact to 1e-7 but within 1e-10 of 1."""
    wide = x.double()
    size = wide.abs()
    rest = torch.log1p(-size) + torch.log1p(size)  # log(1 - x x)
    a = 0.147
    middle = 2 / (math.pi * a) + rest / 2
    y = ((middle * middle - rest / a).sqrt() - middle).clamp(min=0).sqrt()
    for _ in range(3):
        slope = 2 / math.sqrt(math.pi) * (-y * y).exp()
        error = (torch.special.erf(y) - size) / slope
        y = y - error / (1 + y * error)
    y = torch.where(size == 1, math.inf, torch.where(size > 1, math.nan, y))
    return torch.copysign(y, wide).to(x.dtype)


def _bessel(x: Tensor, order: int, scaled: bool) -> Tensor:
    """I_0 or I_1, times exp(-|x|) if scaled: DLMF 10.25.2 to 15, 10.40.1 above."""
    wide = x.double()
    size = wide.abs()
    square = (size.clamp(max=15) / 2) ** 2
    term = torch.ones_like(size) if order == 0 else size.clamp(max=15) / 2
    near = term
    for k in range(1, 40):
        term = term * square / (k * (k + order))
        near = near + term
    large = size.clamp(min=15)
    term, far = torch.ones_like(large), torch.ones_like(large)
    for k in range(1, 14):
        term = -term * (4 * order * order - (2 * k - 1) ** 2) / (8 * k * large)
        far = far + term
    far = far / (2 * math.pi * large).sqrt()
    if scaled:
        near = near * (-size).exp()
    else:
        far = far * large.exp()
    found = torch.where(size <= 15, near, far)
    return found * wide.sign() if order else found


def i0(x: Tensor) -> Tensor:
    """The modified Bessel function of order 0."""
    return _bessel(x, 0, False).to(x.dtype)


def i1(x: Tensor) -> Tensor:
    """The modified Bessel function of order 1."""
    return _bessel(x, 1, False).to(x.dtype)


def i0e(x: Tensor) -> Tensor:
    """exp(-|x|) I_0(x)."""
    return _bessel(x, 0, True).to(x.dtype)


def i1e(x: Tensor) -> Tensor:
    """exp(-|x|) I_1(x)."""
    return _bessel(x, 1, True).to(x.dtype)


def _fraction(x: Tensor) -> Tensor:
    """exp(x x) erfc(x) from 2 on, by its continued fraction (DLMF 7.9.3)."""
    found = x
    for k in range(60, 0, -1):
        found = x + k / 2 / found
    return 1 / (math.sqrt(math.pi) * found)


def erfc(x: Tensor) -> Tensor:
    """1 - erf(x), which keeps its digits where it is small."""
    wide = x.double()
    far = (-wide * wide).exp() * _fraction(wide.clamp(min=2))
    return torch.where(wide < 2, 1 - torch.erf(wide), far).to(_float_of(x))


def erfcx(x: Tensor) -> Tensor:
    """exp(x x) erfc(x)."""
    wide = x.double()
    near = (wide * wide).exp() * (1 - torch.erf(wide))
    return torch.where(wide < 2, near, _fraction(wide.clamp(min=2))).to(_float_of(x))


def _float_of(x: Tensor) -> torch.dtype:
    return x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()


_TERMS = 12
"""Of Hurwitz' sum, before the sums of Euler and Maclaurin take over."""


def zeta(x: Tensor | float, q: Tensor | float) -> Tensor:
    """Hurwitz' function, the sum of (n + q) ** -x: DLMF 25.11.5. As in PyTorch infinite at 1 and at
    q = 0, -1, ..., and no number below 1, or where a negative one would be raised to a fraction."""
    order, first = broadcast(_wide(x, q), _wide(q, x))
    total = first.pow(-order)
    for n in range(1, _TERMS):
        total = total + (first + n).pow(-order)
    last = first + _TERMS
    total = total + last.pow(1 - order) / (order - 1) + last.pow(-order) / 2
    rising, factorial = order, 2.0
    for k, b in enumerate(_BERNOULLI, 1):
        total = total + b / factorial * rising * last.pow(-order - 2 * k + 1)
        rising = rising * (order + 2 * k - 1) * (order + 2 * k)
        factorial *= (2 * k + 1) * (2 * k + 2)
    is_whole = first == first.floor()
    total = torch.where((first <= 0) & (order != order.floor()), math.nan, total)
    total = torch.where((first <= 0) & is_whole, math.inf, total)
    total = torch.where(order == 1, math.inf, torch.where(order < 1, math.nan, total))
    dtype = torch.result_type(x, q)
    return total.to(dtype if dtype.is_floating_point else torch.get_default_dtype())


def _wide(value: Tensor | float, other: Tensor | float) -> Tensor:
    """A number like the tensor beside it."""
    if isinstance(value, Tensor):
        return value.double()
    assert isinstance(other, Tensor)
    return torch.full_like(other, value, dtype=torch.float64)


def polygamma(n: int, x: Tensor) -> Tensor:
    """The n-th derivative of digamma: DLMF 5.15.1, and for the first one 5.15.6 below 1/2."""
    if n == 0:
        return digamma(x)
    wide = x.double()
    if n > 1:
        size = math.factorial(n) if n % 2 else -math.factorial(n)
        return (size * zeta(float(n + 1), wide)).to(_float_of(x))
    low = wide < 0.5
    found = zeta(2.0, torch.where(low, 1 - wide, wide))
    turned = (math.pi / (math.pi * wide).sin()) ** 2 - found
    return torch.where(low, turned, found).to(_float_of(x))


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """log of running sums of exponentials: pairs, pairs of pairs and so on (Hillis and Steele,
    "Data parallel algorithms", 1986), each sum from its own largest."""
    if not x.dim():
        return x.clone()
    extent, step, found = x.shape[dim], 1, x
    while step < extent:
        before = found.narrow(dim, 0, extent - step)
        later = torch.logaddexp(found.narrow(dim, step, extent - step), before)
        found = torch.cat([found.narrow(dim, 0, step), later], dim)
        step *= 2
    return found


__all__ = [
    "digamma", "erfc", "erfcx", "erfinv", "i0", "i0e", "i1", "i1e", "lgamma", "logcumsumexp",
    "polygamma", "zeta",
]  # fmt: skip
