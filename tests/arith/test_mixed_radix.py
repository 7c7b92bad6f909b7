"""Recombination of digits: indices through fused and split axes simplify to the original index."""

from __future__ import annotations

import random

import pytest

from ekiden.arith import Analyzer, evaluate
from ekiden.ir.prim import PrimExpr, SizeVar, Var
from ekiden.ir.prim_visitor import substitute
from long_runs import sizes

X, CHUNK, STEP = Var("x", "int64"), Var("chunk", "int64"), Var("i", "int64")
N, M = SizeVar("n", "int64"), SizeVar("m", "int64")
KNOWN = {
    "pair": (X // 7 * 7 + X % 7, X),
    "three digits": (X // 16384 * 16384 + X // 128 % 128 * 128 + X % 128, X),
    "two of three": (X // 128 % 128 * 128 + X % 128, X % 16384),
    "of odd sizes": ((X // 12288) * 12288 + X // 96 % 128 * 96 + X % 96, X),
    "scaled": ((X // 40 * 40 + X // 8 % 5 * 8 + X % 8) * 4 + 3, X * 4 + 3),
    "of unknown sizes": (X // (N * M) * (N * M) + X // M % N * M + X % M, X),
    "of one unknown size": (X // (4 * M) * (4 * M) + X // M % 4 * M + X % M, X),
    "times another": ((X // M % 4 * M + X % M) * N, X % (M * 4) * N),
}
INDICES = {"alone": X, "of a chunk": CHUNK * 8192 + STEP, "of an odd chunk": CHUNK * 3000 + STEP}


@pytest.mark.quick
@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("name", KNOWN)
def test_digits_of_an_index_are_joined(name: str, index: str) -> None:
    digits, whole = (substitute(e, {X: INDICES[index]}) for e in KNOWN[name])
    analyzer = Analyzer()
    analyzer.bind(X, 0, 1 << 20)
    analyzer.bind(CHUNK, 0, 64)
    analyzer.bind(STEP, 0, 8192 if index == "of a chunk" else 3000)
    assert str(analyzer.simplify(digits)) == str(analyzer.simplify(whole))


@pytest.mark.quick
@pytest.mark.slow
def test_digits_of_different_indices_are_not_joined() -> None:
    apart = (X + 1) // 128 % 128 * 128 + X % 128
    simplified = Analyzer().simplify(apart)
    assert all(evaluate(apart, {X: x}) == evaluate(simplified, {X: x}) for x in range(0, 40_000, 7))
    assert str(simplified) != "floormod(x, 16384)"


def _random_digits(source: random.Random) -> PrimExpr:
    """Return a sum of digits, some of which belong together."""
    index = CHUNK * source.randint(0, 40) + STEP * source.randint(1, 3) + source.randint(-5, 5)
    low, high = source.randint(1, 6), source.randint(1, 6)
    shift = source.choice([0, 0, 0, CHUNK, STEP, 1]) * source.choice([1, high, 2])
    parts = [
        index % low,
        (index // low + shift) % high * low * source.choice([1, 1, 2]),
        index // (low * high) * (low * high),
        STEP * source.randint(-2, 2),
    ]
    total = parts[0]
    for part in parts[1:]:
        if source.random() < 0.8:
            total = total + part
    return total


@sizes("count", 200, 20_000)
def test_joined_digits_have_the_same_value(count: int) -> None:
    for seed in range(count):
        source = random.Random(seed)
        digits = _random_digits(source)
        analyzer = Analyzer()
        if source.random() < 0.5:
            analyzer.bind(CHUNK, 0, 9)
            analyzer.bind(STEP, 0, 11)
        simplified = analyzer.simplify(digits)
        for _ in range(20):
            values = {CHUNK: source.randrange(9), STEP: source.randrange(11)}
            assert evaluate(digits, values) == evaluate(simplified, values), (seed, digits)


@pytest.mark.parametrize("seed", range(20))
def test_digits_of_unknown_sizes_have_the_same_value(seed: int) -> None:
    source = random.Random(seed)
    index = CHUNK * source.choice([N, M, N * M, 5]) + STEP
    shift = source.choice([0, CHUNK, STEP])
    digits = (index // M + shift) % source.choice([N, 3]) * M + index % M
    digits = digits + source.choice([0, 1]) * (index // (N * M) * (N * M))
    simplified = Analyzer().simplify(digits)
    for _ in range(50):
        values = {
            v: source.randint(low, 12) for v, low in ((N, 1), (M, 1), (CHUNK, 0), (STEP, -12))
        }
        assert evaluate(digits, values) == evaluate(simplified, values), digits
