"""The normal form of integer expressions: a polynomial over atoms, with bounds and proofs.

An atom is what the form does not look into: a variable, a quotient, a minimum, a load. Equal
polynomials are equal expressions, so that two sides are compared by their forms:

    (i + 1) * 4 - i      ->  {(i,): 3, (): 4}           i * 3 + 4
    (i * 8 + j) // 4     ->  {(i,): 2, (j // 4,): 1}    i * 2 + j // 4
    i // 4 * 4 + i % 4   ->  {(i,): 1}                  i

What is proved of a polynomial is its sign, by intervals: each atom has a lowest and a highest
value. Where these are symbols, as for i in [0, n), the variable is put at the end at which the
polynomial is lowest, if it is known to rise or to fall with it, and the question asked again. What
a scope says to hold (`_facts`, each >= 0) is taken off the polynomial: p - fact >= 0 is enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

from ekiden.arith import poly, rewrite
from ekiden.arith.poly import ONE, Key, Monomial, Poly
from ekiden.ir import dtype as dt
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
    const,
    int_range,
)
from ekiden.ir.prim_visitor import children, literals, pending, post_order, rebuild

Bound: TypeAlias = float
"""An int, or an infinity."""
Interval: TypeAlias = tuple[Bound, Bound]


EVERYTHING: Interval = (-math.inf, math.inf)
DEPTH = 6
"""How many variables with symbolic ranges a proof may replace, and how deep rules may be applied to
what rules made: both searches branch, and what takes more steps is left unproved."""


# Arithmetic on intervals whose ends may be infinite. Finite ends stay Python's whole numbers, which
# have any size: a bound that was rounded would prove what does not hold.
def _times(a: Bound, b: Bound) -> Bound:
    """a * b with 0 * inf = 0: a term without anything in it adds nothing, however many there are
    (IEEE's NaN would make every bound unknown)."""
    return 0 if a == 0 or b == 0 else a * b


def _interval_product(x: Interval, y: Interval) -> Interval:
    """A product is linear in each factor, so its extremes over a box are at corners of it."""
    corners = [_times(a, b) for a in x for b in y]
    return min(corners), max(corners)


class _Atom:
    """Something the normal form does not look into: a variable, a quotient, a load."""

    __slots__ = ("bound", "digit", "divisor", "expr", "numerator", "order")

    def __init__(self, expr: PrimExpr, bound: Interval, order: tuple[object, ...]) -> None:
        self.expr = expr
        self.bound = bound
        self.order = order
        """Where it stands in a sum: variables first, by their names."""
        self.numerator: Key | None = None
        self.divisor: int = 0
        """Of x // c and x % c with a number c > 0: x and c. Not of c < 0: two digits are then not
        one of the product, 0 * 2 + 1 % 2 being 1 and 1 % -6 being -5."""
        self.digit: tuple[Key, Key] | None = None
        """Of a remainder by one monomial that is no number: (x, d) of x % d."""


# How the pieces fit. An expression becomes a Poly by `_poly`, children first, one rule of `_RULES`
# a node. A node that no rule takes apart is an atom: `_opaque` finds its number by the kind and the
# forms of its parts, so that two nodes written differently over equal parts are one atom. The
# invariants:
#
# * An atom's number is larger than those of the atoms its parts are made of, which came first. What
#   replaces an atom by its parts (`_recombine`) therefore comes to an end.
# * An atom's `bound` holds for every value its variables may have *in the scope*. Scopes narrow
#   bounds (`Analyzer.constraint_scope` restores them); what widens one has all above it found
#   again.
# * A form is exact, over whole numbers: int32 and int64 count as numbers without ends, as in TVM.
#   An index that overflows is an error of the program, and is not looked for here. Indices and
#   sizes are int64; what is loaded as int32 are data, whose sums and products wrap around. Forms of
#   those are exact modulo 2**32, so what asks for their order or quotient (`_ORDERED`) stays as it
#   is written where they may leave int32.
# * Nothing is ever proved by not finding a counterexample: every answer of "unknown" is None or
#   False, and callers must be right with it.
class CanonicalForm:
    """Turns expressions into polynomials over atoms, applying the rules of `arith.rules`, and back.

    What is known of variables is set by its subclass, the Analyzer.
    """

    def __init__(self) -> None:
        self._atoms: list[_Atom] = []
        self._numbers: dict[object, int] = {}
        """What an atom is (its kind and the polynomials of its parts) -> its place in `_atoms`."""
        self._has_digits = False
        """Whether there are remainders by a symbol."""
        self._has_rests = False
        """Whether there are quotients that are rounded towards zero."""
        self._ranges: dict[int, tuple[Poly, Poly]] = {}
        """Number of a variable -> its lowest and its highest value, which other variables may be
        in."""
        self._memo: dict[int, Poly] = {}
        """id of an expression -> its form; `_alive` keeps the id from being given to another."""
        # By identity, as hashing a tree takes as long as the tree: shared parts are met again and
        # again, and expressions are immutable.
        self._alive: list[PrimExpr] = []
        self._terms: dict[tuple[Monomial, int], PrimExpr] = {}
        self._rewritten: dict[object, Poly] = {}
        """What rules made of nodes, by the key the node would have as an atom."""
        # Conditions of rules are proved in the scope, so these go with it, as `_memo` does.
        self._rewriting = 0
        """How many rules are under way, each on what the one before made; see DEPTH."""
        self._values: dict[int, Poly] = {}
        """What variables were bound to."""
        self._bound_vars: list[Var] = []
        self._facts: list[Poly] = []
        """What is known to be >= 0 in the scope."""
        self._true: dict[Key, int] = {}
        """Conditions that are no comparisons, known to be 1 or 0 in the scope."""

    def can_prove(self, condition: PrimExpr, strength: int = 0) -> bool:
        """Whether a bool is known to be true; `strength` is TVM's, every proof is tried."""
        del strength
        return poly.constant_of(self._poly(condition)) == 1

    def _mentions(self, atom: int, variable: int) -> bool:
        """Whether an atom that is no variable depends on one: i // 4 does on i."""
        wanted = self._atoms[variable].expr
        expr = self._atoms[atom].expr
        return not isinstance(expr, Var) and any(e is wanted for e in post_order(expr))

    # The normal form.

    @property
    def size(self) -> int:
        """How many expressions it keeps alive."""
        return len(self._alive)

    def _poly(self, expr: PrimExpr) -> Poly:
        """The form of an expression: what of it is not known yet, children first, without
        recursion, as sums have tens of thousands of terms."""
        found = self._memo.get(id(expr))
        if found is not None:
            return found
        for each in pending((expr,), self._memo):
            self._memo[id(each)] = self._node(each)
            self._alive.append(each)
        return self._memo[id(expr)]

    def _node(self, expr: PrimExpr) -> Poly:
        if isinstance(expr, IntImm):
            return poly.constant(int(expr.value))
        if isinstance(expr, Var):
            found = self._values.get(id(expr))
            made: Poly = {(self._variable(expr),): 1} if found is None else found
        else:
            made = self._by_kind(expr)
        if self._true and expr.dtype == "bool":
            known = self._true.get(poly.key(made))
            return made if known is None else poly.constant(known)
        return made

    def _by_kind(self, expr: PrimExpr) -> Poly:
        """Floats, vectors and integers of other widths are opaque: their arithmetic rounds, wraps
        or has lanes, so that the rules of whole numbers do not hold for it.
        """
        rule = _RULES.get(type(expr))
        if rule is None or not _is_index(expr):
            return self._opaque(expr)
        if _is_ordered(expr) and any(map(self._may_wrap, children(expr))):
            return self._opaque(expr, self._written_bound(expr), rewrites=False)
        return rule(self, expr)

    def _may_wrap(self, expr: PrimExpr) -> bool:
        """Whether an expression, whose form is known, computes with data of int32 what may leave
        that type."""
        if expr.dtype != "int32":
            return False
        p = self._of(expr)
        if not p or (len(p) == 1 and next(iter(p)) == ONE) or _is_one_atom(p):
            return False
        (low, high), ends = self._bound(p), int_range("int32")
        assert ends is not None
        if ends[0] <= low and high <= ends[1]:
            return False
        return any(map(_is_data, post_order(*(self._atoms[a].expr for m in p for a in m))))

    def _held_bound(self, expr: PrimExpr) -> Interval:
        """The values of an expression, as its type holds them."""
        wrapped = int_range(expr.dtype) if self._may_wrap(expr) else None
        return self._bound(self._of(expr)) if wrapped is None else wrapped

    def _written_bound(self, expr: PrimExpr) -> Interval:
        """The values of what stays as it is written."""
        if isinstance(expr, (Min, Max)):
            pick = min if isinstance(expr, Min) else max
            low, high = zip(*map(self._held_bound, (expr.a, expr.b)), strict=True)
            return pick(low), pick(high)
        if isinstance(expr, FloorMod) and isinstance(expr.b, IntImm) and expr.b.value > 0:
            return 0, expr.b.value - 1
        return int_range(expr.dtype) or natural_bound(expr)

    def _variable(self, var: Var) -> int:
        bound = (
            (0, math.inf if var.upper is None else var.upper)
            if isinstance(var, SizeVar)
            else natural_bound(var)
        )
        return self._number(("var", id(var)), lambda: var, bound, (0, var.name))

    def _number(
        self, key: object, make: Callable[[], PrimExpr], bound: Interval, order: tuple[object, ...]
    ) -> int:
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._atoms)
            self._atoms.append(_Atom(make(), bound, order))
        return found

    def _opaque(self, expr: PrimExpr, bound: Interval | None = None, rewrites: bool = True) -> Poly:
        """A node of another kind, over simplified children, or what a rule makes of it."""
        # In this order: an atom that exists, what a rule made of its like before, and only then is
        # a node made at all.
        inside = children(expr)
        polys = [self._memo[id(c)] for c in inside]
        literal = tuple(id(v) if not isinstance(v, (str, int)) else v for v in literals(expr))
        # A polynomial has no width, but what is opaque may read one: popcount(-1) is 32 or 64.
        widths = tuple(c.dtype for c in inside)
        # Of two unknown dimensions nothing is known, not even that they are equal: each is an atom.
        key = (
            type(expr),
            literal,
            widths,
            *(poly.key(p) for p in polys),
            id(expr) if isinstance(expr, AnyDim) else 0,
        )

        def make() -> PrimExpr:
            """The node over its children's normal forms; only made where no equal node is known
            yet.
            """
            return rebuild(
                expr, [self._emit(p, c.dtype) for p, c in zip(polys, inside, strict=True)]
            )

        if key in self._numbers:
            return {(self._numbers[key],): 1}
        if key in self._rewritten:
            return self._rewritten[key]
        made = make()
        if isinstance(made, IntImm):
            return poly.constant(int(made.value))
        changed = self._rewrite(key, made) if rewrites else None
        if changed is not None:
            return changed
        natural = natural_bound(expr) if bound is None else bound
        return {(self._number(key, lambda: made, natural, (1, type(expr).__name__)),): 1}

    def _rewrite(self, key: object, made: PrimExpr) -> Poly | None:
        """The normal form of what a rule makes of a node, remembered; None if no rule fits."""
        if self._rewriting == DEPTH:
            return None
        changed = rewrite.CANONICAL.apply(made, self.can_prove)
        if changed is None:
            return None
        # What the rule made may have parts that rules fit in turn: `_poly` comes back here.
        self._rewriting += 1
        found = self._rewritten[key] = self._poly(changed[0])
        self._rewriting -= 1
        return found

    def _emit(self, p: Poly, dtype: str) -> PrimExpr:
        """The polynomial as an expression: terms in the order of their atoms, those that are taken
        away behind the others, the number last.
        """
        # A polynomial of one atom is that atom's own object, so that what does not change is not
        # made again and `is` stays the cheap test for it.
        atoms = self._atoms
        if len(p) == 1:
            ((monomial, coefficient),) = p.items()
            if coefficient == 1 and len(monomial) == 1:
                return atoms[monomial[0]].expr
        number = poly.constant_of(p)
        if number is not None:
            return const(number, dtype)
        terms = sorted((m for m in p if m), key=lambda m: ([atoms[a].order for a in m], m))
        # Stable: among those that are added, and those taken away, the order of atoms stays. That
        # is by name where there is one; others stand as they were met, so that a text depends on
        # what this analyzer was asked before (see analyzer._Shared.simplified).
        terms.sort(key=lambda m: p[m] < 0)
        total: PrimExpr | None = None
        for monomial in terms:
            total = _accumulate(
                total, self._scaled(monomial, p[monomial], total is None), p[monomial]
            )
        assert total is not None
        offset = p.get(ONE, 0)
        return total + offset if offset >= 0 else total - -offset

    def _scaled(self, monomial: Monomial, scale: int, first: bool) -> PrimExpr:
        """A term without its sign (with it, if it comes first); the same object each time."""
        scale = scale if first else abs(scale)
        found = self._terms.get((monomial, scale))
        if found is None:
            found = self._terms[monomial, scale] = self._product(monomial) * scale
        return found

    def _product(self, monomial: Monomial) -> PrimExpr:
        """x * y * z of a monomial, which is not that of the number."""
        total = self._atoms[monomial[0]].expr
        for atom in monomial[1:]:
            total = total * self._atoms[atom].expr
        return total

    # Bounds and proofs.

    def _bound(self, p: Poly) -> Interval:
        """The sum of the terms' intervals. A variable in two terms counts as two: the interval may
        be too wide, never too narrow.
        """
        low: Bound = 0
        high: Bound = 0
        for monomial, coefficient in p.items():
            term: Interval = (coefficient, coefficient)
            for atom in monomial:
                term = _interval_product(term, self._atoms[atom].bound)
            low, high = low + term[0], high + term[1]
        if self._has_rests:
            for inside in self._rest_bounds(p):
                low, high = max(low, inside[0]), min(high, inside[1])
        return low, high

    def _rest_bounds(self, p: Poly) -> Iterator[Interval]:
        """Bounds by what a division towards zero leaves: of s * (a - truncdiv(a, b) * b) + r."""
        # C's remainder lies below |b| and has the sign of a. In a polynomial it is in no one place:
        # the terms of s * a stand among those of r. The term -s * q * b, of a quotient q and a b of
        # one term, gives s and so r = p + s * q * b - s * a; what is left of q in r would not do.
        for monomial, coefficient in p.items():
            for number in monomial:
                quotient = self._atoms[number].expr
                if not isinstance(quotient, Div):
                    continue
                a, b = self._poly(quotient.a), self._poly(quotient.b)
                ((by, size),) = b.items() if len(b) == 1 else (((0,), 0),)
                left = list(monomial)
                left.remove(number)
                if tuple(left) != by or not size or coefficient % size:
                    continue
                scale = -coefficient // size
                rest = poly.add({m: c for m, c in p.items() if m != monomial}, a, -scale)
                if monomial in rest or any(number in m for m in rest):
                    continue
                low, high = self._bound(rest)
                least, most = _rest_of(self._bound(a), self._bound(b))
                ends = [_times(scale, least), _times(scale, most)]
                yield low + min(ends), high + max(ends)

    def _tight_bound(self, p: Poly, depth: int = DEPTH) -> Interval:
        """Return the interval of p, where remainders count that are written as `a - a // d * d`.
        Proofs inside of schedules do without: they have `a % d`."""
        low, high = self._bound(p)
        for monomial, coefficient in p.items():
            quotient = self._atoms[monomial[0]] if len(monomial) == 1 else None
            if quotient is None or not isinstance(quotient.expr, FloorDiv) or depth <= 0:
                continue
            divisor, numerator = quotient.divisor, quotient.numerator
            if numerator is None or divisor <= 0 or coefficient % divisor:
                continue
            scale = -coefficient // divisor
            others = {m: c for m, c in p.items() if m != monomial}
            inside = self._tight_bound(poly.add(others, dict(numerator), -scale), depth - 1)
            ends = 0, scale * (divisor - 1)
            low, high = max(low, inside[0] + min(ends)), min(high, inside[1] + max(ends))
        return low, high

    def _nonnegative(self, p: Poly, depth: int = DEPTH) -> bool:
        """Whether p >= 0 is known: by constant bounds, or after replacing ranged variables by their
        ends.
        """
        # 1. Constant bounds. 2. If p - fact >= 0 then p >= fact >= 0; each fact branches, which is
        # why it costs two of the depth. 3. Symbolic ends: the first variable in which p is
        # monotonic takes its worst end, and no other is tried in its place: no branch here.
        if self._bound(p)[0] >= 0:
            return True
        if depth <= 0:
            return False
        for fact in self._facts:
            left = _without_fact(p, fact)
            if left is not None and self._nonnegative(left, depth - 2):
                return True
        if not self._ranges:
            return False
        inside = {a for m in p for a in m if a in self._ranges}
        # The last bound first: loops inside have ranges in which those around them occur.
        for atom in sorted(inside, reverse=True):
            replaced = self._at_worst(p, atom)
            if replaced is not None:
                return self._nonnegative(replaced, depth - 1)
        return False

    def _at_worst(self, p: Poly, atom: int) -> Poly | None:
        """p with a ranged variable at the end where p is lowest; None if p is not known monotonic
        in it.
        """
        # p = slope * v + rest. For slope >= 0, p is lowest where v is: slope * low(v) + rest. That
        # holds if p is linear in v and v is in no atom of p, whose value would change with it.
        slope: Poly = {}
        rest: Poly = {}
        for monomial, coefficient in p.items():
            if atom in monomial:
                left = list(monomial)
                left.remove(atom)
                slope[tuple(left)] = coefficient
            else:
                rest[monomial] = coefficient
        if any(atom in m for m in slope) or any(self._mentions(a, atom) for m in p for a in m):
            return None
        low, high = self._bound(slope)
        if low >= 0 or high <= 0:
            end = self._ranges[atom][0 if low >= 0 else 1]
            return poly.add(rest, poly.multiply(slope, end))
        return None

    def _decide(self, kind: type[BinaryExpr], p: Poly) -> bool | None:
        """Whether `p kind 0` is known."""
        low, high = self._bound(p)
        if kind in (EQ, NE):
            if low > 0 or high < 0 or not p or self._never_zero(p):
                return (kind is EQ) == (not p)
            if low == high == 0:
                return kind is EQ
            return self._decide_by_facts(p, kind is EQ) if self._facts else None
        # p < 0 is -p - 1 >= 0 for whole numbers; that it does not hold is p >= 0
        if kind in (GT, GE):
            p, kind = {m: -c for m, c in p.items()}, LT if kind is GT else LE
        # From here on kind is LT or LE. What is asked is p < 0 (or <= 0), then its opposite.
        if self._nonnegative(poly.add(poly.constant(-1 if kind is LT else 0), p, -1)):
            return True
        return (
            False
            if self._nonnegative(poly.add(p, poly.constant(0 if kind is LT else -1)))
            else None
        )

    def _decide_by_facts(self, p: Poly, wants_zero: bool) -> bool | None:
        """Whether p is 0 (or, with `wants_zero` false, is not), if the scope's facts say it."""
        below = poly.add({}, p, -1)
        if self._nonnegative(p) and self._nonnegative(below):
            return wants_zero
        one = poly.constant(-1)
        if self._nonnegative(poly.add(p, one)) or self._nonnegative(poly.add(below, one)):
            return not wants_zero
        return None

    def _never_zero(self, p: Poly) -> bool:
        """4 * i + 6 * j + 3 != 0: the terms are multiples of 2, the number is not."""
        # An equation sum(c_k * x_k) = -n has solutions in whole numbers only where gcd(c_k) divides
        # n. That is the whole of what is asked of divisibility here; `modular` knows more.
        coeff = poly.content(p)
        return bool(coeff) and p.get(ONE, 0) % coeff != 0

    # Rules per node. Each gives the normal form of a node whose children have theirs.

    def _of(self, expr: PrimExpr) -> Poly:
        return self._memo[id(expr)]

    def _add(self, e: PrimExpr) -> Poly:
        assert isinstance(e, Add)
        return self._recombine(poly.add(self._of(e.a), self._of(e.b)))

    def _sub(self, e: PrimExpr) -> Poly:
        assert isinstance(e, Sub)
        return self._recombine(poly.add(self._of(e.a), self._of(e.b), -1))

    def _mul(self, e: PrimExpr) -> Poly:
        assert isinstance(e, Mul)
        return poly.multiply(self._of(e.a), self._of(e.b))

    def _recombine(self, p: Poly) -> Poly:
        """(x // c) * c + x % c -> x;  (x // c) % d * c + x % c -> x % (c * d);  (x // c) * c -> x
        for a multiple x of c
        """
        # Both by x = (x // c) * c + x % c, the definition of floor division, with c, d > 0. The
        # second joins two digits of x in mixed radix to one: what fusing two loops and splitting
        # them again leaves. A remainder is replaced by atoms that came before it, so this ends.
        for monomial, scale in p.items():
            if len(monomial) != 1:
                continue
            atom = self._atoms[monomial[0]]
            if atom.numerator is None:
                continue
            if not isinstance(atom.expr, FloorMod):
                if scale % atom.divisor == 0 and self._is_multiple(atom.numerator, atom.divisor):
                    rest = {m: c for m, c in p.items() if m != monomial}
                    factor = scale // atom.divisor
                    return self._recombine(poly.add(rest, dict(atom.numerator), factor))
                continue
            quotient = self._numbers.get((FloorDiv, atom.numerator, atom.divisor))
            if quotient is not None and p.get((quotient,)) == scale * atom.divisor:
                rest = {m: c for m, c in p.items() if m not in (monomial, (quotient,))}
                return self._recombine(poly.add(rest, dict(atom.numerator), scale))
            above = None if quotient is None else self._digit_above(p, quotient, scale, atom)
            if above is not None:
                rest = {m: c for m, c in p.items() if m not in (monomial, (above,))}
                size = poly.constant(atom.divisor * self._atoms[above].divisor)
                made = self._modulo(dict(atom.numerator), size, atom.expr.dtype)
                return self._recombine(poly.add(rest, made, scale))
        return self._recombine_symbolic(p) if self._has_digits else p

    def _is_multiple(self, numerator: Key, divisor: int) -> bool:
        """Whether a sum is a multiple of the divisor as x % c is x less a multiple of c: what is
        padded to whole blocks, x + -x % c, is one.
        """
        p = dict(numerator)
        while True:
            p = poly.split(p, divisor)[1]
            for monomial, scale in p.items():
                atom = self._atoms[monomial[0]] if len(monomial) == 1 else None
                if atom is None or atom.numerator is None or not isinstance(atom.expr, FloorMod):
                    continue
                if scale * atom.divisor % divisor == 0:
                    rest = {m: c for m, c in p.items() if m != monomial}
                    p = poly.add(rest, dict(atom.numerator), scale)
                    break
            else:
                return not p

    def _digit_above(self, p: Poly, quotient: int, scale: int, atom: _Atom) -> int | None:
        """The term of p that is `quotient % d` where the digit below it is `atom`."""
        wanted = poly.key({(quotient,): 1})
        for monomial, coefficient in p.items():
            if len(monomial) != 1 or coefficient != scale * atom.divisor:
                continue
            above = self._atoms[monomial[0]]
            if isinstance(above.expr, FloorMod) and above.numerator == wanted:
                return monomial[0]
        return None

    def _recombine_symbolic(self, p: Poly) -> Poly:
        """(x // d) * d * y + x % d * y -> x * y"""
        # As above for a divisor that is one symbolic monomial, d = factor * divisor, and times any
        # other monomial y. Only analyzers that have met such a remainder come here (_has_digits).
        for monomial, scale in p.items():
            for number in monomial:
                digit = self._atoms[number].digit
                if digit is None:
                    continue
                numerator, key = digit
                quotient = self._numbers.get((FloorDiv, numerator, key))
                ((divisor, factor),) = key
                if quotient is None:
                    continue
                others = list(monomial)
                others.remove(number)
                whole = tuple(sorted((*others, quotient, *divisor)))
                if p.get(whole) == scale * factor:
                    rest = {m: c for m, c in p.items() if m not in (monomial, whole)}
                    made = poly.multiply(dict(numerator), {tuple(others): scale})
                    return self._recombine(poly.add(rest, made))
        return p

    def _div(self, e: PrimExpr) -> Poly:
        assert isinstance(e, Div)
        a, b = self._of(e.a), self._of(e.b)
        # Rounding towards zero and rounding down are one where the quotient is not negative; and
        # where the division is exact. A divisor of 0 has no value to be kept.
        if self._bound(a)[0] >= 0 and self._bound(b)[0] >= 0:
            return self._divide(a, b, e.dtype)
        divisor = poly.constant_of(b)
        if divisor and all(c % divisor == 0 for c in a.values()):
            return {m: c // divisor for m, c in a.items()}
        self._has_rests = True
        return self._opaque(e, _quotients(self._bound(a), self._bound(b), _truncated))

    def _floordiv(self, e: PrimExpr) -> Poly:
        assert isinstance(e, FloorDiv)
        return self._divide(self._of(e.a), self._of(e.b), e.dtype)

    def _floormod(self, e: PrimExpr) -> Poly:
        assert isinstance(e, FloorMod)
        return self._modulo(self._of(e.a), self._of(e.b), e.dtype)

    def _divide(self, p: Poly, d: Poly, dtype: str) -> Poly:
        """(d * q + r) // d  ->  q + r // d, where r // d may be known to be a number."""
        # Floor division takes out whole multiples of any divisor; C's does not: (-8 + 7) / 4 is 0.
        divisor = poly.constant_of(d)
        if divisor is not None and divisor > 0:
            quotient, rest = poly.split(p, divisor)
            return poly.add(quotient, self._small_quotient(rest, divisor, dtype))
        parts = poly.split_symbolic(p, d)
        if parts is None or divisor is not None:
            return self._quotient_atom(FloorDiv, p, d, dtype)
        quotient, rest = parts
        if self._within(rest, d):
            return quotient
        return poly.add(quotient, self._quotient_atom(FloorDiv, rest, d, dtype))

    def _within(self, p: Poly, d: Poly) -> bool:
        """Whether 0 <= p < d is known."""
        if not p:
            return True
        return self._nonnegative(p) and self._nonnegative(
            poly.add(poly.add(d, p, -1), poly.constant(-1))
        )

    def _small_quotient(self, p: Poly, divisor: int, dtype: str) -> Poly:
        """p // divisor, nothing in p being divisible."""
        # (g * q + r) // (g * c) = q // c for 0 <= r < g: r can only be of p's number, as g divides
        # all other coefficients. And (x // c) // d = x // (c * d) for c, d > 0.
        low, high = self._bound(p)
        if low > -math.inf and high < math.inf and low // divisor == high // divisor:
            return poly.constant(int(low // divisor))
        if self._within(p, poly.constant(divisor)):
            return {}
        common = math.gcd(poly.content(p), divisor)
        if common > 1:
            return self._small_quotient(poly.split(p, common)[0], divisor // common, dtype)
        nested = self._as_quotient(p)
        if nested is not None:
            return self._divide(dict(nested[0]), poly.constant(nested[1] * divisor), dtype)
        return self._quotient_atom(FloorDiv, p, poly.constant(divisor), dtype)

    def _as_quotient(self, p: Poly) -> tuple[Key, int] | None:
        """(x, c) if p is x // c."""
        if len(p) != 1:
            return None
        ((monomial, scale),) = p.items()
        if scale != 1 or len(monomial) != 1:
            return None
        atom = self._atoms[monomial[0]]
        if atom.numerator is None or not isinstance(atom.expr, FloorDiv):
            return None
        return atom.numerator, atom.divisor

    def _modulo(self, p: Poly, d: Poly, dtype: str) -> Poly:
        """(d * q + r) % d  ->  r % d, which is r where 0 <= r < d is known."""
        divisor = poly.constant_of(d)
        if divisor is not None and divisor > 0:
            return self._small_modulo(poly.split(p, divisor)[1], divisor, dtype)
        parts = poly.split_symbolic(p, d)
        if parts is None or divisor is not None:
            return self._quotient_atom(FloorMod, p, d, dtype)
        rest = parts[1]
        return rest if self._within(rest, d) else self._quotient_atom(FloorMod, rest, d, dtype)

    def _small_modulo(self, p: Poly, divisor: int, dtype: str) -> Poly:
        """p % divisor, whose coefficients are below the divisor: where all of p is in one turn of
        it, p less a multiple; a common factor c leaves c * (p / c % (divisor / c)).
        """
        low, high = self._bound(p)
        if low > -math.inf and high < math.inf and low // divisor == high // divisor:
            return poly.add(p, poly.constant(-int(low // divisor) * divisor))
        if self._within(p, poly.constant(divisor)):
            return p
        common = math.gcd(poly.content(p), divisor)
        if common > 1:
            quotient, rest = poly.split(p, common)
            inner = self._small_modulo(quotient, divisor // common, dtype)
            return poly.add(rest, inner, common)
        # Coefficients count modulo the divisor, so -1 may be divisor - 1. Where p may be negative
        # they are left as written: no form of it is known to be nearer to [0, divisor).
        p = {m: (c % divisor if m else c) for m, c in p.items()} if self._bound(p)[0] >= 0 else p
        if self._is_multiple(poly.key(p), divisor):
            return {}
        return self._quotient_atom(FloorMod, p, poly.constant(divisor), dtype)

    def _quotient_atom(self, kind: type[BinaryExpr], p: Poly, d: Poly, dtype: str) -> Poly:
        """p // d or p % d as an atom, unless a rule makes something else of it; what `_recombine`
        asks of a digit later is noted with it.
        """
        divisor = poly.constant_of(d)
        if not p and divisor != 0:
            return {}
        numerator = poly.key(p)
        key = (kind, numerator, divisor if divisor is not None else poly.key(d))
        if key in self._rewritten:
            return self._rewritten[key]
        if key not in self._numbers:
            made = kind(self._emit(p, dtype), self._emit(d, dtype), dtype)
            changed = self._rewrite(key, made)
            if changed is not None:
                return changed
            number = self._number(
                key, lambda: made, self._quotient_bound(kind, p, d), (1, kind.__name__)
            )
            if divisor is not None and divisor > 0:
                self._atoms[number].numerator, self._atoms[number].divisor = numerator, divisor
            elif kind is FloorMod and len(d) == 1:
                self._atoms[number].digit = numerator, poly.key(d)
                self._has_digits = True
        return {(self._numbers[key],): 1}

    def _quotient_bound(self, kind: type[BinaryExpr], p: Poly, d: Poly) -> Interval:
        """The values of p // d or p % d; a divisor that may be 0 counts as 1, as the value of a
        division by 0 is nobody's to use.
        """
        low, high = self._bound(p)
        smallest, largest = self._bound(d)
        if smallest < 0 and kind is FloorMod:
            return smallest + 1, max(largest - 1, 0)
        if smallest < 0:
            return _quotients((low, high), (smallest, largest), _floor)
        if kind is FloorMod:
            return 0, min(largest - 1, high if low >= 0 else math.inf)
        # low // step is the least where low < 0, as dividing by less goes further from zero. A
        # value below 0 may still be brought up to -1 by a large divisor: 0 is said, which is no
        # less true.
        step = max(smallest, 1)
        if smallest == largest:
            return _floor(low, step), _floor(high, step)
        least = 0 if low >= 0 else _floor(low, step)
        return least, (_floor(high, step) if high >= 0 else 0)

    def _extreme(self, e: PrimExpr) -> Poly:
        """The side that is known to win; else an atom, the same for both orders of the sides."""
        # min(a, b) = a where b - a >= 0. The bound of the atom: min and max rise with both sides.
        assert isinstance(e, (Min, Max))
        a, b = self._of(e.a), self._of(e.b)
        difference = poly.add(a, b, -1)
        if self._nonnegative(difference):
            return a if isinstance(e, Max) else b
        if self._nonnegative(poly.add({}, difference, -1)):
            return b if isinstance(e, Max) else a
        first, second = sorted((a, b), key=poly.key)
        (low, high), (low2, high2) = self._bound(first), self._bound(second)
        pick = max if isinstance(e, Max) else min
        key = (type(e), poly.key(first), poly.key(second))
        if key in self._rewritten:
            return self._rewritten[key]
        if key not in self._numbers:
            made = type(e)(self._emit(first, e.dtype), self._emit(second, e.dtype), e.dtype)
            changed = self._rewrite(key, made)
            if changed is not None:
                return changed
            bound = (pick(low, low2), pick(high, high2))
            self._number(key, lambda: made, bound, (1, type(e).__name__))
        return {(self._numbers[key],): 1}

    def _compare(self, e: PrimExpr) -> Poly:
        assert isinstance(e, BinaryExpr)
        known = self._decide(type(e), poly.add(self._of(e.a), self._of(e.b), -1))
        return self._opaque(e) if known is None else poly.constant(int(known))

    def _and(self, e: PrimExpr) -> Poly:
        assert isinstance(e, (And, Or))
        absorbing = int(isinstance(e, Or))
        a, b = self._of(e.a), self._of(e.b)
        if poly.constant_of(a) is not None:
            return a if poly.constant_of(a) == absorbing else b
        if poly.constant_of(b) is not None:
            return b if poly.constant_of(b) == absorbing else a
        return a if a == b else self._opaque(e)

    def _not(self, e: PrimExpr) -> Poly:
        assert isinstance(e, Not)
        value = poly.constant_of(self._of(e.a))
        return self._opaque(e) if value is None else poly.constant(1 - value)

    def _select(self, e: PrimExpr) -> Poly:
        condition, yes, no = (self._of(c) for c in children(e))
        value = poly.constant_of(condition)
        if value is not None or yes == no:
            return no if value == 0 else yes
        if not is_number(e):
            return self._opaque(e)
        (low, high), (low2, high2) = map(self._held_bound, children(e)[1:])
        return self._opaque(e, (min(low, low2), max(high, high2)))

    def _guard(self, e: PrimExpr) -> Poly:
        assert isinstance(e, Intrinsic)
        if e.op == "bitwise_and":
            return self._opaque(e, self._mask_bound(*map(self._of, e.args)))
        if e.op == "right_shift":
            return self._opaque(e, self._shift_bound(*map(self._of, e.args)))
        return self._select(e) if e.op == "if_then_else" else self._opaque(e)

    def _shift_bound(self, a: Poly, b: Poly) -> Interval:
        """Of a number shifted down: by at least the least amount."""
        (low, high), (least, most) = self._bound(a), self._bound(b)
        if least < 0 or any(math.isinf(x) for x in (low, high, least, most)):
            return EVERYTHING
        ends = [int(x) >> min(int(n), 64) for x in (low, high) for n in (least, most)]
        return min(ends), max(ends)

    def _mask_bound(self, a: Poly, b: Poly) -> Interval:
        """Of the bits that two numbers share: no more than one that is not negative."""
        ends = [high for low, high in (self._bound(a), self._bound(b)) if low >= 0]
        return (0, min(ends)) if ends else EVERYTHING

    def _cast(self, e: PrimExpr) -> Poly:
        """A cast that keeps the value is none: of a number that fits, and from int32 to int64 of a
        sum whose parts are int64 already and that fits int32.
        """
        assert isinstance(e, Cast)
        value = self._of(e.value)
        number, ends = poly.constant_of(value), int_range(e.dtype)
        assert ends is not None, e.dtype
        exact = (e.dtype == "int64" and e.value.dtype == "int32") or e.dtype == e.value.dtype
        if number is not None and _is_index(e.value) and ends[0] <= number <= ends[1]:
            return value
        if exact and (self._is_affine_of_small(value) or poly.constant_of(value) is not None):
            return value
        if not dt.is_int(e.value.dtype) and e.value.dtype != "bool":
            return self._opaque(e)
        low, high = self._held_bound(e.value)
        return self._opaque(e, (low, high) if ends[0] <= low and high <= ends[1] else None)

    def _is_affine_of_small(self, p: Poly) -> bool:
        return all(abs(b) < 2**31 for b in self._bound(p)) and not any(
            self._atoms[a].expr.dtype != "int64" for m in p for a in m
        )


def _without_fact(p: Poly, fact: Poly) -> Poly | None:
    """p - scale * fact for the scale > 0 that removes a term of it; None if there is none."""
    # A step of Fourier-Motzkin elimination with one inequality: p >= scale * fact + left, so that
    # left >= 0 is enough. The scale is whole, and positive, or the fact would be used backwards.
    for monomial, coefficient in fact.items():
        have = p.get(monomial, 0)
        if monomial and have and have * coefficient > 0 and have % coefficient == 0:
            return poly.add(p, fact, -(have // coefficient))
    return None


def _quotients(a: Interval, b: Interval, divide: Callable[[Bound, Bound], Bound]) -> Interval:
    """The values of a quotient whose divisor may be negative, and is not 0."""
    # x / d is monotonic in x, and in d on either side of 0: the extremes are at the ends of x and
    # at the ends of d or the divisors nearest to 0, -1 and 1.
    (low, high), (smallest, largest) = a, b
    if any(map(math.isinf, (low, high, smallest, largest))):
        return EVERYTHING
    divisors = [d for d in (smallest, largest) if d]
    divisors += [d for d in (-1, 1) if smallest <= d <= largest]
    ends = [divide(x, d) for x in (low, high) for d in divisors]
    return (min(ends), max(ends)) if ends else EVERYTHING


def _rest_of(a: Interval, b: Interval) -> Interval:
    """The values of a - truncdiv(a, b) * b: below b, of the sign of a and no further than a."""
    most = max(abs(b[0]), abs(b[1])) - 1
    return (-min(most, -a[0]) if a[0] < 0 else 0), (min(most, a[1]) if a[1] > 0 else 0)


def _truncated(value: Bound, divisor: Bound) -> Bound:
    """As C divides. Both finite; in whole numbers, as 2**53 and more are rounded as floats."""
    quotient = abs(int(value)) // abs(int(divisor))
    return quotient if (value < 0) == (divisor < 0) else -quotient


def _floor(value: Bound, divisor: Bound) -> Bound:
    """Rounded down; an infinite end stays one. The divisor is finite and not 0."""
    return value if math.isinf(value) else value // divisor


def _accumulate(total: PrimExpr | None, term: PrimExpr, scale: int) -> PrimExpr:
    if total is None:
        return term
    return total + term if scale > 0 else total - term


def is_number(expr: PrimExpr) -> bool:
    """Whether it is an integer of indices and sizes."""
    return expr.dtype in ("int64", "int32")


def _is_index(expr: PrimExpr) -> bool:
    """Whether the rules of whole numbers hold: int32 and int64 scalars, and bools made of them."""
    if isinstance(expr, (EQ, NE, LT, LE, GT, GE)):
        return is_number(expr.a)
    return is_number(expr) or isinstance(expr, (And, Or, Not, Select, Intrinsic))


def _is_data(expr: PrimExpr) -> bool:
    """Whether it is no arithmetic, number or name: a load, a call."""
    return type(expr) not in _RULES and not isinstance(expr, (IntImm, Var))


def _is_one_atom(p: Poly) -> bool:
    """Whether a form is nothing but an atom."""
    return len(p) == 1 and all(len(m) == 1 and c == 1 for m, c in p.items())


def _is_ordered(expr: PrimExpr) -> bool:
    """Whether a value depends on more of integers than what they are modulo 2**32."""
    return isinstance(expr, _ORDERED) or (isinstance(expr, Intrinsic) and expr.op == "right_shift")


_ORDERED = (Div, FloorDiv, FloorMod, Min, Max, EQ, NE, LT, LE, GT, GE)


def natural_bound(expr: PrimExpr) -> Interval:
    """What an expression's kind and dtype alone say of its value; int32 and int64 count as numbers
    without ends, but data of int32.
    """
    if expr.dtype == "bool":
        return 0, 1
    if isinstance(expr, AnyDim):
        return 0, math.inf
    if expr.dtype == "int64" or (expr.dtype == "int32" and not _is_data(expr)):
        return EVERYTHING
    return int_range(expr.dtype) or EVERYTHING


# A rule may ask for the forms of the node's children, which stand in `_memo` by then, and gives
# that of the node. Kinds without a row are opaque.
_RULES: dict[type[PrimExpr], Callable[[CanonicalForm, PrimExpr], Poly]] = {
    Add: CanonicalForm._add,
    Sub: CanonicalForm._sub,
    Mul: CanonicalForm._mul,
    Div: CanonicalForm._div,
    FloorDiv: CanonicalForm._floordiv,
    FloorMod: CanonicalForm._floormod,
    Min: CanonicalForm._extreme,
    Max: CanonicalForm._extreme,
    And: CanonicalForm._and,
    Or: CanonicalForm._and,
    Not: CanonicalForm._not,
    Select: CanonicalForm._select,
    Intrinsic: CanonicalForm._guard,
    Cast: CanonicalForm._cast,
    **dict.fromkeys((EQ, NE, LT, LE, GT, GE), CanonicalForm._compare),
}
