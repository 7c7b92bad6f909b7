"""Registry of workload functions, which return the tensors of a computation."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ekiden.autotvm.task.task import deserialize_args, serialize_args
from ekiden.runtime.errors import InputError
from ekiden.te.tensor import Tensor

__all__ = ["make_workload_key", "register_workload", "workload_key_to_tensors"]

WorkloadFunction: TypeAlias = Callable[..., Sequence[Tensor]]
WORKLOADS: dict[str, WorkloadFunction] = {}
"""Name -> function."""


def register_workload(
    func_name: str | WorkloadFunction, f: WorkloadFunction | None = None, override: bool = False
) -> Any:  # noqa: ANN401  a decorator
    """Register a function as a workload under its own or a given name.

    Args:
        func_name: The name, or the function.
        f: The function.
        override: Whether it may take the place of another.

    Raises:
        InputError: The name is taken by another function.
    """
    name = func_name if isinstance(func_name, str) else func_name.__name__

    def register(function: WorkloadFunction) -> WorkloadFunction:
        """Register the function under its name. Raises InputError for the name of another
        workload.
        """
        if name in WORKLOADS and not override and WORKLOADS[name] is not function:
            raise InputError(f"register_workload: '{name}' is another function's name already")
        WORKLOADS[name] = function
        return function

    function = f if isinstance(func_name, str) else func_name
    return register(function) if function is not None else register


def make_workload_key(func: str | WorkloadFunction, args: Sequence[object]) -> str:
    """Return the key of a workload with its arguments, the JSON text of [name, argument, ...].
    Raises InputError for a function that is not registered.
    """
    name = func if isinstance(func, str) else func.__name__
    if name not in WORKLOADS:
        names = ", ".join(WORKLOADS) or "none"
        raise InputError(f"make_workload_key: no workload is called '{name}'; there are: {names}")
    return json.dumps([name, *serialize_args(args)])


def workload_key_to_tensors(workload_key: str) -> list[Tensor]:
    """Return the tensors of a workload key, inputs first. Raises InputError for an unknown
    workload.
    """
    name, *args = json.loads(workload_key)
    if name not in WORKLOADS:
        raise InputError(f"auto_scheduler: no workload is called '{name}'")
    return list(WORKLOADS[name](*deserialize_args([_as_tuple(arg) for arg in args])))


def _as_tuple(arg: object) -> object:
    return tuple(map(_as_tuple, arg)) if isinstance(arg, list) else arg
