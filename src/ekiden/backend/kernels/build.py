"""Compile the kernels of a module: once per distinct function, in parallel processes, through
the disk cache.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass

from ekiden.backend.kernels.cache import KernelCache, kernel_key
from ekiden.backend.kernels.canonical import canonicalize
from ekiden.backend.kernels.lower import described, lower_primitive
from ekiden.codegen import llvm
from ekiden.ir.op import Op
from ekiden.relay.expr import Call, Function
from ekiden.relay.transform.scopes import evaluation_order
from ekiden.runtime import environment
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.tir import transform as tir_transform
from ekiden.tir.stmt import PrimFunc

Progress = Callable[[int, int, str], None]
"""Called with (kernels done, kernels in all, name of the one just done)."""

MAX_NAME = 80
PARALLEL_FROM = 4
"""Kernels to compile from which starting processes pays."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Compiled kernels: the name of each function asked for, and one image with all of them."""

    names: list[str]
    image: bytes


def _display_name(function: Function) -> str:
    ops = [
        e.op.name
        for e in evaluation_order(function.body)
        if isinstance(e, Call) and isinstance(e.op, Op)
    ]
    return "fused_" + "_".join(n.replace(".", "_") for n in ops)[:MAX_NAME]


@dataclass(frozen=True, slots=True)
class _Task:
    """One distinct kernel."""

    key: str
    name: str
    function: Function

    def lower(self, target: Target) -> PrimFunc:
        """Its loop program, as code generators take it."""
        return tir_transform.lower(lower_primitive(self.function, self.name, target), target)


_LOCK = threading.Lock()
"""Held while kernels are compiled: no other thread is inside LLVM when processes are forked."""
_WORK: tuple[list[_Task], Target] | None = None
"""What forked workers compile: inherited by fork, so that functions need not be sent."""


def _compile_one(index: int) -> bytes:
    assert _WORK is not None
    tasks, target = _WORK
    task = tasks[index]
    try:
        return llvm.compile_object([task.lower(target)], target)
    except Exception as error:
        if not getattr(error, "__notes__", None):
            error.add_note(f"while compiling {described(task.function, task.name)}")
        raise


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
        with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads; see _LOCK
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


def _compile_all(tasks: list[_Task], target: Target) -> Generator[tuple[int, bytes], None, None]:
    """(position, object code) of each task, in the order they are done."""
    global _WORK
    jobs = min(environment.compile_jobs(), len(tasks))
    with _LOCK:
        _WORK = (tasks, target)
        try:
            if jobs < 2 or len(tasks) < PARALLEL_FROM:
                yield from ((i, _compile_one(i)) for i in range(len(tasks)))
            else:
                yield from _in_parallel(len(tasks), jobs)
        finally:
            _WORK = None


def _tasks(functions: Iterable[Function], target: Target) -> list[_Task]:
    tasks = []
    for function in functions:
        canonical = canonicalize(function)
        key = kernel_key(canonical, target)
        tasks.append(_Task(key, f"{_display_name(canonical)}_{key[:12]}", canonical))
    return tasks


def build_kernels(
    functions: Sequence[Function],
    extra: Sequence[PrimFunc],
    target: Target,
    progress: Progress | None = None,
    cache: KernelCache | None = None,
) -> Kernels:
    """Compile primitive functions and loop programs (`extra`, exported under their own names).

    Equal functions share a kernel. Raises CompileError with the model node of the function that
    failed.
    """
    cache = cache or KernelCache.default()
    tasks = _tasks(functions, target)
    distinct = {t.key: t for t in tasks}
    objects = {key: code for key in distinct if (code := cache.get(key)) is not None}
    missing = [t for key, t in distinct.items() if key not in objects]
    with closing(_compile_all(missing, target)) as results:
        for done, (index, code) in enumerate(results):
            task = missing[index]
            objects[task.key] = code
            cache.put(task.key, code)
            if progress is not None:
                progress(done + 1, len(missing), task.name)
    parts = [objects[key] for key in distinct]
    names = [t.name for t in distinct.values()]
    if extra:
        with _LOCK:
            lowered = [tir_transform.lower(f, target) for f in extra]
            parts.append(llvm.compile_object(lowered, target))
        names.extend(f.name for f in extra)
    return Kernels([t.name for t in tasks], llvm.link(parts, names) if parts else b"")
