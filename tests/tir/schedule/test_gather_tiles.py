"""int8 tiles whose data words are gathered through a table."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, cast
from ekiden.kernels.micro_kernels.registered_micro_kernels import REGISTER_TILE_KERNEL
from ekiden.te.tensor import BLOCK_ANNOTATIONS_ATTR
from ekiden.tir import PrimFunc, Schedule, ScheduleError
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.transform import lower
from ekiden.topi.nn import dense_pack
from ekiden.topi.nn.weight_packing import INT16_PAIR_SUMS_FACT
from long_runs import LONG

assert REGISTER_TILE_KERNEL.name == "register_tile"  # importing it puts it into the table
Index = Callable[[PrimExpr, PrimExpr, PrimExpr], PrimExpr]
PANEL, NESTS, GROUP = 8, 40, 25
"""Columns of a panel; groups of random nests, and nests of a group."""


def product(
    rows: int, words: int, listed: int, panels: int, index: Index | None = None
) -> PrimFunc:
    """A product of bytes whose last `listed` words of a panel are looked up: in a table, or
    at `index` of (row, column, word).
    """
    data = te.placeholder((rows, words * 4), "uint8", "data")
    weight = te.placeholder((panels, words + listed, PANEL, 4), "int8", "weight")
    table = te.placeholder((panels, listed), "int32", "table")
    if index is None:
        out = dense_pack(data, weight, panels * PANEL, PANEL, "int32", table)
        return te.create_prim_func([data, weight, table, out])
    k = te.reduce_axis((0, (words + listed) * 4), "k")

    def sum_of_words(i: PrimExpr, j: PrimExpr) -> PrimExpr:
        word = if_then_else(k // 4 < words, k // 4, index(i, j, k // 4 - words))
        factor = weight[j // PANEL, k // 4, j % PANEL, k % 4]
        return te.sum(cast(data[i, word * 4 + k % 4], "int32") * cast(factor, "int32"), k)

    out = te.compute((rows, panels * PANEL), sum_of_words, name="dense_pack")
    return te.create_prim_func([data, weight, out])


def tiled(func: PrimFunc, words: int, tile_rows: int, kernel: str) -> Schedule:
    """The schedule of tiles of some rows and a panel, with the sum in two parts."""
    sch = Schedule(func)
    i, j, k = sch.get_loops("dense_pack")
    t, i = sch.split(i, [None, tile_rows], tail="balanced")
    p, j = sch.split(j, [None, PANEL])
    k, c = sch.split(k, [None, 4])
    sch.reorder(p, t, i, j, k, c)
    sch.partition(k, [words])
    sch.tensorize(i, kernel)
    return sch


def expected(data: np.ndarray, weight: np.ndarray, table: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """The product in NumPy."""
    words = data.reshape(len(data), -1, 4).astype("int64")
    order = [[*range(words.shape[1]), *row] for row in table]
    return np.concatenate(
        [np.einsum("mkc,knc->mn", words[:, at], w) for at, w in zip(order, weight, strict=True)], 1
    )


@pytest.mark.parametrize(
    "group", [pytest.param(n, marks=() if n < 1 else LONG) for n in range(NESTS)]
)
def test_random_tiles_with_a_table_equal_numpy(group: int) -> None:
    for seed in range(group * GROUP, (group + 1) * GROUP):
        source, arrays = random.Random(seed), np.random.default_rng(seed)
        rows, words, listed, panels = (source.randint(1, n) for n in (7, 6, 5, 3))
        options = f"lanes={source.choice([2, 4, 8])}, unroll={source.choice([1, 2])}"
        func = product(rows, words, listed, panels)
        sch = tiled(func, words, source.randint(1, 4), f"register_tile({options})")
        again = Schedule(func)
        sch.trace.apply_to_schedule(again)
        assert str(again.func) == str(sch.func)
        data = arrays.integers(0, 256, (rows, words * 4)).astype("uint8")
        weight = arrays.integers(-128, 128, (panels, words + listed, PANEL, 4)).astype("int8")
        table = arrays.integers(0, words, (panels, listed)).astype("int32")
        out = np.full((rows, panels * PANEL), 7, "int32")
        run_prim_func(lower(sch.func), data, weight, table, out)
        np.testing.assert_array_equal(out, expected(data, weight, table), err_msg=f"seed {seed}")


@pytest.mark.quick
def test_words_that_are_looked_up_are_a_loop_of_their_own() -> None:
    text = str(tiled(product(3, 4, 2, 2), 4, 3, "register_tile(lanes=8)").func)
    assert "for k in range(4):" in text and "for n in range(2):" in text
    assert 'place: T.int64 = T.Cast("int64", table[i1_0 * 2 + n])' in text


@pytest.mark.quick
def test_empty_table_adds_no_loop() -> None:
    sch = Schedule(product(3, 4, 0, 2))
    assert "table[" not in str(sch.func)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("point", "index", "message"),
    [
        (4, lambda i, j, n: n * 2,
         "expected block 'dense_pack_1' to look its element up at one element of a table, "
         "there are 0"),
        (0, None,
         "block 'dense_pack_1' does not continue the sums of 'dense_pack'"),
    ],
)  # fmt: skip
def test_other_second_parts_are_refused(point: int, index: Index | None, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        tiled(product(3, 4, 2, 2, index), point, 3, "register_tile(lanes=8)")


@pytest.mark.quick
def test_int16_sums_of_undeclared_weights_are_refused() -> None:
    data = te.placeholder((3, 16), "uint8", "data")
    weight = te.placeholder((2, 4, PANEL, 4), "int8", "weight")
    out = dense_pack(data, weight, 2 * PANEL, PANEL, "int32")
    message = "pair_sums: the block does not declare 'int16_pair_sums', that sums of two products"
    with pytest.raises(ScheduleError, match=message):
        func = te.create_prim_func([data, weight, out])
        tiled(func, 4, 3, "register_tile(lanes=8, pair_sums=1)")


@pytest.mark.quick
def test_table_that_rows_index_is_refused() -> None:
    data = te.placeholder((3, 16), "uint8", "data")
    weight = te.placeholder((1, 6, PANEL, 4), "int8", "weight")
    table = te.placeholder((3, 2), "int32", "table")
    k = te.reduce_axis((0, 24), "k")

    def sum_of_words(i: PrimExpr, j: PrimExpr) -> PrimExpr:
        word = if_then_else(k // 4 < 4, k // 4, cast(table[i, k // 4 - 4], "int64"))
        factor = weight[0, k // 4, j, k % 4]
        return te.sum(cast(data[i, word * 4 + k % 4], "int32") * cast(factor, "int32"), k)

    out = te.compute((3, PANEL), sum_of_words, name="dense_pack")
    with pytest.raises(ScheduleError, match="look its element up at one element of a table"):
        tiled(te.create_prim_func([data, weight, table, out]), 4, 3, "register_tile(lanes=8)")


@pytest.mark.quick
def test_computation_declares_what_its_inputs_hold() -> None:
    a = te.placeholder((4,), name="a")
    facts = {BLOCK_ANNOTATIONS_ATTR: {INT16_PAIR_SUMS_FACT: 1}}
    b = te.compute((4,), lambda i: a[i] * 2.0, name="b", attrs=facts)
    assert 'T.block_attr({"int16_pair_sums": 1})' in str(te.create_prim_func([a, b]))
