"""Extraction of tuning tasks from Relay programs."""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.auto_scheduler.search_task import HardwareParams, SearchTask
from ekiden.compiler.tune import extract_tasks as extract_tuning_tasks
from ekiden.ir.expr import BaseFunc
from ekiden.ir.module import IRModule
from ekiden.relay.build_module import bind_params_in_module
from ekiden.target import Target, TargetLike

__all__ = ["extract_tasks"]


def extract_tasks(
    mod: IRModule | BaseFunc,
    params: Mapping[str, object] | None,
    target: TargetLike,
    target_host: TargetLike | None = None,
    hardware_params: HardwareParams | None = None,
    include_simple_tasks: bool = False,
    dump_workload_to_dag_log: str | None = None,
    opt_level: int = 3,
) -> tuple[list[SearchTask], list[int]]:
    """Return a task for each tunable kernel of a program, and the number of its calls per run.

    Args:
        mod: The program.
        params: Values of parameters by name.
        target: The target.
        target_host: The target's host.
        hardware_params: Unused: the target has the machine's facts.
        include_simple_tasks: Unused: what has no choices is no task.
        dump_workload_to_dag_log: Unused: a task is found by its digest.
        opt_level: Unused: kernels are those of a compilation.

    Raises:
        CompileError: The program cannot be compiled.
    """
    chosen = Target(target, host=target_host) if target_host is not None else Target(target)
    module = mod if isinstance(mod, IRModule) else IRModule.from_expr(mod)
    extracted = extract_tuning_tasks(
        bind_params_in_module(module, params) if params else module, chosen
    )
    tasks = [SearchTask.of_kernel(kernel) for kernel in extracted.tasks]
    return tasks, [kernel.calls for kernel in extracted.tasks]
