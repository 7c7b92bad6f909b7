"""The Analyzer: canonical simplification, bounds and proofs of integer expressions."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import ClassVar, NamedTuple

from ekiden.arith import modular, poly
from ekiden.arith.canonical import CanonicalForm, bound_of_kind, is_index_dtype
from ekiden.arith.int_set import IntervalSet, eval_set, interval
from ekiden.arith.interval import UNBOUNDED_INTERVAL, Bound, Interval
from ekiden.arith.modular import ModularSet
from ekiden.arith.poly import Poly
from ekiden.arith.rewrite_simplify import RewriteSimplifier
from ekiden.ir import prim
from ekiden.ir.dtype import int_range
from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    And,
    BinaryExpr,
    FloorMod,
    IntImm,
    Not,
    PrimExpr,
    Var,
    const,
)
from ekiden.ir.prim_visitor import has_unknown_dim, substitute
from ekiden.ir.range import Range


class _ConstIntBoundFields(NamedTuple):
    min_value: Bound
    max_value: Bound


class ProofStrength(IntEnum):
    """Effort of `can_prove` (TVM's name); every proof is tried at any level."""

    DEFAULT = 0
    SYMBOLIC_BOUND = 1


class ConstIntBound(_ConstIntBoundFields):
    """Constant bounds of an integer expression, infinite where unknown."""

    __slots__ = ()
    NEG_INF: ClassVar[float] = -math.inf
    POS_INF: ClassVar[float] = math.inf


_NEGATED_COMPARISON: dict[type[PrimExpr], type[BinaryExpr]] = {
    LT: GE, GE: LT, LE: GT, GT: LE, EQ: NE, NE: EQ,
}  # fmt: skip


class Analyzer(CanonicalForm):
    """Simplifier and prover under the bindings and constraints of variables.

    SizeVars are >= 0; others are anything until bound.
    """

    # A variable has two kinds of bounds: symbolic ends (`_var_ranges`), which proofs may substitute
    # for it, and a constant interval (`_set_atom_bound`), which decides most queries without
    # substitution.
    def bind(
        self, var: Var, minimum: prim.ExprLike | Range, extent: prim.ExprLike | None = None
    ) -> None:
        """Bind a variable to minimum <= var < minimum + extent, to a Range, or (TVM's form) to an
        expression.

        Earlier results about the variable are forgotten.
        """
        if isinstance(minimum, Range):
            domain = minimum
            minimum, extent = domain.min, domain.extent
        if extent is None:
            self._clear_caches()
            self._bound_values[id(var)] = self._to_poly(prim.convert(minimum, var.dtype))
            self._bound_vars.append(var)
            return
        low = self._size_poly(minimum)
        high = poly.add(poly.add(low, self._size_poly(extent)), poly.constant_poly(-1))
        # Forms made before know a wider range of the variable, or none.
        if ("var", id(var)) in self._atom_indices:
            self._clear_caches()
        number = self._variable_atom(var)
        self._var_ranges[number] = (low, high)
        self._set_atom_bound(number, (self._bound(low)[0], self._bound(high)[1]))

    def _size_poly(self, size: prim.ExprLike) -> Poly:
        """Return the canonical polynomial of a size, in most loops a number."""
        if isinstance(size, (int, IntImm)):
            return poly.constant_poly(int(size))
        return self._to_poly(prim.convert(size, "int64"))

    def _clear_caches(self) -> None:
        """Clear the caches of expressions; atoms keep their numbers."""
        self._memo = {}
        self._keepalive = []
        self._rewritten_forms = {}

    def _set_atom_bound(self, number: int, bound: Interval) -> None:
        """Set the bound of a variable's atom.

        Bounds of atoms over it that were found before hold for fewer values too; for more values
        they are found again.
        """
        atom = self._atoms[number]
        (low, high), atom.bound = atom.bound, bound
        if not (low <= bound[0] and bound[1] <= high):
            self._recompute_bounds(number)

    def _recompute_bounds(self, number: int) -> None:
        """Recompute the bounds of all atoms over a variable whose bound has widened.

        First each of them may have any value, so that no bound of one that is still to be found
        decides that of another; then they are found in the order of their numbers, in which the
        operands of an atom come before it.
        """
        variables = self._dependent_variables(number)
        touched = [n for n in range(len(self._atoms)) if self._mentions_any(n, variables)]
        for n in touched:
            # Reset all bounds before recomputing any: the bound of an atom is computed from
            # others'.
            self._atoms[n].bound = bound_of_kind(self._atoms[n].expr)
        for v in variables:
            if v != number:
                low, high = self._var_ranges[v]
                self._atoms[v].bound = self._bound(low)[0], self._bound(high)[1]
        keys = {n: key for key, n in self._atom_indices.items()}
        for n in touched:
            self._atoms[n].bound = self._recompute_atom_bound(n, keys[n])

    def _dependent_variables(self, number: int) -> list[int]:
        """Return a variable and those whose symbolic ranges depend on it, transitively."""
        reached = [number]
        for one in reached:
            for candidate, ends in self._var_ranges.items():
                inside = {a for end in ends for m in end for a in m}
                if candidate not in reached and any(
                    a == one or self._depends_on(a, one) for a in inside
                ):
                    reached.append(candidate)
        return reached

    def _mentions_any(self, number: int, variables: Sequence[int]) -> bool:
        return any(self._depends_on(number, v) for v in variables)

    def _recompute_atom_bound(self, number: int, key: object) -> Interval:
        """Recompute the bound of an atom under the current constraints.

        It is that of its normal form, computed as if the atom did not exist; side effects are
        dropped.
        """
        atoms, numbers, terms = len(self._atoms), dict(self._atom_indices), dict(self._term_cache)
        self._clear_caches()
        # Without its number the expression is taken apart anew instead of being found as this atom.
        del self._atom_indices[key]
        bound = self._bound(self._to_poly(self._atoms[number].expr))
        self._clear_caches()
        # Atoms that the computation has added would shift the numbers of later ones.
        del self._atoms[atoms:]
        self._atom_indices, self._term_cache = numbers, terms
        return bound

    def update(self, var: Var, bound: ConstIntBound, override: bool = False) -> None:
        """Update the constant bound of a variable. TVM: `Analyzer.update` with a ConstIntBound."""
        self._clear_caches()
        number = self._variable_atom(var)
        low, high = UNBOUNDED_INTERVAL if override else self._atoms[number].bound
        self._set_atom_bound(number, (max(low, bound[0]), min(high, bound[1])))

    @contextmanager
    def constraint_scope(self, constraint: PrimExpr) -> Iterator[None]:
        """Assume a condition within the context.

        Comparisons of integers join the proofs and the bounds of variables; any other condition is
        true where it is met again.
        """
        # Forms found inside depend on the assumption, and must not be seen outside.
        saved = (
            self._memo,
            self._keepalive,
            self._rewritten_forms,
            self._known_nonnegative,
            self._assumed_truths,
            self._term_cache,
            self._stale_atoms,
        )
        numbers, count = dict(self._atom_indices), len(self._atoms)
        bounds = [a.bound for a in self._atoms]
        self._clear_caches()
        self._known_nonnegative, self._assumed_truths = (
            list(self._known_nonnegative),
            dict(self._assumed_truths),
        )
        self._term_cache = dict(self._term_cache)
        try:
            self._assume(prim.convert(constraint))
            self._stale_atoms = set(range(len(self._atoms)))
            yield
        finally:
            (
                memo,
                alive,
                rewritten,
                self._known_nonnegative,
                self._assumed_truths,
                self._term_cache,
                self._stale_atoms,
            ) = saved
            self._memo, self._keepalive, self._rewritten_forms = memo, alive, rewritten
            self._atom_indices = numbers
            # Their bounds were found under the assumption.
            del self._atoms[count:]
            for number in [n for n in self._var_ranges if n >= count]:
                del self._var_ranges[number]
            for atom, bound in zip(self._atoms, bounds, strict=True):
                atom.bound = bound

    def _assume(self, constraint: PrimExpr) -> None:
        """Assume each conjunct of a condition."""
        # Both forms: simplification may lose the shape that a rule below looks for.
        pending = [self.simplify(constraint), constraint]
        while pending:
            e = pending.pop()
            match e:
                case And():
                    pending += [e.a, e.b]
                case Not(a=prim.Or() as inner):
                    pending += [Not(inner.a), Not(inner.b)]
                case Not(a=inner) if type(inner) in _NEGATED_COMPARISON:
                    assert isinstance(inner, BinaryExpr)
                    pending.append(_NEGATED_COMPARISON[type(inner)](inner.a, inner.b, "bool"))
                case BinaryExpr() if type(e) in _NEGATED_COMPARISON and is_index_dtype(e.a):
                    self._assume_comparison(e)
                case Not(a=inner):
                    self._assume_truth(inner, 0)
                case _ if not isinstance(e, IntImm):
                    self._assume_truth(e, 1)

    def _assume_truth(self, condition: PrimExpr, value: int) -> None:
        p = self._to_poly(condition)
        # A condition with a normal form of its own is one atom; its key finds it again.
        if len(p) == 1 and poly.constant_value(p) is None:
            self._assumed_truths[poly.poly_key(p)] = value
        self._clear_caches()

    def _assume_comparison(self, e: BinaryExpr) -> None:
        difference = poly.add(self._to_poly(e.a), self._to_poly(e.b), -1)
        # The difference of sides that wrap around says nothing of their order.
        if self._may_overflow_int32(e.a) or self._may_overflow_int32(e.b):
            self._assume_truth(e, 1)
            return
        below = poly.add({}, difference, -1)
        match e:
            case LT() | LE():
                facts = [poly.add(below, poly.constant_poly(-int(isinstance(e, LT))))]
            case GT() | GE():
                facts = [poly.add(difference, poly.constant_poly(-int(isinstance(e, GT))))]
            case EQ():
                # An equality is two inequalities.
                facts = [difference, below]
            case _:
                self._assume_truth(e, 1)
                self._assume_truth(EQ(e.a, e.b, "bool"), 0)
                return
        for p in facts:
            self._known_nonnegative.append(p)
            self._tighten_bounds(p)
        self._clear_caches()

    # scale * atom + rest >= 0 gives atom >= -max(rest) / scale for scale > 0, rounded up, which is
    # -(max(rest) // scale), and atom <= max(rest) // -scale for scale < 0.
    def _tighten_bounds(self, p: Poly) -> None:
        """Tighten the bound of each atom by the fact `scale * atom + offset >= 0`."""
        for monomial, scale in p.items():
            if len(monomial) != 1:
                continue
            atom = self._atoms[monomial[0]]
            remainder_bound = self._bound({m: c for m, c in p.items() if m != monomial})[1]
            if math.isinf(remainder_bound):
                continue
            low, high = atom.bound
            if scale > 0:
                atom.bound = max(low, -(int(remainder_bound) // scale)), high
            else:
                atom.bound = low, min(high, int(remainder_bound) // -scale)

    def rewrite_simplify(self, expr: PrimExpr) -> PrimExpr:
        """Simplify by the rewrite rules of `arith.rewrite_rules`, node by node.

        A node that no rule matches is in its canonical form where that is shorter.
        """
        return RewriteSimplifier(self, self.modular_set).simplify_expr(prim.convert(expr))

    def canonical_simplify(self, expr: PrimExpr) -> PrimExpr:
        """Return the canonical form, TVM's name for `simplify`."""
        return self.simplify(expr)

    def can_prove_equal(self, lhs: prim.ExprLike, rhs: prim.ExprLike) -> bool:
        """Return whether two integer expressions are provably equal. Nothing is ever known of
        `AnyDim`.
        """
        a, b = prim.convert(lhs), prim.convert(rhs)
        # The same `?` may stand for two sizes: it is not even known to equal itself.
        return self._to_poly(a) == self._to_poly(b) and not (
            has_unknown_dim(a) or has_unknown_dim(b)
        )

    def can_prove_greater_equal(self, expr: PrimExpr, lower_bound: int) -> bool:
        """Return whether an expression is provably at least a number."""
        return self._is_nonnegative(
            poly.add(self._to_poly(expr), poly.constant_poly(lower_bound), -1)
        )

    def can_prove_less(self, expr: PrimExpr, upper_bound: int) -> bool:
        """Return whether an expression is provably below a number."""
        return self._is_nonnegative(
            poly.add(poly.constant_poly(upper_bound - 1), self._to_poly(expr), -1)
        )

    def const_int_bound(self, expr: PrimExpr) -> ConstIntBound:
        """Return the constant bounds of an expression, infinite where unknown."""
        return ConstIntBound(*self._tight_bound(self._to_poly(expr)))

    def modular_set(self, expr: PrimExpr) -> ModularSet:
        """Return (coeff, base) with value = coeff * k + base for some k; coeff 0 for a constant."""
        sets = modular.ModularAnalyzer(
            self._to_poly, lambda n: self._atoms[n].expr, self._fits_dtype
        )
        for number, residue in self._known_remainders():  # x % 4 is known to be 2
            sets.add_residue(number, residue)
        for p in self._known_nonnegative:  # x - 4 * y - 2 is known to be 0
            # p >= 0 and -p >= 0: p is 0, and the atom congruent to the others.
            if poly.add({}, p, -1) in self._known_nonnegative:
                for monomial, scale in p.items():
                    if len(monomial) == 1 and abs(scale) == 1:
                        remainder = {m: c for m, c in p.items() if m != monomial}
                        sets.add_residue(
                            monomial[0], sets.set_of_poly(poly.add({}, remainder, -scale))
                        )
        return sets.set_of_poly(self._to_poly(expr))

    def _known_remainders(self) -> Iterator[tuple[int, ModularSet]]:
        """Yield the atoms with known remainders, and these."""
        for atom in self._atoms:
            numerator, is_fixed = atom.numerator, atom.bound[0] == atom.bound[1]
            if not is_fixed or numerator is None or not isinstance(atom.expr, FloorMod):
                continue
            ((monomial, scale),) = numerator if len(numerator) == 1 else (((), 0),)
            if len(monomial) == 1 and scale == 1 and atom.divisor > 0:
                yield monomial[0], ModularSet(atom.divisor, int(atom.bound[0]))

    def _fits_dtype(self, expr: PrimExpr, dtype: str) -> bool:
        low, high = self._bound(self._to_poly(expr))
        ends = int_range(dtype)
        return ends is not None and ends[0] <= low and high <= ends[1]

    def int_set(
        self, expr: PrimExpr, dom_map: Mapping[Var, IntervalSet] | None = None
    ) -> IntervalSet:
        """Return the interval of an expression while the variables of `dom_map` range over theirs.

        Without `dom_map` it has the constant bounds.
        """
        if dom_map is not None:
            return eval_set(expr, dom_map, self.simplify)
        low, high = self._bound(self._to_poly(expr))
        return interval(
            None if math.isinf(low) else const(int(low), expr.dtype),
            None if math.isinf(high) else const(int(high), expr.dtype),
        )

    def coefficient(self, expr: PrimExpr, var: Var) -> int | None:
        """Return c if expr is linear, c * var + (terms without var), else None."""
        p = self._to_poly(expr)
        number = self._variable_atom(var)
        scale = 0
        for monomial, coefficient in p.items():
            if monomial == (number,):
                scale = coefficient
            # The variable inside another atom, or in a product with one, is not linear.
            elif any(a == number or self._depends_on(a, number) for a in monomial):
                return None
        return scale

    def slope(self, expr: PrimExpr, var: Var) -> PrimExpr | None:
        """Return by how much an expression grows with each step of a variable, in canonical form,
        if it is linear in it, else None.
        """
        slope = self._linear_coefficient(self._to_poly(expr), self._variable_atom(var))
        return None if slope is None else self._poly_to_expr(slope, expr.dtype)

    def values_at(self, expr: PrimExpr, var: Var, count: int) -> list[PrimExpr]:
        """Return the canonical forms of an expression where a variable is 0, 1, ..., count - 1."""
        p, number = self._to_poly(expr), self._variable_atom(var)
        slope = self._linear_coefficient(p, number)
        if slope is None or expr.dtype != var.dtype:
            steps = range(count)
            return [self.simplify(substitute(expr, {var: const(n, var.dtype)})) for n in steps]
        start = {m: c for m, c in p.items() if number not in m}
        return [self._poly_to_expr(poly.add(start, slope, n), expr.dtype) for n in range(count)]

    def can_fuse(self, expr: PrimExpr, outer: Var, inner: Var, extent: PrimExpr) -> bool:
        """Return whether expr depends on both variables only through outer * extent + inner."""
        p = self._to_poly(expr)
        slopes = [self._linear_coefficient(p, self._variable_atom(v)) for v in (outer, inner)]
        if slopes[0] is None or slopes[1] is None:
            return False
        # f(outer * extent + inner) has the slope of `inner` times the extent in `outer`.
        return slopes[0] == poly.multiply(slopes[1], self._to_poly(extent))

    def _linear_coefficient(self, p: Poly, number: int) -> Poly | None:
        """Return the factor of a variable, or None if the polynomial is not linear in it."""
        slope: Poly = {}
        for monomial, coefficient in p.items():
            cofactor = [a for a in monomial if a != number]
            if len(cofactor) < len(monomial) - 1 or any(
                self._depends_on(a, number) for a in cofactor
            ):
                return None
            if len(cofactor) < len(monomial):
                slope[tuple(cofactor)] = coefficient
        return slope


# Proofs of shapes may share one analyzer: nothing is bound in it, so that no answer depends on the
# ones before. Texts may not, as the order of terms does. Per thread, as an analyzer is not locked.
class _SharedAnalyzer(threading.local):
    """Thread-local analyzer without bindings, which caches proofs about shapes."""

    MAX_CACHED_EXPRS = 20_000
    """Maximum number of cached expressions; a single query may exceed it."""

    def __init__(self) -> None:
        self.analyzer = Analyzer()
        self.canonical_forms: dict[int, tuple[PrimExpr, PrimExpr]] = {}
        """id of an expression -> it, and its normal form."""

    def analyzer_for_proofs(self) -> Analyzer:
        """Return the shared analyzer; it is replaced when its caches grow too large."""
        # Dropped as a whole: atoms refer to each other, and single ones cannot be freed.
        if self.analyzer.size > self.MAX_CACHED_EXPRS:
            self.analyzer = Analyzer()
        return self.analyzer

    def canonical_form(self, expr: PrimExpr) -> PrimExpr:
        """Return the canonical form from a fresh analyzer, since earlier queries would change the
        order of terms.
        """
        entry = self.canonical_forms.get(id(expr))
        if entry is None:
            if len(self.canonical_forms) > self.MAX_CACHED_EXPRS:
                self.canonical_forms.clear()
            entry = self.canonical_forms[id(expr)] = expr, Analyzer().simplify(expr)
        return entry[1]


_SHARED_ANALYZER = _SharedAnalyzer()


def simplify(expr: PrimExpr) -> PrimExpr:
    """Return the canonical form without bindings; SizeVars are non-negative."""
    if isinstance(expr, (Var, IntImm)):
        return expr
    return _SHARED_ANALYZER.canonical_form(expr)


def prove_equal(a: PrimExpr, b: PrimExpr) -> bool:
    """Return whether two integer expressions are provably equal for all values of their
    variables.
    """
    if isinstance(a, IntImm) and isinstance(b, IntImm):
        return a.value == b.value
    if isinstance(a, Var) and isinstance(b, Var):
        return a is b
    return _SHARED_ANALYZER.analyzer_for_proofs().can_prove_equal(a, b)
