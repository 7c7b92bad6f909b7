"""Assumptions, integer sets, deduced bounds and systems of inequalities, checked by enumeration."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from ekiden import tir
from ekiden.arith import (
    Analyzer,
    ConstIntBound,
    deduce_bound,
    detect_linear_equation,
    eval_set,
    evaluate,
    narrow_predicate_expression,
    solve_inequalities_to_range,
    solve_linear_inequalities,
)
from ekiden.arith.int_set import IntervalSet, intersect, interval, single_point, union, vector
from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    And,
    Div,
    FloorDiv,
    Intrinsic,
    Not,
    Or,
    PrimExpr,
    SizeVar,
    Var,
    const,
    convert,
    fold_binary,
    logical_and,
    maximum,
    minimum,
)
from ekiden.ir.prim_visitor import post_order
from ekiden.ir.range import Range

X, Y, Z = Var("x"), Var("y"), Var("z")
N = SizeVar("n")
P = Var("p", "bool")


def test_condition_holds_only_inside_its_scope() -> None:
    analyzer = Analyzer()
    bound = maximum(X, 3)
    assert analyzer.simplify(bound) is not X
    with analyzer.constraint_scope(X > 5):
        assert analyzer.simplify(bound) is X
        assert analyzer.can_prove(X >= 6)
        assert analyzer.const_int_bound(X).min_value == 6
        with analyzer.constraint_scope(X <= 6):
            assert analyzer.can_prove((X % 4).equal(2))
        assert str(analyzer.simplify(X % 4)) == "x % 4"
    assert not analyzer.can_prove(X >= 6)
    assert str(analyzer.simplify(bound)) == "T.max(3, x)"


def test_cached_quotient_is_simplified_again_in_scope() -> None:
    analyzer = Analyzer()
    quotient = Div(X, Y)
    outside = analyzer.simplify(quotient)
    with analyzer.constraint_scope(logical_and(X <= 0, Y > 0)):
        inside = analyzer.simplify(quotient)
        assert isinstance(outside, Div) and not any(isinstance(e, Div) for e in post_order(inside))
        for x, y in itertools.product(range(-9, 1), range(1, 5)):
            assert evaluate(inside, {X: x, Y: y}) == -(-x // y)
    assert analyzer.simplify(quotient) is outside


@pytest.mark.parametrize(
    ("known", "claim"),
    [
        (X < Y, X <= Y - 1),
        (X < Y, maximum(X, Y).equal(Y)),
        (And(X < Y, Y < Z, "bool"), X < Z),
        (And(X <= Y, Y <= X, "bool"), X <= Y),
        (fold_binary(EQ, X, Y + 2), X > Y),
        (fold_binary(NE, X, 3), fold_binary(NE, X, 3)),
        (Not(Or(X < 0, X >= N, "bool")), And(X >= 0, X < N, "bool")),
        (Not(X < 4), X >= 4),
        (And(X >= 0, X < 16, "bool"), X // 16 < 1),
        (P, P),
        (X * 4 + Y < 10, X * 4 + Y < 12),
        (X * 4 + Y < N, X * 4 + Y + 1 <= N),
    ],
)
def test_assumptions_imply_weaker_conditions(known: PrimExpr, claim: PrimExpr) -> None:
    analyzer = Analyzer()
    assert not analyzer.can_prove(claim)
    with analyzer.constraint_scope(known):
        assert analyzer.can_prove(claim)
    assert not analyzer.can_prove(claim)


def test_condition_known_false_is_folded() -> None:
    analyzer = Analyzer()
    with analyzer.constraint_scope(Not(P)):
        assert str(analyzer.simplify(Or(P, X < 3, "bool"))) == "x < 3"


def test_bind_accepts_tvm_argument_forms() -> None:
    analyzer = Analyzer()
    analyzer.bind(X, Range(2, 6))
    assert analyzer.const_int_bound(X * 2) == ConstIntBound(4, 10)
    analyzer.bind(Y, X + 1)
    assert str(analyzer.simplify(Y - X)) == "1"
    analyzer.update(Z, ConstIntBound(0, 7))
    assert analyzer.can_prove(Z // 8 <= 0)
    assert analyzer.can_prove_greater_equal(X, 2)
    assert analyzer.can_prove_less(X, 6)
    assert not analyzer.can_prove_less(X, 5)
    assert analyzer.modular_set(X * 4 + 3) == (4, 3)


@pytest.mark.parametrize(
    ("expr", "first", "then"),
    [
        (X // 4, (0, 1), (-3, 24)),
        (X % 16, (0, 7), (0, 15)),
        (minimum(X, Y), (0, 7), (-10, 7)),
        (maximum(X // 4, X % 3), (0, 2), (0, 24)),
        (Z // 2, (0, 3), (0, 49)),
    ],
)
def test_rebinding_a_variable_widens_its_range(
    expr: PrimExpr, first: tuple[int, int], then: tuple[int, int]
) -> None:
    analyzer = Analyzer()
    analyzer.bind(X, 0, 8)
    analyzer.bind(Y, 0, 8)
    analyzer.bind(Z, 0, X + 1)
    assert analyzer.const_int_bound(expr) == first
    analyzer.bind(X, -10, 110)
    assert analyzer.const_int_bound(expr) == then
    analyzer.update(X, ConstIntBound(0, 7), override=True)
    assert analyzer.const_int_bound(X // 8) == (0, 0)
    analyzer.update(X, ConstIntBound(0, 99), override=True)
    assert analyzer.const_int_bound(X // 8) == (0, 12)
    assert not analyzer.can_prove(X // 8 <= 11)


def test_simplify_methods_agree() -> None:
    analyzer = Analyzer()
    mixed = minimum(minimum(X, Y), X) + X - X
    assert str(analyzer.rewrite_simplify(mixed)) == "T.min(x, y)"
    assert str(analyzer.canonical_simplify(mixed)) == "T.min(x, y)"
    assert str(analyzer.simplify(mixed, steps=3)) == "T.min(x, y)"


def test_int_sets_support_set_operations() -> None:
    assert str(vector(X, 4)) == "[x, x + 4 - 1]"
    assert str(interval(3, 1)) == "{}"
    assert single_point(3).is_single_point()
    assert str(union([interval(0, 3), interval(2, 9)])) == "[0, 9]"
    assert str(intersect([interval(0, 3), interval(2, 9)])) == "[2, 3]"
    assert intersect([interval(0, 1), interval(2, 9)]).is_nothing()
    assert eval_set(X * Y, {X: interval(0, 3)}).is_everything()
    with pytest.raises(ValueError, match="expected a single point"):
        interval(0, 3).point()


def test_interval_sets_have_symbolic_bounds() -> None:
    result = Analyzer().int_set(Y + X * 2, {X: vector(0, N)})
    assert str(result) == "[y, n * 2 + y - 2]"
    assert str(Analyzer().int_set(X % 8)) == "[0, 7]"


def random_expression(rng: random.Random, depth: int) -> PrimExpr:
    if depth == 0:
        return rng.choice([X, Y, const(rng.randint(-5, 9))])
    a, b = random_expression(rng, depth - 1), random_expression(rng, depth - 1)
    scale = rng.choice([-3, -1, 2, 4])
    return rng.choice(
        [a + b, a - b, a * scale, a // abs(scale), a % abs(scale * 2), minimum(a, b), maximum(a, b)]
    )


def test_int_sets_contain_every_value() -> None:
    rng = random.Random(3)
    domains = {X: interval(-2, 5), Y: interval(1, 4)}
    for _ in range(120):
        expr = random_expression(rng, 3)
        result = eval_set(expr, domains)
        values = [evaluate(expr, {X: x, Y: y}) for x in range(-2, 6) for y in range(1, 5)]
        if result.min_value is not None:
            assert evaluate(result.min_value, {}) <= min(values)
        if result.max_value is not None:
            assert evaluate(result.max_value, {}) >= max(values)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (X * 4 + Y < 10, "[-inf, 1]"),
        (X * 4 - Y >= 10, "[4, inf]"),
        (fold_binary(EQ, X, const(3)), "[3, 3]"),
        (And(X > 2, X <= 7, "bool"), "[3, 7]"),
        (X + N < 10, "[-inf, n * -1 + 9]"),
        (X * X < 10, "{}"),
        (X % 16 < 10, "{}"),
        (X, "{}"),
        (Y < -1, "{}"),
    ],
)
def test_deduce_bound_solves_for_a_variable(condition: PrimExpr, expected: str) -> None:
    """y runs over [0, 5]."""
    assert str(deduce_bound(X, condition, {}, {Y: interval(0, 5)})) == expected


def test_deduced_bounds_hold_for_all_other_variables() -> None:
    rng = random.Random(5)
    for _ in range(40):
        a, b, c = rng.choice([-3, -1, 1, 2, 4]), rng.randint(-3, 3), rng.randint(-9, 9)
        left = X * a + Y * b
        condition = rng.choice([left < c, left <= c, left > c, left >= c])
        result = deduce_bound(X, condition, {}, {Y: interval(-2, 3)})
        good = [
            x
            for x in range(-20, 21)
            if all(evaluate(condition, {X: x, Y: y}) for y in range(-2, 4))
        ]
        assert good == [x for x in range(-20, 21) if inside(result, x)]


def inside(result: IntervalSet, value: int) -> bool:
    low, high = result.min_value, result.max_value
    return (low is None or evaluate(low, {}) <= value) and (
        high is None or value <= evaluate(high, {})
    )


def test_linear_equations() -> None:
    assert list(map(str, detect_linear_equation(X * 3 + (Y - X) * 2 + N, [X, Y]))) == [
        "1",
        "2",
        "n",
    ]
    assert detect_linear_equation(X * Y, [X, Y]) == []
    assert detect_linear_equation(X // 2, [X]) == []


def test_inequalities_bound_later_variables_by_earlier_ones() -> None:
    result = solve_linear_inequalities([X, Y], [X + Y < N, X >= 0, Y >= X * 2])
    x = result.bounds[X]
    assert (x.coef, list(map(str, x.lower)), list(map(str, x.upper))) == (
        2,
        ["0"],
        ["n * 2 - y * 2 - 2", "y"],
    )
    y = result.bounds[Y]
    assert list(map(str, y.lower)) == ["0"]
    assert result.relations != []


def test_solve_inequalities_infers_ranges() -> None:
    ranges, left = solve_inequalities_to_range(
        [X, Y], [X + Y <= 10, X * 2 >= 3, Y > 3], {X: Range(0, 100)}
    )
    assert str(ranges[Y].min) == "4"
    assert str(ranges[Y].extent) == "5"
    assert left == []


def test_every_solution_is_within_the_bounds() -> None:
    rng = random.Random(11)
    box = range(-3, 4)
    for _ in range(25):
        system = [
            X * rng.randint(-3, 3) + Y * rng.randint(-3, 3) + Z * rng.randint(-2, 2)
            <= rng.randint(-4, 9)
            for _ in range(3)
        ]
        limits = [logical_and(v >= -3, v <= 3) for v in (X, Y, Z)]
        result = solve_linear_inequalities([X, Y, Z], [*system, *limits])
        for values in itertools.product(box, repeat=3):
            at = dict(zip((X, Y, Z), values, strict=True))
            if not all(evaluate(e, at) for e in system):
                continue
            assert all(evaluate(e, at) for e in result.relations)
            for var, bound in result.bounds.items():
                scaled = bound.coef * at[var]
                assert all(evaluate(e, at) <= scaled for e in bound.lower)
                assert all(evaluate(e, at) >= scaled for e in bound.upper)
                assert all(evaluate(e, at) == scaled for e in bound.equal)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (X + 5 < Y + 6, "x <= y"),
        (X * -3 < Y * -3, "y < x"),
        (Y - X < Z - X, "y < z"),
        (X * 3 + 1 == Y * 3, "False"),
        (X * 2 + 4 > Y * 4 + 4, "y * 2 < x"),
        (tir.Cast("int8", const(300.0 - 299)), "T.int8(1)"),
        (tir.clz(const(1, "int32")), "T.int32(31)"),
        (tir.Ramp(X, 1, 4) + tir.Ramp(Y, 2, 4), "T.Ramp(x + y, 3, 4)"),
        (tir.Ramp(X, 4, tir.vscale() * 4) // 2, "T.Ramp(x // 2, 2, T.vscale() * 4)"),
        (tir.Ramp(X * 8 + 1, 1, 4) % 8, "T.Ramp(1, 1, 4)"),
        (tir.Ramp(X * 8 + 1, 1, 4) // 8, "T.Broadcast(x, 4)"),
        (tir.Ramp(X * 8 + 7, 1, 4) // 8, "T.Ramp(x * 8 + 7, 1, 4) // T.Broadcast(8, 4)"),
        (tir.Ramp(X * 8 + 9, 1, 4) % 8, "T.Ramp(1, 1, 4)"),
        (tir.Ramp(X * 8, 1, 5) % 4, "T.Ramp(0, 1, 5) % T.Broadcast(4, 5)"),
    ],
    ids=str,
)
def test_rewriting_shortens_comparisons_and_vectors(argument: PrimExpr, expected: str) -> None:
    assert str(Analyzer().rewrite_simplify(argument)) == expected


def test_comparisons_keep_their_truth() -> None:
    """Every comparison of two lines, at every point of a square."""
    numbers = (-3, -1, 0, 1, 2)
    for kind in (EQ, NE, LT, LE, GT, GE):
        for a, c, d in itertools.product(numbers, numbers, numbers):
            argument = kind(X * a + c, Y * 2 + d)
            result = Analyzer().rewrite_simplify(argument)
            for x, y in itertools.product(range(-4, 5), repeat=2):
                at = {X: x, Y: y}
                assert evaluate(argument, at) == evaluate(result, at), (argument, result, at)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (X < Y, "x < 0"),
        (X == Y, "x <= 0 and 7 <= x"),
        (X != Y, "x < 0 or 7 < x"),
        (Not(X < Y), "not x < 7"),
        ((X - Y) // -4 >= Z, "(x - 0) // -4 >= z"),
        (logical_and(X // Y == 0, X < 3), "False and x < 3"),
        (fold_binary(Or, Not(X % 8 > 1), minimum(Y, 5) >= X), "False or T.min(0, 5) >= x"),
    ],
    ids=str,
)
def test_narrowed_conditions_hold_for_all_values(argument: PrimExpr, expected: str) -> None:
    argument = convert(argument)
    actual = narrow_predicate_expression(argument, {Y: Range(0, 8)})
    assert str(actual) == expected
    for x, z in itertools.product(range(-9, 10), range(-3, 4)):
        if evaluate(actual, {X: x, Z: z}):
            assert all(evaluate(argument, {X: x, Y: y, Z: z}) for y in range(8))


def test_bounds_of_bits_and_casts() -> None:
    analyzer = Analyzer()
    small, byte = Var("s", "int8"), Var("u", "uint8")
    assert analyzer.const_int_bound(small) == (-128, 127)
    assert analyzer.const_int_bound(byte.astype("int32")) == (0, 255)
    assert analyzer.const_int_bound((X < Y).astype("int32")) == (0, 1)
    assert analyzer.const_int_bound(X & 12) == (0, 12)
    analyzer.bind(Y, 2, 9)
    analyzer.bind(Z, -9, 21)
    assert analyzer.const_int_bound(Z & Y) == (0, 10)
    assert analyzer.const_int_bound(Z & Z) == (-math.inf, math.inf)
    far = (Z * 2**40).astype("int32")  # its low bits: anything
    assert analyzer.const_int_bound(far) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("expr", "x", "y", "expected"),
    [
        (X // Y, (-9, 4), (-2, 0), (-4, 9)),
        (X // Y, (-9, 4), (-4, 12), (-9, 9)),
        (X // Y, (0, 6), (-3, -2), (-3, 0)),
        (tir.truncdiv(X, Y), (-9, 4), (4, 10), (-2, 1)),
        (tir.truncdiv(X, Y), (-9, 4), (-2, 0), (-4, 9)),
        (tir.truncdiv(X, Y), (5, 9), (-7, -4), (-2, 0)),
        (X % Y, (0, 6), (-5, 7), (-4, 6)),
        (X % Y, (0, 6), (-5, -5), (-4, 0)),
        (X >> Y, (-9, 11), (2, 10), (-3, 2)),
        (X >> Y, (0, 11), (0, 70), (0, 11)),
    ],
    ids=str,
)
def test_bounds_of_quotients_by_any_divisor(
    expr: PrimExpr, x: tuple[int, int], y: tuple[int, int], expected: tuple[int, int]
) -> None:
    analyzer = Analyzer()
    analyzer.update(X, ConstIntBound(*x))
    analyzer.update(Y, ConstIntBound(*y))
    low, high = analyzer.const_int_bound(expr)
    assert (low, high) == expected
    for i, j in itertools.product(range(x[0], x[1] + 1), range(y[0], y[1] + 1)):
        if isinstance(expr, Intrinsic):
            assert low <= i >> j <= high, (i, j)
        elif j:
            assert low <= evaluate(expr, {X: i, Y: j}) <= high, (i, j)


def test_truncated_quotient_rounds_down_where_a_fact_proves_its_sign() -> None:
    analyzer, quotient = Analyzer(), Div(X - Y, const(8), "int64")
    assert isinstance(Analyzer().simplify(quotient), Div)
    with analyzer.constraint_scope(Y <= X):
        assert isinstance(analyzer.simplify(quotient), FloorDiv)
