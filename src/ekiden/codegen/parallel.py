"""Compile many kernels at once: what the cache does not hold, in forked processes, or in this one
where it may have none.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from ekiden.codegen.cache import KernelCache
from ekiden.codegen.children import WorkerNotes
from ekiden.ir.pass_context import DEBUG, PassContext, phase
from ekiden.runtime import environment
from ekiden.runtime.errors import CompileError
from ekiden.runtime.forks import Lock, forking
from ekiden.runtime.late import Late, LateLog
from ekiden.runtime.late_methods import dataclass

if TYPE_CHECKING:
    import multiprocessing
    import signal
    from concurrent import futures
    from concurrent.futures import Future, process
else:  # who answers by general kernels starts no workers
    multiprocessing = Late("multiprocessing")
    futures = Late("concurrent.futures")
    process = Late("concurrent.futures.process")
    signal = Late("signal")

Progress = Callable[[int, int, str], None]
"""Called with (kernels done, kernels in all, name of the one just done)."""

LOG = LateLog(__name__)
PARALLEL_FROM = 4
"""Kernels to compile from which starting processes pays."""


@dataclass(frozen=True, slots=True)
class Task:
    """Object code to be made: its key in the cache, a name to show, and how."""

    key: str
    name: str
    compile: Callable[[], bytes]


# Processes and not threads: LLVM compiles in C++ and holds no lock of Python's, but passes of ours
# before it are Python. Forked and not spawned: a fork has the program, the options and all that was
# imported; a spawned process would import all of it again. What a fork asks for is that no thread
# is inside of a lock that the child needs, whence LOCK, `forking`, and what holds LLVM's lock while
# anybody forks (`ekiden.codegen.llvm.compiler`).
LOCK = Lock()
"""Held while kernels are compiled. What is called with each kernel that is done, as progress is,
may compile others."""
_WORK: Sequence[Task] | None = None
"""What forked workers compile: inherited by fork, so that functions need not be sent."""


_NOTES: WorkerNotes | None = None
"""Where a worker says what it compiles; None in a process that is none."""
TOLD = 400
"""Most characters that are repeated of what a worker that was ended had said."""


def _compiled(task: Task) -> bytes:
    with phase(f"kernel: {task.name}", DEBUG):
        return task.compile()


# The name is written down first, so that if LLVM ends the process it is known at which kernel.
def _compile_in_worker(index: int) -> tuple[bytes, list[object]]:
    """The object code, and what the instruments have seen of it."""
    assert _WORK is not None and _NOTES is not None
    _NOTES.say(_WORK[index].name)
    code = _compiled(_WORK[index])
    return code, [each.take_seen() for each in PassContext.current().instruments]


def _begin_worker(notes: WorkerNotes) -> None:
    """Workers leave Ctrl-C to the process that waits for them. What LLVM says before it ends a
    process goes to a file, for that process to tell."""
    global _NOTES
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _NOTES = notes
    notes.begin()
    gc.freeze()  # what the parent holds is not looked through again and again, nor copied for it
    PassContext.current().notify(lambda each: each.begin_worker())


def reason_to_stay() -> str:
    """Why this process may have no children; empty where it may.

    Daemonic are the workers of multiprocessing.Pool, Celery, Dask and PyTorch's data loaders: a
    process that multiprocessing lets start none, as they would outlive it.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        return "this system cannot fork"
    return "it is a daemonic process" if multiprocessing.current_process().daemon else ""


class _Workers:
    """Forked processes that compile what `_WORK` holds.

    Raises OSError, RuntimeError or ImportError where the system lets none start: at a limit of
    processes, without semaphores (containers without /dev/shm), while the interpreter shuts down,
    while another thread goes on importing a module.
    """

    def __init__(self, count: int, jobs: int) -> None:
        context = multiprocessing.get_context("fork")
        others = set(multiprocessing.active_children())
        with ExitStack() as undo:
            self._notes = WorkerNotes(jobs)
            undo.callback(self._notes.close)
            self._pool = futures.ProcessPoolExecutor(jobs, context, _begin_worker, (self._notes,))
            undo.callback(self._pool.shutdown, wait=True, cancel_futures=True)
            self._waiting = self._begin(count)
            undo.pop_all()
        self._processes = set(multiprocessing.active_children()) - others

    def _begin(self, count: int) -> dict[Future[tuple[bytes, list[object]]], int]:
        """All forks happen here: none while a thread, be it another library's, is inside LLVM or
        imports a module, whose locks would stay closed in the child for ever.
        """
        # our own threads, NumPy and LLVM's users leave their locks in order (LOCK, ek_on_fork, the
        # hooks of forks); children never wait for JAX's
        with forking():
            return {self._pool.submit(_compile_in_worker, i): i for i in range(count)}

    def results(self) -> Iterator[tuple[int, bytes]]:
        """(position, object code), in the order they are done."""
        try:
            for done in futures.as_completed(self._waiting):
                code, seen = done.result()
                for each, own in zip(PassContext.current().instruments, seen, strict=False):
                    each.add_seen(own)
                yield self._waiting[done], code
        except process.BrokenProcessPool as error:
            self._pool.shutdown(wait=True, cancel_futures=True)  # which asks how each ended
            raise CompileError(f"compiling kernels: a worker process {self._end()}") from error

    def _end(self) -> str:
        """How the worker ended that ended first, at what, and what it said; the others are
        terminated because of it."""
        codes = {p.pid: p.exitcode for p in self._processes}
        strange = (pid for pid, c in codes.items() if c not in (None, 0, -signal.SIGTERM))
        pid = next(strange, next(iter(codes)))
        code = codes[pid] or -signal.SIGTERM
        at, said = self._notes.of(pid)
        name = signal.Signals(-code).name if code < 0 else ""
        end = f"was ended by {name}" if name else f"ended with {code}"
        said = said[:TOLD].strip()  # LLVM says the reason first, then its stack
        parts = (f"{end} at the kernel {at}" if at else end, said and f": {said}")
        memory = " (out of memory?); EKIDEN_COMPILE_JOBS=1 compiles in this process"
        return "".join(parts) + memory * (name == "SIGKILL")

    def close(self) -> None:
        """Wait for what runs; what has not begun is dropped. What workers said is said here."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if (said := self._notes.said()) and sys.stderr is not None:
            sys.stderr.write(said)
        self._notes.close()


def _start(count: int, jobs: int) -> _Workers | None:
    """Workers for so many tasks; None where there can be none, or they do not pay."""
    if jobs < 2 or count < PARALLEL_FROM:
        return None
    reason = reason_to_stay()
    try:
        return None if reason else _Workers(count, jobs)
    except (OSError, RuntimeError, ImportError) as error:
        reason = str(error)
    finally:
        if reason:
            LOG.info("kernels are compiled in this process: %s", reason)
    return None


def _compile_all(tasks: Sequence[Task]) -> Generator[tuple[int, bytes], None, None]:
    """(position, object code) of each task, in the order they are done."""
    global _WORK
    with LOCK:
        around, _WORK = _WORK, tasks
        workers = None
        try:
            workers = _start(len(tasks), min(environment.compile_jobs(), len(tasks)))
            if workers is None:
                yield from ((i, _compiled(task)) for i, task in enumerate(tasks))
            else:
                yield from workers.results()
        finally:
            if workers is not None:
                workers.close()
            _WORK = around


def compile_tasks(
    tasks: Sequence[Task],
    cache: KernelCache,
    progress: Progress | None = None,
    made: Callable[[Task, bytes], None] | None = None,
) -> dict[str, bytes]:
    """The object code of each task by its key, in the order of the tasks; equal keys once. `made`
    is called with each that the cache has not, as soon as it is there.

    What a task raises is raised; a worker that is killed is a CompileError.
    """
    distinct = {t.key: t for t in tasks}
    objects = {key: code for key in distinct if (code := cache.get(key)) is not None}
    missing = [t for key, t in distinct.items() if key not in objects]
    LOG.info("kernels: %d, of which %d are in the cache", len(distinct), len(objects))
    with closing(_compile_all(missing)) as results:
        for done, (index, code) in enumerate(results):
            task = missing[index]
            objects[task.key] = code
            cache.put(task.key, code)
            if made is not None:
                made(task, code)
            LOG.debug("kernel %d of %d: %s", done + 1, len(missing), task.name)
            if progress is not None:
                progress(done + 1, len(missing), task.name)
    return {key: objects[key] for key in distinct}
