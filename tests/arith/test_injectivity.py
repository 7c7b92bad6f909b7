"""`injectivity_error` against enumeration of all iterations."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden.arith import determines, evaluate, injectivity_error
from ekiden.ir.prim import PrimExpr, SizeVar, Var, const
from ekiden.ir.range import Range

X, Y, Z = Var("i"), Var("j"), Var("k")
N, M = SizeVar("n"), SizeVar("m")


def ranges(**extents: int | PrimExpr) -> dict[Var, Range]:
    """The ranges of i, j and k."""
    names = {"i": X, "j": Y, "k": Z}
    return {names[name]: Range(extent) for name, extent in extents.items()}


@pytest.mark.parametrize(
    ("indices", "iters"),
    [
        ([X * 4 + Y], ranges(i=3, j=4)),
        ([X // 4, X % 4], ranges(i=12)),
        ([X // 5, X % 5], ranges(i=12)),
        ([(X * 8 + Y) // 3, (X * 8 + Y) % 3], ranges(i=3, j=8)),
        ([X, X], ranges(i=3)),
        ([(X * 6 + Y) // 4, (X * 6 + Y) // 2 % 2, (X * 6 + Y) % 2], ranges(i=2, j=6)),
        ([Y + X * 7 + 3], ranges(i=3, j=5)),
        ([9 - X], ranges(i=9)),
        ([X * N + Y], ranges(i=M, j=N)),
        ([X // M, X % M], ranges(i=N * M)),
        ([X // 4, Y, X % 4], ranges(i=N, j=M)),
        ([(X * 6 + Y) // 36, (X * 6 + Y) // 9 % 4, (X * 6 + Y) % 9], ranges(i=N * 6, j=6)),
    ],
)
def test_indices_determine_iterators(indices: list[PrimExpr], iters: dict[Var, Range]) -> None:
    assert injectivity_error(indices, iters, list(iters)) is None


@pytest.mark.parametrize(
    ("indices", "iters", "reason"),
    [
        ([X * 4 + Y], ranges(i=3, j=6), "no index tells the steps of 'i' apart"),
        ([X // 4], ranges(i=12), "a part of 'i' is in no index"),
        ([X], ranges(i=3, j=2), "no index tells the steps of 'j' apart"),
        ([X * X], ranges(i=3), "a product of iterators is not a sum of digits"),
        ([X + Y], ranges(i=N, j=N), "no index tells the steps of 'i' apart"),
        (
            [(X * 6 + Y) // 72, (X * 6 + Y) // 9 % 4, (X * 6 + Y) % 9],
            ranges(i=N * 12, j=6),
            "a part of 'i' is in no index",
        ),
    ],
)
def test_ambiguous_indices_determine_nothing(
    indices: list[PrimExpr], iters: dict[Var, Range], reason: str
) -> None:
    assert injectivity_error(indices, iters, list(iters)) == reason


def test_only_requested_iterators_are_required() -> None:
    iters = ranges(i=N, j=5, k=4)
    assert injectivity_error([X * 8 + Y + Z], iters, [X]) is None
    assert injectivity_error([X * 8 + Y + Z], iters, [X, Y]) is not None
    assert injectivity_error([const(0)], ranges(i=1, j=N), [X]) is None


EXTENTS = (1, 2, 3, 4, 6)


@st.composite
def index_exprs(draw: st.DrawFn) -> PrimExpr:
    """A sum of scaled iterators, divided and taken modulo now and then."""
    expr: PrimExpr = const(draw(st.integers(0, 3)))
    for var in draw(st.lists(st.sampled_from([X, Y, Z]), min_size=1, max_size=3)):
        expr = expr + var * draw(st.sampled_from([1, 1, 2, 3, 4, 6, 8, 12, -1]))
    match draw(st.integers(0, 5)):
        case 0:
            expr = expr // draw(st.sampled_from([2, 3, 4]))
        case 1:
            expr = expr % draw(st.sampled_from([2, 3, 4, 6]))
        case 2:
            inner = expr // draw(st.sampled_from([2, 3]))
            expr = inner % draw(st.sampled_from([2, 4])) + draw(st.sampled_from([X, Y, Z])) * 4
    return expr


@st.composite
def digits(draw: st.DrawFn) -> list[PrimExpr]:
    """Digits of i * a + j, and of that between others, which may leave some out or overlap."""
    whole = X * draw(st.sampled_from([2, 3, 4, 6, 8, 9])) + Y
    low, count = draw(st.sampled_from([2, 3, 4, 6, 9])), draw(st.sampled_from([2, 3, 4, 6]))
    top = draw(st.sampled_from([low * count, low * count, 4, 6, 12, 18, 36]))
    return [whole // top, whole // low % count, whole % low][: draw(st.sampled_from([2, 3, 3]))]


@given(
    digits(),
    st.tuples(*[st.sampled_from((1, 2, 3, 4, 6, 12, 18, 36))] * 2),
    st.sets(st.sampled_from([X, Y]), min_size=1),
)
@settings(max_examples=250, deadline=None)
def test_digit_claims_hold_for_all_iterations(
    indices: list[PrimExpr], extents: tuple[int, int], wanted: set[Var]
) -> None:
    test_claims_hold_for_all_iterations.hypothesis.inner_test(indices, (*extents, 1), wanted)


@given(
    st.lists(index_exprs(), min_size=1, max_size=3),
    st.tuples(*[st.sampled_from(EXTENTS)] * 3),
    st.sets(st.sampled_from([X, Y, Z]), min_size=1),
)
@settings(max_examples=250, deadline=None)
def test_claims_hold_for_all_iterations(
    indices: list[PrimExpr], extents: tuple[int, int, int], wanted: set[Var]
) -> None:
    iters = dict(zip((X, Y, Z), map(Range, extents), strict=True))
    if injectivity_error(indices, iters, wanted) is not None:
        return
    seen: dict[tuple[int, ...], tuple[int, ...]] = {}
    for point in itertools.product(*map(range, extents)):
        values = dict(zip((X, Y, Z), point, strict=True))
        at = tuple(evaluate(e, values) for e in indices)
        result = tuple(values[v] for v in (X, Y, Z) if v in wanted)
        assert seen.setdefault(at, result) == result, (at, result, seen[at])


def test_deprecated_alias_warns() -> None:
    """`determines` warns and returns what `injectivity_error` returns."""
    iters = ranges(i=3, j=4)
    for indices in ([X * 4 + Y], [X * 3 + Y]):
        with pytest.warns(DeprecationWarning, match="injectivity_error"):
            error = determines(indices, iters, iters)
        assert error == injectivity_error(indices, iters, iters)
