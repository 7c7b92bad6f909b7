"""Polynomials over atoms: the normal form of integer expressions.

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
Key: TypeAlias = tuple[tuple[Monomial, int], ...]

ONE: Monomial = ()


def constant(value: int) -> Poly:
    """Return the polynomial of a number."""
    return {ONE: value} if value else {}


def constant_of(p: Poly) -> int | None:
    """Return the number that a polynomial is, or None."""
    if not p:
        return 0
    return p.get(ONE) if len(p) == 1 else None


def add(p: Poly, q: Poly, scale: int = 1) -> Poly:
    """p + scale * q."""
    total = dict(p)
    for monomial, coefficient in q.items():
        value = total.get(monomial, 0) + scale * coefficient
        if value:
            total[monomial] = value
        else:
            total.pop(monomial, None)
    return total


def multiply(p: Poly, q: Poly) -> Poly:
    """p * q, expanded."""
    total: Poly = {}
    for m, a in p.items():
        for n, b in q.items():
            monomial = tuple(sorted(m + n)) if m and n else m or n
            value = total.get(monomial, 0) + a * b
            if value:
                total[monomial] = value
            else:
                total.pop(monomial, None)
    return total


def key(p: Poly) -> Key:
    """Return a hashable key that is equal for equal polynomials."""
    return tuple(sorted(p.items()))


def split(p: Poly, divisor: int) -> tuple[Poly, Poly]:
    """Return (q, r) with p = divisor * q + r.

    The coefficients of r are smaller than the divisor, its constant is in [0, divisor).
    """
    quotient: Poly = {}
    remainder: Poly = {}
    for monomial, coefficient in p.items():
        multiple, residue = divmod(coefficient, divisor)
        if monomial and multiple < 0 and residue:
            multiple, residue = multiple + 1, residue - divisor
        if multiple:
            quotient[monomial] = multiple
        if residue:
            remainder[monomial] = residue
    return quotient, remainder


def split_symbolic(p: Poly, divisor: Poly) -> tuple[Poly, Poly] | None:
    """Return (q, r) with p = divisor * q + r where divisor is one monomial; None if it is a sum."""
    # A term is in the quotient as a whole or not at all: x * n % n has no rest, (x + 1) % n is not
    # looked into. Long division by a sum would need an order of monomials, and no index has it.
    if len(divisor) != 1:
        return None
    ((monomial, scale),) = divisor.items()
    quotient: Poly = {}
    remainder: Poly = {}
    for term, coefficient in p.items():
        factor = _without(term, monomial) if coefficient % scale == 0 else None
        if factor is None:
            remainder[term] = coefficient
        else:
            quotient[factor] = coefficient // scale
    return quotient, remainder


def _without(term: Monomial, factor: Monomial) -> Monomial | None:
    """Return a monomial divided by another; None where it is no multiple of it."""
    quotient = list(term)
    for atom in factor:
        if atom not in quotient:
            return None
        quotient.remove(atom)
    return tuple(quotient)


def content(p: Poly) -> int:
    """Return the greatest common divisor of the coefficients without the constant; 0 if there are
    none.
    """
    return math.gcd(*(c for m, c in p.items() if m != ONE))
