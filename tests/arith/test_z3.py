"""The simplifier, bounds and proofs against z3, on random expressions."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from ekiden.arith import Analyzer
from ekiden.ir.prim import PrimExpr
from long_runs import alike, sizes

z3 = pytest.importorskip("z3")
sys.path.insert(0, str(Path(__file__).parent))
from z3_model import Generator, Model  # noqa: E402

PARTS = 20
TIMEOUT = 1_000  # milliseconds a question


def analyzer_of(generator: Generator) -> Analyzer:
    analyzer = Analyzer()
    for var, (low, high) in generator.bounds.items():
        if high is not None and var.name != "m":
            analyzer.bind(var, low, high - low + 1)
    return analyzer


def refute(model: Model, claim: z3.BoolRef, *argument: z3.BoolRef) -> str:
    """ "holds", "unknown", or the values for which a claim is wrong."""
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT)
    solver.add(*model.assumptions(), *argument, z3.Not(claim))
    result = solver.check()
    if result == z3.unsat:
        return "holds"
    return "unknown" if result == z3.unknown else str(solver.model())


def check(seed: int) -> Counter[str]:
    """Everything that is claimed of one random expression."""
    generator = Generator(seed)
    wants_bool = generator.rng.random() < 0.3
    depth = generator.rng.choice([1, 2, 2, 3, 3, 4])
    expr = generator.boolean(depth - 1) if wants_bool else generator.integer(depth)
    analyzer = analyzer_of(generator)
    model = Model(generator.bounds)
    value, defined = model.term(expr)
    done: Counter[str] = Counter()

    def claim(what: str, message: object, truth: z3.BoolRef) -> None:
        answer = refute(model, truth, defined)
        assert answer in ("holds", "unknown"), f"seed {seed}: {what} of {expr}: {message}; {answer}"
        done[answer] += 1

    for what, simple in forms(analyzer, expr).items():
        if simple is expr:
            continue
        # Sums are rearranged: what fits as a whole may not fit in between, and need not.
        loose = Model(generator.bounds, overflow=False, names=model.names)
        result, is_defined = loose.term(simple)
        claim(what, simple, z3.And(is_defined, result == value))
    if wants_bool:
        return done
    low, high = analyzer.const_int_bound(expr)
    if low > float("-inf"):
        claim("the lower bound", low, value >= int(low))
    if high < float("inf"):
        claim("the upper bound", high, value <= int(high))
    coeff, base = analyzer.modular_set(expr)
    if coeff != 1:
        claim("modular", (coeff, base), value == base if coeff == 0 else value % coeff == base)
    return done


def forms(analyzer: Analyzer, expr: PrimExpr) -> dict[str, PrimExpr]:
    return {"simplify": analyzer.simplify(expr), "rewrite": analyzer.rewrite_simplify(expr)}


@alike(4)
@pytest.mark.parametrize("part", range(PARTS))
@sizes("count", 400, 20_000)
def test_random_expressions_agree_with_z3(part: int, count: int) -> None:
    done: Counter[str] = Counter()
    for seed in range(part, count, PARTS):
        done += check(seed)
    assert done["unknown"] < 0.05 * done.total()
