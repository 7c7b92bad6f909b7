"""Tuning on a cluster of two local workers, one of which is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ekiden.runtime.errors import CompileError
from ekiden.tune import Measurer, Records, Session, Task, workers
from ekiden.tune.clusters import RayExecutor


def quick(**fields: object) -> Measurer:
    inputs: dict[str, object] = {"turns": 3, "race_seconds": 0.05, "runners": 2, "batch": 2}
    return Measurer(**{**inputs, **fields})  # type: ignore[arg-type]


def own_pid() -> int:
    return os.getpid()


def check(session: Session, trials: int) -> None:
    """Every trial once, none lost."""
    choices = [r.choice for r in session.records.query(kind="trial")]
    assert len(choices) == len(set(choices)) == session.trials == trials
    assert session.states[0].failures_by_status.keys() <= {
        "unsteady"
    }  # that is what else the machine does


def test_pool_of_processes_is_an_executor(task: Task) -> None:
    with ProcessPoolExecutor(1) as pool:
        session = Session([task], measurer=quick(executor=pool))
        session.run(3)
        check(session, 3)


def own_children() -> list[str]:
    """What the processes are that this one has started."""
    result = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(words[1]) == os.getpid():
                result.append((folder / "cmdline").read_text().replace("\0", " "))
    return result


def test_executor_keeps_no_workers_when_a_session_has_ended(task: Task) -> None:
    with ProcessPoolExecutor(1) as pool:
        before = pool.submit(own_children).result()
        session = Session([task], measurer=quick(executor=pool))
        session.run(2)
        assert pool.submit(own_children).result() == before
        session.run(3)  # workers are started again
        check(session, 3)


def test_worker_that_ended_while_it_waited_is_replaced() -> None:
    module = "ekiden.tune.build_job"
    worker = workers.TuneWorker(module)
    worker._process.kill()
    worker._process.wait()
    workers.close_workers()
    workers._IDLE_WORKERS[module] = [worker]
    assert not worker.is_alive
    assert workers._idle_worker(module) is None


@pytest.fixture
def dask(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="needs distributed (Dask)")
    folder = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, *filter(None, sys.path)]))
    with (
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.mark.filterwarnings("ignore")  # Dask's own
def test_dask_goes_on_when_a_worker_is_killed(
    task: Task,
    dask: Any,  # noqa: ANN401  a client
    tmp_path: Path,
) -> None:
    killed: list[int] = []

    def kill_one(session: Session) -> None:
        if not killed:
            pid = next(iter(dask.run(os.getpid).values()))
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    records = Records.open(tmp_path / "r.json")
    measurer = quick(executor=dask.get_executor())
    session = Session([task], records, measurer, progress=kill_one)
    session.run(6)
    assert killed
    check(session, 6)
    assert list(Records.open(tmp_path / "r.json")) == list(records)


@pytest.mark.long  # Ray alone takes half a minute to start and end on two cores
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_goes_on_when_a_worker_is_killed(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="needs ray")
    folder = str(Path(__file__).parent)
    path = os.pathsep.join([folder, *filter(None, sys.path)])
    monkeypatch.setenv("PYTHONPATH", path)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    killed: list[int] = []

    def kill_one(session: Session) -> None:
        if not killed:
            pid = ray.get(ray.remote(own_pid).remote())
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    try:
        session = Session([task], measurer=quick(executor=RayExecutor()), progress=kill_one)
        session.run(6)
        assert killed
        check(session, 6)
    finally:
        ray.shutdown()


def test_without_ray_its_executor_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CompileError, match="pip install ekiden\\[tune\\]"):
        RayExecutor()
