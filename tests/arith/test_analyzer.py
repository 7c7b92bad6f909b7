"""Simplification keeps values; bounds and proofs hold; equal forms get one text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden.arith import Analyzer, evaluate, prove_equal, simplify, substitute
from ekiden.ir.expr_text import format_prim_expr
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import (
    EQ,
    AnyDim,
    IntImm,
    Intrinsic,
    PrimExpr,
    Select,
    SizeVar,
    Var,
    cast,
    const,
    fold_binary,
    maximum,
    minimum,
)
from ekiden.ir.prim_visitor import children

pytestmark = pytest.mark.quick

N, S = SizeVar("n"), SizeVar("s")
ROW, J = Var("i"), Var("j")


def _combine(parts: tuple[str, PrimExpr, PrimExpr]) -> PrimExpr:
    kind, a, b = parts
    match kind:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "min":
            return minimum(a, b)
        case "max":
            return maximum(a, b)
        case _:
            return Select(a < b, a, b + 1, "int64")


def _divide(parts: tuple[PrimExpr, int, bool]) -> PrimExpr:
    value, divisor, whole = parts
    return value // divisor if whole else value % divisor


leaves = st.sampled_from([N, S, ROW, J]) | st.integers(-9, 9).map(const)
expressions = st.recursive(
    leaves,
    lambda inner: (
        st.tuples(st.sampled_from(["+", "-", "*", "min", "max", "select"]), inner, inner).map(
            _combine
        )
        | st.tuples(inner, st.integers(1, 12), st.booleans()).map(_divide)
    ),
    max_leaves=10,
)
values = st.fixed_dictionaries(
    {N: st.integers(0, 20), S: st.integers(0, 9), ROW: st.integers(0, 15), J: st.integers(-5, 5)}
)


def bound_analyzer() -> Analyzer:
    """i in [0, 16), j in [-5, 6)."""
    analyzer = Analyzer()
    analyzer.bind(ROW, 0, 16)
    analyzer.bind(J, -5, 11)
    return analyzer


@pytest.mark.slow
@given(expressions, values)
@settings(max_examples=400, deadline=None)
def test_simplify_keeps_the_value(expr: PrimExpr, at: dict[Var, int]) -> None:
    assert evaluate(bound_analyzer().simplify(expr), at) == evaluate(expr, at)


@pytest.mark.slow
@given(expressions, values)
@settings(max_examples=300, deadline=None)
def test_bounds_hold(expr: PrimExpr, at: dict[Var, int]) -> None:
    low, high = bound_analyzer().const_int_bound(expr)
    assert low <= evaluate(expr, at) <= high


@pytest.mark.slow
@given(expressions, expressions, values)
@settings(max_examples=300, deadline=None)
def test_proofs_hold_for_all_values(a: PrimExpr, b: PrimExpr, at: dict[Var, int]) -> None:
    analyzer = bound_analyzer()
    if analyzer.can_prove(a < b):
        assert evaluate(a, at) < evaluate(b, at)
    if analyzer.can_prove_equal(a, b):
        assert evaluate(a, at) == evaluate(b, at)


@pytest.mark.slow
@given(expressions, values)
@settings(max_examples=200, deadline=None)
def test_modular_set_holds(expr: PrimExpr, at: dict[Var, int]) -> None:
    coeff, base = bound_analyzer().modular_set(expr)
    value = evaluate(expr, at)
    assert value == base if coeff == 0 else value % coeff == base


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (ROW + J - ROW, "j"),
        ((ROW * 16 + J) - ROW * 16, "j"),
        ((N * 4 + 8) // 4, "n + 2"),
        (((N + 3) // 4) // 2, "floordiv(n + 3, 8)"),
        ((ROW * 32 + ROW) // 32, "i"),
        ((ROW // 4) * 4 + ROW % 4, "i"),
        ((N + (4 - N % 4) % 4) % 4, "0"),
        ((N + (4 - N % 4) % 4) // 4 * 4 - (4 - N % 4) % 4, "n"),
        ((N + 2 * (N % 4)) % 8, "floormod(n + floormod(n, 4) * 2, 8)"),
        ((ROW * 2 + 1) // 2, "i"),
        (minimum(ROW, 20), "i"),
        (maximum(N + 1, N), "n + 1"),
        (N * S - S * N + 3, "3"),
        (Select(ROW < 16, ROW, N, "int64"), "i"),
    ],
)
def test_simplified_forms_are_canonical(expr: PrimExpr, expected: str) -> None:
    assert format_prim_expr(bound_analyzer().simplify(expr)) == expected


def test_symbolic_ranges_decide_quotients() -> None:
    analyzer = Analyzer()
    analyzer.bind(J, 0, N)
    assert analyzer.simplify((J + N * ROW) // N) is ROW
    assert analyzer.simplify((J + N * ROW) % N) is J
    assert analyzer.can_prove(J < N)
    assert not analyzer.can_prove(J < N - 1)


def test_order_of_terms_does_not_matter() -> None:
    assert format_prim_expr(simplify(S + N * 2 + 1)) == format_prim_expr(simplify(1 + N + S + N))
    assert prove_equal((N + 1) * (N - 1), N * N - 1)


def test_unknown_dimensions_have_no_bounds() -> None:
    unknown = AnyDim()
    assert not prove_equal(unknown, unknown)
    assert not Analyzer().can_prove(fold_binary(EQ, unknown, 1))


def test_dimension_upper_bound_is_used() -> None:
    s = SizeVar("s", upper=512)
    assert simplify(minimum(s, 512)) is s


def test_substitute_simplifies() -> None:
    result = substitute(N * 2 + S, {N: const(3), S: const(1)})
    assert isinstance(result, IntImm)
    assert result.value == 7


def test_evaluate_names_missing_variables() -> None:
    with pytest.raises(ValueError, match="no value for"):
        evaluate(N + S, {N: 1})


def test_zeros_of_both_signs_are_two_constants() -> None:
    condition = Var("c", "bool")
    choice = Select(condition, const(0.0, "float32"), const(-0.0, "float32"))
    assert format_prim_expr(simplify(choice)) == "select(c, 0.0, -0.0)"


def test_bits_are_counted_in_the_width_of_their_number() -> None:
    """-1 has 32 bits as an int32 and 64 as an int64: equal numbers, not equal calls."""
    narrow, wide = (Intrinsic("popcount", (const(-1, d),), "int32") for d in ("int32", "int64"))
    analyzer = Analyzer()
    assert not analyzer.can_prove(fold_binary(EQ, narrow, wide))
    assert [children(analyzer.simplify(e))[0].dtype for e in (narrow, wide)] == ["int32", "int64"]


@pytest.mark.slow
def test_deep_sums_do_not_recurse() -> None:
    total: PrimExpr = const(0)
    for _ in range(20_000):
        total = total + N
    assert format_prim_expr(simplify(total)) == "n * 20000"


def test_floats_inside_an_expression_have_their_width() -> None:
    def scaled(factor: float, dtype: str) -> PrimExpr:
        return cast(call_intrin("floor", cast(N, dtype) * factor), "int64")

    assert evaluate(scaled(1.5, "float32"), {N: 3}) == 4
    assert evaluate(scaled(0.7, "float32"), {N: 10}) == 7
    assert evaluate(scaled(0.7, "float64"), {N: 10}) == int(np.floor(0.7 * 10))


def test_slope_is_the_step_of_a_linear_expression() -> None:
    i, j, n = Var("i"), Var("j"), SizeVar("n")
    analyzer = Analyzer()
    assert str(analyzer.slope(i * 12 + j * n + i * n, i)) == "n + 12"
    assert str(analyzer.slope(j * 3, i)) == "0"
    assert analyzer.slope(i // 4, i) is None
    assert analyzer.slope(i * i, i) is None


def test_values_at_are_those_of_substituted_steps() -> None:
    i, j, n = Var("i"), Var("j"), SizeVar("n")
    for expr in (i * 12 + j * n + 5, i * n - i * 3 + j, i // 2 + j, i * i + j, j):
        analyzer = Analyzer()
        expected = [
            str(Analyzer().simplify(substitute(expr, {i: const(step, "int64")})))
            for step in range(4)
        ]
        assert [str(e) for e in analyzer.values_at(expr, i, 4)] == expected


def test_bounds_in_a_loop_without_a_step_stay_in_order() -> None:
    i = Var("i")
    analyzer = Analyzer()
    analyzer.bind(i, 0, 0)
    for scale in (2, -2):
        low, high = analyzer.const_int_bound(i * scale)
        assert low <= high
