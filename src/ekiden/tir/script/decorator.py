"""`@T.prim_func` and `@I.ir_module` on Python source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import overload

from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.tir.script.builtins import I, T
from ekiden.tir.script.evaluate import Source
from ekiden.tir.script.parser import parse_function, parse_tree
from ekiden.tir.stmt import PrimFunc

PythonFunction = Callable[..., object]


@overload
def prim_func(func: PythonFunction, /) -> PrimFunc: ...
@overload
def prim_func(
    func: None = None, /, private: bool = False, check_well_formed: bool = True
) -> Callable[[PythonFunction], PrimFunc]: ...
def prim_func(
    func: PythonFunction | None = None, /, private: bool = False, check_well_formed: bool = True
) -> PrimFunc | Callable[[PythonFunction], PrimFunc]:
    """Read a Python function as a loop program; it is never run.

    It sees the names around it: numbers, dtypes, buffers' shapes. With `private` it gets no
    symbol; `check_well_formed` is TVM's, `tir.verify` checks. Raises ParseError at the line of the
    file.
    """
    del private, check_well_formed  # the first is read from the source
    frame = inspect.currentframe()
    caller = frame.f_back if frame is not None else None
    if func is not None:
        return _parse(func, caller)
    return lambda function: _parse(function, caller)


def _parse(func: PythonFunction, caller: FrameType | None) -> PrimFunc:
    try:
        lines, first = inspect.getsourcelines(func)
    except OSError as error:
        raise TypeError(
            f"prim_func {func.__name__!r}: no source to read; use ekiden.tir.parse on a text"
        ) from error
    text = "".join(lines)
    indent = len(text) - len(text.lstrip())
    source = Source(textwrap.dedent(text), inspect.getsourcefile(func) or "script", first, indent)
    (node,) = parse_tree(source.text, source).body
    assert isinstance(node, ast.FunctionDef)
    names: dict[str, object] = {**func.__globals__, **_outer(caller), **_enclosed(func)}
    return parse_function(node, source, names)


def _enclosed(func: PythonFunction) -> dict[str, object]:
    """The names of enclosing functions that a function uses; without those that have no value yet,
    such as the name of the class that it stands in."""
    found: dict[str, object] = {}
    for name, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
        with suppress(ValueError):  # the cell is empty
            found[name] = cell.cell_contents
    return found


def _outer(caller: FrameType | None) -> dict[str, object]:
    """The names where the decorator stands, those of enclosing functions last."""
    found: dict[str, object] = {}
    while caller is not None:
        found = {**caller.f_locals, **found}
        if caller.f_code.co_name == "<module>":
            break
        caller = caller.f_back
    return found


@overload
def ir_module(cls: type, /) -> IRModule: ...
@overload
def ir_module(
    cls: None = None, /, check_well_formed: bool = True
) -> Callable[[type], IRModule]: ...
def ir_module(
    cls: type | None = None, /, check_well_formed: bool = True
) -> IRModule | Callable[[type], IRModule]:
    """A class whose attributes are functions, as a module of them; `relay = I.relay(...)` adds
    Relay's. `check_well_formed` is TVM's, `tir.verify` checks.
    """
    if cls is None:
        return ir_module
    del check_well_formed
    functions: dict[GlobalVar | str, BaseFunc] = {}
    found = IRModule()
    for name, value in vars(cls).items():
        if isinstance(value, BaseFunc):
            functions[name] = value
        elif isinstance(value, IRModule):
            found = value
    merged: dict[GlobalVar | str, BaseFunc] = dict(found.functions.items())
    merged.update(functions)
    return IRModule(merged, found.type_definitions, found.attrs)


I.ir_module = ir_module
T.prim_func = prim_func
