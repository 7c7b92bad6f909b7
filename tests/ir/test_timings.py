"""Compile-time profile: rows, JSON, flame charts, workers."""

import json
import os

import pytest

from ekiden.codegen import parallel
from ekiden.codegen.cache import KernelCache
from ekiden.codegen.parallel import CompileTask, compile_tasks
from ekiden.ir.pass_context import PassContext, time_phase
from ekiden.ir.timings import Timings


def watched() -> Timings:
    """Two runs of one kind inside another phase, and one after it."""
    timings = Timings()
    with PassContext(instruments=[timings]):
        with time_phase("outer"):
            for thing in "ab":
                with time_phase(f"inner: {thing}"):
                    pass
        with time_phase("last"):
            pass
    return timings


def test_rows_add_up_kinds_in_the_order_they_first_ran() -> None:
    rows = {row.path: row.num_calls for row in watched().rows()}
    assert rows == {("outer",): 1, ("outer", "inner"): 2, ("last",): 1}
    assert list(rows) == [("outer",), ("outer", "inner"), ("last",)]


def test_self_time_excludes_children() -> None:
    timings = watched()
    by_path = {row.path: row for row in timings.rows()}
    outer, inner = by_path["outer",], by_path["outer", "inner"]
    assert outer.own_cpu_seconds == pytest.approx(outer.cpu_seconds - inner.cpu_seconds)
    assert sum(row.own_cpu_seconds for row in by_path.values()) == pytest.approx(timings.cpu)
    assert all(row.wall_seconds >= 0 and row.cpu_seconds >= 0 for row in by_path.values())


def test_table_and_json_have_a_line_for_each_row() -> None:
    timings = watched()
    assert [line.split()[0] for line in timings.format_table().splitlines()] == [
        "phase", "outer", "inner", "last", "all",
    ]  # fmt: skip
    message = json.loads(timings.as_json())
    assert [item["phase"] for item in message["phases"]] == [
        ["outer"],
        ["outer", "inner"],
        ["last"],
    ]
    assert message["cpu_s"] == pytest.approx(timings.cpu)


def test_failing_phases_are_closed() -> None:
    timings = Timings()
    timings.enter_phase("outer")
    timings.enter_phase("never left")
    timings.exit_phase("outer")
    timings.enter_phase("next")
    timings.exit_phase("next")
    assert [row.path for row in timings.rows()] == [
        ("outer",), ("outer", "never left"), ("next",),
    ]  # fmt: skip


def test_flame_chart_opens_and_closes_in_order() -> None:
    chart = json.loads(watched().flame_chart())
    names = [frame["name"] for frame in chart["shared"]["frames"]]
    (profile,) = chart["profiles"]
    assert names == ["outer", "inner: a", "inner: b", "last"]
    stack: list[int] = []
    for event in profile["events"]:
        if event["type"] == "O":
            stack.append(event["frame"])
        else:
            assert stack.pop() == event["frame"]
    times = [event["at"] for event in profile["events"]]
    assert not stack and times == sorted(times) and profile["endValue"] >= times[-1]


@pytest.mark.parametrize("jobs", [1, 2])
def test_worker_timings_are_merged(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_COMPILE_JOBS", str(jobs))
    timings = Timings()
    count = parallel.MIN_PARALLEL_TASKS
    # a task's function is itself a task, so that there is a phase inside
    tasks = [
        CompileTask(
            f"key{i}", f"kernel{i}", CompileTask.compile, (CompileTask("", "inside", os.getcwdb),)
        )
        for i in range(count)
    ]
    with PassContext(instruments=[timings]), time_phase("outer"):
        compile_tasks(tasks, KernelCache(None))
    above = ("outer",) if jobs == 1 else ("workers",)
    rows = {row.path: row.num_calls for row in timings.rows()}
    assert rows[*above, "kernel"] == rows[*above, "kernel", "kernel"] == count
    assert sum(path[-1] == "outer" for path in rows) == 1
    frames = json.loads(timings.flame_chart())["shared"]["frames"]
    assert {"name": "kernel: kernel0"} in frames
