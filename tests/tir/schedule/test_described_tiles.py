"""Micro-kernels with a description: int8 x int4 products in scaled groups."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Var, const, maximum
from ekiden.kernels.micro_kernels.int4_tile import group_sum, scaled_group
from ekiden.tir import PrimFunc, Schedule, ScheduleError, script
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.transform import lower
from ekiden.topi.nn.int4_dense import unpack_panels
from long_runs import LONG

PANEL, NESTS, GROUP = 64, 100, 10
"""Columns of a panel; groups of random nests, and nests of a group."""
Sizes = tuple[int, int, int, int]


def product(sizes: Sizes, relu: bool = True, change: str = "") -> PrimFunc:
    """A product of (rows, columns, groups, words of a group); `change` makes it another one."""
    rows, columns, groups, words = sizes
    panels = -(-columns // PANEL)
    data = te.placeholder((rows, groups * words * 8), "int8", "data")
    step = te.placeholder((rows, groups), "float32", "step")
    total = te.placeholder((rows, groups), "int32", "total")
    weight = te.placeholder((panels, groups, words, PANEL), "int32", "weight")
    scale = te.placeholder((panels, groups, PANEL), "float32", "scale")
    point = te.placeholder((panels, groups, PANEL), "uint8", "point")

    def inner(i: Var, j: Var, b: Var) -> PrimExpr:
        def word(b: PrimExpr, w: PrimExpr) -> PrimExpr:
            loaded = weight[j // PANEL, b, w, j % PANEL]
            if change == "fewer bits":
                return call_intrin("bitwise_and", loaded, const(7, "int32"), dtype="int32")
            return loaded

        at = (lambda k: data[i, k]) if change != "next row" else (lambda k: data[(i + 1) % rows, k])
        return group_sum(at, word, b, words)

    sums = te.compute((rows, columns, groups), inner, name="sums")
    group = te.reduce_axis((0, groups - (change == "fewer groups")), "group")

    def outer(i: Var, j: Var) -> PrimExpr:
        lane = (j // PANEL, j % PANEL)
        term = scaled_group(
            lambda b: sums[i, j, b],
            (lambda b: step[i, b], lambda b: total[i, b]),
            (lambda b: scale[lane[0], b, lane[1]], lambda b: point[lane[0], b, lane[1]]),
        )
        value = term(group)
        return te.sum(value * value if change == "squares" else value, group)

    result = te.compute((rows, columns), outer, name="result")
    args = [data, step, total, weight, scale, point]
    out = result
    if relu:
        out = te.compute((rows, columns), lambda i, j: maximum(result[i, j], 0.0), name="out")
    if change == "read twice":
        more = te.compute((rows, columns), lambda i, j: sums[i, j, 0], name="more")
        return te.create_prim_func([*args, out, more])
    return te.create_prim_func([*args, out])


def tiled(func: PrimFunc, sizes: Sizes, tile_rows: int, lanes: int, wide_rows: int = 0) -> Schedule:
    """The schedule of tiles of some rows and a panel."""
    sch = Schedule(func)
    i, j, group = sch.get_loops("result")
    t, i = sch.split(i, [None, tile_rows], tail="balanced")
    p, j = sch.split(j, [None, PANEL], tail="short")
    sch.reorder(p, t, i, j, group)
    sch.compute_at("sums", group)
    for block in sch.get_consumers("result"):
        sch.reverse_compute_at(block, j)
    sch.parallel(p)
    options = f"lanes={lanes}, groups={sizes[2]}, words={sizes[3]}, wide_rows={wide_rows}"
    sch.tensorize(i, f"int4_tile({options})")
    return sch


def arguments(sizes: Sizes, seed: int) -> list[np.ndarray]:  # type: ignore[type-arg]
    """Random operands; steps and scales are powers of two, so that float32 sums are exact."""
    rows, columns, groups, words = sizes
    panels, source = -(-columns // PANEL), np.random.default_rng(seed)
    data = source.integers(-128, 128, (rows, groups * words * 8)).astype("int8")
    total = data.reshape(rows, groups, -1).sum(2).astype("int32")
    step = np.exp2(source.integers(-2, 3, (rows, groups))).astype("float32")
    weight = source.integers(-(2**31), 2**31, (panels, groups, words, PANEL)).astype("int32")
    scale = np.exp2(source.integers(-2, 3, (panels, groups, PANEL))).astype("float32")
    point = source.integers(0, 16, (panels, groups, PANEL)).astype("uint8")
    return [data, step, total, weight, scale, point]


def expected(sizes: Sizes, operands: list[np.ndarray]) -> np.ndarray:  # type: ignore[type-arg]
    """The product in NumPy, in float64."""
    rows, columns, groups, _ = sizes
    data, step, _, weight, scale, point = operands
    levels = unpack_panels(weight).reshape(-1, groups, data.shape[1] // groups).astype("float64")
    by_column = [x.transpose(0, 2, 1).reshape(-1, groups).astype("float64") for x in (scale, point)]
    weights = (levels - by_column[1][..., None]) * by_column[0][..., None]
    values = data.reshape(rows, groups, -1).astype("float64") * step[..., None]
    result: np.ndarray = np.einsum("mgk,ngk->mn", values, weights)[:, :columns]  # type: ignore[type-arg]
    return result


@pytest.mark.parametrize(
    "group", [pytest.param(n, marks=() if n < 1 else LONG) for n in range(NESTS)]
)
def test_random_tiles_of_scaled_groups_equal_numpy(group: int) -> None:
    for seed in range(group * GROUP, (group + 1) * GROUP):
        source = random.Random(seed)
        sizes = (
            source.randint(1, 6),
            source.choice([1, 7, 64, 65, 100]),
            source.randint(1, 3),
            source.randint(1, 3),
        )
        relu, lanes = source.random() < 0.5, source.choice([4, 8, 16])
        func = product(sizes, relu)
        sch = tiled(func, sizes, source.randint(1, 4), lanes, source.randint(0, 3))
        again = Schedule(func)
        sch.trace.apply_to_schedule(again)
        assert str(again.func) == str(sch.func)
        operands = arguments(sizes, seed)
        out = np.full(sizes[:2], np.nan, "float32")
        run_prim_func(lower(sch.func), *operands, out)
        exact = expected(sizes, operands)
        exact = np.maximum(exact, 0) if relu else exact
        np.testing.assert_array_equal(out, exact.astype("float32"), err_msg=f"seed {seed}")


@pytest.mark.quick
def test_inner_and_outer_sums_have_no_memory() -> None:
    sizes = (5, 70, 2, 2)
    text = str(tiled(product(sizes), sizes, 3, 16).func)
    assert "T.dot4_u8s8(" in text and "T.fma(" in text
    assert "alloc_buffer((5" not in text.replace('scope="register"', "")


SIZES: Sizes = (3, 64, 2, 2)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("fewer bits", "'int4_tile' describes: expected BufferLoad of int32, got Intrinsic of"),
        ("fewer groups", "'int4_tile' describes: loop 'group' has 1 steps, expected 2|"
         "expected a For, got a"),
        ("squares", "'int4_tile' describes: expected "),
        ("read twice", "tensorize: 'sums' is used by other blocks too|compute_at 'sums'"),
    ],
)  # fmt: skip
def test_other_results_than_described_are_refused(change: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        tiled(product(SIZES, change=change), SIZES, 3, 16)


@pytest.mark.quick
def test_sums_that_begin_elsewhere_are_refused() -> None:
    text = str(product(SIZES, relu=False))
    changed = text.replace("result[i_1, j_1] = 0.0", "result[i_1, j_1] = 1.0")
    assert changed != text
    with pytest.raises(ScheduleError, match="'int4_tile' describes: expected .*0x0.0.*, got .*0x1"):
        tiled(script.from_source(changed), SIZES, 3, 16)
