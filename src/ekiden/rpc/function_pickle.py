"""Serialization of a program's functions for another process of the same Python.

A function of a library that is installed goes by its name, any other by what it is: its code, its
defaults, what it closes over, and the globals that it uses, which are data, modules and functions
of the same kinds. Functions of one module share their globals there, too.
"""

from __future__ import annotations

import dis
import io
import marshal
import pickle
import sys
import sysconfig
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from ekiden.rpc.errors import RPCError

__all__ = ["deserialize_function", "serialize_function"]

_globals_by_id: dict[int, dict[str, object]] = {}
"""Globals of functions by the number that they had where they come from."""


def serialize_function(what: str, function: Callable[..., object]) -> bytes:
    """Serialize a function."""
    file = io.BytesIO()
    try:
        _FunctionPickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(function)
    except (pickle.PicklingError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise RPCError(
            f"{what}: a session is a program of its own, to which this function cannot go:"
            f" {error}; functions, modules and plain data can, or what a library has"
        ) from error
    return file.getvalue()


def deserialize_function(data: bytes) -> Callable[..., object]:
    """Deserialize a function."""
    function: Callable[..., object] = pickle.loads(data)
    return function


class _FunctionPickler(pickle.Pickler):
    """Pickler that serialises a program's own functions by value and modules by name."""

    def reducer_override(self, value: Any) -> Any:  # noqa: ANN401  # pickle's own protocol
        """Return the reduction of a value that pickle cannot handle."""
        if isinstance(value, ModuleType):
            return import_module, (value.__name__,)
        if isinstance(value, FunctionType) and not _is_importable(value):
            return _reduce_function(value)
        # A class of __main__ would need its methods' globals as well; only functions are supported.
        if isinstance(value, type) and not _is_importable(value):
            raise pickle.PicklingError(f"the class '{value.__qualname__}' of a program")
        return NotImplemented


def _library_folders() -> Iterator[str]:
    """Yield the folders of installed packages and of Ekiden itself."""
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        yield sysconfig.get_path(name) + "/"
    yield str(Path(__file__).parents[1]) + "/"


def _is_importable(value: Any) -> bool:  # noqa: ANN401  # a function or class
    """Return whether another process can import a function or class by name."""
    module = sys.modules.get(value.__module__ or "")
    if module is None or module.__name__ == "__main__":
        return False
    member: object = module
    for name in value.__qualname__.split("."):
        member = getattr(member, name, None)
    file = getattr(module, "__file__", None)
    return member is value and (file is None or file.startswith(tuple(_library_folders())))


def _used_globals(code: CodeType) -> set[str]:
    """Return the names of the globals that code reads, nested functions included."""
    names: set[str] = set()
    codes = [code]
    while codes:
        code = codes.pop()
        codes += (item for item in code.co_consts if isinstance(item, CodeType))
        loads = (i for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
        names.update(str(i.argval) for i in loads)
    return names


def _reduce_function(function: FunctionType) -> tuple[object, ...]:
    """Return the reduction of a function by value: first empty, as what it uses may lead back to
    it.
    """
    names = _used_globals(function.__code__) & function.__globals__.keys()
    state = {
        "globals": {name: function.__globals__[name] for name in sorted(names)},
        "cells": [_cell_contents(cell) for cell in function.__closure__ or ()],
        "defaults": function.__defaults__,
        "keyword_defaults": function.__kwdefaults__,
        "names": (function.__name__, function.__qualname__, function.__doc__),
        "attributes": function.__dict__,
    }
    # The id groups functions of one module: they share one dictionary of globals on the other side.
    key = (marshal.dumps(function.__code__), id(function.__globals__))
    return _make_function, key, state, None, None, _fill_function


def _cell_contents(cell: CellType) -> tuple[object, ...]:
    """Return the contents of a closure cell as a tuple, empty if the cell is."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _make_function(code: bytes, namespace: int) -> FunctionType:
    """Create a function with empty globals and closure, to be filled by `_fill_function`."""
    content = marshal.loads(code)
    values = _globals_by_id.setdefault(namespace, {"__builtins__": __builtins__})
    return FunctionType(content, values, closure=tuple(CellType() for _ in content.co_freevars))


def _fill_function(function: FunctionType, state: dict[str, Any]) -> None:
    """Set a function's globals and closure contents."""
    function.__globals__.update(state["globals"])
    for cell, content in zip(function.__closure__ or (), state["cells"], strict=True):
        for value in content:
            cell.cell_contents = value
    function.__defaults__, function.__kwdefaults__ = state["defaults"], state["keyword_defaults"]
    function.__name__, function.__qualname__, function.__doc__ = state["names"]
    function.__dict__.update(state["attributes"])
