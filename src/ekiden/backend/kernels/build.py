"""Compile the kernels of a module: once per distinct function, in parallel processes, through
the disk cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ekiden.backend.kernels.canonical import canonicalize
from ekiden.backend.kernels.lower import described, lower_primitive
from ekiden.codegen import llvm
from ekiden.codegen.cache import KernelCache, kernel_key
from ekiden.codegen.parallel import LOCK, Progress, Task, compile_tasks
from ekiden.ir.op import Op
from ekiden.ir.pass_context import phase
from ekiden.relay.expr import Call, Function
from ekiden.relay.transform.scopes import evaluation_order
from ekiden.target import Target
from ekiden.tir import transform as tir_transform
from ekiden.tir.stmt import PrimFunc

MAX_NAME = 80


@dataclass(frozen=True, slots=True)
class Kernels:
    """Compiled kernels: the name of each function asked for, and objects that export them all."""

    names: list[str]
    objects: list[bytes]
    exports: list[str]

    @property
    def image(self) -> bytes:
        """One image of them."""
        return self.link()

    @phase("link")
    def link(self, objects: Sequence[bytes] = (), exports: Sequence[str] = ()) -> bytes:
        """One image of them, and of other objects, which may call them; empty without any."""
        parts = [*self.objects, *objects]
        return llvm.link(parts, [*self.exports, *exports]) if parts else b""


def _display_name(function: Function) -> str:
    ops = [
        e.op.name
        for e in evaluation_order(function.body)
        if isinstance(e, Call) and isinstance(e.op, Op)
    ]
    return "fused_" + "_".join(n.replace(".", "_") for n in ops)[:MAX_NAME]


def _compile(function: Function, name: str, target: Target) -> bytes:
    """The object code of a function in canonical form."""
    try:
        func = lower_primitive(function, name, target)
        # the VM gives results memory that no argument has
        func = func.with_fields(attrs={**(func.attrs or {}), "tir.noalias": True})
        lowered = tir_transform.lower(func, target)
        return llvm.compile_object([lowered], target)
    except Exception as error:
        if not getattr(error, "__notes__", None):
            error.add_note(f"while compiling {described(function, name)}")
        raise


def _tasks(functions: Iterable[Function], target: Target) -> list[Task]:
    return [_task(canonicalize(function), target) for function in functions]


def _task(function: Function, target: Target) -> Task:
    key = kernel_key(function, target)
    name = f"{_display_name(function)}_{key[:12]}"
    return Task(key, name, lambda: _compile(function, name, target))


@phase("kernels")
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
    tasks = _tasks(functions, target)
    objects = compile_tasks(tasks, cache or KernelCache.default(), progress)
    parts = list(objects.values())
    names = list({t.key: t.name for t in tasks}.values())
    if extra:
        with LOCK:
            lowered = [tir_transform.lower(f, target) for f in extra]
            parts.append(llvm.compile_object(lowered, target))
        names.extend(f.name for f in extra)
    return Kernels([t.name for t in tasks], parts, names)
