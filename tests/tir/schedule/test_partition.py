"""Loop partitioning, and marks of traces."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.runtime.errors import ScheduleError
from ekiden.tir import Schedule, interpreter
from ekiden.tir.transform import lower


def row_sums() -> Schedule:
    a = te.placeholder((10, 12), name="a")
    k = te.reduce_axis((0, 12), "k")
    b = te.compute((10,), lambda i: te.sum(a[i, k], k), name="b")
    return Schedule(te.create_prim_func([a, b]))


def check(sch: Schedule) -> None:
    x = np.arange(120, dtype="float32").reshape(10, 12)
    out = np.zeros(10, "float32")
    interpreter.run_prim_func(lower(sch.func), x, out)
    np.testing.assert_array_equal(out, x.sum(1))


@pytest.mark.parametrize(
    ("factors", "sizes"),
    [([2, 3], [2, 3, 5]), ([None, 4], [6, 4]), ([1, None, 1], [1, 8, 1]), ([10], [10])],
)
def test_spatial_loops_are_partitioned(factors: list[int | None], sizes: list[int]) -> None:
    sch = row_sums()
    parts = sch.loop_partition(sch.get_loops("b")[0], factors)
    assert [int(sch.get(p).extent) for p in parts] == sizes  # type: ignore[union-attr, arg-type]
    check(sch)
    again = row_sums()
    sch.trace.apply_to_schedule(again)
    assert str(again.func) == str(sch.func)


def test_reduction_loops_are_partitioned() -> None:
    sch = row_sums()
    first, rest = sch.loop_partition(sch.get_loops("b")[1], [5, None])
    sch.unroll(first)
    sch.split(rest, [None, 3])
    check(sch)
    sch = row_sums()
    (rest,) = sch.loop_partition(sch.get_loops("b")[0], [1, None], preserve_unit_iters=False)
    assert sch.get(rest).extent == 9  # type: ignore[union-attr]
    check(sch)


@pytest.mark.parametrize(
    ("factors", "why"),
    [([0, None], "positive"), ([8, 3], "leave enough"), ([None, None], "one at most"), ([], "one")],
)
def test_invalid_partitions_are_refused(factors: list[int | None], why: str) -> None:
    sch = row_sums()
    with pytest.raises(ScheduleError, match=why):
        sch.loop_partition(sch.get_loops("b")[0], factors)


def test_mark_is_replayed() -> None:
    sch = row_sums()
    sch.enter_postproc()
    sch.parallel(sch.get_loops("b")[0])
    again = row_sums()
    tir.Trace.apply_json_to_schedule(sch.trace.as_json(), again)
    assert str(again.func) == str(sch.func) and "enter_postproc" in str(again.trace)
