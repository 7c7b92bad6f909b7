"""Compile the kernels that the cache lacks in worker processes, or in this process where it may
have none.

Processes and not threads: LLVM compiles in C++ and holds no lock of Python's, but passes of ours
before it are Python.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden._locks import ForkSafeLock
from ekiden.codegen.cache import KernelCache
from ekiden.codegen.compile_task import CompileTask
from ekiden.codegen.worker_process import (
    WorkerEndedError,
    WorkerProcess,
    setup_frame,
    start_workers,
)
from ekiden.ir.pass_context import PassContext, notify_product
from ekiden.ir.process_transfer import NotTransferableError, encode
from ekiden.runtime import environment
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.lazy_logger import LazyLogger

if TYPE_CHECKING:
    import logging
    import select
else:  # a program that answers by general kernels starts no workers
    logging = LazyModule("logging")
    select = LazyModule("select")

__all__ = [
    "CancellationToken",
    "CancelledError",
    "CompileTask",
    "ProgressCallback",
    "compile_tasks",
]

ProgressCallback = Callable[[int, int, str], None]
"""Callback (kernels done, total, name of the last one)."""

_LOG = LazyLogger(__name__)
MIN_PARALLEL_TASKS = 4
"""Minimum number of kernels for which worker processes pay off."""
BACKGROUND_NICENESS = 5
"""Niceness of background workers, which get about a quarter of a contended core. At 0, general
kernels answer at half the speed until all are compiled; at 10, a program that does not rest has its
own code three times later.
"""
INTERRUPT_CHECK_S = 0.1
"""Interval in seconds at which waiting returns to Python, where exceptions set by other threads (a
compilation's time limit) are raised.
"""
LOCAL_COMPILE_LOCK = ForkSafeLock()
"""Lock held while this process compiles a kernel itself."""


class CancelledError(Exception):
    """Exception: the work was cancelled."""


class CancellationToken:
    """Cancellation token, by which one thread stops work that another thread waits for."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        self.is_set = False

    def fileno(self) -> int:
        """Return a descriptor that is readable from `cancel` on, for `select`."""
        return self._reader

    def cancel(self) -> None:
        """Stop the work."""
        if not self.is_set:
            self.is_set = True
            # Nobody reads the byte, so that the pipe stays readable for every later `select`.
            os.write(self._writer, b"x")

    def wait(self, seconds: float) -> None:
        """Wait for some seconds, or until cancelled."""
        select.select([self], [], [], seconds)
        self.check()

    def check(self) -> None:
        """Raise CancelledError after `cancel`."""
        if self.is_set:
            raise CancelledError

    def __del__(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


def _compile_in_process(task: CompileTask) -> bytes:
    with LOCAL_COMPILE_LOCK:
        return task.compile()


@dataclass(frozen=True, slots=True)
class _RunningTask:
    """Task that a worker runs: its position and its deadline."""

    position: int
    deadline: float


class _WorkerPool:
    """Pool of worker processes that compile a list of tasks."""

    def __init__(
        self,
        tasks: Sequence[CompileTask],
        workers: list[WorkerProcess],
        cancellation: CancellationToken | None,
    ) -> None:
        self._tasks = tasks
        self._workers = workers
        self._cancellation = cancellation
        self._pending_tasks = iter(range(len(tasks)))
        self._running_tasks: dict[WorkerProcess, _RunningTask] = {}
        self.local_tasks: list[int] = []
        """Positions of tasks that only this process can run."""

    def iter_results(self) -> Iterator[tuple[int, bytes]]:
        """Yield (position, object code) in the order they are done. Raises what a task raises,
        CompileError for one whose worker ends, and CancelledError."""
        for worker in self._workers:
            self._dispatch_next(worker)
        while self._running_tasks:
            for worker in self._wait_for_replies():
                position, code = self._receive_result(worker)
                self._dispatch_next(worker)  # before the caller has it, who may take his time
                if code is not None:
                    yield position, code

    def _dispatch_next(self, worker: WorkerProcess) -> None:
        """Dispatch to a worker the next task that another process can run, if there is one."""
        for position in self._pending_tasks:
            try:
                frame = None if self._tasks[position].is_local else encode(self._tasks[position])
            except NotTransferableError as error:
                _LOG.debug("kernel %s: %s", self._tasks[position].name, error)
                frame = None
            if frame is None:
                self.local_tasks.append(position)
                continue
            deadline = time.monotonic() + environment.kernel_timeout_s()
            self._running_tasks[worker] = _RunningTask(position, deadline)
            try:
                worker.send(frame)
            except WorkerEndedError as error:
                raise self._worker_error(worker, error) from error
            return

    def _wait_for_replies(self) -> list[WorkerProcess]:
        """Wait for replies, and return the workers that have one. Raises CancelledError, and
        CompileError where a worker takes too long."""
        sources: list[WorkerProcess | CancellationToken] = list(self._running_tasks)
        if self._cancellation is not None:
            sources.append(self._cancellation)
        deadline = min(running.deadline for running in self._running_tasks.values())
        ready: list[WorkerProcess | CancellationToken] = []
        # Short waits: an exception set by another thread is raised only when control returns to
        # Python.
        while not ready and (remaining_s := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select(sources, [], [], min(remaining_s, INTERRUPT_CHECK_S))
        if self._cancellation is not None:
            self._cancellation.check()
        if not ready:
            late = min(self._running_tasks, key=lambda worker: self._running_tasks[worker].deadline)
            limit = environment.kernel_timeout_s()
            error = WorkerEndedError(f"gave no answer within {limit:g} s")
            raise self._worker_error(late, error)
        return [worker for worker in self._running_tasks if worker in ready]

    def _receive_result(self, worker: WorkerProcess) -> tuple[int, bytes | None]:
        """Return the position of the task that a worker has run and its code, or None if it must be
        compiled in this process.
        """
        try:
            reply = worker.receive(environment.kernel_timeout_s())
        except WorkerEndedError as error:
            raise self._worker_error(worker, error) from error
        position = self._running_tasks.pop(worker).position
        # Instruments ran as copies in the worker; their observations are merged into the program's
        # own.
        for instrument, observations in zip(
            PassContext.current().instruments, reply.instrument_results, strict=False
        ):
            instrument.add_seen(observations)
        for record in reply.records:
            logging.getLogger(record.name).handle(record)
        if reply.error is not None:
            raise reply.error
        # The worker could not decode the task: this process compiles it after the others.
        if reply.result is None:
            _LOG.debug("kernel %s: %s", self._tasks[position].name, reply.unavailable_reason)
            self.local_tasks.append(position)
        return position, reply.result

    def _worker_error(self, worker: WorkerProcess, error: WorkerEndedError) -> CompileError:
        """Return the error that names the kernel which a worker was at."""
        kernel = self._tasks[self._running_tasks[worker].position].name
        text = f"compiling kernels: a worker process {error.how} at the kernel {kernel}"
        if error.printed:
            text += f": {error.printed}"
        if "SIGKILL" in error.how:
            text += " (out of memory?); EKIDEN_COMPILE_JOBS=1 compiles in this process"
        return CompileError(text)

    def close(self) -> None:
        """End the workers, and print what they have printed."""
        for worker in self._workers:
            if (printed := worker.captured_output()) and sys.stderr is not None:
                sys.stderr.write(printed)
            worker.close()


def _start_pool(
    tasks: Sequence[CompileTask], cancellation: CancellationToken | None
) -> _WorkerPool | None:
    """Start worker processes for tasks; return None where none can be started, or they do not pay.
    In the background they always do.
    """
    # A background compilation always uses workers: in this process it would hold the interpreter
    # lock.
    is_background = cancellation is not None
    jobs = min(environment.num_compile_jobs(), len(tasks))
    if not tasks or (not is_background and (jobs < 2 or len(tasks) < MIN_PARALLEL_TASKS)):
        return None
    try:
        setup = setup_frame(BACKGROUND_NICENESS if is_background else 0)
        return _WorkerPool(tasks, start_workers(jobs, setup), cancellation)
    except (
        OSError,
        NotTransferableError,
        RuntimeError,
    ) as error:  # RuntimeError: no thread is left
        _LOG.info("kernels are compiled in this process: %s", error)
    return None


def _compile_all(
    tasks: Sequence[CompileTask], cancellation: CancellationToken | None
) -> Generator[tuple[int, bytes], None, None]:
    """Yield (position, object code) of each task, in the order they are done."""
    pool = _start_pool(tasks, cancellation)
    remaining: Sequence[int] = range(len(tasks))
    # Tasks that a worker cannot unpickle come last, in this process.
    if pool is not None:
        with closing(pool):
            yield from pool.iter_results()
        remaining = pool.local_tasks
    for position in remaining:
        if cancellation is not None:
            cancellation.check()
        yield position, _compile_in_process(tasks[position])


def compile_tasks(
    tasks: Sequence[CompileTask],
    cache: KernelCache,
    progress: ProgressCallback | None = None,
    on_result: Callable[[CompileTask, bytes], None] | None = None,
    cancellation: CancellationToken | None = None,
) -> dict[str, bytes]:
    """Return the object code of each task by its key, in the order of the tasks; equal keys once.

    Args:
        tasks: What to compile.
        cache: Where code is looked up first and kept.
        progress: Called after each kernel.
        on_result: Called with each kernel that the cache does not have, as soon as it is compiled.
        cancellation: Stops the work from another thread. Where it is given the work is done in the
            background: by worker processes that are nicer than the program.

    Raises what a task raises; CompileError, naming the kernel, where a worker ends or takes longer
    than EKIDEN_KERNEL_TIMEOUT; CancelledError.
    """
    # Equal kernels share a key: each is compiled once.
    distinct = {t.key: t for t in tasks}
    objects = {key: code for key in distinct if (code := cache.get(key)) is not None}
    if PassContext.current().compiles_cached:
        names = [distinct[key].name for key in objects]
        if names:
            what = "kernels that the cache has, which were compiled again to be seen"
            notify_product("cached.txt", what, lambda: "\n".join(names) + "\n")
        objects = {}
    missing = [t for key, t in distinct.items() if key not in objects]
    _LOG.info("kernels: %d, of which %d are in the cache", len(distinct), len(objects))
    with closing(_compile_all(missing, cancellation)) as results:
        for count, (position, code) in enumerate(results, 1):
            task = missing[position]
            objects[task.key] = code
            # Stored one by one, so that an interrupted compilation resumes where it stopped.
            cache.put(task.key, code)
            if on_result is not None:
                on_result(task, code)
            _LOG.debug("kernel %d of %d: %s", count, len(missing), task.name)
            if progress is not None:
                progress(count, len(missing), task.name)
    return {key: objects[key] for key in distinct}
