"""Compile many kernels at once: what the cache does not hold, in forked processes."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass

from ekiden.codegen.cache import KernelCache
from ekiden.runtime import environment
from ekiden.runtime.errors import CompileError

Progress = Callable[[int, int, str], None]
"""Called with (kernels done, kernels in all, name of the one just done)."""

PARALLEL_FROM = 4
"""Kernels to compile from which starting processes pays."""


@dataclass(frozen=True, slots=True)
class Task:
    """Object code to be made: its key in the cache, a name to show, and how."""

    key: str
    name: str
    compile: Callable[[], bytes]


LOCK = threading.Lock()
"""Held while kernels are compiled: no other thread is inside LLVM when processes are forked."""
_WORK: Sequence[Task] | None = None
"""What forked workers compile: inherited by fork, so that functions need not be sent."""


def _compile_one(index: int) -> bytes:
    assert _WORK is not None
    return _WORK[index].compile()


def _ignore_interrupt() -> None:
    """Workers leave Ctrl-C to the process that waits for them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _workers(count: int) -> Iterator[Executor]:
    """Forked processes; what has not begun is dropped when an error leaves the block."""
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(count, context, _ignore_interrupt)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_parallel(count: int, jobs: int) -> Generator[tuple[int, bytes], None, None]:
    with _workers(jobs) as pool:
        with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads; see LOCK
            warnings.simplefilter("ignore", DeprecationWarning)
            waiting = {pool.submit(_compile_one, i): i for i in range(count)}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BrokenProcessPool as error:
            raise CompileError(
                "compiling kernels: a worker process was killed (out of memory?); "
                "EKIDEN_COMPILE_JOBS=1 compiles in this process"
            ) from error


def _compile_all(tasks: Sequence[Task]) -> Generator[tuple[int, bytes], None, None]:
    """(position, object code) of each task, in the order they are done."""
    global _WORK
    jobs = min(environment.compile_jobs(), len(tasks))
    with LOCK:
        _WORK = tasks
        try:
            if jobs < 2 or len(tasks) < PARALLEL_FROM:
                yield from ((i, _compile_one(i)) for i in range(len(tasks)))
            else:
                yield from _in_parallel(len(tasks), jobs)
        finally:
            _WORK = None


def compile_tasks(
    tasks: Sequence[Task], cache: KernelCache, progress: Progress | None = None
) -> dict[str, bytes]:
    """The object code of each task by its key, in the order of the tasks; equal keys once.

    What a task raises is raised; a worker that is killed is a CompileError.
    """
    distinct = {t.key: t for t in tasks}
    objects = {key: code for key in distinct if (code := cache.get(key)) is not None}
    missing = [t for key, t in distinct.items() if key not in objects]
    with closing(_compile_all(missing)) as results:
        for done, (index, code) in enumerate(results):
            task = missing[index]
            objects[task.key] = code
            cache.put(task.key, code)
            if progress is not None:
                progress(done + 1, len(missing), task.name)
    return {key: objects[key] for key in distinct}
