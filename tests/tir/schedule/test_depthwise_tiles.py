"""Sums of products by elements in register tiles: terms in a border are left out, for every size of
tile, and what the micro-kernel does not compute is refused."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, SizeVar, const, logical_and, maximum
from ekiden.kernels.micro_kernels.registered_micro_kernels import DEPTHWISE_TILE_KERNEL
from ekiden.tir import PrimFunc, Schedule, ScheduleError
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.transform import lower
from long_runs import share

pytestmark = pytest.mark.quick
TILE = DEPTHWISE_TILE_KERNEL.call(lanes=4)


def lines(
    size: tuple[int | SizeVar, int | SizeVar],
    columns: int,
    stride: int = 1,
    dilation: int = 1,
    dtype: str = "float32",
    whole_terms: bool = True,
) -> PrimFunc:
    """Return max(0, y[i, j, c]), y the sum of 3 x 3 neighbours of x, one column at a time."""
    height, width = size
    x = te.placeholder((height, width, columns), dtype, name="x")
    w = te.placeholder((3, 3, columns), name="w")
    p, q = te.reduce_axis((0, 3), "p"), te.reduce_axis((0, 3), "q")

    def term(i: PrimExpr, j: PrimExpr, c: PrimExpr) -> PrimExpr:
        y, z = i * stride + p * dilation - 1, j * stride + q * dilation - 1
        inside = [y >= 0, y < height, z >= 0, z < width]
        together = logical_and(logical_and(inside[0], inside[1]), logical_and(inside[2], inside[3]))
        value = x[y, z, c].astype("float32")
        if not whole_terms:
            return if_then_else(together, value, const(0.0, "float32")) * w[p, q, c]
        return if_then_else(together, value * w[p, q, c], const(0.0, "float32"))

    shape = tuple((n + 1 - 2 * dilation) // stride + 1 for n in size)
    y = te.compute((*shape, columns), lambda i, j, c: te.sum(term(i, j, c), [p, q]), name="y")
    z = te.compute((*shape, columns), lambda *i: maximum(y[i], 0.0), name="z")
    return te.create_prim_func([x, w, z])


def check(func: PrimFunc, size: tuple[int, int], columns: int, stride: int = 1, dilation: int = 1,
          dtype: str = "float32") -> None:  # fmt: skip
    """Assert that a program computes the sums: of whole numbers, so that they are exact."""
    rng = np.random.default_rng(columns)
    x = rng.integers(0 if dtype == "uint8" else -4, 5, (*size, columns)).astype(dtype)
    w = rng.integers(-4, 5, (3, 3, columns)).astype("float32")
    wide = np.pad(x.astype("float32"), ((1, 1), (1, 1), (0, 0)))
    height, width = ((n + 1 - 2 * dilation) // stride + 1 for n in size)
    total = np.zeros((height, width, columns), "float32")
    rows, pixels = (
        np.arange(n)[:, None] * stride + np.arange(3) * dilation for n in (height, width)
    )
    for p in range(3):
        for q in range(3):
            total += w[p, q] * wide[rows[:, p]][:, pixels[:, q]]
    out = np.full(total.shape, np.nan, "float32")
    run_prim_func(tir.verify(lower(func)), x, w, out)
    np.testing.assert_array_equal(out, np.maximum(total, 0))


@share(4)
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)])
@pytest.mark.parametrize("columns", [3, 4, 10])
@pytest.mark.parametrize("size", [(3, 3), (7, 11), (6, 12), (4, 23)])
def test_tiles_with_a_border_match_numpy(
    size: tuple[int, int], columns: int, stride: int, dilation: int, dtype: str
) -> None:
    sch = Schedule(lines(size, columns, stride, dilation, dtype))
    i, j, c, p, q = sch.get_loops("y")
    tile, row = sch.split(j, [None, 4], tail="balanced")
    group, column = sch.split(c, [None, 8], tail="short")
    sch.reorder(i, group, tile, row, column, p, q)
    sch.reverse_compute_at("z", column)
    for region in sch.partition_by_conditions("y", tile):
        sch.tensorize(sch.get_loops(region)[3], TILE)
    assert "y = T.alloc_buffer" not in str(sch.func), "the sums are in registers only"
    check(sch.func, size, columns, stride, dilation, dtype)


@pytest.mark.parametrize("stride", [1, 2])
def test_lines_of_unknown_length_match_numpy(stride: int) -> None:
    sch = Schedule(lines((SizeVar("h"), SizeVar("w")), 5, stride))
    i, j, c, p, q = sch.get_loops("y")
    sch.reorder(i, j, c, p, q)
    sch.reverse_compute_at("z", c)
    low, inner, high = sch.partition_by_conditions("y", j)
    for edge in (low, high):
        row = sch.add_unit_loop(sch.get_loops(edge)[2])
        sch.tensorize(row, TILE)
    _, row = sch.split(sch.get_loops(inner)[1], [None, 4], tail="balanced")
    sch.tensorize(row, TILE)
    for height, width in [(1, 1), (1, 2), (2, 1), (3, 3), (5, 9), (7, 14)]:
        check(sch.func, (height, width), 5, stride)


def tiled(func: PrimFunc) -> tuple[Schedule, tir.LoopRV]:
    """Return a schedule of tiles of four, and the loop over their rows."""
    sch = Schedule(func)
    i, j, c, p, q = sch.get_loops("y")
    tile, row = sch.split(j, [None, 4])
    sch.reorder(i, tile, row, c, p, q)
    sch.reverse_compute_at("z", c)
    return sch, row


def test_conditions_on_tiles_that_differ_are_refused() -> None:
    sch, row = tiled(lines((8, 8), 4))
    with pytest.raises(
        ScheduleError, match="a condition on rows is on rows and iterations of known numbers"
    ):
        sch.tensorize(row, TILE)


def test_zero_factor_is_not_left_out() -> None:
    """0 times a weight is no number where the weight is infinite."""
    sch, row = tiled(lines((8, 8), 4, whole_terms=False))
    with pytest.raises(ScheduleError, match="is no product of elements"):
        sch.tensorize(row, TILE)


def test_product_of_matrices_is_refused() -> None:
    a, b = te.placeholder((8, 6), name="a"), te.placeholder((6, 4), name="b")
    k = te.reduce_axis((0, 6), "k")
    c = te.compute((8, 4), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    sch = Schedule(te.create_prim_func([a, b, c]))
    with pytest.raises(ScheduleError, match="float32 sums over adjacent columns of both factors"):
        sch.tensorize(sch.get_loops("c")[0], TILE)


def test_sums_that_others_read_are_refused() -> None:
    x, w = te.placeholder((8, 4), name="x"), te.placeholder((3, 4), name="w")
    k = te.reduce_axis((0, 3), "k")
    y = te.compute((6, 4), lambda i, c: te.sum(x[i + k, c] * w[k, c], k), name="y")
    z = te.compute((6, 4), lambda i, c: maximum(y[i, c], 0.0), name="z")
    other = te.compute((6, 4), lambda i, c: y[5 - i, c], name="other")
    sch = Schedule(te.create_prim_func([x, w, z, other]))
    i, c, _ = sch.get_loops("y")
    sch.reverse_compute_at("z", c)
    with pytest.raises(ScheduleError, match="'y' is used by other blocks too"):
        sch.tensorize(i, TILE)
