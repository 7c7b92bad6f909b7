"""Measurement of valid, invalid and hostile candidates."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from ekiden.runtime.errors import InputError
from ekiden.tune import Candidate, Measurer, Session, Task, run_job
from ekiden.tune.measure import NoDefaultError
from ekiden.tune.run_job import make_arrays, race_candidates, results_agree, time_ratio
from ekiden.tune.session import MAX_WIN_RATIO
from long_runs import sizes


def quick(**fields: object) -> Measurer:
    inputs: dict[str, object] = {"turns": 3, "race_seconds": 0.1, "jobs": 1, "memory": 1 << 30}
    return Measurer(**{**inputs, **fields})  # type: ignore[arg-type]


def drawn(task: Task, count: int) -> list[Candidate]:
    source = random.Random(0)
    result: dict[Candidate, None] = {}
    while len(result) < count:
        result[task.space.sample(source)] = None
    return list(result)


def test_candidates_are_timed_beside_the_default(task: Task) -> None:
    chosen = drawn(task, 3)
    outcomes = quick().measure(task, chosen)
    assert [o.candidate for o in outcomes] == chosen
    for outcome in outcomes:
        assert outcome.status == "ok" and 0 < outcome.ratio < math.inf and 0 < outcome.seconds < 1
        assert len(outcome.sample) == 1 and outcome.sample == pytest.approx(
            outcome.untuned_sample, rel=1e-3
        )


@pytest.mark.parametrize(
    ("rule", "choice", "said"),
    [
        ("matmul", "rows=77", "'rows' is one of"),
        ("matmul", "rows", "expected 'name=value ...'"),
        ("matmull", "rows=2", "no family of kernels is called 'matmull'"),
    ],
)
def test_candidate_that_cannot_be_is_refused(rule: str, choice: str, said: str, task: Task) -> None:
    (outcome,) = quick().measure(task, [Candidate(rule, choice)])
    assert outcome.status == "refused" and said in outcome.said


def test_one_that_crashed_is_to_blame_and_the_others_are_measured(task: Task) -> None:
    chosen = drawn(task, 3)
    outcomes = quick(run_function="hostile_jobs:crash_second").measure(task, chosen)
    assert [o.status for o in outcomes] == ["ok" if i != 1 else "crash" for i in range(3)] or [
        o.status for o in outcomes
    ].count("crash") >= 1


def test_default_that_does_not_run_is_an_error(task: Task) -> None:
    measurer = quick(build_function="hostile_builds:crash")
    with pytest.raises(NoDefaultError, match="the default: build crash"):
        measurer.measure(task, drawn(task, 1))


def test_lies_about_time_are_found_out(task: Task) -> None:
    session = Session([task], measurer=quick(run_function="hostile_jobs:first_lies"))
    session.run(4)
    state = session.states[0]
    assert (
        state.best is None
        and state.failures_by_status.keys() <= {"unsteady"}
        and state.failures_by_status
    )
    assert not session.records.best()


def test_lies_about_results_are_found_out(task: Task) -> None:
    session = Session([task], measurer=quick(run_function="hostile_jobs:wrong_results"))
    session.run(2)
    assert session.states[0].failures_by_status == {"lies": 2} and not session.records.best()


@sizes("trials", 6, 1000)
def test_among_hostile_processes_nothing_is_lost_and_nothing_wrong_recorded(
    trials: int, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ekiden.tune.session.MIN_RELATIVE_GAIN", 0.0
    )  # no end before, where little is left
    patient = quick(
        build_function="hostile_builds:build", run_function="hostile_jobs:run",
        run_seconds=1.0, memory=512 << 20, batch=3,
    )  # fmt: skip
    patient.measure(task, [])  # the default is built once, however busy the machine
    measurer = replace(patient, build_seconds=3.0)
    session = Session([task], measurer=measurer)
    session.run(trials)
    assert session.trials == trials == len(session.records.query(kind="trial"))
    honest = quick()
    for best in session.records.query(kind="best"):
        (outcome,) = honest.measure(task, [Candidate(best.rule, best.choice)])
        assert outcome.is_ok and best.ratio <= MAX_WIN_RATIO and len(best.confirmed) == 2  # type: ignore[union-attr]


class Losing(Executor):
    """An executor whose machines go away: the first jobs of each kind are lost."""

    def __init__(self, losses: int) -> None:
        self.losses, self.asked = losses, 0
        self.pool = ThreadPoolExecutor(2)

    def submit(self, function, /, *args, **kwargs) -> Future:  # type: ignore[no-untyped-def, override]  # noqa: ANN001, ANN002, ANN003
        self.asked += 1
        if self.asked <= self.losses:
            failed: Future[object] = Future()
            failed.set_exception(ConnectionError("the machine is gone"))
            return failed
        return self.pool.submit(function, *args, **kwargs)


def test_what_a_lost_machine_had_is_tried_again_and_counted_once(task: Task) -> None:
    executor = Losing(4)
    session = Session([task], measurer=quick(executor=executor, runners=2, batch=2))
    session.run(4)
    choices = [r.choice for r in session.records.query(kind="trial")]
    assert len(choices) == len(set(choices)) == 4 and session.trials == 4
    assert session.states[0].failures_by_status.keys() <= {
        "unsteady"
    }  # that is what else the machine does


def test_lost_machine_is_reported(task: Task) -> None:
    with pytest.raises(NoDefaultError, match="lost: the machine is gone"):
        quick(executor=Losing(1000)).measure(task, drawn(task, 1))


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="tune: threads above 0 expected, got 0"):
        Measurer(threads=0)


def test_measured_arrays_have_guard_bytes() -> None:
    args = [([3, 5], "float32"), ([7], "int8"), ([], "float32"), ([0, 4], "int64"), ([2], "bool")]
    arrays = make_arrays([*args, ([9], "bfloat16")], 1, seed=3)
    assert [a.shape for a in arrays.inputs] == [(3, 5), (7,), (), (0, 4), (2,)]
    assert arrays.outputs[0].shape == (9,) and arrays.memory_violation() == ""
    places = [a.ctypes.data % 4096 for a in (*arrays.inputs, *arrays.outputs)]
    assert all(place % 64 == 0 for place in places) and len(set(places)) == len(places)
    arrays.inputs[0][1, 1] += 1
    assert arrays.memory_violation() == "it changed its inputs"
    arrays.inputs[0][...] = arrays.initial_inputs[0]
    arrays.guarded_blocks[1][4096 + 7] = 0
    assert arrays.memory_violation() == "it wrote outside its arrays"


@pytest.mark.parametrize(
    ("actual", "wanted", "same"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 1e-6], True),
        ([1.0, 2.0], [1.0, 2.1], False),
        ([np.nan, 2.0], [np.nan, 2.0], True),
        ([np.inf, 2.0], [1.0, 2.0], False),
        ([0.0, 2.0], [np.nan, 2.0], False),
        ([1.0] * 70000, [1.0] * 70000, True),  # more than are compared at a time
        ([1.0] * 70000, [1.0] * 69999 + [1.1], False),
        ([2.0] + [9e3] * 70000, [1.0] + [9e3] * 70000, True),  # the scale is that of all
        ([], [], True),
    ],
)
def test_results_agree_up_to_the_order_of_sums(
    actual: list[float], wanted: list[float], same: bool
) -> None:
    assert results_agree(np.float32(actual), np.float32(wanted), 5e-4) is same
    assert results_agree(np.int32([1, 2]), np.int32([1, 3]), 1.0) is False


def test_sums_of_results_tell_arrays_apart_whatever_their_size() -> None:
    """Of more elements than are summed at a time; what is no number counts as nothing."""
    plain = (
        np.random.default_rng(0)
        .standard_normal(3 * run_job.COMPARE_BLOCK_ELEMENTS + 5)
        .astype(np.float32)
    )
    assert run_job.output_fingerprint([plain], 3) == run_job.output_fingerprint([plain.copy()], 3)
    assert run_job.output_fingerprint([plain], 3) != run_job.output_fingerprint([plain], 4)
    for at in (0, run_job.COMPARE_BLOCK_ELEMENTS, plain.size - 1):
        other = plain.copy()
        other[at] += 1000
        assert (
            abs(
                run_job.output_fingerprint([other], 3)[0]
                - run_job.output_fingerprint([plain], 3)[0]
            )
            > 1
        )
    infinite, zero = plain.copy(), plain.copy()
    infinite[7], zero[7] = np.inf, 0
    assert run_job.output_fingerprint([infinite], 3) == run_job.output_fingerprint([zero], 3)
    assert run_job.output_fingerprint([np.float32([[]]), np.float32(2)], 3)[0] == 0


def test_neither_drift_nor_a_busy_machine_makes_a_winner() -> None:
    same = [1.0, 1.1, 1.2, 1.3]
    assert time_ratio(same, same) == 1.0
    assert time_ratio([1.0, 1.1, 1.2, 1.3], [1.0, 1.4, 1.5, 1.6]) == 1.0  # the least are the same
    assert time_ratio([0.9, 2.0, 2.0, 2.0], [1.0, 2.0, 2.0, 2.0]) == 1.0  # but for one turn
    assert time_ratio([0.5, 0.55], [1.0, 1.1]) == 0.5


def test_losing_candidates_skip_later_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(run_job, "_timing_clock", lambda threads: lambda: now[0])

    def taking(seconds: float) -> Callable[[], None]:
        return lambda: now.__setitem__(0, now[0] + seconds)

    times = race_candidates([taking(1e-5), taking(1e-3)], [0, 1], 12, math.inf, 1, False)
    assert len(times[0]) == 12 and len(times[1]) == 3


def test_hopeless_candidates_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a tenth of a second: most of a search are several times as slow as the default."""
    now, calls = [0.0], [0, 0, 0]
    monkeypatch.setattr(run_job, "_timing_clock", lambda threads: lambda: now[0])

    def taking(index: int, seconds: float) -> Callable[[], None]:
        def call() -> None:
            calls[index] += 1
            now[0] += seconds

        return call

    result = [taking(n, seconds) for n, seconds in enumerate((0.1, 0.105, 0.4))]
    times = race_candidates(result, [0, 1, 2], 12, math.inf, 1, False)
    assert calls[2] == len(times[2]) == 1 and len(times[0]) == 12
    assert time_ratio(times[2], times[0]) == pytest.approx(4)
    again = race_candidates(result, [0, 1, 2], 12, math.inf, 1, False, [0.1, 0.105, 0.4])
    assert calls[2] == 1 and again[2] == [0.4], "its results were asked for before"


@pytest.mark.parametrize(("unit", "turns"), [(1e-5, [12, 9, 5, 3]), (0.1, [12, 3, 2, 1])])
def test_long_call_counts_as_several_rounds(
    unit: float, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(run_job, "_timing_clock", lambda threads: lambda: now[0])

    def taking(seconds: float) -> Callable[[], None]:
        return lambda: now.__setitem__(0, now[0] + seconds)

    result = [taking(unit * factor) for factor in (1, 1.1, 1.3, 1.7)]
    times = race_candidates(result, [0, 1, 2, 3], 12, math.inf, 1, False)
    assert [len(t) for t in times] == turns
