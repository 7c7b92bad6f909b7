"""Integer analysis: a normal form, bounds and proofs for the expressions of shapes and indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from ekiden.arith import poly, rewrite
from ekiden.arith.int_set import IntervalSet, eval_set, interval
from ekiden.arith.poly import ONE, Key, Monomial, Poly
from ekiden.ir import prim
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
)
from ekiden.ir.prim_visitor import children, literals, pending, post_order, rebuild
from ekiden.ir.prim_visitor import rewrite as prim_rewrite
from ekiden.ir.range import Range

Bound: TypeAlias = float
"""An int, or an infinity."""
Interval: TypeAlias = tuple[Bound, Bound]


class ConstIntBound(NamedTuple):
    """The lowest and the highest value; infinite where not known."""

    min_value: Bound
    max_value: Bound


class ModularSet(NamedTuple):
    """Values of the form coeff * something + base; coeff 0 for the number base."""

    coeff: int
    base: int


EVERYTHING: Interval = (-math.inf, math.inf)
_DEPTH = 6
"""How many variables with symbolic ranges a proof may replace."""


def _times(a: Bound, b: Bound) -> Bound:
    return 0 if a == 0 or b == 0 else a * b


def _interval_product(x: Interval, y: Interval) -> Interval:
    corners = [_times(a, b) for a in x for b in y]
    return min(corners), max(corners)


class _Atom:
    """Something the normal form does not look into: a variable, a quotient, a load."""

    __slots__ = ("bound", "divisor", "expr", "numerator", "order")

    def __init__(self, expr: PrimExpr, bound: Interval, order: tuple[object, ...]) -> None:
        self.expr = expr
        self.bound = bound
        self.order = order
        self.numerator: Key | None = None
        self.divisor: int = 0


class Analyzer:
    """Simplifies and proves under what was said of variables.

    SizeVars are >= 0; others are anything until bound.
    """

    def __init__(self) -> None:
        self._atoms: list[_Atom] = []
        self._numbers: dict[object, int] = {}
        self._ranges: dict[int, tuple[Poly, Poly]] = {}
        self._memo: dict[int, Poly] = {}
        self._alive: list[PrimExpr] = []
        self._terms: dict[tuple[Monomial, int], PrimExpr] = {}
        self._rewritten: dict[object, Poly] = {}
        """What rules made of nodes, by the key the node would have as an atom."""
        self._rewriting = 0
        self._values: dict[int, Poly] = {}
        """What variables were bound to."""
        self._bound_vars: list[Var] = []
        self._facts: list[Poly] = []
        """What is known to be >= 0 in the scope."""
        self._true: dict[Key, int] = {}
        """Conditions that are no comparisons, known to be 1 or 0 in the scope."""

    def bind(
        self, var: Var, minimum: prim.ExprLike | Range, extent: prim.ExprLike | None = None
    ) -> None:
        """Say that minimum <= var < minimum + extent, or that var is in a Range, or (TVM's form)
        that var is an expression.

        Earlier results about the variable are forgotten.
        """
        if isinstance(minimum, Range):
            domain = minimum
            minimum, extent = domain.min, domain.extent
        if extent is None:
            self._forget()
            self._values[id(var)] = self._poly(prim.convert(minimum, var.dtype))
            self._bound_vars.append(var)
            return
        low = self._poly(prim.convert(minimum, "int64"))
        high = poly.add(poly.add(low, self._poly(prim.convert(extent, "int64"))), poly.constant(-1))
        if ("var", id(var)) in self._numbers:
            self._forget()
        number = self._variable(var)
        self._ranges[number] = (low, high)
        self._atoms[number].bound = (self._bound(low)[0], self._bound(high)[1])

    def _forget(self) -> None:
        """Drop what was found out about expressions; atoms keep their numbers."""
        self._memo = {}
        self._alive = []
        self._rewritten = {}

    def update(self, var: Var, bound: ConstIntBound, override: bool = False) -> None:
        """Say what values a variable has. TVM: `Analyzer.update` with a ConstIntBound."""
        self._forget()
        atom = self._atoms[self._variable(var)]
        low, high = EVERYTHING if override else atom.bound
        atom.bound = max(low, bound[0]), min(high, bound[1])

    @contextmanager
    def constraint_scope(self, constraint: PrimExpr) -> Iterator[None]:
        """Inside the `with`, a condition is known to hold.

        Comparisons of integers join the proofs and the bounds of variables; any other condition is
        true where it is met again.
        """
        saved = (self._memo, self._alive, self._rewritten, self._facts, self._true, self._terms)
        numbers, count = dict(self._numbers), len(self._atoms)
        bounds = [a.bound for a in self._atoms]
        self._forget()
        self._facts, self._true = list(self._facts), dict(self._true)
        self._terms = dict(self._terms)
        try:
            self._assume(constraint)
            yield
        finally:
            memo, alive, rewritten, self._facts, self._true, self._terms = saved
            self._memo, self._alive, self._rewritten = memo, alive, rewritten
            self._numbers = numbers
            del self._atoms[count:]
            for atom, bound in zip(self._atoms, bounds, strict=True):
                atom.bound = bound

    def _assume(self, constraint: PrimExpr) -> None:
        """Take in a condition, conjunct by conjunct."""
        pending = [self.simplify(constraint), constraint]
        while pending:
            e = pending.pop()
            match e:
                case And():
                    pending += [e.a, e.b]
                case Not(a=prim.Or() as inner):
                    pending += [Not(inner.a), Not(inner.b)]
                case Not(a=inner) if type(inner) in _OPPOSITE:
                    assert isinstance(inner, BinaryExpr)
                    pending.append(_OPPOSITE[type(inner)](inner.a, inner.b, "bool"))
                case BinaryExpr() if type(e) in _OPPOSITE and _is_number(e.a):
                    self._assume_comparison(e)
                case Not(a=inner):
                    self._assume_truth(inner, 0)
                case _ if not isinstance(e, IntImm):
                    self._assume_truth(e, 1)

    def _assume_truth(self, condition: PrimExpr, value: int) -> None:
        p = self._poly(condition)
        if len(p) == 1 and poly.constant_of(p) is None:
            self._true[poly.key(p)] = value
        self._forget()

    def _assume_comparison(self, e: BinaryExpr) -> None:
        difference = poly.add(self._poly(e.a), self._poly(e.b), -1)
        below = poly.add({}, difference, -1)
        match e:
            case LT() | LE():
                known = [poly.add(below, poly.constant(-int(isinstance(e, LT))))]
            case GT() | GE():
                known = [poly.add(difference, poly.constant(-int(isinstance(e, GT))))]
            case EQ():
                known = [difference, below]
            case _:
                self._assume_truth(e, 1)
                return
        for p in known:
            self._facts.append(p)
            self._tighten(p)
        self._forget()

    def _tighten(self, p: Poly) -> None:
        """Narrow the bound of the atom in `scale * atom + offset >= 0`."""
        for monomial, scale in p.items():
            if len(monomial) != 1:
                continue
            atom = self._atoms[monomial[0]]
            rest = self._bound({m: c for m, c in p.items() if m != monomial})[1]
            if math.isinf(rest):
                continue
            low, high = atom.bound
            if scale > 0:
                atom.bound = max(low, -(int(rest) // scale)), high
            else:
                atom.bound = low, min(high, int(rest) // -scale)

    def rewrite_simplify(self, expr: PrimExpr) -> PrimExpr:
        """The expression with the rules of `arith.rules` applied node by node, sums left alone."""

        def change(e: PrimExpr) -> PrimExpr:
            for _ in range(_DEPTH):
                changed = rewrite.apply(e, self.can_prove)
                if changed is None:
                    break
                e = changed
            return e

        return prim_rewrite(expr, change)

    def canonical_simplify(self, expr: PrimExpr) -> PrimExpr:
        """The canonical form; `simplify` by TVM's name for its last step."""
        return self.simplify(expr)

    def simplify(self, expr: PrimExpr, steps: int = 1) -> PrimExpr:
        """An equal expression in normal form: equal linear expressions get the same form.

        One step reaches it; `steps` is TVM's.
        """
        del steps
        if isinstance(expr, IntImm) or (isinstance(expr, Var) and not self._values):
            return expr
        return self._emit(self._poly(expr), expr.dtype)

    def can_prove(self, condition: PrimExpr, strength: int = 0) -> bool:
        """Whether a bool is known to be true; `strength` is TVM's, every proof is tried."""
        del strength
        return poly.constant_of(self._poly(condition)) == 1

    def can_prove_equal(self, a: PrimExpr, b: PrimExpr) -> bool:
        """Whether two integers are known to be equal. Nothing is ever known of `AnyDim`."""
        difference = poly.add(self._poly(a), self._poly(b), -1)
        return not difference and not any(isinstance(e, AnyDim) for e in post_order(a, b))

    def can_prove_greater_equal(self, expr: PrimExpr, lower_bound: int) -> bool:
        """Whether the value is known to be at least a number."""
        return self._nonnegative(poly.add(self._poly(expr), poly.constant(lower_bound), -1))

    def can_prove_less(self, expr: PrimExpr, upper_bound: int) -> bool:
        """Whether the value is known to be below a number."""
        return self._nonnegative(poly.add(poly.constant(upper_bound - 1), self._poly(expr), -1))

    def const_int_bound(self, expr: PrimExpr) -> ConstIntBound:
        """(lowest, highest) possible value, infinite where not known."""
        return ConstIntBound(*self._bound(self._poly(expr)))

    def modular_set(self, expr: PrimExpr) -> ModularSet:
        """(coeff, base): the value is always coeff * something + base; coeff 0 for a constant."""
        p = self._poly(expr)
        coeff = poly.content(p)
        base = p.get(ONE, 0)
        return ModularSet(coeff, base % coeff) if coeff else ModularSet(0, base)

    def int_set(
        self, expr: PrimExpr, dom_map: Mapping[Var, IntervalSet] | None = None
    ) -> IntervalSet:
        """The interval of values while the variables of `dom_map` run over theirs; without it, the
        constant bounds.
        """
        if dom_map is not None:
            return eval_set(expr, dom_map, self.simplify)
        low, high = self._bound(self._poly(expr))
        return interval(
            None if math.isinf(low) else const(int(low), expr.dtype),
            None if math.isinf(high) else const(int(high), expr.dtype),
        )

    def coefficient(self, expr: PrimExpr, var: Var) -> int | None:
        """c if expr is c * var + (something without var), c a number; else None."""
        p = self._poly(expr)
        number = self._variable(var)
        scale = 0
        for monomial, coefficient in p.items():
            if monomial == (number,):
                scale = coefficient
            elif any(a == number or self._mentions(a, number) for a in monomial):
                return None
        return scale

    def can_fuse(self, expr: PrimExpr, outer: Var, inner: Var, extent: PrimExpr) -> bool:
        """Whether expr is linear in both variables and depends on them through outer * extent +
        inner alone.
        """
        p = self._poly(expr)
        slopes = [self._slope(p, self._variable(v)) for v in (outer, inner)]
        if slopes[0] is None or slopes[1] is None:
            return False
        return slopes[0] == poly.multiply(slopes[1], self._poly(extent))

    def _slope(self, p: Poly, number: int) -> Poly | None:
        """The factor of a variable; None if the polynomial is not linear in it."""
        slope: Poly = {}
        for monomial, coefficient in p.items():
            left = [a for a in monomial if a != number]
            if len(left) < len(monomial) - 1 or any(self._mentions(a, number) for a in left):
                return None
            if len(left) < len(monomial):
                slope[tuple(left)] = coefficient
        return slope

    def _mentions(self, atom: int, variable: int) -> bool:
        wanted = self._atoms[variable].expr
        expr = self._atoms[atom].expr
        return not isinstance(expr, Var) and any(e is wanted for e in post_order(expr))

    # The normal form.

    def _poly(self, expr: PrimExpr) -> Poly:
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
        rule = _RULES.get(type(expr))
        if rule is not None and _is_index(expr):
            return rule(self, expr)
        return self._opaque(expr)

    def _variable(self, var: Var) -> int:
        bound = (
            (0, math.inf if var.upper is None else var.upper)
            if isinstance(var, SizeVar)
            else EVERYTHING
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

    def _opaque(self, expr: PrimExpr, bound: Interval | None = None) -> Poly:
        """A node of another kind, over simplified children, or what a rule makes of it."""
        inside = children(expr)
        polys = [self._memo[id(c)] for c in inside]
        literal = tuple(
            id(v) if not isinstance(v, (str, int, float)) else v for v in literals(expr)
        )
        if isinstance(expr, BinaryExpr):
            literal = (expr.a.dtype, expr.dtype)
        key = (
            type(expr),
            literal,
            *(poly.key(p) for p in polys),
            id(expr) if isinstance(expr, AnyDim) else 0,
        )

        def make() -> PrimExpr:
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
        changed = self._rewrite(key, made)
        if changed is not None:
            return changed
        natural = _natural_bound(expr) if bound is None else bound
        return {(self._number(key, lambda: made, natural, (1, type(expr).__name__)),): 1}

    def _rewrite(self, key: object, made: PrimExpr) -> Poly | None:
        """The normal form of what a rule makes of a node, remembered; None if no rule fits."""
        if self._rewriting == _DEPTH:
            return None
        changed = rewrite.apply(made, self.can_prove)
        if changed is None:
            return None
        self._rewriting += 1
        found = self._rewritten[key] = self._poly(changed)
        self._rewriting -= 1
        return found

    def _emit(self, p: Poly, dtype: str) -> PrimExpr:
        atoms = self._atoms
        if len(p) == 1:
            ((monomial, coefficient),) = p.items()
            if coefficient == 1 and len(monomial) == 1:
                return atoms[monomial[0]].expr
        number = poly.constant_of(p)
        if number is not None:
            return const(number, dtype)
        terms = sorted((m for m in p if m), key=lambda m: ([atoms[a].order for a in m], m))
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
        total = self._atoms[monomial[0]].expr
        for atom in monomial[1:]:
            total = total * self._atoms[atom].expr
        return total

    # Bounds and proofs.

    def _bound(self, p: Poly) -> Interval:
        low: Bound = 0
        high: Bound = 0
        for monomial, coefficient in p.items():
            term: Interval = (coefficient, coefficient)
            for atom in monomial:
                term = _interval_product(term, self._atoms[atom].bound)
            low, high = low + term[0], high + term[1]
        return low, high

    def _nonnegative(self, p: Poly, depth: int = _DEPTH) -> bool:
        """Whether p >= 0 is known: by constant bounds, or after replacing ranged variables by their
        ends.
        """
        if self._bound(p)[0] >= 0:
            return True
        if depth == 0:
            return False
        for fact in self._facts:
            left = _without_fact(p, fact)
            if left is not None and self._nonnegative(left, depth - 2):
                return True
        if not self._ranges:
            return False
        inside = {a for m in p for a in m if a in self._ranges}
        for atom in sorted(inside, reverse=True):
            replaced = self._at_worst(p, atom)
            if replaced is not None:
                return self._nonnegative(replaced, depth - 1)
        return False

    def _at_worst(self, p: Poly, atom: int) -> Poly | None:
        """p with a ranged variable at the end where p is lowest; None if p is not known monotonic
        in it.
        """
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
        if kind in (GT, GE):
            p, kind = {m: -c for m, c in p.items()}, LT if kind is GT else LE
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
        """(x // c) * c + x % c -> x"""
        for monomial, scale in p.items():
            if len(monomial) != 1:
                continue
            atom = self._atoms[monomial[0]]
            if atom.numerator is None or not isinstance(atom.expr, FloorMod):
                continue
            quotient = self._numbers.get((FloorDiv, atom.numerator, atom.divisor))
            if quotient is not None and p.get((quotient,)) == scale * atom.divisor:
                rest = {m: c for m, c in p.items() if m not in (monomial, (quotient,))}
                return self._recombine(poly.add(rest, dict(atom.numerator), scale))
        return p

    def _div(self, e: PrimExpr) -> Poly:
        assert isinstance(e, Div)
        a, b = self._of(e.a), self._of(e.b)
        if self._bound(a)[0] >= 0 and self._bound(b)[0] >= 0:
            return self._divide(a, b, e.dtype)
        return self._opaque(e)

    def _floordiv(self, e: PrimExpr) -> Poly:
        assert isinstance(e, FloorDiv)
        return self._divide(self._of(e.a), self._of(e.b), e.dtype)

    def _floormod(self, e: PrimExpr) -> Poly:
        assert isinstance(e, FloorMod)
        return self._modulo(self._of(e.a), self._of(e.b), e.dtype)

    def _divide(self, p: Poly, d: Poly, dtype: str) -> Poly:
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
        divisor = poly.constant_of(d)
        if divisor is not None and divisor > 0:
            return self._small_modulo(poly.split(p, divisor)[1], divisor, dtype)
        parts = poly.split_symbolic(p, d)
        if parts is None or divisor is not None:
            return self._quotient_atom(FloorMod, p, d, dtype)
        rest = parts[1]
        return rest if self._within(rest, d) else self._quotient_atom(FloorMod, rest, d, dtype)

    def _small_modulo(self, p: Poly, divisor: int, dtype: str) -> Poly:
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
        p = {m: (c % divisor if m else c) for m, c in p.items()} if self._bound(p)[0] >= 0 else p
        return self._quotient_atom(FloorMod, p, poly.constant(divisor), dtype)

    def _quotient_atom(self, kind: type[BinaryExpr], p: Poly, d: Poly, dtype: str) -> Poly:
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
            if divisor:
                self._atoms[number].numerator, self._atoms[number].divisor = numerator, divisor
        return {(self._numbers[key],): 1}

    def _quotient_bound(self, kind: type[BinaryExpr], p: Poly, d: Poly) -> Interval:
        low, high = self._bound(p)
        smallest, largest = self._bound(d)
        if smallest < 0:
            return EVERYTHING
        if kind is FloorMod:
            return 0, min(largest - 1, high if low >= 0 else math.inf)
        step = max(smallest, 1)
        if smallest == largest:
            return _floor(low, step), _floor(high, step)
        return (0 if low >= 0 else low), (_floor(high, step) if high >= 0 else 0)

    def _extreme(self, e: PrimExpr) -> Poly:
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
        if not _is_number(e):
            return self._opaque(e)
        (low, high), (low2, high2) = self._bound(yes), self._bound(no)
        return self._opaque(e, (min(low, low2), max(high, high2)))

    def _guard(self, e: PrimExpr) -> Poly:
        assert isinstance(e, Intrinsic)
        return self._select(e) if e.op == "if_then_else" else self._opaque(e)

    def _cast(self, e: PrimExpr) -> Poly:
        assert isinstance(e, Cast)
        value = self._of(e.value)
        exact = (e.dtype == "int64" and e.value.dtype == "int32") or e.dtype == e.value.dtype
        if exact and (self._is_affine_of_small(value) or poly.constant_of(value) is not None):
            return value
        return self._opaque(e)

    def _is_affine_of_small(self, p: Poly) -> bool:
        return all(abs(b) < 2**31 for b in self._bound(p)) and not any(
            self._atoms[a].expr.dtype != "int64" for m in p for a in m
        )


def _without_fact(p: Poly, fact: Poly) -> Poly | None:
    """p - scale * fact for the scale > 0 that removes a term of it; None if there is none."""
    for monomial, coefficient in fact.items():
        have = p.get(monomial, 0)
        if monomial and have and have * coefficient > 0 and have % coefficient == 0:
            return poly.add(p, fact, -(have // coefficient))
    return None


def _floor(value: Bound, divisor: Bound) -> Bound:
    return value if math.isinf(value) else value // divisor


def _accumulate(total: PrimExpr | None, term: PrimExpr, scale: int) -> PrimExpr:
    if total is None:
        return term
    return total + term if scale > 0 else total - term


def _is_number(expr: PrimExpr) -> bool:
    return expr.dtype in ("int64", "int32")


def _is_index(expr: PrimExpr) -> bool:
    """Whether the rules of whole numbers hold: int32 and int64 scalars, and bools made of them."""
    if isinstance(expr, (EQ, NE, LT, LE, GT, GE)):
        return _is_number(expr.a)
    return _is_number(expr) or isinstance(expr, (And, Or, Not, Select, Intrinsic))


def _natural_bound(expr: PrimExpr) -> Interval:
    if expr.dtype == "bool":
        return 0, 1
    return (0, math.inf) if isinstance(expr, AnyDim) else EVERYTHING


_OPPOSITE: dict[type[PrimExpr], type[BinaryExpr]] = {
    LT: GE, GE: LT, LE: GT, GT: LE, EQ: NE, NE: EQ,
}  # fmt: skip
_RULES: dict[type[PrimExpr], Callable[[Analyzer, PrimExpr], Poly]] = {
    Add: Analyzer._add,
    Sub: Analyzer._sub,
    Mul: Analyzer._mul,
    Div: Analyzer._div,
    FloorDiv: Analyzer._floordiv,
    FloorMod: Analyzer._floormod,
    Min: Analyzer._extreme,
    Max: Analyzer._extreme,
    And: Analyzer._and,
    Or: Analyzer._and,
    Not: Analyzer._not,
    Select: Analyzer._select,
    Intrinsic: Analyzer._guard,
    Cast: Analyzer._cast,
    **dict.fromkeys((EQ, NE, LT, LE, GT, GE), Analyzer._compare),
}


def simplify(expr: PrimExpr) -> PrimExpr:
    """`Analyzer().simplify(expr)`: SizeVars are >= 0, nothing else is known."""
    if isinstance(expr, (Var, IntImm)):
        return expr
    return Analyzer().simplify(expr)


def prove_equal(a: PrimExpr, b: PrimExpr) -> bool:
    """Whether two integers are known to be equal for all values of their variables."""
    if isinstance(a, IntImm) and isinstance(b, IntImm):
        return a.value == b.value
    if isinstance(a, Var) and isinstance(b, Var):
        return a is b
    return Analyzer().can_prove_equal(a, b)
