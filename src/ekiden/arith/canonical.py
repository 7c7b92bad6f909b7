"""Canonical form of integer expressions: polynomials over atoms.

An atom is what the form does not look into: a variable, a quotient, a minimum, a load. Equal
polynomials are equal expressions, so that two sides are compared by their forms:

    (i + 1) * 4 - i      ->  {(i,): 3, (): 4}           i * 3 + 4
    (i * 8 + j) // 4     ->  {(i,): 2, (j // 4,): 1}    i * 2 + j // 4
    i // 4 * 4 + i % 4   ->  {(i,): 1}                  i

Proofs about polynomials are in polynomial_proofs.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ekiden.arith import poly
from ekiden.arith.interval import UNBOUNDED_INTERVAL, Interval, divide_intervals, floordiv_bound
from ekiden.arith.mixed_radix import MixedRadixRecombiner
from ekiden.arith.poly import CONSTANT_MONOMIAL, Poly, PolyKey
from ekiden.arith.polynomial_proofs import MAX_PROOF_DEPTH
from ekiden.arith.rewrite_rules import NORMALIZE_RULES, REWRITE_RULES
from ekiden.arith.rule_engine import RuleSet, RuleWalker
from ekiden.ir import dtype as dt
from ekiden.ir.constant_arithmetic import trunc_div
from ekiden.ir.dtype import int_range
from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    And,
    AnyDim,
    BinaryExpr,
    Cast,
    Div,
    FloorDiv,
    FloorMod,
    IntImm,
    Intrinsic,
    Max,
    Min,
    Mul,
    Not,
    Or,
    PrimExpr,
    Select,
    SizeVar,
    Sub,
    Var,
    convert,
)
from ekiden.ir.prim_visitor import (
    children,
    literal_fields,
    post_order,
    rebuild,
)


# Overview. `_to_poly` converts an expression to a Poly, children first, by one rule of
# `_CANONICALIZE_RULES` per node. A node that no rule decomposes is an atom: `_atom_form` looks its
# number up by the kind and the canonical forms of its children (hash-consing), so that two nodes
# over equal children are one atom. Invariants:
#
# * An atom's number is larger than those of the atoms in its children, which were interned first.
#   Replacing an atom by its children (`_recombine_divmod`) therefore terminates.
# * An atom's `bound` holds for every value that its variables may have *in the scope*. Scopes
#   narrow bounds (`Analyzer.constraint_scope` restores them); widening a bound recomputes those of
#   all dependent atoms.
# * A form is exact over the integers: int32 and int64 are treated as unbounded, as in TVM. An index
#   that overflows is an error of the program and is not checked here. Indices and sizes are int64;
#   loaded int32 values are data, whose sums and products wrap around. Their forms are exact modulo
#   2**32, so operations that depend on order or quotient (`_ORDER_DEPENDENT_OPS`) stay unsimplified
#   where their operands may leave int32.
# * Absence of a counterexample proves nothing: an unknown answer is None or False, and callers must
#   be correct with it.
class CanonicalForm(RuleWalker[Poly], MixedRadixRecombiner):
    """Converter between expressions and canonical polynomials over atoms.

    What is known of variables is set by its subclass, the Analyzer.
    """

    rules = RuleSet(*REWRITE_RULES, *NORMALIZE_RULES)
    max_rewrite_depth = MAX_PROOF_DEPTH

    def __init__(self) -> None:
        super().__init__()
        self._rewritten_forms: dict[object, Poly] = {}
        """Results of rewrite rules, by the key that the node would have as an atom."""
        self._stale_atoms: set[int] = set()
        """Atoms to which rules have not been applied under the assumptions of the scope."""
        # Conditions of rules are proved in the scope, so these go with it, as `_memo` does.
        self._bound_values: dict[int, Poly] = {}
        """Values that variables are bound to."""
        self._bound_vars: list[Var] = []
        self._assumed_truths: dict[PolyKey, int] = {}
        """Conditions that are no comparisons, known to be 1 or 0 in the scope."""

    def can_prove(self, condition: PrimExpr, strength: int = 0) -> bool:
        """Return whether a boolean expression is provably true; `strength` is accepted for TVM's
        sake.
        """
        del strength
        return poly.constant_value(self._to_poly(condition)) == 1

    def simplify(self, expr: PrimExpr, steps: int = 1) -> PrimExpr:
        """Return an equal expression in canonical form; equal linear expressions have equal forms.

        One step reaches it; `steps` is TVM's.
        """
        del steps
        expr = convert(expr)
        if isinstance(expr, IntImm) or (isinstance(expr, Var) and not self._bound_values):
            return expr
        return self._poly_to_expr(self._to_poly(expr), expr.dtype)

    @property
    def size(self) -> int:
        """Return the number of cached expressions."""
        return len(self._keepalive)

    def _to_poly(self, expr: PrimExpr) -> Poly:
        """Return the canonical polynomial of an expression."""
        form = self._memo.get(id(expr))
        return self._walk(expr) if form is None else form

    def _node_form(self, expr: PrimExpr) -> Poly:
        if isinstance(expr, IntImm):
            return poly.constant_poly(int(expr.value))
        if isinstance(expr, Var):
            value = self._bound_values.get(id(expr))
            form: Poly = {(self._variable_atom(expr),): 1} if value is None else value
        else:
            form = self._canonicalize_by_kind(expr)
        if self._assumed_truths and expr.dtype == "bool":
            truth = self._assumed_truths.get(poly.poly_key(form))
            return form if truth is None else poly.constant_poly(truth)
        return form

    def _canonicalize_by_kind(self, expr: PrimExpr) -> Poly:
        """Canonicalise a node by the rule of its kind.

        Floats, vectors and integers of other widths are opaque: their arithmetic rounds, wraps or
        has lanes, so that the rules of whole numbers do not hold for it.
        """
        rule = _CANONICALIZE_RULES.get(type(expr))
        if rule is None or not _is_index(expr):
            return self._atom_form(expr)
        if _depends_on_order(expr) and any(map(self._may_overflow_int32, children(expr))):
            return self._atom_form(expr, self._bound_of_unsimplified(expr), rewrites=False)
        return rule(self, expr)

    def _may_overflow_int32(self, expr: PrimExpr) -> bool:
        """Return whether an int32 expression over loaded data may overflow."""
        if expr.dtype != "int32":
            return False
        # A constant or a single atom is what is loaded or named: no operation could leave int32.
        p = self._form_of(expr)
        if not p or (len(p) == 1 and next(iter(p)) == CONSTANT_MONOMIAL) or _is_single_atom(p):
            return False
        (low, high), ends = self._bound(p), int_range("int32")
        assert ends is not None
        if ends[0] <= low and high <= ends[1]:
            return False
        return any(map(_is_opaque_value, post_order(*(self._atoms[a].expr for m in p for a in m))))

    def _bound_by_dtype(self, expr: PrimExpr) -> Interval:
        """Return the bound of an expression, or that of its dtype if it may wrap around."""
        wrapped = int_range(expr.dtype) if self._may_overflow_int32(expr) else None
        return self._bound(self._form_of(expr)) if wrapped is None else wrapped

    def _bound_of_unsimplified(self, expr: PrimExpr) -> Interval:
        """Return the bound of a node that stays unsimplified."""
        if isinstance(expr, (Min, Max)):
            pick = min if isinstance(expr, Min) else max
            low, high = zip(*map(self._bound_by_dtype, (expr.a, expr.b)), strict=True)
            return pick(low), pick(high)
        if isinstance(expr, FloorMod) and isinstance(expr.b, IntImm) and expr.b.value > 0:
            return 0, expr.b.value - 1
        return int_range(expr.dtype) or bound_of_kind(expr)

    def _variable_atom(self, var: Var) -> int:
        bound = (
            (0, math.inf if var.upper is None else var.upper)
            if isinstance(var, SizeVar)
            else bound_of_kind(var)
        )
        return self._intern_atom(("var", id(var)), lambda: var, bound, (0, var.name))

    def _atom_form(
        self, expr: PrimExpr, bound: Interval | None = None, rewrites: bool = True
    ) -> Poly:
        """Return a node as an atom over simplified children, or the result of a rewrite rule for
        it.
        """
        # In this order: what a rule made of its like before, an atom that exists, and only then is
        # a node made at all.
        inside = children(expr)
        polys = [self._memo[id(c)] for c in inside]
        literal = tuple(id(v) if not isinstance(v, (str, int)) else v for v in literal_fields(expr))
        # A polynomial has no width, but what is opaque may read one: popcount(-1) is 32 or 64.
        widths = tuple(c.dtype for c in inside)
        # Of two unknown dimensions nothing is known, not even that they are equal: each is an atom.
        key = (
            type(expr),
            literal,
            widths,
            *(poly.poly_key(p) for p in polys),
            id(expr) if isinstance(expr, AnyDim) else 0,
        )

        def make() -> PrimExpr:
            """Build the node over its canonical children, only if no equal atom exists."""
            return rebuild(
                expr, [self._poly_to_expr(p, c.dtype) for p, c in zip(polys, inside, strict=True)]
            )

        if key in self._rewritten_forms:
            return self._rewritten_forms[key]
        number = self._atom_indices.get(key)
        if number is not None:
            at_limit = self._rewrite_depth == self.max_rewrite_depth
            if not rewrites or at_limit or number not in self._stale_atoms:
                return {(number,): 1}
            # A rule whose condition was open outside of the scope may hold inside of it.
            self._stale_atoms.remove(number)
            changed = self._apply_rules(key, self._atoms[number].expr)
            return {(number,): 1} if changed is None else changed
        simplified = make()
        if isinstance(simplified, IntImm):
            return poly.constant_poly(int(simplified.value))
        changed = self._apply_rules(key, simplified) if rewrites else None
        if changed is not None:
            return changed
        natural = bound_of_kind(expr) if bound is None else bound
        return {(self._intern_atom(key, lambda: simplified, natural, (1, type(expr).__name__)),): 1}

    def _apply_rules(self, key: object, simplified: PrimExpr) -> Poly | None:
        """Return the canonical form of a rewrite rule's result, cached; None if no rule matches."""
        form = self._rewritten_form(simplified)
        if form is not None:
            self._rewritten_forms[key] = form
        return form

    # Each gives the normal form of a node whose children have theirs.

    def _form_of(self, expr: PrimExpr) -> Poly:
        return self._memo[id(expr)]

    def _canonicalize_add(self, e: PrimExpr) -> Poly:
        assert isinstance(e, Add)
        return self._recombine_divmod(poly.add(self._form_of(e.a), self._form_of(e.b)))

    def _canonicalize_sub(self, e: PrimExpr) -> Poly:
        assert isinstance(e, Sub)
        return self._recombine_divmod(poly.add(self._form_of(e.a), self._form_of(e.b), -1))

    def _canonicalize_mul(self, e: PrimExpr) -> Poly:
        assert isinstance(e, Mul)
        return poly.multiply(self._form_of(e.a), self._form_of(e.b))

    def _canonicalize_div(self, e: PrimExpr) -> Poly:
        assert isinstance(e, Div)
        a, b = self._form_of(e.a), self._form_of(e.b)
        # Rounding towards zero and rounding down are one where the quotient is not negative; and
        # where the division is exact. A divisor of 0 has no value to be kept.
        if self._bound(a)[0] >= 0 and self._bound(b)[0] >= 0:
            return self._canonicalize_division(a, b, e.dtype)
        divisor = poly.constant_value(b)
        if divisor and all(c % divisor == 0 for c in a.values()):
            return {m: c // divisor for m, c in a.items()}
        self._has_truncated_division = True
        return self._atom_form(e, divide_intervals(self._bound(a), self._bound(b), trunc_div))

    def _canonicalize_floordiv(self, e: PrimExpr) -> Poly:
        assert isinstance(e, FloorDiv)
        return self._canonicalize_division(self._form_of(e.a), self._form_of(e.b), e.dtype)

    def _canonicalize_floormod(self, e: PrimExpr) -> Poly:
        assert isinstance(e, FloorMod)
        return self._canonicalize_modulo(self._form_of(e.a), self._form_of(e.b), e.dtype)

    def _canonicalize_division(self, p: Poly, d: Poly, dtype: str) -> Poly:
        """Return (d * q + r) // d as q + r // d."""
        # Floor division takes out whole multiples of any divisor; C's does not: (-8 + 7) / 4 is 0.
        divisor = poly.constant_value(d)
        if divisor is not None and divisor > 0:
            quotient, remainder = poly.divide_by_const(p, divisor)
            return poly.add(quotient, self._divide_remainder(remainder, divisor, dtype))
        divided = poly.divide_by_monomial(p, d)
        if divided is None or divisor is not None:
            return self._quotient_atom(FloorDiv, p, d, dtype)
        quotient, remainder = divided
        if self._is_in_range(remainder, d):
            return quotient
        return poly.add(quotient, self._quotient_atom(FloorDiv, remainder, d, dtype))

    def _divide_remainder(self, p: Poly, divisor: int, dtype: str) -> Poly:
        """Return p // divisor where no term of p is divisible."""
        # (g * q + r) // (g * c) = q // c for 0 <= r < g: r can only be of p's number, as g divides
        # all other coefficients. And (x // c) // d = x // (c * d) for c, d > 0.
        low, high = self._bound(p)
        if low > -math.inf and high < math.inf and low // divisor == high // divisor:
            return poly.constant_poly(int(low // divisor))
        if self._is_in_range(p, poly.constant_poly(divisor)):
            return {}
        common = math.gcd(poly.content_gcd(p), divisor)
        if common > 1:
            return self._divide_remainder(
                poly.divide_by_const(p, common)[0], divisor // common, dtype
            )
        nested = self._match_floordiv(p)
        if nested is not None:
            return self._canonicalize_division(
                dict(nested[0]), poly.constant_poly(nested[1] * divisor), dtype
            )
        return self._quotient_atom(FloorDiv, p, poly.constant_poly(divisor), dtype)

    def _match_floordiv(self, p: Poly) -> tuple[PolyKey, int] | None:
        """Return (x, c) if p is x // c, else None."""
        if len(p) != 1:
            return None
        ((monomial, scale),) = p.items()
        if scale != 1 or len(monomial) != 1:
            return None
        atom = self._atoms[monomial[0]]
        if atom.numerator is None or not isinstance(atom.expr, FloorDiv):
            return None
        return atom.numerator, atom.divisor

    def _canonicalize_modulo(self, p: Poly, d: Poly, dtype: str) -> Poly:
        """Return (d * q + r) % d as r % d, which is r if 0 <= r < d is proven."""
        divisor = poly.constant_value(d)
        if divisor is not None and divisor > 0:
            return self._modulo_remainder(poly.divide_by_const(p, divisor)[1], divisor, dtype)
        divided = poly.divide_by_monomial(p, d)
        if divided is None or divisor is not None:
            return self._quotient_atom(FloorMod, p, d, dtype)
        remainder = divided[1]
        return (
            remainder
            if self._is_in_range(remainder, d)
            else self._quotient_atom(FloorMod, remainder, d, dtype)
        )

    def _modulo_remainder(self, p: Poly, divisor: int, dtype: str) -> Poly:
        """Return p % divisor where all coefficients are smaller than the divisor.

        If p cannot pass a multiple of the divisor, it is p less a multiple; a common factor c
        leaves c * (p / c % (divisor / c)).
        """
        low, high = self._bound(p)
        if low > -math.inf and high < math.inf and low // divisor == high // divisor:
            return poly.add(p, poly.constant_poly(-int(low // divisor) * divisor))
        if self._is_in_range(p, poly.constant_poly(divisor)):
            return p
        common = math.gcd(poly.content_gcd(p), divisor)
        if common > 1:
            quotient, remainder = poly.divide_by_const(p, common)
            # (g * q + r) % (g * c) = g * (q % c) + r for 0 <= r < g.
            inner = self._modulo_remainder(quotient, divisor // common, dtype)
            return poly.add(remainder, inner, common)
        # Coefficients count modulo the divisor, so -1 may be divisor - 1. Where p may be negative
        # they are left as written: no form of it is known to be nearer to [0, divisor).
        p = {m: (c % divisor if m else c) for m, c in p.items()} if self._bound(p)[0] >= 0 else p
        if self._is_multiple(poly.poly_key(p), divisor):
            return {}
        return self._quotient_atom(FloorMod, p, poly.constant_poly(divisor), dtype)

    def _quotient_atom(self, kind: type[BinaryExpr], p: Poly, d: Poly, dtype: str) -> Poly:
        """Return p // d or p % d as an atom, or the result of a rewrite rule.

        Properties of a digit that `_recombine_divmod` needs later are noted with it.
        """
        divisor = poly.constant_value(d)
        if not p and divisor != 0:
            return {}
        numerator = poly.poly_key(p)
        key = (kind, numerator, divisor if divisor is not None else poly.poly_key(d))
        if key in self._rewritten_forms:
            return self._rewritten_forms[key]
        if key not in self._atom_indices:
            node = kind(self._poly_to_expr(p, dtype), self._poly_to_expr(d, dtype), dtype)
            changed = self._apply_rules(key, node)
            if changed is not None:
                return changed
            number = self._intern_atom(
                key, lambda: node, self._quotient_bound(kind, p, d), (1, kind.__name__)
            )
            if divisor is not None and divisor > 0:
                self._atoms[number].numerator, self._atoms[number].divisor = numerator, divisor
            elif kind is FloorMod and len(d) == 1:
                self._atoms[number].symbolic_remainder = numerator, poly.poly_key(d)
                self._has_symbolic_remainders = True
        return {(self._atom_indices[key],): 1}

    def _quotient_bound(self, kind: type[BinaryExpr], p: Poly, d: Poly) -> Interval:
        """Return the bound of p // d or p % d.

        A divisor that may be 0 counts as 1, as the value of a division by 0 is never used.
        """
        low, high = self._bound(p)
        smallest, largest = self._bound(d)
        if smallest < 0 and kind is FloorMod:
            return smallest + 1, max(largest - 1, 0)
        if smallest < 0:
            return divide_intervals((low, high), (smallest, largest), floordiv_bound)
        if kind is FloorMod:
            # A remainder is below its divisor, and not above a numerator that is not negative.
            return 0, min(largest - 1, high if low >= 0 else math.inf)
        # low // step is the least where low < 0, as dividing by less goes further from zero. A
        # value below 0 may still be brought up to -1 by a large divisor: 0 is said, which is no
        # less true.
        step = max(smallest, 1)
        if smallest == largest:
            return floordiv_bound(low, step), floordiv_bound(high, step)
        lower = 0 if low >= 0 else floordiv_bound(low, step)
        return lower, (floordiv_bound(high, step) if high >= 0 else 0)

    def _canonicalize_min_max(self, e: PrimExpr) -> Poly:
        """Canonicalise min or max: the operand proven to win, else an atom independent of operand
        order.
        """
        # min(a, b) = a where b - a >= 0. The bound of the atom: min and max rise with both sides.
        assert isinstance(e, (Min, Max))
        a, b = self._form_of(e.a), self._form_of(e.b)
        difference = poly.add(a, b, -1)
        if self._is_nonnegative(difference):
            return a if isinstance(e, Max) else b
        if self._is_nonnegative(poly.add({}, difference, -1)):
            return b if isinstance(e, Max) else a
        # One atom for both orders of the operands: min and max commute.
        first, second = sorted((a, b), key=poly.poly_key)
        (low, high), (low2, high2) = self._bound(first), self._bound(second)
        pick = max if isinstance(e, Max) else min
        key = (type(e), poly.poly_key(first), poly.poly_key(second))
        if key in self._rewritten_forms:
            return self._rewritten_forms[key]
        if key not in self._atom_indices:
            node = type(e)(
                self._poly_to_expr(first, e.dtype), self._poly_to_expr(second, e.dtype), e.dtype
            )
            changed = self._apply_rules(key, node)
            if changed is not None:
                return changed
            bound = (pick(low, low2), pick(high, high2))
            self._intern_atom(key, lambda: node, bound, (1, type(e).__name__))
        return {(self._atom_indices[key],): 1}

    def _canonicalize_comparison(self, e: PrimExpr) -> Poly:
        assert isinstance(e, BinaryExpr)
        answer = self._decide_comparison(
            type(e), poly.add(self._form_of(e.a), self._form_of(e.b), -1)
        )
        return self._atom_form(e) if answer is None else poly.constant_poly(int(answer))

    def _canonicalize_and_or(self, e: PrimExpr) -> Poly:
        assert isinstance(e, (And, Or))
        absorbing = int(isinstance(e, Or))
        a, b = self._form_of(e.a), self._form_of(e.b)
        if poly.constant_value(a) is not None:
            return a if poly.constant_value(a) == absorbing else b
        if poly.constant_value(b) is not None:
            return b if poly.constant_value(b) == absorbing else a
        return a if a == b else self._atom_form(e)

    def _canonicalize_not(self, e: PrimExpr) -> Poly:
        assert isinstance(e, Not)
        value = poly.constant_value(self._form_of(e.a))
        return self._atom_form(e) if value is None else poly.constant_poly(1 - value)

    def _canonicalize_select(self, e: PrimExpr) -> Poly:
        condition, yes, no = (self._form_of(c) for c in children(e))
        value = poly.constant_value(condition)
        if value is not None or yes == no:
            return no if value == 0 else yes
        if not is_index_dtype(e):
            return self._atom_form(e)
        # Either side may be the value: the hull of both.
        (low, high), (low2, high2) = map(self._bound_by_dtype, children(e)[1:])
        return self._atom_form(e, (min(low, low2), max(high, high2)))

    def _canonicalize_intrinsic(self, e: PrimExpr) -> Poly:
        assert isinstance(e, Intrinsic)
        if e.op == "bitwise_and":
            return self._atom_form(e, self._bitwise_and_bound(*map(self._form_of, e.args)))
        if e.op == "right_shift":
            return self._atom_form(e, self._right_shift_bound(*map(self._form_of, e.args)))
        return self._canonicalize_select(e) if e.op == "if_then_else" else self._atom_form(e)

    def _right_shift_bound(self, a: Poly, b: Poly) -> Interval:
        """Return the bound of a right shift."""
        (low, high), (least_shift, most_shift) = self._bound(a), self._bound(b)
        if least_shift < 0 or any(math.isinf(x) for x in (low, high, least_shift, most_shift)):
            return UNBOUNDED_INTERVAL
        # Python's shifts of negative numbers round down, as the machine's arithmetic shift does.
        ends = [int(x) >> min(int(n), 64) for x in (low, high) for n in (least_shift, most_shift)]
        return min(ends), max(ends)

    def _bitwise_and_bound(self, a: Poly, b: Poly) -> Interval:
        """Return the bound of a bitwise and: at most its smallest non-negative operand."""
        ends = [high for low, high in (self._bound(a), self._bound(b)) if low >= 0]
        return (0, min(ends)) if ends else UNBOUNDED_INTERVAL

    def _canonicalize_cast(self, e: PrimExpr) -> Poly:
        """Canonicalise a cast; value-preserving ones are dropped.

        These are casts of a number that fits, and casts from int32 to int64 of a sum whose terms
        are int64 already and that fits int32.
        """
        assert isinstance(e, Cast)
        value = self._form_of(e.value)
        number, ends = poly.constant_value(value), int_range(e.dtype)
        assert ends is not None, e.dtype
        # Widening keeps every value; narrowing does only where the bound proves it.
        exact = (e.dtype == "int64" and e.value.dtype == "int32") or e.dtype == e.value.dtype
        if number is not None and _is_index(e.value) and ends[0] <= number <= ends[1]:
            return value
        if exact and (self._fits_int32_affine(value) or poly.constant_value(value) is not None):
            return value
        if not dt.is_int(e.value.dtype) and e.value.dtype != "bool":
            return self._atom_form(e)
        low, high = self._bound_by_dtype(e.value)
        return self._atom_form(e, (low, high) if ends[0] <= low and high <= ends[1] else None)

    def _fits_int32_affine(self, p: Poly) -> bool:
        return all(abs(b) < 2**31 for b in self._bound(p)) and not any(
            self._atoms[a].expr.dtype != "int64" for m in p for a in m
        )


def is_index_dtype(expr: PrimExpr) -> bool:
    """Return whether an expression is int32 or int64."""
    return expr.dtype in ("int64", "int32")


def _is_index(expr: PrimExpr) -> bool:
    """Return whether integer rules apply: int32 and int64 scalars, and booleans over them."""
    if isinstance(expr, (EQ, NE, LT, LE, GT, GE)):
        return is_index_dtype(expr.a)
    return is_index_dtype(expr) or isinstance(expr, (And, Or, Not, Select, Intrinsic))


def _is_opaque_value(expr: PrimExpr) -> bool:
    """Return whether an expression is opaque data (a load or call) rather than arithmetic."""
    return type(expr) not in _CANONICALIZE_RULES and not isinstance(expr, (IntImm, Var))


def _is_single_atom(p: Poly) -> bool:
    """Return whether a polynomial is a single atom."""
    return len(p) == 1 and all(len(m) == 1 and c == 1 for m, c in p.items())


def _depends_on_order(expr: PrimExpr) -> bool:
    """Return whether a value depends on more than its operands modulo 2**32."""
    return isinstance(expr, _ORDER_DEPENDENT_OPS) or (
        isinstance(expr, Intrinsic) and expr.op == "right_shift"
    )


_ORDER_DEPENDENT_OPS = (Div, FloorDiv, FloorMod, Min, Max, EQ, NE, LT, LE, GT, GE)


def bound_of_kind(expr: PrimExpr) -> Interval:
    """Return the bound of an expression by its kind and dtype alone.

    int32 and int64 count as numbers without ends, except for data of int32.
    """
    if expr.dtype == "bool":
        return 0, 1
    if isinstance(expr, AnyDim):
        return 0, math.inf
    if expr.dtype == "int64" or (expr.dtype == "int32" and not _is_opaque_value(expr)):
        return UNBOUNDED_INTERVAL
    return int_range(expr.dtype) or UNBOUNDED_INTERVAL


# A rule may ask for the forms of the node's children, which stand in `_memo` by then, and gives
# that of the node. Kinds without a row are opaque.
_CANONICALIZE_RULES: dict[type[PrimExpr], Callable[[CanonicalForm, PrimExpr], Poly]] = {
    Add: CanonicalForm._canonicalize_add,
    Sub: CanonicalForm._canonicalize_sub,
    Mul: CanonicalForm._canonicalize_mul,
    Div: CanonicalForm._canonicalize_div,
    FloorDiv: CanonicalForm._canonicalize_floordiv,
    FloorMod: CanonicalForm._canonicalize_floormod,
    Min: CanonicalForm._canonicalize_min_max,
    Max: CanonicalForm._canonicalize_min_max,
    And: CanonicalForm._canonicalize_and_or,
    Or: CanonicalForm._canonicalize_and_or,
    Not: CanonicalForm._canonicalize_not,
    Select: CanonicalForm._canonicalize_select,
    Intrinsic: CanonicalForm._canonicalize_intrinsic,
    Cast: CanonicalForm._canonicalize_cast,
    **dict.fromkeys((EQ, NE, LT, LE, GT, GE), CanonicalForm._canonicalize_comparison),
}
