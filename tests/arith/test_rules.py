"""Every rule of the tables is true, and the simplifier applies it."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from ekiden.arith import Analyzer
from ekiden.arith.rewrite_rules import (
    CANONICAL_FORM_EQUATIONS,
    NORMALIZE_RULES,
    REWRITE_FORMS,
    REWRITE_RULES,
    RewriteRule,
)
from ekiden.arith.rule_engine import build_expr, parse_side
from ekiden.ir.prim import IntImm, Not, PrimExpr, Var, const

z3 = pytest.importorskip("z3")
sys.path.insert(0, str(Path(__file__).parent))
from z3_model import Model  # noqa: E402

NAMES = {n: Var(n, "bool" if n in "pqr" else "int64") for n in "x y z w v u t p q r".split()}
CONSTANTS = {n: Var(n) for n in ("c1", "c2", "c3")}


def powers(text: str) -> str:
    """2 ** c1 has no term; c1 = 3 stands for all."""
    return text.replace("2 ** c1", "8")


def expression(text: str, names: dict[str, PrimExpr]) -> PrimExpr:
    return build_expr(parse_side(powers(text)), names, "int64")


PAIRS = list(itertools.product((4, -4, 3, 1, 2), (3, 7, 8, 12, 2, -8)))
PAIRS.append((4, -4))
"""Numbers tried for (c1, c2)."""
TRIPLES = [(a, b, c) for a, b in PAIRS for c in (a * b, -a, b - a, 7, 2, 1)]
TRIPLES.append((4, -2, 2))
"""And for (c1, c2, c3)."""


class Bools(Model):
    """p and q are z3 bools."""

    def variable(self, var: Var) -> z3.ExprRef:
        if var.dtype == "bool":
            self.names.setdefault(var, z3.Bool(var.name))
            return self.names[var]
        return super().variable(var)


@pytest.mark.parametrize(
    "rule",
    [*REWRITE_RULES, *NORMALIZE_RULES, *REWRITE_FORMS, *CANONICAL_FORM_EQUATIONS],
    ids=lambda r: f"{r.left} -> {r.right}",
)
def test_rewrite_rule_equation_is_true(rule: RewriteRule) -> None:
    names: dict[str, PrimExpr] = {**NAMES, **CONSTANTS}
    if "shift" in rule.left:
        names["c1"] = const(3)
    model = Bools({}, overflow=False)
    left, defined = model.term(expression(rule.left, names))
    right, still = model.term(expression(rule.right, names))
    condition, sensible = model.term(expression(rule.condition, names))
    wrong = z3.And(defined, sensible, condition, z3.Not(z3.And(still, left == right)))
    answer = refuted(wrong)
    if answer == z3.unknown:  # too hard for all numbers at once
        some = [z3.simplify(z3.substitute(wrong, *chosen(model, *pair))) for pair in PAIRS]
        assert all(refuted(item) == z3.unsat for item in some)
    else:
        assert answer == z3.unsat


def refuted(wrong: z3.BoolRef) -> z3.CheckSatResult:
    solver = z3.Solver()
    solver.set("rlimit", 2_000_000)  # steps of its own, no time: a slow machine says the same
    solver.add(wrong)
    return solver.check()


def chosen(model: Model, c1: int, c2: int) -> list[tuple[z3.ExprRef, z3.ExprRef]]:
    """Numbers for the constants of a rule."""
    values = {CONSTANTS["c1"]: c1, CONSTANTS["c2"]: c2}
    return [(model.variable(v), z3.IntVal(n)) for v, n in values.items()]


@pytest.mark.parametrize(
    "rule",
    [*REWRITE_RULES, *NORMALIZE_RULES, *REWRITE_FORMS, *CANONICAL_FORM_EQUATIONS],
    ids=lambda r: f"{r.left} -> {r.right}",
)
def test_simplifier_applies_rewrite_rule(rule: RewriteRule) -> None:
    """Both sides get one form, for numbers that satisfy the condition."""
    for c1, c2, c3 in TRIPLES:
        names: dict[str, PrimExpr] = {**NAMES, "c1": const(c1), "c2": const(c2), "c3": const(c3)}
        condition = build_expr(parse_side(rule.condition), names, "int64")
        if isinstance(condition, IntImm) and not condition.value:
            continue
        analyzer = Analyzer()
        with analyzer.constraint_scope(condition):
            if analyzer.can_prove(Not(condition)):
                continue
            left = build_expr(parse_side(rule.left), names, "int64")
            right = build_expr(parse_side(rule.right), names, "int64")
            form = analyzer.rewrite_simplify if rule in REWRITE_FORMS else analyzer.simplify
            assert str(form(left)) == str(right if rule.is_final else form(right))
            return
    raise AssertionError("no numbers satisfy the condition")
