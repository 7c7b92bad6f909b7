"""Algebraic simplification by the rules of simplify_rules.py, bottom-up to a fixed point.

    divide(exp(%x), sqrt(%y))                        ->   multiply(exp(%x), rsqrt(%y))
    transpose(transpose(%x, axes=[1, 0]), axes=[1, 0])   ->   %x

A rule applies only where the result keeps its type, and where the context's tier allows it
(ir/float_tier.py). `SimplifyExpr(exact=True)` leaves out the rules that may change how
floating-point results are rounded, unless the context asks for the tier "free".
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from ekiden.ir.expr import RelayExpr
from ekiden.ir.float_tier import FloatTier
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.structural import structural_equal
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.expr import Call, Tuple, TupleGetItem
from ekiden.relay.transform.graph.call_rewrites import infer_new_types
from ekiden.relay.transform.graph.simplify_rules import SIMPLIFY_RULES, RewriteRule
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    lift_body_rewrite,
    map_functions,
    rewrite_graph,
)
from ekiden.runtime.errors import TypeInferenceError

MAX_RULE_APPLICATIONS = 100
"""Maximum consecutive rule applications to one expression."""


def simplify_expr(root: RelayExpr, rules: Sequence[RewriteRule] = SIMPLIFY_RULES) -> RelayExpr:
    """Return the expression simplified by the rules. Needs checked types."""
    # Rules are looked up by their root operator: trying all of them would dominate.
    by_name: dict[str, list[RewriteRule]] = {}
    for rule in rules:
        by_name.setdefault(rule.root, []).append(rule)

    def apply_rules(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Apply rules to a node until none matches, at most MAX_RULE_APPLICATIONS times.

        New expressions inside of a result are simplified too, before the next rule is tried.
        """
        for _ in range(MAX_RULE_APPLICATIONS):
            simplified = _apply_first_rule(new, by_name)
            if simplified is None:
                break
            new = _simplify_new_args(infer_new_types(simplified), new, by_name)
        return new

    return rewrite_graph(root, apply_rules)


def _simplify_new_args(
    result: RelayExpr, old: RelayExpr, by_name: dict[str, list[RewriteRule]]
) -> RelayExpr:
    """Simplify the arguments that a rule created, by one rule application each.

    Arguments that it took over are simplified already. Without this (x + 1) + 2 would end as x + (1
    + 2).
    """
    if not isinstance(result, Call) or not isinstance(old, Call):
        return result
    old_args = {id(a) for call in (old, *old.args) if isinstance(call, Call) for a in call.args}
    args = [a if id(a) in old_args else _apply_first_rule(a, by_name) or a for a in result.args]
    if all(map(operator.is_, args, result.args)):
        return result
    return infer_new_types(result.with_fields(args=tuple(args)))


def _apply_first_rule(expr: RelayExpr, by_name: dict[str, list[RewriteRule]]) -> RelayExpr | None:
    """Apply the first matching rule to an expression, or return None."""
    if isinstance(expr, TupleGetItem) and isinstance(expr.tuple_value, Tuple):
        return expr.tuple_value.fields[expr.index]
    if not isinstance(expr, Call) or not isinstance(expr.op, Op):
        return None
    for rule in by_name.get(expr.op.name, ()):
        result = rule.apply(expr)
        # A rule whose result has another type does not apply.
        if result is not None and _preserves_type(result, expr):
            return result
    return None


def _preserves_type(result: RelayExpr, expr: RelayExpr) -> bool:
    try:
        # A rule may narrow a shape or change a dtype in corner cases; such results are discarded.
        return structural_equal(infer_new_types(result).checked_type, expr.checked_type)
    except TypeInferenceError:
        return False


def SimplifyExpr(exact: bool = False) -> Pass:  # noqa: N802
    """Return a pass that applies algebraic simplification rules (TVM's SimplifyExpr)."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Simplify a module's functions by the rules of the allowed floating-point tiers."""
        allowed = FloatTier.allowed(context)
        if exact and allowed is not FloatTier.FREE:
            allowed = FloatTier.EXACT
        rules = [rule for rule in SIMPLIFY_RULES if rule.tier <= allowed]
        return map_functions(module, lift_body_rewrite(lambda body: simplify_expr(body, rules)))

    return Pass("SimplifyExpr", transform, 0, (InferType(),))
