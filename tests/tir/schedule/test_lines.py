"""Buffers of what a step uses, and tiles whose columns are the ends of several lines."""

from __future__ import annotations

import random

import numpy as np
import pytest

import ekiden
from ekiden import te, tir
from ekiden.ir.prim import SizeVar
from ekiden.kernels.micro_kernels.registered_micro_kernels import REGISTER_TILE_KERNEL
from ekiden.tir import PrimFunc, Schedule, ScheduleError
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.transform import lower
from long_runs import share


def lines(rows: int | SizeVar, depth: int, count: int, run: int, width: int) -> PrimFunc:
    """Return 2 * (a @ b), the columns of the product stored as `count` lines of `run` for each row:
    out[line, row, element].
    """
    a, b = te.placeholder((rows, depth), name="a"), te.placeholder((depth, width), name="b")
    k = te.reduce_axis((0, depth), "k")
    sums = te.compute(
        (count, rows, run), lambda i, r, t: te.sum(a[r, k] * b[k, i * run + t], k), name="sums"
    )
    out = te.compute((count, rows, run), lambda *i: sums[i] * 2.0, name="out")
    return te.create_prim_func([a, b, out])


def tiled(func: PrimFunc, lanes: int, height: int) -> Schedule:
    """Return the schedule of tiles whose columns are all elements of all lines."""
    sch = Schedule(func)
    i, r, t, k = sch.get_loops("sums")
    sch.reorder(r, i, t, k)
    sch.fuse(i, t)
    _, row = sch.split(r, [None, height], tail="balanced")
    sch.tensorize(row, REGISTER_TILE_KERNEL.call(lanes=lanes))
    return sch


def check(func: PrimFunc, rows: int, depth: int, count: int, run: int, width: int) -> None:
    """Assert that a program computes the lines: of whole numbers, so that they are exact."""
    rng = np.random.default_rng(rows)
    a = rng.integers(-3, 4, (rows, depth)).astype("float32")
    b = rng.integers(-3, 4, (depth, width)).astype("float32")
    product = (a @ b)[:, : count * run].reshape(rows, count, run).swapaxes(0, 1) * 2
    for call in (lambda *x: run_prim_func(tir.verify(lower(func)), *x), ekiden.build(func)["main"]):
        out = np.full(product.shape, np.nan, "float32")
        call(a, b, out)
        np.testing.assert_array_equal(out, product)


@share(4)
@pytest.mark.parametrize("seed", range(12))
def test_vectors_of_several_lines_are_stored_without_scatter(seed: int) -> None:
    source = random.Random(seed)
    rows, depth, lanes = source.randint(1, 9), source.randint(1, 5), source.choice([2, 4, 8])
    count, run = source.randint(1, 4), source.randint(1, 6)
    width = -(-count * run // lanes) * lanes
    is_dynamic = source.random() < 0.3
    size = SizeVar("n") if is_dynamic else rows
    sch = tiled(lines(size, depth, count, run, width), lanes, source.randint(1, 4))
    text = str(sch.func)
    assert f"// T.Broadcast({run}" not in text and f"% T.Broadcast({run}" not in text
    check(sch.func, rows, depth, count, run, width)


def test_copy_beside_a_tile_is_unrolled() -> None:
    sch = Schedule(lines(6, 4, 1, 8, 8))
    _, r, t, k = sch.get_loops("sums")
    sch.reorder(r, t, k)
    copy = sch.read_at(r, "sums", 0, "global")
    sch.unroll(sch.get_loops(copy)[-1])
    sch.tensorize(sch.add_unit_loop(t), REGISTER_TILE_KERNEL.call(lanes=4))
    check(sch.func, 6, 4, 1, 8, 8)


def chain(rows: int | SizeVar = 6) -> PrimFunc:
    """Return c[i, j] = b[i, j] + b[i, 0], b = a + 1."""
    a = te.placeholder((rows, 5), name="a")
    b = te.compute((rows, 5), lambda i, j: a[i, j] + 1.0, name="b")
    return te.create_prim_func([a, te.compute((rows, 5), lambda i, j: b[i, j] + b[i, 0], name="c")])


@pytest.mark.parametrize("rows", [6, SizeVar("n")])
def test_buffer_of_one_step(rows: int | SizeVar) -> None:
    sch = Schedule(chain(rows))
    loop = sch.get_loops("c")[0]
    sch.compute_at("b", loop)
    sch.allocate_at(loop, "b")
    assert 'b = T.alloc_buffer((1, 5), "float32")' in str(sch.func)
    sch.parallel(loop)
    again = Schedule(chain(rows))
    tir.Trace.apply_json_to_schedule(sch.trace.as_json(), again)
    assert again.func.astext() == sch.func.astext()
    x = np.arange(30, dtype="float32").reshape(6, 5)
    for call in (lambda *i: run_prim_func(lower(sch.func), *i), ekiden.build(sch.func)["main"]):
        out = np.zeros((6, 5), "float32")
        call(x, out)
        np.testing.assert_array_equal(out, x + 1 + x[:, :1] + 1)


def test_buffer_that_outlives_a_step_is_refused() -> None:
    sch = Schedule(chain())
    with pytest.raises(ScheduleError, match="'b' outlives a step: it is used outside loop 'i' too"):
        sch.allocate_at(sch.get_loops("b")[0], "b")
    with pytest.raises(ScheduleError, match="'c' outlives a step: it is an argument"):
        sch.allocate_at(sch.get_loops("c")[0], "c")
    with pytest.raises(ScheduleError, match="allocate_at 'b': the block is not in loop 'i'"):
        sch.allocate_at(sch.get_loops("c")[0], "b")


def test_buffer_that_later_steps_read_is_refused() -> None:
    a = te.placeholder((6, 5), name="a")
    k = te.reduce_axis((0, 5), "k")
    b = te.compute((6,), lambda i: te.sum(a[i, k], k), name="b")
    sch = Schedule(te.create_prim_func([a, te.compute((6,), lambda i: b[i] * 2.0, name="c")]))
    sch.compute_at("b", sch.get_loops("c")[0])
    with pytest.raises(ScheduleError, match="'b' outlives a step: it is used outside loop 'ax1'"):
        sch.allocate_at(sch.get_loops("b")[-1], "b")
