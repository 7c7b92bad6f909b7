"""Extraction of tuning tasks from Relay programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.autotvm.task.space import ConfigSpace
from ekiden.autotvm.task.task import Task
from ekiden.compiler.tune import extract_tasks
from ekiden.ir.expr import BaseFunc
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.relay.build_module import bind_params_in_module
from ekiden.target import Target, TargetLike
from ekiden.tune.space import FamilySpace
from ekiden.tune.task import Task as TuningTask

__all__ = ["extract_from_multiple_program", "extract_from_program", "task_of_kernel"]


def extract_from_program(
    mod: IRModule | BaseFunc,
    params: Mapping[str, object] | None,
    target: TargetLike,
    target_host: TargetLike | None = None,
    ops: Sequence[Op] | None = None,
) -> list[Task]:
    """Return a task for each tunable kernel of a program.

    Args:
        mod: The program.
        params: Values of parameters by name.
        target: The target.
        target_host: The target's host.
        ops: Operators of which a kernel has to have one; None for all.

    Raises:
        CompileError: The program cannot be compiled.
    """
    return extract_from_multiple_program([mod], [params], target, target_host, ops)


def extract_from_multiple_program(
    mods: Sequence[IRModule | BaseFunc],
    params: Sequence[Mapping[str, object] | None],
    target: TargetLike,
    target_host: TargetLike | None = None,
    ops: Sequence[Op] | None = None,
) -> list[Task]:
    """Return a task for each tunable kernel of several programs.

    Args:
        mods: The programs.
        params: Values of parameters by name, for each.
        target: The target.
        target_host: The target's host.
        ops: Operators of which a kernel has to have one; None for all.

    Raises:
        CompileError: A program cannot be compiled.
    """
    chosen = Target(target, host=target_host) if target_host is not None else Target(target)
    names = [op.name.rpartition(".")[2] for op in ops] if ops is not None else None
    tasks: dict[str, Task] = {}
    for program, values in zip(mods, params, strict=True):
        module = program if isinstance(program, IRModule) else IRModule.from_expr(program)
        extracted = extract_tasks(
            bind_params_in_module(module, values) if values else module, chosen
        )
        for kernel in extracted.tasks:
            if names is None or any(name in kernel.name for name in names):
                tasks.setdefault(kernel.key, task_of_kernel(kernel))
    return list(tasks.values())


def task_of_kernel(kernel: TuningTask) -> Task:
    """Return the task of a model's kernel."""
    assert isinstance(kernel.space, FamilySpace), "kernels of models are of families"
    task = Task(kernel.name, (kernel.workload,))
    task.target, task.tuned = kernel.target, kernel
    task.config_space = ConfigSpace(kernel.space.free)
    return task
