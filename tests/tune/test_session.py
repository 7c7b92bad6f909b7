"""Tuning sessions: trials shared among tasks, interrupted, resumed."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.runtime.errors import CompileError, InputError
from ekiden.target import Target
from ekiden.tune import Candidate, Measurer, Records, Session, Task
from ekiden.tune.measure import Outcome
from ekiden.tune.records import Best, Trial
from ekiden.tune.task import module_tasks
from long_runs import sizes

QUICK = {"turns": 3, "race_seconds": 0.05, "jobs": 1, "batch": 4}


def quick(**fields: object) -> Measurer:
    return Measurer(**{**QUICK, **fields})  # type: ignore[arg-type]


def two_layers() -> IRModule:
    """x @ a @ b, and x @ a again of the same shape; rows are a symbol."""
    x = relay.var("x", shape=(relay.SizeVar("n"), 32), dtype="float32")
    a = relay.var("a", shape=(32, 64), dtype="float32")
    b = relay.var("b", shape=(64, 32), dtype="float32")
    y = relay.nn.matmul(relay.nn.matmul(x, a), b)
    z = relay.nn.matmul(y, a)
    return IRModule.from_expr(relay.Function([x, a, b], z))


def test_tasks_are_the_distinct_kernels_with_their_calls() -> None:
    result = module_tasks(two_layers(), Target("llvm"), {"n": [4, 8]})
    assert sorted((t.calls, t.flops) for t in result.tasks) == [(1, 24576), (2, 24576)]
    assert all(t.sizes == ({"n0": 4}, {"n0": 8}) for t in result.tasks)
    assert len({t.workload for t in result.tasks}) == 2


def test_size_that_nobody_says_skips_a_kernel() -> None:
    result = module_tasks(two_layers(), Target("llvm"))
    assert not result.tasks
    assert {why for _, why in result.skipped} == {"the size of 'n' is not given"}
    with pytest.raises(CompileError, match="sizes of as many runs"):
        module_tasks(two_layers(), Target("llvm"), {"n": [1, 2], "m": [1, 2, 3]})


def test_workloads_are_the_same_in_every_process(task: Task) -> None:
    program = (
        "from conftest import product; from ekiden.target import Target\n"
        "from ekiden.tune.task import module_tasks\n"
        f"print(module_tasks(product(), Target({str(Target('llvm'))!r})).tasks[0].key)"
    )
    folder = str(Path(__file__).parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout.strip() == task.key


def test_second_run_goes_on(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    first = Session([task], Records.open(path), quick())
    first.run(4)
    again = Session([task], Records.open(path), quick())
    assert again.trials == 4 and again.states[0].history == first.states[0].history
    again.run(4)
    assert len(path.read_text().splitlines()) == len(first.records)
    again.run(6)
    choices = [r.choice for r in Records.open(path).query(kind="trial")]
    assert len(set(choices)) == 6


class Slower(Measurer):
    """Finds everything slower than the default when it is asked again."""

    def confirm(self, task: Task, candidate: Candidate, seed: int, times: int = 2) -> list[Outcome]:
        return [Outcome(candidate, "ok", 1.1, 1.1e-3, 1e-3) for _ in range(times)]


def test_what_is_not_faster_than_the_default_any_more_is_taken_back(
    task: Task, tmp_path: Path
) -> None:
    """The default that a record was made beside may have been a slower one."""
    path, measurer = tmp_path / "r.json", Slower(**QUICK)  # type: ignore[arg-type]
    chosen = task.space.sample(random.Random(0))
    fields = {
        "workload": task.workload, "target": str(task.target),
        "rule": chosen.rule, "choice": chosen.choice,
        "ratio": 0.01, "seconds": 1e-5, "untuned": 1e-3, "processor": measurer.processor,
        "sizes": [dict(s) for s in task.sizes if s], "shares": list(task.shares),
    }  # fmt: skip
    result = Best(**fields, confirmed=[0.01])  # type: ignore[arg-type]
    Records.open(path).append(result, Trial(**fields))  # type: ignore[arg-type]
    session = Session([task], Records.open(path), measurer)
    assert session.states[0].ratio == 0.01 and session.trials == 1
    session.run(2)
    assert task.key not in Records.open(path).best()
    assert session.states[0].best is None and session.trials == 2


def test_records_of_other_sizes_and_processors_are_not_counted(task: Task) -> None:
    message = {"workload": task.workload, "target": str(task.target), "rule": "matmul"}
    records = Records()
    records.append(
        Trial(**message, choice="rows=2", ratio=1.2),
        Trial(**message, choice="rows=3", ratio=1.2, processor="another", at=1.0),
        Trial(**message, choice="rows=4", ratio=1.2, threads=2),
        Trial(**message, choice="rows=5", ratio=1.2, sizes=[{"n0": 1}]),
        Trial(**message, choice="rows=99", ratio=1.2),
    )
    assert Session([task], records).trials == 1


def test_every_task_is_tuned_and_winners_recorded(tmp_path: Path) -> None:
    tasks = module_tasks(two_layers(), Target("llvm"), {"n": 8}).tasks
    seen: list[int] = []
    session = Session(
        tasks, Records.open(tmp_path / "r.json"),
        quick(run_function="hostile_jobs:all_faster"), progress=lambda s: seen.append(s.trials),
    )  # fmt: skip
    session.run(8)
    assert seen == [4, 8] and [s.trials for s in session.states] == [4, 4]
    best = Records.open(tmp_path / "r.json").best()
    assert best.keys() == {t.key for t in tasks}
    assert all(isinstance(b, Best) and b.confirmed == [0.5, 0.5] for b in best.values())
    assert [s.curve for s in session.states] == [[0.5] * 4] * 2


def test_what_seems_faster_on_a_machine_that_is_disturbed_is_not_kept(task: Task) -> None:
    """The default takes twice its own time whenever a winner is to be confirmed."""
    session = Session([task], Records(), quick(run_function="hostile_jobs:faster_while_disturbed"))
    session.run(4)
    (state,) = session.states
    assert (
        not session.records.best()
        and state.ratio == 1
        and state.failures_by_status == {"unsteady": 4}
    )
    assert state.first_failure == (
        "unsteady: 0.50 of the default's time, which was 2.00 of its least"
    )


def test_run_before_on_a_faster_day_does_not_disturb(task: Task) -> None:
    """The default took a hundredth of its time then."""
    before = Trial(
        workload=task.workload, target=str(task.target), rule="matmul", choice="rows=2", ratio=1.2,
        untuned=1e-6,
    )  # fmt: skip
    records = Records()
    records.append(before)
    session = Session([task], records, quick(run_function="hostile_jobs:all_faster"))
    session.run(5)
    assert session.states[0].trials == 5 and session.records.best()


def test_task_gets_more_where_more_is_won(task: Task) -> None:
    session = Session([task], Records(), quick(run_function="hostile_jobs:all_faster"))
    session.run(4)
    (state,) = session.states
    assert state.expected_gain(8) > 0
    once = state.expected_gain(8)
    state.curve.extend([0.5] * 400)
    assert state.expected_gain(8) < once / 10
    state.default_seconds = 1.0
    assert session._next_task() is state or state.expected_gain(8) * 4 < 2e-4


def test_nothing_to_tune_and_no_trials_are_refused(task: Task) -> None:
    with pytest.raises(InputError, match="there is no kernel with anything to choose"):
        Session([])
    with pytest.raises(InputError, match="trials above 0 expected, got 0"):
        Session([task]).run(0)


@sizes("kills", 1, 20)
def test_tuner_that_is_killed_loses_a_batch_at_most(kills: int, task: Task, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    context = multiprocessing.get_context("fork")
    source = random.Random(kills)
    for _ in range(kills):
        known = len(path.read_bytes().splitlines()) if path.exists() else 0
        tuner = context.Process(
            target=lambda: Session([task], Records.open(path), quick(batch=2)).run(400)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            tuner.start()
        until = time.monotonic() + 200
        while not path.exists() or len(path.read_bytes().splitlines()) < known + 2:
            assert time.monotonic() < until and tuner.is_alive()
            time.sleep(0.02)
        time.sleep(0.5 * source.random() if kills > 1 else 0)
        tuner.kill()
        tuner.join()
        result = Records.open(path)
        assert len(result) >= known + 2 - result.damaged and result.damaged <= kills
    trials = len(result.query(kind="trial"))
    session = Session([task], result, quick(batch=2))
    assert session.trials == trials
    session.run(trials + 2)
    assert session.trials == trials + 2 == len(Records.open(path).query(kind="trial"))
