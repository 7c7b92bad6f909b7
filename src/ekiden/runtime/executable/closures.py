"""Closures that a program returns. Python functions for its closures, and back."""

from __future__ import annotations

import numpy as np

from ekiden import runtime
from ekiden.runtime.artifact.metadata import CALL_CLOSURE_FUNCTION
from ekiden.runtime.errors import RunError
from ekiden.runtime.executable.vm_pool import VMPool

__all__ = ["Closure", "vm_argument", "wrap_closures"]


class Closure:
    """Function that a program returned. It can be an argument of that program's functions."""

    def __init__(self, machine: VMPool, value: object) -> None:
        self.machine = machine
        self.value = value

    def __call__(self, *args: object) -> object:
        """Call it with arrays, tensors, data or functions that the program returned.

        Raises RunError for another number of arguments than its type says.
        """
        name = f"{CALL_CLOSURE_FUNCTION} {len(args)}"
        if name not in self.machine.executable.globals:
            raise RunError(f"call: no function that the program gives takes {len(args)} arguments")
        return wrap_closures(
            self.machine.invoke(name, self.value, *map(vm_argument, args)), self.machine
        )


def vm_argument(value: object) -> object:
    """Return an argument in the form that the virtual machine accepts."""
    if isinstance(value, (np.ndarray, np.generic)):
        return runtime.tensor(value)
    return value.value if isinstance(value, Closure) else value


def wrap_closures(root: object, machine: VMPool) -> object:
    """Wrap each closure in a result, however deep, in a Python function."""
    converted: dict[int, object] = {}
    stack = [root]
    while stack:
        value = stack[-1]
        inner = value if isinstance(value, tuple) else ()
        if missing := [item for item in inner if id(item) not in converted]:
            stack.extend(missing)
            continue
        stack.pop()
        converted[id(value)] = _wrap_fields(
            value, [converted[id(element)] for element in inner], machine
        )
    return converted[id(root)]


def _wrap_fields(value: object, fields: list[object], machine: VMPool) -> object:
    if isinstance(value, tuple):
        return runtime.ADT(value.tag, fields) if isinstance(value, runtime.ADT) else tuple(fields)
    return Closure(machine, value) if getattr(value, "type_key", "") == "ek.Closure" else value
