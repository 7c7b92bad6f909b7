"""TVM's `Analyzer.rewrite_simplify`: apply rewrite rules bottom-up to a fixed point.

Nothing of the compiler asks for it: the simplifier is the canonical form (`arith.canonical`). This
one gives the forms that programs written for TVM compare, in which a term keeps its shape; it asks
the canonical form for proofs, and takes it where it is shorter. Both are walkers of
`arith.rule_engine` over the rows of `arith.rewrite_rules`; that one gives polynomials, this one
expressions.
"""

from __future__ import annotations

from ekiden.arith import poly, ramp_broadcast
from ekiden.arith.canonical import CanonicalForm, is_index_dtype
from ekiden.arith.poly import CONSTANT_MONOMIAL
from ekiden.arith.ramp_broadcast import ModularSetOf
from ekiden.arith.rewrite_rules import REWRITE_FORMS, REWRITE_RULES
from ekiden.arith.rule_engine import RuleSet, RuleWalker, fold_constant_call
from ekiden.ir import prim
from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    BinaryExpr,
    IntImm,
    PrimExpr,
    Var,
    const,
    fold_binary,
)
from ekiden.ir.prim_visitor import children, is_same_expr, post_order, rebuild

MAX_REWRITES = 2_000
"""Maximum number of rule results per expression: rules that undo each other in several
subexpressions at once would grow exponentially with the depth."""
_COMPARISONS = (EQ, NE, LT, LE, GT, GE)


class RewriteSimplifier(RuleWalker[PrimExpr]):
    """Rewrite simplifier under the knowledge of a canonical form: a form is an expression, and its
    own form.
    """

    rules = RuleSet(*REWRITE_FORMS, *REWRITE_RULES, written_first=True)
    max_rewrite_depth = 32

    def __init__(self, canonical: CanonicalForm, modular_set: ModularSetOf) -> None:
        super().__init__()
        self._known = canonical
        self._modular_set = modular_set
        self._result: PrimExpr | None = None
        """The result of the rule that is under way."""
        self._num_rewrites = 0

    def can_prove(self, condition: PrimExpr) -> bool:
        """Return whether the canonical form proves the condition of a rule."""
        return self._known.can_prove(condition)

    def simplify_expr(self, expr: PrimExpr) -> PrimExpr:
        """Simplify an expression."""
        return self._walk(expr)

    def _node_form(self, expr: PrimExpr) -> PrimExpr:
        rebuilt = rebuild(expr, [self._memo[id(c)] for c in children(expr)])
        form = self._memo.get(id(rebuilt))
        if form is None:
            form = self._simplify_node(rebuilt, is_result=expr is self._result)
        self._memo[id(form)] = form
        self._keepalive += (rebuilt, form)
        return form

    def _form_of_result(self, result: PrimExpr, is_final: bool = False) -> PrimExpr:
        self._num_rewrites += 1
        if is_final or self._num_rewrites > MAX_REWRITES:
            return result
        outer, self._result = self._result, result
        form = super()._form_of_result(result)
        self._result = outer
        return form

    def _simplify_node(self, e: PrimExpr, is_result: bool) -> PrimExpr:
        """Simplify a node over simplified children.

        The result of a rule is not brought to its canonical form, which may be the input of the
        rule.
        """
        if self._rewrite_depth == self.max_rewrite_depth or _is_truncmod(e):
            return e
        if isinstance(e, _COMPARISONS) and is_index_dtype(e.a):
            answer = poly.constant_value(self._known._to_poly(e))
            if answer is not None:
                return const(bool(answer), "bool")
            # a <= b as the negation of b < a, where rules rewrite that.
            strict = fold_binary(LT, e.b, e.a)
            if isinstance(e, LE) and (form := self._form_of_result(strict)) is not strict:
                return self._form_of_result(prim.Not(form))
        rewritten = self._rewritten_form(e)
        if rewritten is not None:
            return rewritten
        changed = fold_constant_call(e)
        if changed is None:
            changed = ramp_broadcast.fold_vector_op(e, self._modular_set)
        if changed is None and (not is_result or isinstance(e, _COMPARISONS)):
            changed = self._shorter_canonical_form(e)
        return e if changed is None else self._form_of_result(changed)

    def _shorter_canonical_form(self, e: PrimExpr) -> PrimExpr | None:
        """Return the canonical form of a node if it has fewer operations, else None."""
        if not (is_index_dtype(e) or e.dtype == "bool") or isinstance(e, (Var, IntImm)):
            return None
        if isinstance(e, _COMPARISONS) and is_index_dtype(e.a):
            is_exact = not any(isinstance(inner, prim.Div) for inner in post_order(e))
            return self._shorter_comparison(e) if is_exact else None
        form = self._known.simplify(e)
        # The canonical form may be longer, as products are expanded in it.
        return form if _num_nodes(form) < _num_nodes(e) else None

    def _shorter_comparison(self, e: BinaryExpr) -> PrimExpr | None:
        """Return ==, !=, < or <= without the terms common to both sides, if shorter.

        Every term is on the side where it is added, by `<` or `<=`; None if that is not shorter.
        """
        kind, p = type(e), poly.add(self._known._to_poly(e.a), self._known._to_poly(e.b), -1)
        offset = p.get(CONSTANT_MONOMIAL, 0)
        p = poly.add(p, poly.constant_poly(-offset))
        common = poly.content_gcd(p)
        if kind in (EQ, NE):
            # Whole numbers: the left side is a multiple of the common divisor and the right one is
            # not.
            if offset % common:
                return const(kind is NE, "bool")
        elif kind is LT:
            kind, offset = LE, offset + 1
        # Rounded up: over whole numbers the tighter of the two.
        offset = -(-offset // common)
        lhs = {m: c // common for m, c in p.items() if c > 0}
        rhs = {m: -c // common for m, c in p.items() if c < 0}
        if kind is LE and (offset == 1 or (offset > 0 and lhs)):
            kind, offset = LT, offset - 1
        if offset > 0 or not lhs:
            lhs = poly.add(lhs, poly.constant_poly(offset))
        else:
            rhs = poly.add(rhs, poly.constant_poly(-offset))
        dtype = e.a.dtype
        shorter = fold_binary(
            kind, self._known._poly_to_expr(lhs, dtype), self._known._poly_to_expr(rhs, dtype)
        )
        return None if _num_nodes(shorter) >= _num_nodes(e) else shorter


def _is_truncmod(e: PrimExpr) -> bool:
    """Return whether a node is a truncated remainder.

    a - truncdiv(a, b) * b, its opposite or a multiple of it stay in one piece.
    """
    match e:
        case prim.Sub(a=IntImm(value=0), b=prim.Sub() as inside):
            return _is_truncmod(inside)
        case prim.Mul(a=prim.Sub() as inside, b=IntImm()):
            return _is_truncmod(inside)
        case prim.Sub(a=a, b=prim.Mul(a=prim.Div(a=divided, b=by), b=IntImm(value=size))):
            return size > 0 and prim.is_const(by, size) and is_same_expr(a, divided)
    return False


def _num_nodes(expr: PrimExpr) -> int:
    """Return the number of nodes of an expression as a tree."""
    sizes: dict[int, int] = {}
    for node in post_order(expr):
        sizes[id(node)] = 1 + sum(sizes[id(c)] for c in children(node))
    return sizes[id(expr)]


__all__ = ["RewriteSimplifier"]
