"""Multivariate integer polynomials over atoms.

A polynomial is a dictionary from monomial to coefficient, which is never 0; a monomial is a sorted
tuple of atom numbers, an atom as often as its power says, () for the constant. So equal polynomials
are equal dictionaries, and the number 0 is {}.

    3 * x * y + x * x - 5   is   {(0, 1): 3, (0, 0): 1, (): -5}     where x is atom 0, y atom 1

None is changed after it was made: every operation gives another. The cost is one of terms, of a
product the product of both counts; index arithmetic has few.
"""

from __future__ import annotations

import math
from typing import TypeAlias

Monomial: TypeAlias = tuple[int, ...]
Poly: TypeAlias = dict[Monomial, int]
PolyKey: TypeAlias = tuple[tuple[Monomial, int], ...]

CONSTANT_MONOMIAL: Monomial = ()


def constant_poly(value: int) -> Poly:
    """Return a constant polynomial."""
    return {CONSTANT_MONOMIAL: value} if value else {}


def constant_value(p: Poly) -> int | None:
    """Return the value of a constant polynomial, or None."""
    if not p:
        return 0
    return p.get(CONSTANT_MONOMIAL) if len(p) == 1 else None


def add(p: Poly, q: Poly, scale: int = 1) -> Poly:
    """Return p + scale * q."""
    total = dict(p)
    for monomial, coefficient in q.items():
        value = total.get(monomial, 0) + scale * coefficient
        if value:
            total[monomial] = value
        else:
            # Zero coefficients are not kept: equal polynomials must be equal dictionaries.
            total.pop(monomial, None)
    return total


def multiply(p: Poly, q: Poly) -> Poly:
    """Return the expanded product p * q."""
    total: Poly = {}
    for m, a in p.items():
        for n, b in q.items():
            # Sorted, so that x * y and y * x are one monomial.
            monomial = tuple(sorted(m + n)) if m and n else m or n
            value = total.get(monomial, 0) + a * b
            if value:
                total[monomial] = value
            else:
                total.pop(monomial, None)
    return total


def poly_key(p: Poly) -> PolyKey:
    """Return a hashable key of a polynomial."""
    return tuple(sorted(p.items()))


def divide_by_const(p: Poly, divisor: int) -> tuple[Poly, Poly]:
    """Return quotient and remainder (q, r) with p = divisor * q + r.

    The coefficients of r are smaller than the divisor, its constant is in [0, divisor).
    """
    quotient: Poly = {}
    remainder: Poly = {}
    for monomial, coefficient in p.items():
        multiple, residue = divmod(coefficient, divisor)
        # Small negative coefficients stay as they are: -1 // 4 would be -1 with a rest of 3.
        if monomial and multiple < 0 and residue:
            multiple, residue = multiple + 1, residue - divisor
        if multiple:
            quotient[monomial] = multiple
        if residue:
            remainder[monomial] = residue
    return quotient, remainder


def divide_by_monomial(p: Poly, divisor: Poly) -> tuple[Poly, Poly] | None:
    """Return (q, r) with p = divisor * q + r for a single-monomial divisor, else None."""
    # A term is in the quotient as a whole or not at all: x * n % n has no rest, (x + 1) % n is not
    # looked into. Long division by a sum would need an order of monomials, and no index has it.
    if len(divisor) != 1:
        return None
    ((monomial, scale),) = divisor.items()
    quotient: Poly = {}
    remainder: Poly = {}
    for term, coefficient in p.items():
        factor = _divide_monomial(term, monomial) if coefficient % scale == 0 else None
        if factor is None:
            remainder[term] = coefficient
        else:
            quotient[factor] = coefficient // scale
    return quotient, remainder


def _divide_monomial(term: Monomial, factor: Monomial) -> Monomial | None:
    """Divide a monomial by another, or return None if it is not divisible."""
    quotient = list(term)
    for atom in factor:
        if atom not in quotient:
            return None
        quotient.remove(atom)
    return tuple(quotient)


def content_gcd(p: Poly) -> int:
    """Return the content: the gcd of the non-constant coefficients, 0 if there are none."""
    return math.gcd(*(c for m, c in p.items() if m != CONSTANT_MONOMIAL))
