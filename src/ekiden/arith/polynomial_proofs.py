"""Bounds and sign proofs of polynomials over atoms.

An atom is what a polynomial does not look into: a variable, a quotient, a minimum, a load. Each has
a lowest and a highest value, and the intervals of the terms add up to that of the polynomial. Where
ends are symbols, as for i in [0, n), the variable is put at the end at which the polynomial is
lowest, if it is known to rise or to fall with it, and the question asked again. What a scope says
to hold (`_known_nonnegative`, each >= 0) is taken off the polynomial: p - fact >= 0 is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ekiden.arith import poly
from ekiden.arith.interval import (
    Bound,
    Interval,
    multiply_bounds,
    multiply_intervals,
    truncmod_interval,
)
from ekiden.arith.poly import CONSTANT_MONOMIAL, Monomial, Poly, PolyKey
from ekiden.ir.prim import EQ, GE, GT, LE, LT, NE, BinaryExpr, Div, FloorDiv, PrimExpr, Var, const
from ekiden.ir.prim_visitor import post_order

MAX_PROOF_DEPTH = 6
"""Maximum number of ranged variables that a proof substitutes, and of nested rewrites; both
searches branch, so deeper goals stay unproved.
"""


class Atom:
    """Opaque subexpression of the canonical form: a variable, quotient, load or call."""

    __slots__ = ("bound", "divisor", "expr", "numerator", "sort_key", "symbolic_remainder")

    def __init__(self, expr: PrimExpr, bound: Interval, order: tuple[object, ...]) -> None:
        self.expr = expr
        self.bound = bound
        self.sort_key = order
        """Sort key within a sum: variables first, by name."""
        self.numerator: PolyKey | None = None
        self.divisor: int = 0
        """Divisor c of the quotient x // c or remainder x % c, for constant c > 0. Not of c < 0:
        two digits are then not one of the product, 0 * 2 + 1 % 2 being 1 and 1 % -6 being -5.
        """
        self.symbolic_remainder: tuple[PolyKey, PolyKey] | None = None
        """Dividend and divisor (x, d) of a remainder x % d by a symbolic monomial."""


class PolynomialProver:
    """Atoms with bounds, and proofs about polynomials over them."""

    def __init__(self) -> None:
        self._atoms: list[Atom] = []
        self._atom_indices: dict[object, int] = {}
        """Index in `_atoms` by the atom's kind and the polynomials of its parts."""
        self._has_truncated_division = False
        """Whether any quotient is truncated towards zero."""
        self._var_ranges: dict[int, tuple[Poly, Poly]] = {}
        """Lowest and highest value of each ranged variable, by its atom index."""
        self._term_cache: dict[tuple[Monomial, int], PrimExpr] = {}
        self._known_nonnegative: list[Poly] = []
        """Polynomials known to be >= 0 in the scope."""

    def _to_poly(self, expr: PrimExpr) -> Poly:
        """Return the canonical polynomial of an expression (implemented by the subclass)."""
        raise NotImplementedError

    def _depends_on(self, atom: int, variable: int) -> bool:
        """Return whether a non-variable atom depends on a variable, as i // 4 on i."""
        target = self._atoms[variable].expr
        expr = self._atoms[atom].expr
        return not isinstance(expr, Var) and any(e is target for e in post_order(expr))

    def _intern_atom(
        self, key: object, make: Callable[[], PrimExpr], bound: Interval, order: tuple[object, ...]
    ) -> int:
        number = self._atom_indices.get(key)
        if number is None:
            number = self._atom_indices[key] = len(self._atoms)
            self._atoms.append(Atom(make(), bound, order))
        return number

    def _poly_to_expr(self, p: Poly, dtype: str) -> PrimExpr:
        """Convert a polynomial to an expression.

        Terms stand in the order of their atoms, those that are subtracted behind the others, the
        number last.
        """
        # A polynomial of one atom is that atom's own object, so that what does not change is not
        # made again and `is` stays the cheap test for it.
        atoms = self._atoms
        if len(p) == 1:
            ((monomial, coefficient),) = p.items()
            if coefficient == 1 and len(monomial) == 1:
                return atoms[monomial[0]].expr
        number = poly.constant_value(p)
        if number is not None:
            return const(number, dtype)
        terms = sorted((m for m in p if m), key=lambda m: ([atoms[a].sort_key for a in m], m))
        # Stable: among those that are added, and those taken away, the order of atoms stays. That
        # is by name where there is one; others stand as they were met, so that a text depends on
        # what this analyzer was asked before (see analyzer._SharedAnalyzer.canonical_form).
        terms.sort(key=lambda m: p[m] < 0)
        total: PrimExpr | None = None
        for monomial in terms:
            total = _append_term(
                total, self._term_expr(monomial, p[monomial], total is None), p[monomial]
            )
        assert total is not None
        offset = p.get(CONSTANT_MONOMIAL, 0)
        return total + offset if offset >= 0 else total - -offset

    def _term_expr(self, monomial: Monomial, scale: int, first: bool) -> PrimExpr:
        """Return a term without its sign (with it if first), as a cached object."""
        scale = scale if first else abs(scale)
        term = self._term_cache.get((monomial, scale))
        if term is None:
            term = self._term_cache[monomial, scale] = self._monomial_expr(monomial) * scale
        return term

    def _monomial_expr(self, monomial: Monomial) -> PrimExpr:
        """Return the product expression of a non-constant monomial."""
        total = self._atoms[monomial[0]].expr
        for atom in monomial[1:]:
            total = total * self._atoms[atom].expr
        return total

    def _bound(self, p: Poly) -> Interval:
        """Return the interval of a polynomial, the sum of its terms' intervals.

        A variable in two terms counts as two: the interval may be too wide, never too narrow.
        """
        low: Bound = 0
        high: Bound = 0
        for monomial, coefficient in p.items():
            term: Interval = (coefficient, coefficient)
            for atom in monomial:
                # Interval arithmetic takes atoms as independent: the bound may be wider than the
                # values are.
                term = multiply_intervals(term, self._atoms[atom].bound)
            low, high = low + term[0], high + term[1]
        if self._has_truncated_division:
            for inside in self._truncmod_bounds(p):
                low, high = max(low, inside[0]), min(high, inside[1])
        return low, high

    def _truncmod_bounds(self, p: Poly) -> Iterator[Interval]:
        """Yield bounds from truncated remainders: s * (a - truncdiv(a, b) * b) + r."""
        # C's remainder lies below |b| and has the sign of a. In a polynomial it is in no one place:
        # the terms of s * a stand among those of r. The term -s * q * b, of a quotient q and a b of
        # one term, gives s and so r = p + s * q * b - s * a; what is left of q in r would not do.
        for monomial, coefficient in p.items():
            for number in monomial:
                quotient = self._atoms[number].expr
                if not isinstance(quotient, Div):
                    continue
                a, b = self._to_poly(quotient.a), self._to_poly(quotient.b)
                ((by, size),) = b.items() if len(b) == 1 else (((0,), 0),)
                cofactor = list(monomial)
                cofactor.remove(number)
                if tuple(cofactor) != by or not size or coefficient % size:
                    continue
                scale = -coefficient // size
                remaining = poly.add({m: c for m, c in p.items() if m != monomial}, a, -scale)
                if monomial in remaining or any(number in m for m in remaining):
                    continue
                low, high = self._bound(remaining)
                remainder_min, remainder_max = truncmod_interval(self._bound(a), self._bound(b))
                ends = [
                    multiply_bounds(scale, remainder_min),
                    multiply_bounds(scale, remainder_max),
                ]
                yield low + min(ends), high + max(ends)

    def _tight_bound(self, p: Poly, depth: int = MAX_PROOF_DEPTH) -> Interval:
        """Return the interval of p, with floor remainders expanded as `a - a // d * d`. Proofs
        inside of schedules do without: they have `a % d`.
        """
        low, high = self._bound(p)
        for monomial, coefficient in p.items():
            quotient = self._atoms[monomial[0]] if len(monomial) == 1 else None
            if quotient is None or not isinstance(quotient.expr, FloorDiv) or depth <= 0:
                continue
            divisor, numerator = quotient.divisor, quotient.numerator
            if numerator is None or divisor <= 0 or coefficient % divisor:
                continue
            scale = -coefficient // divisor
            remaining = {m: c for m, c in p.items() if m != monomial}
            inside = self._tight_bound(poly.add(remaining, dict(numerator), -scale), depth - 1)
            ends = 0, scale * (divisor - 1)
            low, high = max(low, inside[0] + min(ends)), min(high, inside[1] + max(ends))
        return low, high

    def _is_nonnegative(self, p: Poly, depth: int = MAX_PROOF_DEPTH) -> bool:
        """Return whether p >= 0 is provable: by constant bounds, facts, or ranged variables at
        their ends.
        """
        # 1. Constant bounds. 2. If p - fact >= 0 then p >= fact >= 0; each fact branches, which is
        # why it costs two of the depth. 3. Symbolic ends: the first variable in which p is
        # monotonic takes its worst end, and no other is tried in its place: no branch here.
        if self._bound(p)[0] >= 0:
            return True
        if depth <= 0:
            return False
        for fact in self._known_nonnegative:
            # Only facts that cancel a term of p: others cannot help.
            difference = _subtract_fact(p, fact)
            if difference is not None and self._is_nonnegative(difference, depth - 2):
                return True
        if not self._var_ranges:
            return False
        inside = {a for m in p for a in m if a in self._var_ranges}
        # The last bound first: loops inside have ranges in which those around them occur.
        for atom in sorted(inside, reverse=True):
            replaced = self._substitute_worst_end(p, atom)
            if replaced is not None:
                return self._is_nonnegative(replaced, depth - 1)
        return False

    def _substitute_worst_end(self, p: Poly, atom: int) -> Poly | None:
        """Substitute a ranged variable by the end that minimises p; None if p is not provably
        monotonic in it.
        """
        # p = slope * v + rest. For slope >= 0, p is lowest where v is: slope * low(v) + rest. That
        # holds if p is linear in v and v is in no atom of p, whose value would change with it.
        slope: Poly = {}
        offset: Poly = {}
        for monomial, coefficient in p.items():
            if atom in monomial:
                cofactor = list(monomial)
                cofactor.remove(atom)
                slope[tuple(cofactor)] = coefficient
            else:
                offset[monomial] = coefficient
        if any(atom in m for m in slope) or any(self._depends_on(a, atom) for m in p for a in m):
            return None
        low, high = self._bound(slope)
        if low >= 0 or high <= 0:
            # The sign of the slope decides which end is the worst; a slope of unknown sign decides
            # nothing.
            end = self._var_ranges[atom][0 if low >= 0 else 1]
            return poly.add(offset, poly.multiply(slope, end))
        return None

    def _decide_comparison(self, kind: type[BinaryExpr], p: Poly) -> bool | None:
        """Decide the comparison `p kind 0`, or return None."""
        low, high = self._bound(p)
        if kind in (EQ, NE):
            # 0 is outside of the interval, or excluded by divisibility.
            if low > 0 or high < 0 or not p or self._is_indivisible(p):
                return (kind is EQ) == (not p)
            if low == high == 0:
                return kind is EQ
            return self._decide_by_facts(p, kind is EQ) if self._known_nonnegative else None
        # p < 0 is -p - 1 >= 0 for whole numbers; that it does not hold is p >= 0
        if kind in (GT, GE):
            p, kind = {m: -c for m, c in p.items()}, LT if kind is GT else LE
        # From here on kind is LT or LE. What is asked is p < 0 (or <= 0), then its opposite.
        if self._is_nonnegative(poly.add(poly.constant_poly(-1 if kind is LT else 0), p, -1)):
            return True
        return (
            False
            if self._is_nonnegative(poly.add(p, poly.constant_poly(0 if kind is LT else -1)))
            else None
        )

    def _decide_by_facts(self, p: Poly, wants_zero: bool) -> bool | None:
        """Decide whether p is zero (or, without `wants_zero`, non-zero) by the scope's facts, or
        return None.
        """
        below = poly.add({}, p, -1)
        if self._is_nonnegative(p) and self._is_nonnegative(below):
            return wants_zero
        one = poly.constant_poly(-1)
        if self._is_nonnegative(poly.add(p, one)) or self._is_nonnegative(poly.add(below, one)):
            return not wants_zero
        return None

    def _is_indivisible(self, p: Poly) -> bool:
        """Return whether divisibility excludes zero: 4 * i + 6 * j + 3 is odd."""
        # An equation sum(c_k * x_k) = -n has solutions in whole numbers only where gcd(c_k) divides
        # n. That is the whole of what is asked of divisibility here; `modular` knows more.
        coeff = poly.content_gcd(p)
        return bool(coeff) and p.get(CONSTANT_MONOMIAL, 0) % coeff != 0

    def _is_in_range(self, p: Poly, d: Poly) -> bool:
        """Return whether 0 <= p < d is provable."""
        if not p:
            return True
        return self._is_nonnegative(p) and self._is_nonnegative(
            poly.add(poly.add(d, p, -1), poly.constant_poly(-1))
        )


def _subtract_fact(p: Poly, fact: Poly) -> Poly | None:
    """Return p - scale * fact for the positive scale that cancels a term of p, or None."""
    # A step of Fourier-Motzkin elimination with one inequality: p >= scale * fact + left, so that
    # left >= 0 is enough. The scale is whole, and positive, or the fact would be used backwards.
    for monomial, coefficient in fact.items():
        have = p.get(monomial, 0)
        if monomial and have and have * coefficient > 0 and have % coefficient == 0:
            return poly.add(p, fact, -(have // coefficient))
    return None


def _append_term(total: PrimExpr | None, term: PrimExpr, scale: int) -> PrimExpr:
    if total is None:
        return term
    return total + term if scale > 0 else total - term
