"""Modular arithmetic analysis: sets of integers of the form coeff * k + base."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ekiden.arith.poly import Poly
from ekiden.ir import dtype as dt
from ekiden.ir.prim import Cast, FloorDiv, FloorMod, IntImm, Intrinsic, Max, Min, PrimExpr, Select
from ekiden.ir.prim_visitor import children


class ModularSet(NamedTuple):
    """Integers of the form coeff * k + base; coeff 0 for the single number base."""

    coeff: int
    base: int


ALL_INTEGERS = ModularSet(1, 0)


def _normalize(coeff: int, base: int) -> ModularSet:
    return ModularSet(coeff, base % coeff if coeff else base)


def union_sets(a: ModularSet, b: ModularSet) -> ModularSet:
    """Return the smallest modular set that contains both."""
    # Both progressions lie in the one whose step divides both steps and what is between the bases.
    return _normalize(math.gcd(a.coeff, b.coeff, a.base - b.base), a.base)


def add_sets(a: ModularSet, b: ModularSet) -> ModularSet:
    """Return the set of a + b."""
    return _normalize(math.gcd(a.coeff, b.coeff), a.base + b.base)


def multiply_sets(a: ModularSet, b: ModularSet) -> ModularSet:
    """Return the set of a * b."""
    # (m * k + b)(n * l + c) = m * n * k * l + m * c * k + n * b * l + b * c
    shared = math.gcd(a.coeff * b.coeff, a.coeff * b.base, b.coeff * a.base)
    return _normalize(shared, a.base * b.base)


def mod_set(a: ModularSet, divisor: int) -> ModularSet:
    """Return the set of a % divisor, also of a plus any multiple of the divisor."""
    # Values that differ by multiples of the divisor agree modulo every divisor of both steps.
    return _normalize(math.gcd(a.coeff, divisor), a.base)


def intersect_sets(a: ModularSet, b: ModularSet) -> ModularSet:
    """Return the intersection of two sets, which is not empty (Chinese remainder theorem)."""
    # The Chinese remainder theorem: a.base + steps * a.coeff = b.base modulo b.coeff, solved by the
    # inverse of a.coeff / g modulo b.coeff / g, g being what both share; the answer repeats every
    # lcm.
    if a.coeff == 0 or b.coeff == 0:
        return a if a.coeff == 0 else b
    shared = math.gcd(a.coeff, b.coeff)
    if (b.base - a.base) % shared:
        return a  # no value is in both: what follows is never reached
    steps = (b.base - a.base) // shared * pow(a.coeff // shared, -1, b.coeff // shared)
    return _normalize(a.coeff * b.coeff // shared, a.base + steps * a.coeff)


class ModularAnalyzer:
    """Modular analyzer of polynomials over atoms.

    `poly_of` gives the polynomial of an expression, `atom` the expression of an atom, `fits`
    whether a value fits a dtype.
    """

    def __init__(
        self,
        poly_of: Callable[[PrimExpr], Poly],
        atom: Callable[[int], PrimExpr],
        fits: Callable[[PrimExpr, str], bool],
    ) -> None:
        self._poly_of, self._atom, self._fits = poly_of, atom, fits
        self._known_residues: dict[int, ModularSet] = {}

    def add_residue(self, number: int, residues: ModularSet) -> None:
        """Add a known residue of an atom."""
        self._known_residues[number] = intersect_sets(
            self._known_residues.get(number, ALL_INTEGERS), residues
        )

    def set_of_poly(self, p: Poly) -> ModularSet:
        """Return the modular set of a polynomial."""
        total = ModularSet(0, 0)
        for monomial, scale in p.items():
            term = ModularSet(0, scale)
            for number in monomial:
                # A monomial multiplies the residue classes of its atoms.
                term = multiply_sets(term, self._set_of_atom(number))
            total = add_sets(total, term)
        return total

    def _set_of_atom(self, number: int) -> ModularSet:
        derived = self._set_of_node(self._atom(number))
        learned = self._known_residues.get(number)
        return derived if learned is None else intersect_sets(derived, learned)

    def _set_of_node(self, e: PrimExpr) -> ModularSet:
        match e:
            case Min() | Max():
                return union_sets(self._set_of_expr(e.a), self._set_of_expr(e.b))
            case Select() | Intrinsic(op="if_then_else"):
                _, yes, no = children(e)
                return union_sets(self._set_of_expr(yes), self._set_of_expr(no))
            case FloorMod(a=a, b=IntImm(value=divisor)) if divisor > 0:
                return mod_set(self._set_of_expr(a), divisor)
            case FloorDiv(a=a, b=IntImm(value=divisor)) if divisor > 0:
                # (m * k + b) // d = (m / d) * k + b // d where d divides m; else nothing is known.
                inside = self._set_of_expr(a)
                if inside.coeff % divisor:
                    return ALL_INTEGERS
                return _normalize(inside.coeff // divisor, inside.base // divisor)
            case Cast(value=value) if dt.is_int(value.dtype) and dt.is_int(e.dtype):
                inside = self._set_of_expr(value)
                # A value that wraps around moves by a multiple of 2 ** bits.
                if self._fits(value, e.dtype):
                    return inside
                return mod_set(inside, 2 ** dt.SCALAR_BITS[e.dtype])
            case Intrinsic(op="bitwise_and", args=(a, IntImm(value=mask))):
                is_mask = mask > 0 and mask & (mask + 1) == 0
                return mod_set(self._set_of_expr(a), mask + 1) if is_mask else ALL_INTEGERS
        return ALL_INTEGERS

    def _set_of_expr(self, e: PrimExpr) -> ModularSet:
        return self.set_of_poly(self._poly_of(e))
