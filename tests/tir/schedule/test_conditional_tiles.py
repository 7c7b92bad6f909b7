"""Register tiles of convolutions with a border: terms outside of the data are left out, in random
windows and tiles, and what a tile cannot leave out is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, SizeVar, const, logical_and, maximum
from ekiden.kernels.micro_kernels.registered_micro_kernels import (
    DEPTHWISE_TILE_KERNEL,
    MATRIX_TILE_KERNEL,
    REGISTER_TILE_KERNEL,
)
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir import PrimFunc, Schedule, ScheduleError
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.tensor_intrin.micro import MicroKernel
from ekiden.tir.transform import lower
from long_runs import LONG, alike

USUAL_GROUPS, ALL_GROUPS, NESTS_PER_GROUP = 2, 40, 25


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution: its image, kernel, strides, dilation, zeros around, channels and results."""

    size: tuple[int, int]
    taps: tuple[int, int]
    stride: int
    dilation: int
    border: int
    channels: int
    columns: int

    @property
    def results(self) -> tuple[int, int]:
        """Return the lines and pixels of the results; below 1 where the image has no window."""
        height, width = (
            (n + 2 * self.border - (k - 1) * self.dilation - 1) // self.stride + 1
            for n, k in zip(self.size, self.taps, strict=True)
        )
        return height, width


def random_conv(source: random.Random) -> Conv:
    """Return a convolution that has results."""
    while True:
        taps = source.randint(1, 3), source.randint(1, 3)
        size = source.randint(1, 7), source.randint(1, 9)
        numbers = [source.randint(low, high) for low, high in ((1, 3), (1, 2), (0, 4), (1, 3))]
        conv = Conv(size, taps, *numbers, source.choice((3, 4, 10)))
        # A pixel further out would have no term at all: its region is no sum.
        if min(conv.results) > 0 and conv.border <= (taps[1] - 1) * conv.dilation:
            return conv


def program(conv: Conv, is_dynamic: bool = False, has_epilogue: bool = True) -> PrimFunc:
    """Return max(0, y), y the sums of the terms inside of the image; of an image of any number of
    lines, or without an epilogue, y."""
    height: PrimExpr | int = SizeVar("h") if is_dynamic else conv.size[0]
    width = conv.size[1]
    x = te.placeholder((height, width, conv.channels), name="x")
    w = te.placeholder((*conv.taps, conv.channels, conv.columns), name="w")
    p, q = (te.reduce_axis((0, k), name) for k, name in zip(conv.taps, "pq", strict=True))
    k = te.reduce_axis((0, conv.channels), "k")
    reach = (conv.taps[0] - 1) * conv.dilation + 1
    lines = (height + (2 * conv.border - reach)) // conv.stride + 1

    def term(i: PrimExpr, j: PrimExpr, c: PrimExpr) -> PrimExpr:
        at = [n * conv.stride + tap * conv.dilation - conv.border for n, tap in ((i, p), (j, q))]
        inside = logical_and(
            logical_and(at[0] >= 0, at[0] < height), logical_and(at[1] >= 0, at[1] < width)
        )
        return if_then_else(inside, x[(*at, k)] * w[p, q, k, c], const(0.0, "float32"))

    shape = (lines, conv.results[1], conv.columns)
    y = te.compute(shape, lambda i, j, c: te.sum(term(i, j, c), [p, q, k]), name="y")
    z = te.compute(shape, lambda *i: maximum(y[i], 0.0), name="z") if has_epilogue else y
    return te.create_prim_func([x, w, z])


def check(func: PrimFunc, conv: Conv, what: str, has_epilogue: bool = True) -> None:
    """Assert that a program computes the sums: of whole numbers, so that they are exact."""
    rng = np.random.default_rng(len(what))
    x = rng.integers(-3, 4, (*conv.size, conv.channels)).astype("float32")
    w = rng.integers(-3, 4, (*conv.taps, conv.channels, conv.columns)).astype("float32")
    around = (conv.border, conv.border)
    wide = np.pad(x, (around, around, (0, 0)))
    total = np.zeros((*conv.results, conv.columns), "float32")
    for p in range(conv.taps[0]):
        for q in range(conv.taps[1]):
            lines, pixels = (
                slice(t * conv.dilation, t * conv.dilation + (n - 1) * conv.stride + 1, conv.stride)
                for t, n in zip((p, q), conv.results, strict=True)
            )
            total += wide[lines, pixels] @ w[p, q]
    out = np.full(total.shape, np.nan, "float32")
    run_prim_func(tir.verify(lower(func)), x, w, out)
    expected = np.maximum(total, 0) if has_epilogue else total
    np.testing.assert_array_equal(out, expected, err_msg=what)


def tiled(func: PrimFunc, rows: int, panel: int, options: str) -> Schedule:
    """Return the schedule of tiles of rows and panels of columns, with regions at the border."""
    sch = Schedule(func)
    i, j, c, p, q, k = sch.get_loops("y")
    tile, row = sch.split(j, [None, rows], tail="balanced")
    group, column = sch.split(c, [None, panel], tail="short")
    sch.reorder(i, group, tile, row, column, p, q, k)
    if sch.get_consumers("y"):
        sch.reverse_compute_at("z", column)
    for region in sch.partition_by_conditions("y", tile):
        sch.tensorize(sch.get_loops(region)[3], f"register_tile({options})")
    return sch


@alike(2)
@pytest.mark.parametrize(
    "group", [pytest.param(n, marks=() if n < USUAL_GROUPS else LONG) for n in range(ALL_GROUPS)]
)
def test_tiles_of_random_convolutions_match_numpy(group: int) -> None:
    for seed in range(group * NESTS_PER_GROUP, (group + 1) * NESTS_PER_GROUP):
        source = random.Random(seed)
        conv = random_conv(source)
        rows, unroll = source.randint(1, 4), source.randint(1, 2)
        # a vector of columns must be there: the last panel may be narrower than one
        panel = 4 if conv.columns % 4 == 0 else conv.columns
        lanes = 4 if conv.columns == 4 else 1
        is_dynamic, has_epilogue = source.random() < 0.3, source.random() < 0.7
        options = f"lanes={lanes}, unroll={unroll}"
        sch = tiled(program(conv, is_dynamic, has_epilogue), rows, panel, options)
        check(sch.func, conv, f"{seed}: {conv}, {rows} by {panel}, {options}", has_epilogue)


def test_no_term_outside_of_the_image_is_multiplied() -> None:
    """0 times an infinite weight would be no number."""
    conv = Conv((3, 6), (3, 3), 1, 1, 1, 2, 4)
    sch = tiled(program(conv), 3, 4, "lanes=4")
    x, w = np.ones((3, 6, 2), "float32"), np.ones((3, 3, 2, 4), "float32")
    w[0, 0] = np.inf
    out = np.zeros((3, 6, 4), "float32")
    run_prim_func(lower(sch.func), x, w, out)
    assert np.isfinite(out[0]).all() and np.isfinite(out[:, 0]).all()
    assert np.isinf(out[1:, 1:]).all()


@pytest.mark.parametrize("kernel", [REGISTER_TILE_KERNEL, DEPTHWISE_TILE_KERNEL])
def test_conditions_on_columns_are_refused(kernel: MicroKernel) -> None:
    by_elements = kernel.is_elementwise
    a, b = te.placeholder((8, 8), name="a"), te.placeholder((3, 8), name="b")
    k = te.reduce_axis((0, 3), "k")

    def term(i: PrimExpr, j: PrimExpr) -> PrimExpr:
        product = a[i + k, j if by_elements else k] * b[k, j]
        return te.sum(if_then_else(k <= j, product, const(0.0, "float32")), k)

    sch = Schedule(te.create_prim_func([a, b, te.compute((5, 8), term, name="c")]))
    with pytest.raises(ScheduleError, match="terms of 'c' are under a condition on its columns"):
        sch.tensorize(sch.get_loops("c")[0], kernel.call(lanes=4))


def test_conditions_are_refused_by_tiles_that_take_none() -> None:
    sch = Schedule(program(Conv((3, 6), (3, 3), 1, 1, 1, 2, 4)))
    _, j, c, *_ = sch.get_loops("y")
    sch.reverse_compute_at("z", c)
    with pytest.raises(ScheduleError, match="block 'y' is no sum of products"):
        sch.tensorize(j, MATRIX_TILE_KERNEL.call())
