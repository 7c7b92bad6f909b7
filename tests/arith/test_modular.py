"""Sets of remainders, against all values of small expressions."""

from __future__ import annotations

import itertools

import pytest

from ekiden import te, tir
from ekiden.arith import Analyzer, ModularSet
from ekiden.arith.modular import intersect_sets

A, B = te.var("a"), te.var("b")
EXPRESSIONS = [
    (tir.min(A * 3, B * 9), ModularSet(3, 0)),
    (tir.max(A * 3 + 1, B * 9 + 4), ModularSet(3, 1)),
    (tir.Select(A > 0, A * 6 + 1, B * 4 + 3), ModularSet(2, 1)),
    ((A * 4 + 1) * (B * 8 + 3), ModularSet(4, 3)),
    ((A * 6 + 2) % 8, ModularSet(2, 0)),
    ((A * 4 + 1) * tir.truncdiv(B * 8, 4), ModularSet(2, 0)),
    (tir.bitwise_and(A * 8 + 3, 15), ModularSet(8, 3)),
    ((A * 3).astype("int8"), ModularSet(1, 0)),
    ((A * 6 + 1).astype("int8"), ModularSet(2, 1)),
]


@pytest.mark.parametrize(("expr", "wanted"), EXPRESSIONS)
def test_modular_set_of_expression_is_sound(expr: tir.PrimExpr, wanted: ModularSet) -> None:
    assert Analyzer().modular_set(expr) == wanted
    for a, b in itertools.product(range(-90, 90, 7), range(-5, 5)):
        result = tir.stmt_functor.substitute(expr, {A: tir.const(a), B: tir.const(b)})
        actual = Analyzer().simplify(result)
        if isinstance(actual, tir.IntImm):
            assert (actual.value - wanted.base) % wanted.coeff == 0


def test_modular_set_uses_constraints() -> None:
    analyzer = Analyzer()
    with analyzer.constraint_scope(tir.truncmod(B, 4).equal(2)):
        assert analyzer.modular_set(B + 1) == (4, 3)
        with analyzer.constraint_scope((A % 2).equal(1)):
            assert analyzer.modular_set(B + A * 2) == (4, 0)
        assert analyzer.modular_set(B + A * 2) == (2, 0)
    with analyzer.constraint_scope(tir.all((A % 4).equal(1), (A % 3).equal(1))):
        assert analyzer.modular_set(A) == (12, 1)
    assert analyzer.modular_set(A) == (1, 0)


def test_values_in_two_sets() -> None:
    for c, d in itertools.product(range(1, 9), repeat=2):
        for x in range(60):
            result = intersect_sets(ModularSet(c, x % c), ModularSet(d, x % d))
            assert (x - result.base) % result.coeff == 0
            assert result.coeff % c == result.coeff % d == 0
