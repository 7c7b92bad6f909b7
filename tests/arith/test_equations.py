"""Linear equations, ends of variables, regions and common parts."""

from __future__ import annotations

import itertools
import random

import pytest

from ekiden.arith import (
    Analyzer,
    IntervalSet,
    detect_clip_bound,
    detect_common_subexpr,
    detect_linear_equation,
    estimate_region_lower_bound,
    estimate_region_upper_bound,
    evaluate,
    solve_linear_equations,
)
from ekiden.ir.prim import EQ, LE, IntImm, Not, PrimExpr, Var, const, logical_and, minimum
from ekiden.ir.range import Range

pytestmark = pytest.mark.quick


def value(e: PrimExpr | None, at: dict[Var, int] | None = None) -> int:
    assert e is not None
    return int(evaluate(e, at or {}))


def boxed(variables: list[Var], low: int, high: int) -> list[dict[Var, int]]:
    points = itertools.product(range(low, high), repeat=len(variables))
    return [dict(zip(variables, p, strict=True)) for p in points]


@pytest.mark.parametrize("seed", range(30))
def test_solutions_are_those_of_the_system(seed: int) -> None:
    """Every point of the box that solves it is one of the new system, and the other way round."""
    rng = random.Random(seed)
    count = rng.choice([1, 2, 3])
    variables = [Var(f"x{n}") for n in range(count)]
    relations: list[PrimExpr] = []
    for _ in range(rng.choice([1, 2, 3])):
        total: PrimExpr = const(rng.randint(-3, 3))
        for v in variables:
            total = total + v * rng.randint(-3, 3)
        relations.append(EQ(total, const(0)) if rng.random() < 0.8 else LE(total, const(0)))
    ranges = {v: Range(-3, 4) for v in variables}
    result = solve_linear_equations(relations, variables, ranges)
    right = [p for p in boxed(variables, -3, 4) if all(value(r, p) for r in relations)]
    reached = set()
    for point in right:
        new = {n: value(result.dst_to_src[n], point) for n in result.dst.variables}
        assert all(value(r, new) for r in result.dst.relations)
        for n, domain in result.dst.ranges.items():
            low = value(domain.min, new)
            assert low <= new[n] < low + value(domain.extent, new)
        again = {v: value(result.src_to_dst[v], new) for v in variables}
        assert again == point
        reached.add(tuple(new.values()))
    assert len(reached) == len(right)
    for point in boxed(list(result.dst.variables), -9, 10) if len(result.dst.variables) < 3 else []:
        inside = all(
            value(r.min, point) <= point[n] < value(r.min, point) + value(r.extent, point)
            for n, r in result.dst.ranges.items()
        )
        if inside and all(value(r, point) for r in result.dst.relations):
            old = {v: value(result.src_to_dst[v], point) for v in variables}
            assert all(value(r, old) for r in relations)


def test_systems_with_one_no_and_many_solutions() -> None:
    x, y, m = Var("x"), Var("y"), Var("m")
    one = solve_linear_equations([EQ(x + y, m + 20), EQ(x - y, m + 10)], [x, y])
    assert one.dst.variables == () and value(one.src_to_dst[x], {m: 0}) == 15
    assert value(one.src_to_dst[y], {m: 3}) == 5
    none = solve_linear_equations([EQ(x * 2, const(3))], [x])
    assert [value(r) for r in none.dst.relations] == [0] and not none.src_to_dst
    many = solve_linear_equations([EQ(x + y, const(0))], [x, y], {y: Range(0, 10)})
    (n,) = many.dst.variables
    assert (value(many.dst.ranges[n].min), value(many.dst.ranges[n].extent)) == (-9, 10)
    same = solve_linear_equations([EQ(x, y)])
    assert same.src is same.dst


def test_variable_bounds_are_deduced() -> None:
    a, b = Var("a"), Var("b")
    low, high = detect_clip_bound(logical_and(a < b * 6, a - 1 > 0), [a])
    assert value(low) == 2 and value(high, {b: 2}) == 11
    assert detect_clip_bound(a * b > 3, [a]) == []
    assert detect_clip_bound(a + b < 3, [a, b]) == []
    result = detect_clip_bound(logical_and(minimum(a, b) > 3, Not(a > 9)), [a, b])
    assert [None if e is None else value(e) for e in result] == [4, 9, 4, None]


def test_symbolic_coefficients_are_solved() -> None:
    a, b = Var("a"), Var("b")
    factor, base = detect_linear_equation(a * (b + 4) + a + 7, [a])
    assert Analyzer().can_prove_equal(factor, b + 5) and value(base) == 7
    assert detect_linear_equation(a * a + b, [a]) == []
    assert detect_linear_equation((a // 2) * b, [a]) == []
    assert [value(e) for e in detect_linear_equation(const(3), [a])] == [0, 3]


def test_region_coverage_is_estimated() -> None:
    i, j = Var("i"), Var("j")
    dom = {i: Range(0, 8), j: Range(0, 4)}
    (result,) = estimate_region_lower_bound([Range.from_min_extent(i * 4, 8)], dom)  # type: ignore[misc]
    assert (value(result.min_value), value(result.max_value)) == (0, 35)
    assert estimate_region_lower_bound([Range.from_min_extent(i * 4, 2)], dom) is None
    both = [Range.from_min_extent(i, 2), Range.from_min_extent(i + 2, 2)]
    assert estimate_region_lower_bound(both, dom) is None
    upper = estimate_region_upper_bound(both, dom)
    assert [(value(e.min_value), value(e.max_value)) for e in upper] == [(0, 8), (2, 10)]
    (back,) = estimate_region_lower_bound([Range.from_min_extent(const(20) - j * 4, 16)], dom)  # type: ignore[misc]
    assert (value(back.min_value), value(back.max_value)) == (8, 35)


def test_common_subexpressions_are_extracted() -> None:
    x, y = Var("x"), Var("y")
    result = detect_common_subexpr((x + y) * (x + y) + (x + y), 2)
    assert [(str(e), n) for e, n in result.items()] == [("x + y", 3)]


def test_variables_of_one_name_stay_distinct() -> None:
    one, other = Var("x"), Var("x")
    assert detect_common_subexpr((one + 1) * 3 + (other + 1) * 5, 2) == {}


def test_interval_sets_of_numbers() -> None:
    x = Var("x")
    result = Analyzer().int_set(x * 2 + 1, {x: IntervalSet(0, 7)})  # type: ignore[arg-type]
    assert (value(result.min_value), value(result.max_value)) == (1, 15)
    point = IntervalSet.single_point(2)
    assert isinstance(point.min_value, IntImm) and point.is_single_point()
