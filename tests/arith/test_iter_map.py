"""Iteration maps against enumeration."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

import pytest

from ekiden.arith import (
    IterMapLevel,
    detect_iter_map,
    evaluate,
    inverse_affine_iter_map,
    is_bijective,
    iter_map_simplify,
    normalize_iter_map_to_expr,
    normalize_to_iter_sum,
    subspace_divide,
)
from ekiden.arith.iter_map import IterSum
from ekiden.ir.expr_text import format_prim_expr
from ekiden.ir.prim import And, PrimExpr, SizeVar, Var, const
from ekiden.ir.range import Range

pytestmark = pytest.mark.quick

I, J, K = Var("i"), Var("j"), Var("k")  # noqa: E741
X, Y = Var("x"), Var("y")
N = SizeVar("n")
BIJECTIVE = IterMapLevel.BIJECTIVE


def points(domain: Mapping[Var, int]) -> list[dict[Var, int]]:
    """Every assignment of a box."""
    ranges = [range(n) for n in domain.values()]
    return [dict(zip(domain, values, strict=True)) for values in itertools.product(*ranges)]


def texts(indices: Sequence[IterSum]) -> list[str]:
    return [format_prim_expr(normalize_iter_map_to_expr(s)) for s in indices]


# fmt: off
ACCEPTED = [
    # indices, extents, predicate
    ([I * 4 + J],                         {I: 8, J: 4},       True),
    ([I // 4, I % 4],                     {I: 16},            True),
    ([(I * 4 + J) // 8, (I * 4 + J) % 8], {I: 8, J: 4},       True),
    ([J, I],                              {I: 3, J: 5},       True),
    ([I * 4 + J],                         {I: 3, J: 4},       I * 4 + J < 10),
    ([I * 4 + J],                         {I: 3, J: 4},       I * 4 + J <= 9),
    ([I * 4 + J, K],                      {I: 3, J: 4, K: 5}, And(I * 4 + J < 10, K < 3, "bool")),
    ([I + 3, J - 1],                      {I: 3, J: 4},       True),
    ([(I * 6 + J) // 4 % 3, (I * 6 + J) // 12, (I * 6 + J) % 4], {I: 4, J: 6}, True),
    ([I // 8, I // 2 % 4, I % 2],         {I: 32},            True),
    ([I * 4 + J],                         {I: 8, J: 4},       J < 4),
]
REFUSED = [
    ([I + J],             {I: 3, J: 4},  "digits overlap or leave a gap: none has the step 1"),
    ([I * 5 + J],         {I: 3, J: 4},  "digits overlap or leave a gap: none has the step 4"),
    ([I // 4, I % 4],     {I: 10},       "4 does not divide the extent 10"),
    ([I * 2],             {I: 4},        "the index steps by 2"),
    ([I, I],              {I: 4},        "i: digits overlap or leave a gap at 1"),
    ([I % 4],             {I: 16},       "i: only 4 of 16 values are told apart"),
    ([I],                 {I: 4, J: 4},  "iterator 'j' is not used"),
    ([I * J],             {I: 4, J: 4},  "a product of iterators is not a sum of digits"),
    ([I // J],            {I: 4, J: 4},  "division by an iterator is not a digit"),
    ([(I + 1) // 2],      {I: 4},        "an offset of 1 is not a multiple of the divisor 2"),
]
# fmt: on


@pytest.mark.parametrize(("indices", "extents", "predicate"), ACCEPTED)
def test_bijection_and_its_inverse(
    indices: list[PrimExpr], extents: dict[Var, int], predicate: PrimExpr | bool
) -> None:
    domain = {v: Range(n) for v, n in extents.items()}
    result = detect_iter_map(indices, domain, predicate, BIJECTIVE)
    assert result.errors == ()
    here = [p for p in points(extents) if predicate is True or evaluate(predicate, p)]
    images = [tuple(evaluate(i, p) for i in indices) for p in here]
    assert len(set(images)) == len(here)
    for p, image in zip(here, images, strict=True):
        again = tuple(evaluate(normalize_iter_map_to_expr(s), p) for s in result.indices)
        assert again == image
    outputs = [Var(f"o{n}") for n in range(len(indices))]
    back = inverse_affine_iter_map(result.indices, outputs)
    for p, image in zip(here, images, strict=True):
        argument = dict(zip(outputs, image, strict=True))
        assert {v: evaluate(e, argument) for v, e in back.items()} == p


@pytest.mark.parametrize(("indices", "extents", "message"), REFUSED)
def test_rejected_iter_maps_give_a_reason(
    indices: list[PrimExpr], extents: dict[Var, int], message: str
) -> None:
    domain = {v: Range(n) for v, n in extents.items()}
    result = detect_iter_map(indices, domain, True, BIJECTIVE)
    assert (result.indices, result.errors) == ((), (message,))


def test_iter_map_accepts_symbolic_extents() -> None:
    domain = {I: Range(3), J: Range(N)}
    assert is_bijective([I * N + J], domain)
    assert is_bijective([(I * N + J) // N, (I * N + J) % N], domain)
    assert is_bijective([I // N, I % N], {I: Range(N * 4)})
    assert not is_bijective([I * 4 + J], domain)
    assert iter_map_simplify([(I * N + J) % N, (I * N + J) // N], domain) == [J, I]


def test_ranges_that_do_not_start_at_zero() -> None:
    domain = {I: Range(2, 6), J: Range(1, 4)}
    result = detect_iter_map([(I - 2) * 3 + J], domain, True, BIJECTIVE)
    assert result.errors == ()
    trivial = detect_iter_map([I + J], {I: Range(7, 8), J: Range(4)})
    assert [s.base for s in trivial.indices] == [7]


def test_surjective_maps_may_omit_digits() -> None:
    assert detect_iter_map([I // 4], {I: Range(16)}).errors == ()
    assert detect_iter_map([I % 4], {I: Range(16)}).errors == ()
    assert detect_iter_map([I], {I: Range(4), J: Range(4)}).errors == ()


def test_simplify_through_the_map() -> None:
    domain = {I: Range(8), J: Range(4)}
    fused = I * 4 + J
    result = iter_map_simplify([fused // 4, fused % 4, fused // 8, I * J], domain)
    assert [format_prim_expr(e) for e in result] == ["i", "j", "floordiv(i, 2)", "i * j"]


def test_normalize_orders_digits() -> None:
    total = normalize_to_iter_sum(J + I * 4 + 7, {I: Range(8), J: Range(4)})
    assert [(s.source.source, s.scale) for s in total.args] == [(I, 4), (J, 1)]
    assert total.base == 7


def test_subspace_of_inner_loops() -> None:
    domain = {I: Range(8), J: Range(4), K: Range(5)}
    pairs = subspace_divide([I * 4 + J, K], domain, [J, K])
    assert [(o.extent, i.extent) for o, i in pairs[:-1]] == [(8, 4), (1, 5)]
    assert [texts([o.source, i.source]) for o, i in pairs[:1]] == [["i", "j"]]
    assert subspace_divide([J * 8 + I], domain, [J]) == []
    fused = I * 4 + J
    halves = subspace_divide([fused // 8, fused % 8], domain, [J])
    assert [(o.extent, i.extent) for o, i in halves[:-1]] == [(4, 1), (2, 4)]


def test_subspace_keeps_predicates_on_their_side() -> None:
    domain = {I: Range(3), J: Range(4), K: Range(5)}
    condition = I * 4 + J < 10
    pairs = subspace_divide([I * 4 + J, K], domain, [K], condition)
    assert [(o.extent, i.extent) for o, i in pairs[:-1]] == [(10, 1), (1, 5)]
    assert pairs[-1][0].extent is condition
    assert subspace_divide([I * 4 + J, K], domain, [J, K], condition) == []


def random_digits(rng: random.Random) -> tuple[list[PrimExpr], dict[Var, int]]:
    """Fuse some iterators and take digits: often a bijection, sometimes not quite."""
    variables = [I, J, K][: rng.randint(1, 3)]
    extents = {v: rng.choice([1, 2, 3, 4, 6]) for v in variables}
    total: PrimExpr = const(0)
    for v in rng.sample(variables, len(variables)):
        total = total * (extents[v] + (rng.random() < 0.1)) + v
    cut = rng.choice([1, 2, 3, 4, 6, 8])
    indices = [total // cut, total % cut]
    if rng.random() < 0.3:
        indices = [*indices, rng.choice(variables) * 1]
    if rng.random() < 0.4:
        second = rng.choice([2, 3])
        indices = [indices[0] // second, indices[0] % second, *indices[1:]]
    return indices, extents


@pytest.mark.slow
def test_claims_hold_on_random_maps() -> None:
    rng = random.Random(7)
    accepted = 0
    for _ in range(400):
        indices, extents = random_digits(rng)
        domain = {v: Range(n) for v, n in extents.items()}
        here = points(extents)
        images = [tuple(evaluate(i, p) for i in indices) for p in here]
        if is_bijective(indices, domain):
            accepted += 1
            box = 1
            for axis in zip(*images, strict=True):
                box *= max(axis) - min(axis) + 1
            assert len(set(images)) == len(images) == box
        for e, simple in zip(indices, iter_map_simplify(indices, domain), strict=True):
            assert all(evaluate(e, p) == evaluate(simple, p) for p in here)
    assert accepted > 80
