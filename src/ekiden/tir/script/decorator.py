"""The decorators `@T.prim_func` and `@I.ir_module`, which parse Python source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import overload

from ekiden.ir.diagnostics import reports_errors
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.tir.script.builtins import I, RelayText, T
from ekiden.tir.script.evaluate import ScriptSource
from ekiden.tir.script.parser import parse_function, parse_python_ast
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
    """Parse a Python function as a loop program; it is never run.

    It can refer to names in scope: numbers, dtypes, buffers' shapes. With `private` it gets no
    symbol; `check_well_formed` is accepted as in TVM, `tir.verify` checks. Raises ParseError at the
    line of the file.
    """
    del private, check_well_formed  # the first is read from the source
    frame = inspect.currentframe()
    caller = frame.f_back if frame is not None else None
    if func is not None:
        return _parse_python_function(func, caller)
    return lambda function: _parse_python_function(function, caller)


@reports_errors()
def _parse_python_function(func: PythonFunction, caller: FrameType | None) -> PrimFunc:
    try:
        lines, first = inspect.getsourcelines(func)
    except OSError as error:
        raise TypeError(
            f"prim_func {func.__name__!r}: no source to read; use ekiden.tir.parse on a text"
        ) from error
    text = "".join(lines)
    indent = len(text) - len(text.lstrip())
    source = ScriptSource(
        textwrap.dedent(text), inspect.getsourcefile(func) or "script", first, indent
    )
    (node,) = parse_python_ast(source.text, source).body
    assert isinstance(node, ast.FunctionDef)
    names: dict[str, object] = {
        **func.__globals__,
        **_names_at_decorator(caller),
        **_closure_variables(func),
    }
    return parse_function(node, source, names)


def _closure_variables(func: PythonFunction) -> dict[str, object]:
    """Return the enclosing functions' variables that a function uses, without unassigned ones such
    as the name of the class being defined.
    """
    names: dict[str, object] = {}
    for name, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
        with suppress(ValueError):  # the cell is empty
            names[name] = cell.cell_contents
    return names


def _names_at_decorator(caller: FrameType | None) -> dict[str, object]:
    """Return the names visible at the decorator, innermost frame first."""
    names: dict[str, object] = {}
    while caller is not None:
        names = {**caller.f_locals, **names}
        if caller.f_code.co_name == "<module>":
            break
        caller = caller.f_back
    return names


@overload
def ir_module(cls: type, /) -> IRModule: ...
@overload
def ir_module(
    cls: None = None, /, check_well_formed: bool = True
) -> Callable[[type], IRModule]: ...
def ir_module(
    cls: type | None = None, /, check_well_formed: bool = True
) -> IRModule | Callable[[type], IRModule]:
    """Return a module of the functions among a class's attributes; `relay = I.relay(...)` adds
    Relay functions. `check_well_formed` is accepted as in TVM, `tir.verify` checks.
    """
    if cls is None:
        return ir_module
    del check_well_formed
    functions: dict[GlobalVar | str, BaseFunc] = {}
    relay = RelayText("")
    for name, value in vars(cls).items():
        if isinstance(value, BaseFunc):
            functions[name] = value
        elif isinstance(value, RelayText):
            relay = value
    return relay.parse(functions) if relay.text else IRModule(functions)


I.ir_module = ir_module
T.prim_func = prim_func
