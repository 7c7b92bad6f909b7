"""Recombination of quotients and remainders: digits of mixed radix that make up one number.

    x // c * c + x % c                      ->  x
    (x // c + t) % d * c + x % c            ->  (x + t * c) % (c * d)

A polynomial is searched for terms that are the digits of one number, which its canonical form
replaces by that number or by a remainder of it (Knuth, The Art of Computer Programming 2, 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import poly
from ekiden.arith.poly import Monomial, Poly, PolyKey
from ekiden.arith.polynomial_proofs import Atom, PolynomialProver
from ekiden.ir.prim import FloorDiv, FloorMod


class MixedRadixRecombiner(PolynomialProver):
    """Recombiner of the quotients and remainders in a polynomial."""

    def __init__(self) -> None:
        super().__init__()
        self._has_symbolic_remainders = False
        """Whether there are remainders by a symbol."""

    def _canonicalize_modulo(self, p: Poly, d: Poly, dtype: str) -> Poly:
        """Return the canonical form of `p % d` (implemented by the subclass)."""
        raise NotImplementedError

    def _recombine_divmod(self, p: Poly) -> Poly:
        """Recombine quotient and remainder terms.

        (x // c) * c + x % c -> x;  (x // c + t) % d * c + x % c -> (x + t * c) % (c * d);
        (x // c) * c -> x for a multiple x of c
        """
        # All by x = (x // c) * c + x % c, the definition of floor division, with c, d > 0. The
        # second joins two digits in mixed radix to one: what fusing two loops and splitting them
        # again leaves, of x = chunk * 8192 + i with t = chunk * 64, a multiple of c having been
        # taken out of both. Each time there is a remainder less, so this ends.
        for monomial, scale in p.items():
            if len(monomial) != 1:
                continue
            atom = self._atoms[monomial[0]]
            if atom.numerator is None:
                continue
            if not isinstance(atom.expr, FloorMod):
                if scale % atom.divisor == 0 and self._is_multiple(atom.numerator, atom.divisor):
                    remainder = {m: c for m, c in p.items() if m != monomial}
                    factor = scale // atom.divisor
                    return self._recombine_divmod(poly.add(remainder, dict(atom.numerator), factor))
                continue
            quotient = self._atom_indices.get((FloorDiv, atom.numerator, atom.divisor))
            if quotient is not None and p.get((quotient,)) == scale * atom.divisor:
                remainder = {m: c for m, c in p.items() if m not in (monomial, (quotient,))}
                return self._recombine_divmod(poly.add(remainder, dict(atom.numerator), scale))
            above = None if quotient is None else self._next_floormod_term(p, quotient, scale, atom)
            if above is not None:
                number, addend = above
                remainder = {m: c for m, c in p.items() if m not in (monomial, (number,))}
                size = poly.constant_poly(atom.divisor * self._atoms[number].divisor)
                together = poly.add(dict(atom.numerator), addend, atom.divisor)
                joined = self._canonicalize_modulo(together, size, atom.expr.dtype)
                return self._recombine_divmod(poly.add(remainder, joined, scale))
        return self._recombine_symbolic(p) if self._has_symbolic_remainders else p

    def _is_multiple(self, numerator: PolyKey, divisor: int) -> bool:
        """Return whether a sum is divisible, using that x % c differs from x by a multiple of c.

        A size padded to full blocks, x + -x % c, is one.
        """
        p = dict(numerator)
        while True:
            p = poly.divide_by_const(p, divisor)[1]
            for monomial, scale in p.items():
                atom = self._atoms[monomial[0]] if len(monomial) == 1 else None
                if atom is None or atom.numerator is None or not isinstance(atom.expr, FloorMod):
                    continue
                if scale * atom.divisor % divisor == 0:
                    remainder = {m: c for m, c in p.items() if m != monomial}
                    p = poly.add(remainder, dict(atom.numerator), scale)
                    break
            else:
                return not p

    def _next_floormod_term(
        self, p: Poly, quotient: int, scale: int, atom: Atom
    ) -> tuple[int, Poly] | None:
        """Return the floormod term of p that is `(quotient + t) % d`, the next mixed-radix digit
        above `atom`, with t.
        """
        for monomial, coefficient in p.items():
            if len(monomial) != 1 or coefficient != scale * atom.divisor:
                continue
            above = self._atoms[monomial[0]]
            if above.numerator is None or not isinstance(above.expr, FloorMod):
                continue
            addend = dict(above.numerator)
            if addend.pop((quotient,), 0) == 1:
                return monomial[0], addend
        return None

    def _recombine_symbolic(self, p: Poly) -> Poly:
        """Recombine, for a symbolic divisor d, (x // d) * d * y + x % d * y to x * y, and
        (x // d + t) % n * d * y + x % d * y to (x + t * d) % (n * d) * y.
        """
        # As above for a divisor that is one symbolic monomial, d = factor * divisor, and times any
        # other monomial y. Only analyzers that have met such a remainder come here
        # (_has_symbolic_remainders).
        for monomial, scale in p.items():
            for number in monomial:
                digit = self._atoms[number].symbolic_remainder
                if digit is None:
                    continue
                numerator, key = digit
                quotient = self._atom_indices.get((FloorDiv, numerator, key))
                ((divisor, factor),) = key
                if quotient is None:
                    continue
                cofactors = list(monomial)
                cofactors.remove(number)
                partner = tuple(sorted((*cofactors, quotient, *divisor)))
                if p.get(partner) == scale * factor:
                    remainder = {m: c for m, c in p.items() if m not in (monomial, partner)}
                    joined = poly.multiply(dict(numerator), {tuple(cofactors): scale})
                    return self._recombine_divmod(poly.add(remainder, joined))
                above = self._next_symbolic_digit(p, quotient, cofactors, divisor, scale * factor)
                if above is None:
                    continue
                partner, addend, size = above
                divided_by = {divisor: factor}
                together = poly.add(dict(numerator), poly.multiply(addend, divided_by))
                size = poly.multiply(size, divided_by)
                remainder = {m: c for m, c in p.items() if m not in (monomial, partner)}
                digits = self._canonicalize_modulo(together, size, self._atoms[number].expr.dtype)
                joined = poly.multiply(digits, {tuple(cofactors): scale})
                return self._recombine_divmod(poly.add(remainder, joined))
        return p

    def _next_symbolic_digit(
        self, p: Poly, quotient: int, cofactors: Sequence[int], divisor: Monomial, scale: int
    ) -> tuple[Monomial, Poly, Poly] | None:
        """Return the term of p that is `(quotient + t) % n` times a divisor and cofactors, with t
        and n, for n above 0.
        """
        factors = sorted((*cofactors, *divisor))
        for monomial, coefficient in p.items():
            if coefficient != scale or len(monomial) != len(factors) + 1:
                continue
            for number in monomial:
                atom = self._atoms[number]
                unmatched = list(monomial)
                unmatched.remove(number)
                digit = self._remainder_parts(atom)
                if digit is None or unmatched != factors:
                    continue
                addend, size = digit
                if addend.pop((quotient,), 0) == 1 and self._bound(size)[0] >= 0:
                    return monomial, addend, size
        return None

    def _remainder_parts(self, atom: Atom) -> tuple[Poly, Poly] | None:
        """Return dividend and divisor of an atom that is a remainder, or None."""
        if atom.symbolic_remainder is not None:
            numerator, size = atom.symbolic_remainder
            return dict(numerator), dict(size)
        if atom.numerator is not None and isinstance(atom.expr, FloorMod):
            return dict(atom.numerator), poly.constant_poly(atom.divisor)
        return None


__all__ = ["MixedRadixRecombiner"]
