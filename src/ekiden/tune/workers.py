"""Pool of worker processes on this machine: what any executor runs, here or on another machine."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from ekiden._locks import ForkSafeLock
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tune.job_messages import Head, Message, MessageReader, send_message

WORKER_START_TIMEOUT_S = 120.0
"""Timeout in seconds of a worker's start on a busy machine."""
JOB_REPLY_GRACE_S = 10.0
"""Seconds beyond a job's time limit that a worker may take to reply."""


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """Job of a worker, a function of a module with serialized arguments: `MODULE:FUNCTION`, the
    message, and the process limits.
    """

    function: str
    head: Mapping[str, object]
    parts: tuple[bytes, ...] = ()
    seconds: float = 30.0
    memory: int = 4 << 30
    """Memory limit in bytes beyond what the worker used before its jobs."""


class TuneWorker:
    """Worker process (ekiden.tune.worker) for the functions of one module."""

    def __init__(self, module: str) -> None:
        self.module = module
        single = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # no threads beside forks
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ekiden.tune.worker", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **single, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin = self._process.stdin.fileno()
        self._reader = MessageReader(self._process.stdout.fileno())
        self._ready = False

    def run_job(self, job: WorkerJob) -> Message:
        """Run a job and return its reply. Raises OSError if the worker itself is gone or hangs."""
        try:
            if not self._ready:
                if self._reader.receive(time.monotonic() + WORKER_START_TIMEOUT_S) is None:
                    raise BrokenPipeError(f"no worker for {self.module}")
                self._ready = True
            _, _, function = job.function.partition(":")
            limits = {"seconds": job.seconds, "memory": job.memory}
            request = {**job.head, **limits, "function": function}
            send_message(self._stdin, request, job.parts)
            reply = self._reader.receive(time.monotonic() + job.seconds + JOB_REPLY_GRACE_S)
        except BaseException:
            self.close()
            raise
        if reply is None:
            self.close()
            raise BrokenPipeError(f"the worker for {self.module} has ended")
        return reply

    @property
    def is_alive(self) -> bool:
        """Return whether the process is still running."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process, and with it its job."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


_IDLE_WORKERS: dict[str, list[TuneWorker]] = {}
_IDLE_WORKERS_LOCK = ForkSafeLock()


def _idle_worker(module: str) -> TuneWorker | None:
    """Return a worker that waits for a job; those that have ended meanwhile are dropped."""
    while True:
        with _IDLE_WORKERS_LOCK:
            idle = _IDLE_WORKERS.setdefault(module, [])
            worker = idle.pop() if idle else None
        if worker is None or worker.is_alive:
            return worker
        worker.close()


def run_in_worker(job: WorkerJob) -> Message:
    """Run a job in a local worker; executors get this function. A worker that is gone or hangs is
    an answer too: {"error": "crash"}; one that waited and ends as it is asked is none: the job
    is asked of a fresh one.
    """
    module = job.function.partition(":")[0]
    try:
        worker = _idle_worker(module)
        try:
            reply = worker.run_job(job) if worker is not None else None
        except BrokenPipeError:
            reply = None
        # An idle worker may have ended between two jobs; a fresh one gets the job once.
        if worker is None or reply is None:
            worker = TuneWorker(module)
            reply = worker.run_job(job)
    except OSError as error:
        gone: Head = {"error": "crash", "news": [], "said": str(error)}
        return gone, []
    with _IDLE_WORKERS_LOCK:
        _IDLE_WORKERS.setdefault(module, []).append(worker)
    return reply


@atexit.register
def close_workers() -> None:
    """End all idle workers."""
    with _IDLE_WORKERS_LOCK:
        waiting = [w for workers in _IDLE_WORKERS.values() for w in workers]
        _IDLE_WORKERS.clear()
    for worker in waiting:
        worker.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_IDLE_WORKERS.clear)  # they are the parent's to ask
