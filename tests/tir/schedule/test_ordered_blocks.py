"""Blocks with ordered iterators: scans, recurrences, scatters with colliding rows."""

from __future__ import annotations

import random

import numpy as np
import pytest
from ordered_programs import OrderedProgram, random_ordered_program, random_ordered_steps

import ekiden
from ekiden import tir
from ekiden.runtime.errors import ScheduleError
from ekiden.script import tir as T
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.schedule.block_kinds import ORDERED, classify_block
from ekiden.tir.stmt import IterKind
from ekiden.tir.transform import lower
from long_runs import LONG, alike

USUAL, WHOLE = 2, 40
GROUP = 25
"""Programs in each of so many groups."""
NATIVE_EVERY = 5
"""One program of so many is compiled and run natively as well."""


@T.prim_func
def scatter(
    rows: T.Buffer((4, 8), "int64"),
    x: T.Buffer((4, 8, 32), "float32"),
    out: T.Buffer((5, 32), "float32"),
) -> None:
    for i, j in T.grid(5, 32):
        with T.block("start"):
            vi, vj = T.axis.remap("SS", [i, j])
            out[vi, vj] = T.float32(0)
    for d, e, j in T.grid(4, 8, 32):
        with T.block("scatter"):
            vd = T.axis.scan(4, d)
            ve = T.axis.scan(8, e)
            vj = T.axis.spatial(32, j)
            out[rows[vd, ve], vj] = x[vd, ve, vj] - out[rows[vd, ve], vj]


def scatter_arguments() -> tuple[list[np.ndarray], np.ndarray]:
    """Return the arguments of `scatter` and its result in NumPy."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 5, (4, 8))
    x = rng.integers(-9, 9, (4, 8, 32)).astype("float32")
    expected = np.zeros((5, 32), "float32")
    for at in np.ndindex(4, 8):
        expected[rows[at]] = x[at] - expected[rows[at]]
    return [rows, x, np.full((5, 32), 7, "float32")], expected


def check(func: tir.PrimFunc) -> None:
    """The interpreter gives the scatter's result, and so does native code."""
    arguments, expected = scatter_arguments()
    run_prim_func(tir.verify(lower(func)), *arguments)
    np.testing.assert_array_equal(arguments[-1], expected)
    arguments, _ = scatter_arguments()
    ekiden.build(func)[func.name](*arguments)
    np.testing.assert_array_equal(arguments[-1], expected)


def test_columns_of_a_scatter_run_outside_its_steps_on_threads() -> None:
    sch = tir.Schedule(scatter)
    d, e, j = sch.get_loops("scatter")
    chunk, column = sch.split(j, [None, 16])
    sch.reorder(chunk, d, e, column)
    sch.parallel(chunk)
    sch.vectorize(column)
    check(sch.func)


def test_ordered_loops_are_split_fused_and_unrolled_in_order() -> None:
    sch = tir.Schedule(scatter)
    d, e, _ = sch.get_loops("scatter")
    outer, inner = sch.split(sch.fuse(d, e), [None, 5])
    sch.split(outer, [None, 3], tail="balanced")
    sch.unroll(inner)
    check(sch.func)


def test_parts_of_an_ordered_loop_go_around_spatial_loops() -> None:
    """The loop that counts parts is ordered, too: both keep their places to each other."""
    sch = tir.Schedule(scatter)
    d, e, j = sch.get_loops("scatter")
    part, step = sch.split(e, [None, 3], tail="short")
    sch.reorder(d, part, j, step)
    check(sch.func)


def test_producer_moves_into_the_steps_of_a_scatter() -> None:
    sch = tir.Schedule(scatter)
    sch.reorder(*(sch.get_loops("scatter")[n] for n in (2, 0, 1)))
    copy = sch.cache_read("scatter", "x", "global")
    sch.compute_at(copy, sch.get_loops("scatter")[1])
    check(sch.func)


def test_iterator_kind_is_printed_and_parsed_as_scan() -> None:
    """TVM's T.axis.scan; its number is 3."""
    text = scatter.astext()
    assert "T.axis.scan(8, e)" in text
    parsed = tir.parse(text)
    assert parsed.astext() == text
    sch = tir.Schedule(parsed)
    block = sch.get(sch.get_block("scatter"))
    assert isinstance(block, tir.Block)
    assert [v.kind for v in block.iter_vars[:2]] == [IterKind.ORDERED] * 2
    assert [v.iter_type for v in block.iter_vars] == [3, 3, 0]
    assert classify_block(block).kind == ORDERED


def test_tables_that_change_in_the_loop_tell_no_steps_apart() -> None:
    """out[at[0] + j]: where each step of j sets at[0], two steps may meet."""

    @T.prim_func
    def moving(x: T.Buffer((8,), "float32"), out: T.Buffer((16,), "float32")) -> None:
        at = T.alloc_buffer((1,), "int64")
        for j in range(8):
            with T.block("set"):
                vj = T.axis.spatial(8, j)
                at[0] = 7 - vj
            with T.block("store"):
                vj = T.axis.spatial(8, j)
                out[at[0] + vj] = x[vj]

    sch = tir.Schedule(moving)
    with pytest.raises(ScheduleError):
        sch.parallel(sch.get_loops("store")[0])


def scheduled(seed: int) -> tuple[OrderedProgram, tir.Schedule, dict[str, int]]:
    """Return a program under random steps, and how many of each kind were accepted."""
    source = random.Random(seed)
    program = random_ordered_program(source)
    sch = tir.Schedule(program.func, seed=seed, error_render_level="fast")
    accepted, _ = random_ordered_steps(sch, source, source.randint(4, 24))
    return program, sch, accepted


@alike(2)
@pytest.mark.parametrize(
    "group", [pytest.param(n, marks=() if n < USUAL else LONG) for n in range(WHOLE)]
)
def test_random_steps_keep_what_ordered_blocks_compute(group: int) -> None:
    accepted: dict[str, int] = {}
    for seed in range(group * GROUP, (group + 1) * GROUP):
        program, sch, counts = scheduled(seed)
        for kind, count in counts.items():
            accepted[kind] = accepted.get(kind, 0) + count
        arguments, expected = program.arguments(seed)
        run_prim_func(tir.verify(lower(sch.func)), *arguments)
        np.testing.assert_array_equal(arguments[-1], expected[0], err_msg=f"seed {seed}")
        if seed % NATIVE_EVERY == 0:
            arguments, expected = program.arguments(seed + 1)
            ekiden.build(sch.func)["main"](*arguments)
            np.testing.assert_array_equal(arguments[-1], expected[0], err_msg=f"native, {seed}")
    assert accepted.get("reorder", 0) > GROUP // 5, accepted
    assert sum(accepted.values()) > 3 * GROUP, accepted


@pytest.mark.parametrize("seed", range(4))
def test_traces_of_ordered_blocks_replay(seed: int) -> None:
    program, sch, _ = scheduled(seed)
    replayed = tir.Schedule(program.func)
    tir.Trace.apply_json_to_schedule(sch.trace.as_json(), replayed)
    assert replayed.func.astext() == sch.func.astext()
