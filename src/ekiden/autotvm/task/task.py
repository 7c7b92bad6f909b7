"""Tuning tasks: a template with its arguments, or a kernel of a model, for a target."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ekiden import tune
from ekiden.autotvm.task.dispatch_context import DispatchContext
from ekiden.autotvm.task.space import ConfigEntity, ConfigSpace
from ekiden.ir.prim import IntImm
from ekiden.runtime.errors import InputError
from ekiden.target import Target, TargetLike, target_or_current
from ekiden.te.prim_func import create_prim_func
from ekiden.te.schedule import Schedule
from ekiden.te.tensor import PlaceholderOp, Tensor, placeholder
from ekiden.tir.analysis import estimate_tir_flops
from ekiden.tune.schedule_templates import (
    CURRENT_CONFIG,
    REGISTERED_TEMPLATES,
    Config,
    Function,
    with_config,
)
from ekiden.tune.task import Task as TuningTask

__all__ = [
    "Task",
    "args_to_workload",
    "compute_flop",
    "create",
    "deserialize_args",
    "get_config",
    "register_topi_compute",
    "register_topi_schedule",
    "serialize_args",
    "template",
]

Scheduled: TypeAlias = tuple[Schedule, Sequence[Tensor]]


def serialize_args(args: Sequence[object]) -> tuple[object, ...]:
    """Serialize arguments: tensors as ("TENSOR", shape, dtype), sequences as tuples. Raises
    InputError for others.
    """
    return tuple(map(_serialize, args))


def _serialize(arg: object) -> object:
    if isinstance(arg, Tensor):
        return "TENSOR", tuple(map(_serialize, arg.shape)), arg.dtype
    if isinstance(arg, (list, tuple)):
        return tuple(map(_serialize, arg))
    if isinstance(arg, IntImm):
        return arg.value
    if arg is None or isinstance(arg, (str, int, float)):
        return arg
    if hasattr(arg, "name"):  # a variable of a shape
        return str(arg)
    raise InputError(f"autotvm: no template has an argument of the type {type(arg).__name__}")


def deserialize_args(args: Sequence[object]) -> list[object]:
    """Deserialize arguments, with a placeholder for each ("TENSOR", shape, dtype)."""
    return [
        placeholder(arg[1], arg[2]) if isinstance(arg, tuple) and arg[:1] == ("TENSOR",) else arg
        for arg in args
    ]


def args_to_workload(args: Sequence[object], task_name: str | None = None) -> tuple[object, ...]:
    """Return the workload of a task name and its serialized arguments."""
    return ((task_name,) if task_name is not None else ()) + serialize_args(args)


class Task:
    """Tuning task of AutoTVM, on top of one of `ekiden.tune`.

    name: of the template, or of the kernel family. args: of the template; for a kernel the digest
    of what it computes. flop: operations of a call.
    """

    def __init__(self, name: str, args: Sequence[object]) -> None:
        self.name = name
        self.args = tuple(args)
        self.kwargs: dict[str, object] = {}
        self.target: Target | None = None
        self.config_space = ConfigSpace()
        self.tuned: TuningTask | None = None
        """The task of `ekiden.tune`; None for one that a log names."""

    @property
    def workload(self) -> tuple[object, ...]:
        """Return the workload, which identifies the task in logs."""
        return args_to_workload(self.args, self.name)

    @property
    def flop(self) -> int:
        """Return the number of arithmetic operations of one execution."""
        return self.config_space.flop or (self.tuned.flops if self.tuned is not None else 0)

    @property
    def tuning_task(self) -> TuningTask:
        """Return the corresponding task of `ekiden.tune`. Raises InputError for a task known by a
        log entry only.
        """
        if self.tuned is None:
            raise InputError(f"autotvm: {self} is a log's: create() makes one that can be measured")
        return self.tuned

    def instantiate(self, config: Config) -> Scheduled:
        """Return the schedule and tensors of a configuration. Raises InputError for a kernel of a
        model, which has no template.
        """
        if self.name not in REGISTERED_TEMPLATES:
            raise InputError(f"autotvm: {self} is no template: it has no schedule by te")
        chosen = Config(config.fixed, flop=0) if isinstance(config, ConfigEntity) else config
        with self.target or target_or_current(None), with_config(chosen):
            return REGISTERED_TEMPLATES[self.name](*deserialize_args(self.args))

    def __repr__(self) -> str:
        return f"Task(func_name={self.name}, args={self.args}, target={self.target})"


def create(
    task_name: str,
    args: Sequence[object],
    target: TargetLike | None = None,
    target_host: TargetLike | None = None,
) -> Task:
    """Create a task from a template, its arguments and a target.

    Args:
        task_name: The name of the template.
        args: Its arguments.
        target: The target; the current one by default.
        target_host: The target's host.

    Raises:
        InputError: An unknown name, or a template without knobs.
    """
    task = Task(task_name, serialize_args(args))
    task.target = target_or_current(target)
    if target_host is not None:
        task.target = Target(task.target, host=target_host)
    task.tuned = tune.template_task(
        task_name, deserialize_args(task.args), task.target, config=task.config_space
    )
    return task


def get_config() -> Config:
    """Return the configuration of the running template, or of the dispatch context outside of
    one.
    """
    return CURRENT_CONFIG.get() or DispatchContext.current_context().query(None, ())


def _call_dispatched(name: str, function: Callable[..., Any], args: Sequence[object]) -> Any:  # noqa: ANN401
    """Call a template with the configuration of its workload, unless one is being instantiated."""
    if CURRENT_CONFIG.get() is not None:
        return function(*args)
    workload = args_to_workload(args, name)
    config = DispatchContext.current_context().query(Target.current(), workload)
    with with_config(_copy_for_redefinition(config)):
        return function(*args)


def _copy_for_redefinition(config: Config) -> Config:
    """Return a copy of a configuration from a log or an earlier run, whose knobs the template
    defines again.
    """
    return Config(config.fixed) if isinstance(config, ConfigEntity) else config


def template(task_name: str, func: Function | None = None) -> Any:  # noqa: ANN401  a decorator
    """Register a function as a template, which returns a schedule and its tensors. Outside of
    tuning, calls use the dispatch context's configuration.
    """

    def register(function: Function) -> Function:
        """Register the template, and return a function that calls it with a configuration."""
        REGISTERED_TEMPLATES[task_name] = function

        @functools.wraps(function)
        def call_template(*args: object) -> Scheduled:
            result: Scheduled = _call_dispatched(task_name, function, args)
            return result

        return call_template

    return register(func) if func is not None else register


def register_topi_compute(task_name: str, func: Callable[..., Tensor] | None = None) -> Any:  # noqa: ANN401  a decorator
    """Register the compute function of a two-part task; it receives the configuration before its
    arguments and returns a tensor.
    """

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Register the compute function, and return a function that calls it with a
        configuration.
        """
        _COMPUTES[task_name] = function
        REGISTERED_TEMPLATES[task_name] = functools.partial(_run_parts, task_name)

        @functools.wraps(function)
        def call_compute(*args: object) -> Tensor:
            """Call the compute function with the configuration of its task."""
            with_own_config = functools.partial(_call_with_config, function)
            result: Tensor = _call_dispatched(task_name, with_own_config, args)
            return result

        return call_compute

    return register(func) if func is not None else register


def register_topi_schedule(task_name: str, func: Callable[..., Schedule] | None = None) -> Any:  # noqa: ANN401  a decorator
    """Register the schedule function of a two-part task; it receives the configuration and the
    results, and returns a schedule.
    """

    def register(function: Callable[..., Schedule]) -> Callable[..., Schedule]:
        """Register the schedule function, and return a function that calls it with a
        configuration.
        """
        _SCHEDULES[task_name] = function

        @functools.wraps(function)
        def call_schedule(outs: Sequence[Tensor] | Tensor, *args: object) -> Schedule:
            """Call the schedule function with the configuration of its task."""
            with_own_config = functools.partial(_call_with_config, function)
            result: Schedule = _call_dispatched(task_name, with_own_config, (outs, *args))
            return result

        return call_schedule

    return register(func) if func is not None else register


def _call_with_config(function: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401
    return function(get_config(), *args)


def _run_parts(task_name: str, *args: object) -> Scheduled:
    """Run the compute and schedule functions of a two-part task. Raises InputError without a
    schedule function.
    """
    if task_name not in _SCHEDULES:
        raise InputError(f"autotvm: '{task_name}' has a computation, and no schedule")
    result = _COMPUTES[task_name](get_config(), *args)
    schedule = _SCHEDULES[task_name](get_config(), [result])
    return schedule, [*(arg for arg in args if isinstance(arg, Tensor)), result]


_COMPUTES: dict[str, Callable[..., Tensor]] = {}
_SCHEDULES: dict[str, Callable[..., Schedule]] = {}


def compute_flop(sch: Schedule) -> int:
    """Return the number of arithmetic operations that a schedule's outputs take, without those of
    indices. Raises InputError for a schedule that only moves data.
    """
    inputs = [stage.op.output(0) for stage in sch.stages if isinstance(stage.op, PlaceholderOp)]
    outputs = [op.output(n) for op in sch.outputs for n in range(op.num_outputs)]
    flops = int(estimate_tir_flops(create_prim_func([*inputs, *outputs])))
    if not flops:
        raise InputError("compute_flop: the schedule has no arithmetic operation: it moves data")
    return flops
