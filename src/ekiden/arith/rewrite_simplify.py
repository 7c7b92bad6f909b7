"""TVM's `Analyzer.rewrite_simplify`: apply rewrite rules bottom-up to a fixed point.

Nothing of the compiler asks for it: the simplifier is the canonical form (`arith.canonical`). This
one gives the forms that programs written for TVM compare, in which a term keeps its shape; it asks
the canonical form for proofs, and takes it where it is shorter. Both apply the rows of
`arith.rules`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ekiden.arith import poly, ramp_broadcast, rule_engine
from ekiden.arith.canonical import is_index_dtype
from ekiden.arith.poly import CONSTANT_MONOMIAL
from ekiden.arith.rules import REWRITE_FORMS, REWRITE_RULES
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
from ekiden.ir.prim_visitor import children, is_same_expr, post_order, rebuild, unvisited_post_order

if TYPE_CHECKING:
    from ekiden.arith.analyzer import Analyzer

REWRITE_SIMPLIFY_RULES = rule_engine.RuleSet(*REWRITE_FORMS, *REWRITE_RULES, written_first=True)
MAX_REWRITE_DEPTH, MAX_RULE_APPLICATIONS = 32, 2_000
"""MAX_REWRITE_DEPTH: maximum depth of nested rule results, so that rules that undo each other
terminate. MAX_RULE_APPLICATIONS: maximum number of rule applications per expression, so that rules
that undo each other terminate.
"""


_COMPARISONS = (EQ, NE, LT, LE, GT, GE)


class RewriteSimplifier:
    """Rewrite simplifier under the knowledge of an Analyzer."""

    def __init__(self, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._simplified_exprs: dict[int, PrimExpr] = {}
        """Simplified form by the id of the expression; a simplified form maps to itself."""
        self._keepalive: list[PrimExpr] = []
        self._num_applications = 0

    def simplify_expr(self, expr: PrimExpr, depth: int = 0) -> PrimExpr:
        """Simplify an expression; `depth` counts the rules that produced it in turn."""
        for node in unvisited_post_order((expr,), self._simplified_exprs):
            inside = children(node)
            rebuilt = (
                rebuild(node, [self._simplified_exprs[id(c)] for c in inside]) if inside else node
            )
            form = self._simplified_exprs.get(id(rebuilt))
            if form is None:
                form = self._simplify_node(rebuilt, depth, ruled=depth > 0 and node is expr)
            self._simplified_exprs[id(node)] = self._simplified_exprs[id(form)] = form
            # Ids of dead objects would be given to new ones.
            self._keepalive += (node, rebuilt, form)
        return self._simplified_exprs[id(expr)]

    def _simplify_node(self, e: PrimExpr, depth: int, ruled: bool) -> PrimExpr:
        """Simplify a node over simplified children.

        The result of a rule is not brought to its normal form, which may be the input of the rule.
        """
        if (
            depth == MAX_REWRITE_DEPTH
            or self._num_applications == MAX_RULE_APPLICATIONS
            or _is_truncmod(e)
        ):
            return e
        if isinstance(e, _COMPARISONS) and is_index_dtype(e.a):
            changed = self._decide_constant(e)
            if changed is None and isinstance(e, LE):
                changed = self._simplify_as_negation(e, depth)
            if changed is not None:
                return self.simplify_expr(changed, depth + 1)
        applied = REWRITE_SIMPLIFY_RULES.apply(e, self._analyzer.can_prove)
        if applied is not None:
            self._num_applications += 1
            rewritten, rule = applied
            return rewritten if rule.is_final else self.simplify_expr(rewritten, depth + 1)
        changed = rule_engine.fold_constant_call(e)
        if changed is None:
            changed = ramp_broadcast.fold_vector_op(e, self._analyzer.modular_set)
        if changed is None and (not ruled or isinstance(e, _COMPARISONS)):
            changed = self._shorter_canonical_form(e)
        return e if changed is None else self.simplify_expr(changed, depth + 1)

    def _decide_constant(self, e: BinaryExpr) -> PrimExpr | None:
        """Return a comparison with a provable answer as a constant, else None."""
        difference = poly.add(self._analyzer._to_poly(e.a), self._analyzer._to_poly(e.b), -1)
        answer = self._analyzer._decide_comparison(type(e), difference)
        return None if answer is None else const(answer, "bool")

    def _simplify_as_negation(self, e: LE, depth: int) -> PrimExpr | None:
        """Simplify a <= b as the negation of b < a, where rules rewrite that."""
        strict = fold_binary(LT, e.b, e.a)
        formed = self.simplify_expr(strict, depth + 1)
        return None if formed is strict else _negate_condition(formed)

    def _shorter_canonical_form(self, e: PrimExpr) -> PrimExpr | None:
        """Return the canonical form of a node if it has fewer operations, else None."""
        if not (is_index_dtype(e) or e.dtype == "bool") or isinstance(e, (Var, IntImm)):
            return None
        if isinstance(e, _COMPARISONS) and is_index_dtype(e.a):
            is_exact = not any(isinstance(inner, prim.Div) for inner in post_order(e))
            return self._shorter_comparison(e) if is_exact else None
        form = self._analyzer.simplify(e)
        # The canonical form may be longer, as products are expanded in it.
        return form if _num_nodes(form) < _num_nodes(e) else None

    def _shorter_comparison(self, e: BinaryExpr) -> PrimExpr | None:
        """Return an integer comparison without the terms common to both sides, if shorter.

        Every term is on the side where it is added, by `<` or `<=`; None if that is not shorter.
        """
        kind, p = type(e), poly.add(self._analyzer._to_poly(e.a), self._analyzer._to_poly(e.b), -1)
        if kind in (GT, GE):
            kind, p = (LT if kind is GT else LE), poly.add({}, p, -1)
        offset = p.pop(CONSTANT_MONOMIAL, 0) if CONSTANT_MONOMIAL in (p := dict(p)) else 0
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
            kind, self._analyzer._poly_to_expr(lhs, dtype), self._analyzer._poly_to_expr(rhs, dtype)
        )
        return None if _num_nodes(shorter) >= _num_nodes(e) else shorter


_NEGATED_COMPARISON: dict[type[PrimExpr], type[BinaryExpr]] = {EQ: NE, NE: EQ, LT: LE, LE: LT}


def _negate_condition(condition: PrimExpr) -> PrimExpr:
    """Return the negation of a condition in simplified form."""
    match condition:
        case IntImm(value=value):
            return const(not value, "bool")
        case EQ(a=a, b=b) | NE(a=a, b=b):
            return fold_binary(_NEGATED_COMPARISON[type(condition)], a, b)
        case LT(a=a, b=b) | LE(a=a, b=b):
            return fold_binary(_NEGATED_COMPARISON[type(condition)], b, a)
        case prim.And(a=a, b=b):
            return prim.Or(prim.Not(a), prim.Not(b), "bool")
        case prim.Or(a=a, b=b):
            return prim.And(prim.Not(a), prim.Not(b), "bool")
    return prim.Not(condition)


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


__all__ = ["REWRITE_SIMPLIFY_RULES", "RewriteSimplifier"]
