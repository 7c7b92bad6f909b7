"""Sums that follow a running maximum or minimum: online softmax and attention by a schedule."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr
from ekiden.tir import LoopRV, PrimFunc, Schedule, ScheduleError
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.transform import lower
from long_runs import LONG

NESTS, GROUP = 40, 25
"""Groups of random nests, and nests of a group."""
Term = Callable[[te.Tensor, te.Tensor, PrimExpr, PrimExpr], PrimExpr]


def exp(x: PrimExpr) -> PrimExpr:
    return call_intrin("exp", x, dtype="float32")


def above_maximum(x: te.Tensor, m: te.Tensor, i: PrimExpr, j: PrimExpr) -> PrimExpr:
    return exp(x[i, j] - m[i])


def below_minimum(x: te.Tensor, m: te.Tensor, i: PrimExpr, j: PrimExpr) -> PrimExpr:
    return exp(m[i] - x[i, j])


def attention(
    rows: int, keys: int, width: int, term: Term = above_maximum, least: bool = False
) -> PrimFunc:
    """Weighted means of values, by the softmax of scores."""
    x, v = te.placeholder((rows, keys), name="x"), te.placeholder((keys, width), name="v")
    axes = [te.reduce_axis((0, keys), "j") for _ in range(3)]
    extreme = te.min if least else te.max
    m = te.compute((rows,), lambda i: extreme(x[i, axes[0]], axes[0]), name="m")
    s = te.compute((rows,), lambda i: te.sum(term(x, m, i, axes[1]), axes[1]), name="s")
    o = te.compute(
        (rows, width),
        lambda i, c: te.sum(term(x, m, i, axes[2]) * v[axes[2], c], axes[2]),
        name="o",
    )
    out = te.compute((rows, width), lambda i, c: o[i, c] / s[i], name="out")
    return te.create_prim_func([x, v, out])


def tile_keys(sch: Schedule, block: str, size: int) -> LoopRV:
    """Split the loop over keys and move its outer part behind the rows; return that."""
    rows, *columns, keys = sch.get_loops(block)
    outer, inner = sch.split(keys, [None, size])
    sch.reorder(rows, outer, *columns, inner)
    return outer


def online(func: PrimFunc, size: int, blocks: tuple[str, ...] = ("s", "o")) -> Schedule:
    """The schedule that computes sums while the maximum runs, corrected once for each tile."""
    sch = Schedule(func)
    outer = tile_keys(sch, "m", size)
    for block in blocks:
        tile_keys(sch, block, size)
        sch.rolling_update(block, outer)
    return sch


def softmax_mean(x: np.ndarray, v: np.ndarray, least: bool = False) -> np.ndarray:  # type: ignore[type-arg]
    """The same in float64."""
    scores = (-x if least else x).astype("float64")
    weights = np.exp(scores - scores.max(1, keepdims=True))
    mean: np.ndarray = weights @ v.astype("float64") / weights.sum(1, keepdims=True)  # type: ignore[type-arg]
    return mean


@pytest.mark.parametrize(
    "group", [pytest.param(n, marks=() if n < 1 else LONG) for n in range(NESTS)]
)
def test_random_online_sums_equal_numpy(group: int) -> None:
    for seed in range(group * GROUP, (group + 1) * GROUP):
        source, arrays = random.Random(seed), np.random.default_rng(seed)
        rows, keys, width = source.randint(1, 4), source.randint(1, 9), source.randint(1, 3)
        size, least = source.randint(1, 5), source.random() < 0.3
        term = below_minimum if least else above_maximum
        blocks = source.choice([("s",), ("o",), ("s", "o"), ("o", "s")])
        func = attention(rows, keys, width, term, least)
        sch = online(func, size, blocks)
        again = Schedule(func)
        sch.trace.apply_to_schedule(again)
        assert str(again.func) == str(sch.func)
        x = (arrays.standard_normal((rows, keys)) * source.choice([1, 30, 300])).astype("float32")
        # Masked scores, of whole tiles at the front too; one of a row counts.
        hidden = arrays.random((rows, keys)) < source.choice([0, 0.3, 0.8])
        hidden[:, arrays.integers(keys)] = False
        x[hidden] = np.inf if least else -np.inf
        v = arrays.standard_normal((keys, width)).astype("float32")
        out = np.full((rows, width), np.nan, "float32")
        run_prim_func(tir.verify(lower(sch.func)), x, v, out)
        # Each key adds a term and at most one correction, each rounded; arguments of exp are
        # differences, whose rounding grows with them.
        near = 2.0**-24 * (8 * keys + 2 * np.abs(x[np.isfinite(x)]).max()) * np.abs(v).max()
        np.testing.assert_allclose(
            out, softmax_mean(x, v, least), rtol=0, atol=near, err_msg=f"seed {seed}"
        )


@pytest.mark.quick
def test_sum_is_corrected_in_the_loop_of_the_maximum() -> None:
    sch = Schedule(attention(3, 8, 2))
    outer = tile_keys(sch, "m", 4)
    tile_keys(sch, "s", 4)
    kept, rescaled = sch.rolling_update("s", outer)
    assert (sch.get(kept).name, sch.get(rescaled).name) == ("m_prev", "s_rescale")  # type: ignore[union-attr]
    text = str(sch.func)
    assert text.index('"m_prev"') < text.index('T.block("m")') < text.index('"s_rescale"')
    assert "T.where(j_0 > 0)" in text
    assert "s[i_1] * T.exp(m_prev[i] - m[i])" in text


@pytest.mark.quick
def test_scores_can_be_computed_in_the_loop_afterwards() -> None:
    """Products, maximum, sums and values tile by tile: FlashAttention."""
    q, k = te.placeholder((3, 4), name="q"), te.placeholder((8, 4), name="k")
    v, e = te.placeholder((8, 2), name="v"), te.reduce_axis((0, 4), "e")
    x = te.compute((3, 8), lambda i, j: te.sum(q[i, e] * k[j, e], e), name="x")
    axes = [te.reduce_axis((0, 8), "j") for _ in range(3)]
    m = te.compute((3,), lambda i: te.max(x[i, axes[0]], axes[0]), name="m")
    s = te.compute((3,), lambda i: te.sum(exp(x[i, axes[1]] - m[i]), axes[1]), name="s")
    o = te.compute(
        (3, 2),
        lambda i, c: te.sum(exp(x[i, axes[2]] - m[i]) * v[axes[2], c], axes[2]),
        name="o",
    )
    out = te.compute((3, 2), lambda i, c: o[i, c] / s[i], name="out")
    sch = online(te.create_prim_func([q, k, v, out]), 4)
    sch.compute_at("x", sch.get_loops("m")[1])
    random_ = np.random.default_rng(0)
    a, b, c = (random_.standard_normal(n).astype("float32") for n in ((3, 4), (8, 4), (8, 2)))
    result = np.full((3, 2), np.nan, "float32")
    run_prim_func(tir.verify(lower(sch.func)), a, b, c, result)
    np.testing.assert_allclose(result, softmax_mean(a @ b.T, c), rtol=1e-5, atol=1e-6)


@pytest.mark.quick
@pytest.mark.parametrize("block", ["s", "o"])
def test_loop_may_be_parallel(block: str) -> None:
    sch = Schedule(attention(3, 8, 2))
    outer = tile_keys(sch, "m", 4)
    tile_keys(sch, block, 4)
    for name in ("m", block):
        sch.parallel(sch.get_loops(name)[0])
    sch.rolling_update(block, outer)
    x = np.random.default_rng(0).standard_normal((3, 8)).astype("float32")
    v, out = np.ones((8, 2), "float32"), np.full((3, 2), np.nan, "float32")
    run_prim_func(tir.verify(lower(sch.func)), x, v, out)
    np.testing.assert_allclose(out, np.ones((3, 2)), rtol=1e-5)


def refused(change: str) -> Schedule:
    """A schedule whose update of "s" is refused."""
    terms: dict[str, Term] = {
        "scaled": lambda x, m, i, j: exp(x[i, j] * 2.0 - m[i]),
        "neighbour": lambda x, m, i, j: exp(x[i, (j + 1) % 8] - m[i]),
        "other row": lambda x, m, i, j: exp(x[i, j] - m[(i + 1) % 3]),
        "reverse": below_minimum,
        "linear": lambda x, m, i, j: x[i, j] - m[i],
        "twice": lambda x, m, i, j: exp(x[i, j] - m[i]) * m[i],
    }
    sch = Schedule(attention(3, 8, 2, terms.get(change, above_maximum)))
    outer = tile_keys(sch, "m", 4)
    if change == "other tile":
        tile_keys(sch, "s", 2)
    elif change != "not tiled":
        tile_keys(sch, "s", 4)
    if change == "inner loop":
        outer = sch.get_loops("m")[2]
    if change == "parallel":
        sch.parallel(sch.get_loops("s")[0])
    block = {"maximum": "m", "result": "out"}.get(change, "s")
    sch.rolling_update(block, outer)
    return sch


FORMS = r"no factor of a term can be corrected; those are exp\(x - max\), exp\(min - x\)"
REFUSALS = {
    "scaled": r"x\[i, j\] \* 2.0 is not what 'm' takes the max of|is not what 'm' takes the max",
    "neighbour": "is not what 'm' takes the max of",
    "other row": "it reads 'm' of other steps",
    "reverse": FORMS,
    "linear": FORMS,
    "twice": r"expected one element in a term that loop 'j_0' computes, got \['m', 'm'\]",
    "other tile": "its outer loops are not those of loop 'j_0'",
    "not tiled": "its outer loops are not those of loop 'j_0'|does not sum over what 'm' takes in",
    "inner loop": "its outer loops are not those of|must be the outermost one that 'm' reduces",
    "parallel": "its outer loops are not those of loop 'j_0', perfectly nested",
    "maximum": "rolling_update 'm': it is no sum that begins at 0",
    "result": "rolling_update 'out': expected a reduction block, got a complete one",
}


@pytest.mark.quick
@pytest.mark.parametrize("change", REFUSALS)
def test_other_updates_are_refused(change: str) -> None:
    with pytest.raises(ScheduleError, match=REFUSALS[change]):
        refused(change)


@pytest.mark.quick
def test_sums_in_front_of_the_loop_are_refused() -> None:
    """What the sum reads is computed between the loops, or in the loop."""
    sch = Schedule(attention(3, 8, 2))
    outer = tile_keys(sch, "m", 4)
    tile_keys(sch, "o", 4)
    tile_keys(sch, "s", 4)
    sch.rolling_update("s", outer)
    with pytest.raises(ScheduleError, match="rolling_update 's'"):
        sch.rolling_update("s", outer)
