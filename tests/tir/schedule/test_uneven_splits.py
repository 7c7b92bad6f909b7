"""Loops in parts of unequal sizes, sums finished in a last step, memory that is reused, copies of
what a step reads: what each makes of a program, and that it means the same."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ekiden import te
from ekiden.ir.prim import SizeVar, maximum
from ekiden.kernels.micro_kernels.registered_micro_kernels import REGISTER_TILE_KERNEL
from ekiden.tir import PrimFunc, Schedule, ScheduleError
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.transform import lower

pytestmark = pytest.mark.quick
assert REGISTER_TILE_KERNEL.name == "register_tile"  # importing it puts it into the table


def product(rows: int | SizeVar = 7) -> PrimFunc:
    """max(0, a @ b)."""
    a, b = te.placeholder((rows, 6), name="a"), te.placeholder((6, 10), name="b")
    k = te.reduce_axis((0, 6), "k")
    c = te.compute((rows, 10), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    d = te.compute((rows, 10), lambda i, j: maximum(c[i, j], 0.0), name="d")
    return te.create_prim_func([a, b, d])


def check(sch: Schedule, rows: int = 7) -> None:
    """The program, and what its trace makes of the first one, compute the product."""
    again = Schedule(product(rows))
    sch.trace.apply_to_schedule(again)
    assert str(again.func) == str(sch.func)
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(s).astype("float32") for s in ((rows, 6), (6, 10)))
    out = np.full((rows, 10), np.nan, "float32")
    run_prim_func(lower(sch.func), a, b, out)
    np.testing.assert_allclose(out, np.maximum(a @ b, 0), rtol=1e-5, atol=1e-6)


SHORT = "for i_1 in T.serial(i_0 * 3, extent=T.min(3, i_0 * -3 + 7), "
BALANCED = "for i_1 in T.serial(i_0 * 2 + T.min(1, i_0), extent=T.if_then_else(i_0 < 1, 1, 0) + 2, "
HALVES = 'annotations={"part_of": 7, "at_most": 4}'


@pytest.mark.parametrize(
    ("factors", "tail", "expected"),
    [
        ([None, 3], "short", SHORT),
        ([None, 3], "balanced", BALANCED),
        ([2, None], "balanced", HALVES),
        ([None, 7], "short", "for i_0, i_1, j, k in T.grid(1, 7, 10, 6):"),
    ],
)
def test_split_in_parts(factors: list[int | None], tail: str, expected: str) -> None:
    sch = Schedule(product())
    sch.split(sch.get_loops("c")[0], factors, tail=tail)
    assert expected in str(sch.func)
    check(sch)


@pytest.mark.parametrize("tail", ["short", "balanced"])
@pytest.mark.parametrize("rows", [0, 1, 7, 12])
def test_parts_of_any_number_of_rows(tail: str, rows: int) -> None:
    sch = Schedule(product(SizeVar("n")))
    sch.split(sch.get_loops("c")[0], [None, 5], tail=tail)
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(s).astype("float32") for s in ((rows, 6), (6, 10)))
    out = np.full((rows, 10), np.nan, "float32")
    run_prim_func(lower(sch.func), a, b, out)
    np.testing.assert_allclose(out, np.maximum(a @ b, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("points", [[3], [1, 6], [5, 2], [0, 7], [9, -4, 3]])
def test_points_in_any_order(points: list[int]) -> None:
    """Those that are not in order are moved to where they are."""
    sch = Schedule(product())
    parts = sch.partition(sch.get_loops("c")[0], points)
    assert len(parts) == len(points) + 1
    check(sch)


def tiled(tail: str = "short") -> tuple[Schedule, list[object]]:
    """Tiles of unequal sizes, the sums in two parts, what follows in the last of them."""
    sch = Schedule(product())
    i, j, k = sch.get_loops("c")
    t, i = sch.split(i, [None, 3], tail="balanced")
    p, j = sch.split(j, [None, 4], tail=tail)
    ko, k = sch.split(k, [2, None])
    sch.reorder(ko, p, t, i, j, k)
    sch.reverse_compute_at("d", j)
    return sch, [ko, p, t, i, j, k]


@pytest.mark.parametrize("tail", ["short", "balanced"])
def test_what_follows_runs_in_the_last_part_of_a_sum(tail: str) -> None:
    sch, _ = tiled(tail)
    assert "T.where(k_0 == 1)" in str(sch.func)
    check(sch)


@pytest.mark.parametrize("which", [1, 2])
def test_parts_run_in_parallel(which: int) -> None:
    sch, loops = tiled()
    sch.parallel(loops[which])  # type: ignore[arg-type]
    check(sch)


def test_reduction_loop_does_not_run_in_parallel() -> None:
    sch, loops = tiled()
    with pytest.raises(ScheduleError, match="reduces over it"):
        sch.parallel(loops[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("tail", ["short", "balanced"])
def test_sums_begin_before_a_loop_that_counts_parts(tail: str) -> None:
    """The init has a loop over parts of its own, whose range depends on its own counter."""
    sch = Schedule(product())
    t, _ = sch.split(sch.get_loops("c")[0], [None, 3], tail=tail)
    sch.decompose_reduction("c", t)
    check(sch)


def test_sums_in_the_memory_of_the_result() -> None:
    sch, _ = tiled()
    sch.reuse_buffer("c", 0)
    assert "alloc_buffer" not in str(sch.func)
    check(sch)


def test_copy_of_what_a_step_reads() -> None:
    sch, loops = tiled()
    copy = sch.read_at(loops[0], "c", 0, "global", pad=5)  # type: ignore[arg-type]
    assert "a_global = T.alloc_buffer((7, 8)" in str(sch.func)
    sch.vectorize(sch.get_loops(copy)[-1], 4)
    check(sch)


def test_what_a_loop_writes_is_not_copied_in_it() -> None:
    sch = Schedule(product())
    i, _, _ = sch.get_loops("c")
    sch.reverse_compute_at("d", i)
    with pytest.raises(ScheduleError, match="read_at 'd': 'c' is written in loop 'i'"):
        sch.read_at(i, "d", 0, "global")


def test_memory_of_another_type_is_not_reused() -> None:
    a = te.placeholder((4,), name="a")
    b = te.compute((4,), lambda i: a[i] * 2.0, name="b")
    c = te.compute((4,), lambda i: b[i].astype("float64"), name="c")
    sch = Schedule(te.create_prim_func([a, c]))
    with pytest.raises(ScheduleError, match="'c' is float64 of 1 axes, 'b' float32 of 1"):
        sch.reuse_buffer("b", 0)


def test_what_is_read_elsewhere_is_not_reused() -> None:
    a = te.placeholder((4,), name="a")
    b = te.compute((4,), lambda i: a[i] * 2.0, name="b")
    c = te.compute((4,), lambda i: b[3 - i], name="c")
    sch = Schedule(te.create_prim_func([a, c]))
    with pytest.raises(ScheduleError, match="at another place than it writes 'c'"):
        sch.reuse_buffer("b", 0)


def test_axis_of_one_element_has_one_place() -> None:
    a = te.placeholder((1, 4), name="a")
    b = te.compute((1, 4), lambda i, j: a[0, j] * 2.0, name="b")
    c = te.compute((1, 4), lambda i, j: b[0, j] + 1.0, name="c")
    sch = Schedule(te.create_prim_func([a, c]))
    sch.reuse_buffer("b", 0)
    assert "alloc_buffer" not in str(sch.func)


def test_loop_that_counts_parts_keeps_them_whole() -> None:
    sch = Schedule(product())
    t, _ = sch.split(sch.get_loops("c")[0], [None, 2], tail="short")
    with pytest.raises(ScheduleError, match="it must not count the parts of a loop"):
        sch.split(t, [None, 3], tail="loop")


def test_micro_kernel_options_of_old_traces_are_understood() -> None:
    options = "lanes=16, l1_prefetch=8, l2_prefetch=2, l1_prefetch_min_rows=3"
    old = "lanes=16, own=8, spread=2, own_rows=3"
    parse = REGISTER_TILE_KERNEL.parse_options
    assert parse(old) == parse(options)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            "small_tile()",
            "micro-kernel 'small_tile': there is none; there are ",
        ),
        (
            "register_tile(high=2)",
            "micro-kernel 'register_tile': no option 'high=2'; there are, with",
        ),
        (
            "register_tile(l1_prefetch=x)",
            "micro-kernel 'register_tile': no option 'l1_prefetch=x'; there are, with",
        ),
    ],
)
def test_unknown_micro_kernel_is_refused(kernel: str, message: str) -> None:
    sch, loops = tiled()
    with pytest.raises(ScheduleError, match=re.escape(message)):
        sch.tensorize(loops[3], kernel)  # type: ignore[arg-type]


def test_invalid_tiles_are_refused() -> None:
    sch = Schedule(product())
    i, j, _ = sch.get_loops("c")
    with pytest.raises(ScheduleError, match="expected a loop over columns in 'j'|expected loops"):
        sch.tensorize(j, "register_tile()")
    d, _ = sch.get_loops("d")
    with pytest.raises(ScheduleError, match="expected loops of a sum in 'j'"):
        sch.tensorize(d, "register_tile()")
    sch.annotate(i, "note", 1)


def test_columns_that_do_not_lie_in_order() -> None:
    a, b = te.placeholder((4, 6), name="a"), te.placeholder((10, 6), name="b")
    k = te.reduce_axis((0, 6), "k")
    c = te.compute((4, 10), lambda i, j: te.sum(a[i, k] * b[j, k], k), name="c")
    sch = Schedule(te.create_prim_func([a, b, c]))
    with pytest.raises(ScheduleError, match="columns of 'b' must lie 1 elements apart, they lie 6"):
        sch.tensorize(sch.get_loops("c")[0], "register_tile()")


def test_tile_of_any_program() -> None:
    sch, loops = tiled()
    sch.reuse_buffer("c", 0)
    sch.tensorize(loops[3], "register_tile(lanes=2, unroll=2)")  # type: ignore[arg-type]
    assert "T.fma(" in str(sch.func)
    check(sch)


def test_vectors_stay_in_the_rows_of_a_factor() -> None:
    sch, loops = tiled()
    message = "vectors of 4 end behind the 2 columns of 'b', whose rows are not known to have 4"
    with pytest.raises(ScheduleError, match=message):
        sch.tensorize(loops[3], "register_tile(lanes=4)")  # type: ignore[arg-type]


SPLITS = {(5, 2): (2, 5), (3, 2, 2): (3, 6), (2, 7, 3): (2, 3, 6), (4, 9): (2, 3, 6, 9),
          (15, 12): (2, 5, 6, 9, 10)}  # fmt: skip
"""Extents -> sizes of equal parts of all their steps."""


@pytest.mark.parametrize(("shape", "factor"), [(s, f) for s, fs in SPLITS.items() for f in fs])
def test_split_inside_an_axis(shape: tuple[int, ...], factor: int) -> None:
    """Steps of joined loops are told apart where a part ends in the middle of one of them."""
    total = int(np.prod(shape))
    a = te.placeholder(shape, name="a")
    b = te.compute(shape, lambda *i: a[i] * 2.0, name="b")
    c = te.compute(shape, lambda *i: b[i] + 1.0, name="c")
    sch = Schedule(te.create_prim_func([a, c]))
    block = sch.get_block("b")
    outer, inner = sch.split(sch.fuse(*sch.get_loops(block)), [None, factor])
    sch.reverse_compute_at(sch.get_block("c"), inner)
    sch.reorder(inner, outer)
    sch.parallel(inner)
    data, out = np.arange(total, dtype="float32").reshape(shape), np.zeros(shape, "float32")
    run_prim_func(lower(sch.func), data, out)
    np.testing.assert_array_equal(out, data * 2 + 1)
