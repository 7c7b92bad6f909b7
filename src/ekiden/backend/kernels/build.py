"""Compile the kernels of a module: once per distinct function, in parallel processes, through the disk cache."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ekiden.backend.kernels.cache import KernelCache, kernel_key
from ekiden.backend.kernels.canonical import canonicalize
from ekiden.backend.kernels.lower import lower_primitive
from ekiden.codegen import llvm
from ekiden.ir.op import Op
from ekiden.relay.expr import Call, Function
from ekiden.relay.transform.scopes import evaluation_order
from ekiden.runtime import environment
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


_WORK: tuple[list[_Task], Target] | None = None
"""What forked workers compile: inherited by fork, so that functions need not be sent."""


def _compile_one(index: int) -> tuple[int, bytes]:
    assert _WORK is not None
    tasks, target = _WORK
    return index, llvm.compile_object([tasks[index].lower(target)], target)


def _compile_all(tasks: list[_Task], target: Target) -> Iterator[tuple[int, bytes]]:
    global _WORK
    _WORK = (tasks, target)
    jobs = min(environment.compile_jobs(), len(tasks))
    try:
        if jobs < 2 or len(tasks) < PARALLEL_FROM:
            yield from map(_compile_one, range(len(tasks)))
            return
        with multiprocessing.get_context("fork").Pool(jobs) as pool:
            yield from pool.imap_unordered(_compile_one, range(len(tasks)))
    finally:
        _WORK = None


def _tasks(functions: Iterable[Function], target: Target) -> list[_Task]:
    tasks = []
    for function in functions:
        canonical = canonicalize(function)
        key = kernel_key(canonical, target)
        tasks.append(_Task(key, f"{_display_name(canonical)}_{key[:8]}", canonical))
    return tasks


def build_kernels(
    functions: Sequence[Function],
    extra: Sequence[PrimFunc],
    target: Target,
    progress: Progress | None = None,
    cache: KernelCache | None = None,
) -> Kernels:
    """Compile primitive functions and loop programs (`extra`, exported under their own names).

    Equal functions share a kernel. Raises CompileError with the model node of the function that failed.
    """
    cache = cache or KernelCache.default()
    tasks = _tasks(functions, target)
    distinct = {t.key: t for t in tasks}
    objects = {key: code for key in distinct if (code := cache.get(key)) is not None}
    missing = [t for key, t in distinct.items() if key not in objects]
    for done, (index, code) in enumerate(_compile_all(missing, target)):
        task = missing[index]
        objects[task.key] = code
        cache.put(task.key, code)
        if progress is not None:
            progress(done + 1, len(missing), task.name)
    parts = [objects[key] for key in distinct]
    names = [t.name for t in distinct.values()]
    if extra:
        parts.append(llvm.compile_object([tir_transform.lower(f, target) for f in extra], target))
        names.extend(f.name for f in extra)
    return Kernels([t.name for t in tasks], llvm.link(parts, names) if parts else b"")
