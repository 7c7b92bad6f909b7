"""Worker processes: results, crashes, hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from ekiden.tune import workers
from ekiden.tune.job_messages import MessageReader, encode_message, send_message
from ekiden.tune.workers import TuneWorker, WorkerJob, run_in_worker

LONG = 120.0
"""Seconds that no job here takes."""


def job(name: str, seconds: float = LONG, memory: int = 256 << 20) -> WorkerJob:
    return WorkerJob(f"hostile_jobs:{name}", {"n": 3}, (b"abc", b""), seconds, memory)


def test_job_is_answered_with_what_it_said_on_the_way() -> None:
    head, parts = run_in_worker(job("say"))
    assert head["answer"] == {"got": [3, 0], "n": 3} and parts == [b"abc", b""]
    assert head["news"] == [{"at": 7}] and head["said"] == "something on the way\n"


@pytest.mark.parametrize(
    ("name", "error"), [("crash", "crash"), ("hang", "timeout"), ("leak", "MemoryError")]
)
def test_one_that_fails_says_how_and_the_worker_goes_on(name: str, error: str) -> None:
    worker = TuneWorker("hostile_jobs")
    try:
        for _ in range(2):
            head, _ = worker.run_job(job(name, seconds=1.0 if name == "hang" else LONG))
            assert head["error"] == error
    finally:
        worker.close()


def test_worker_that_is_killed_is_a_crash_and_another_is_started() -> None:
    worker = TuneWorker("hostile_jobs")

    def kill() -> None:
        job_of(worker)
        os.kill(worker._process.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(OSError):
        worker.run_job(job("hang"))
    thread.join()
    assert run_in_worker(job("say"))[0]["answer"]


def test_worker_that_ended_while_it_waited_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it ends just as it is asked: it is seen alive."""
    worker = TuneWorker("hostile_jobs")
    assert worker.run_job(job("say"))[0]["answer"]
    worker._process.kill()
    worker._process.wait()
    monkeypatch.setattr(TuneWorker, "is_alive", True)
    workers._IDLE_WORKERS.setdefault("hostile_jobs", []).append(worker)
    assert run_in_worker(job("say"))[0]["answer"]


def job_of(worker: TuneWorker) -> int:
    """The process of the job that a worker is at; it is waited for."""
    pid = worker._process.pid
    while not (result := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        time.sleep(0.01)
    return int(result[0])


def test_worker_without_the_function_is_a_crash() -> None:
    assert run_in_worker(WorkerJob("hostile_jobs:nothing", {}))[0]["error"] == "crash"


def test_worker_whose_tuner_is_gone_ends_its_job() -> None:
    worker = TuneWorker("hostile_jobs")

    def wait() -> None:
        with pytest.raises(OSError):
            worker.run_job(job("hang"))

    thread = threading.Thread(target=wait)
    thread.start()
    pid = job_of(worker)
    worker.close()
    thread.join()
    assert worker._process.returncode is not None
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)


def test_messages_come_in_pieces_and_what_is_none_ends_them() -> None:
    source, to = os.pipe()
    data = encode_message({"a": 1}, [b"xyz"])
    thread = threading.Thread(target=lambda: [os.write(to, bytes([b])) for b in data])
    thread.start()
    reader = MessageReader(source)
    assert reader.receive(time.monotonic() + LONG) == ({"a": 1}, [b"xyz"])
    thread.join()
    with pytest.raises(TimeoutError):
        reader.receive(time.monotonic())
    send_message(to, {"b": 2})
    assert reader.receive() == ({"b": 2}, [])
    os.write(to, b"\xff" * 64)
    assert reader.receive() is None
    os.close(to)
    os.close(source)


@pytest.mark.parametrize("cut", [1, 8, 15, 16, 17])
def test_message_that_ends_early_is_none(cut: int) -> None:
    source, to = os.pipe()
    os.write(to, encode_message({"a": 1}, [b"xyz"])[:cut])
    os.close(to)
    assert MessageReader(source).receive() is None
    os.close(source)
