"""Relay script: a decorator that parses Python functions to Relay.

    @relay.script
    def power(x: "Tensor[(n,), float32]", k: "int32") -> "Tensor[(n,), float32]":
        y = relay.ones_like(x)
        while k > 0:
            y, k = y * x, k - 1
        return y

    power.module      # an IRModule with @power
    power.function    # its relay.Function

The text of the function is read, not run. Parameters are Relay variables, and so is what is
computed from them; everything else is Python's, at the time of decoration: operators such as
`relay.nn.relu` are called, numbers become constants where they meet Relay values, an `if` on a
Python value is decided. An assignment is a `let`; `if`, `while`, `for ... in range(...)`, `match`
on constructors, inner functions, `lambda` and calls of the function itself become what Relay has
for them.

A type is Relay text in quotes (none are needed under `from __future__ import annotations`), a relay
type, or int, float, bool for scalars of int32, float32 and bool. What cannot be said raises
ParseError, a wrong type TypeInferenceError; both show the line.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType
from typing import overload

from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.type import FuncType
from ekiden.relay.expr import Call, Function
from ekiden.relay.lexer import SourceText
from ekiden.relay.reader.source_location import SourceLocation
from ekiden.relay.reader.statements import StatementTranslator
from ekiden.relay.type_infer import infer_type
from ekiden.runtime.errors import TypeInferenceError


class RelayScript:
    """Python function parsed to Relay. Inside another one it is called like any function."""

    def __init__(self, function: FunctionType, base: IRModule) -> None:
        """Read the source of `function`, which may call the functions of `base`."""
        self.name = function.__name__
        self.__doc__ = function.__doc__
        location = _source_location(function)
        tree = location.tree
        self.global_var = GlobalVar(self.name)
        body = StatementTranslator(location, _captured_names(function), base, self)
        params, ret_type = body.translate_signature(tree)
        kinds = [p.type_annotation for p in params]
        if ret_type is not None and all(k is not None for k in kinds):
            param_types = tuple(k for k in kinds if k is not None)
            self.global_var.set_checked_type(FuncType(param_types, ret_type))
        relay_function = body.translate_function(tree, params, ret_type)
        module = IRModule(dict(base.functions.items()), base.type_definitions, base.attrs)
        for callee in body.called_scripts:
            module.update(callee.module)
        module[self.global_var] = relay_function
        try:
            self.module: IRModule = infer_type(module)
        except TypeInferenceError as error:
            raise location.source.with_source_line(error) from None

    @property
    def function(self) -> Function:
        """Return the Relay function."""
        function = self.module[self.global_var.name_hint]
        assert isinstance(function, Function)
        return function

    def __call__(self, *args: RelayExpr) -> Call:
        """Return a call of the function in a module that has it."""
        return Call(self.global_var, args)

    def __repr__(self) -> str:
        return self.module.astext(show_meta_data=False)


def _source_location(function: FunctionType) -> SourceLocation:
    lines, first = inspect.getsourcelines(function)
    text = "".join(lines)
    indent = len(text) - len(text.lstrip())
    tree = ast.parse(textwrap.dedent(text)).body[0]
    assert isinstance(tree, ast.FunctionDef), "a decorator stands before a function"
    name = inspect.getsourcefile(function) or "<python>"
    try:
        with open(name, encoding="utf-8") as file:
            source = SourceText(file.read(), name)
    except OSError:  # a notebook's cell, whose lines Python keeps elsewhere
        source, first = SourceText(text, name), 1
    return SourceLocation(tree, source, first - 1, indent)


def _captured_names(function: FunctionType) -> dict[str, object]:
    """Return the values of a function's global and closure names."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    names = {**vars(builtins), **function.__globals__}
    for name, cell in cells:
        with suppress(ValueError):  # the function's own name, which is not set yet
            names[name] = cell.cell_contents
    return names


@overload
def script(function: FunctionType) -> RelayScript: ...
@overload
def script(function: IRModule | None = None) -> Callable[[FunctionType], RelayScript]: ...
def script(
    function: FunctionType | IRModule | None = None,
) -> RelayScript | Callable[[FunctionType], RelayScript]:
    """Decorate a Python function as Relay script: `@script`, or `@script(module)` to use a module's
    definitions.
    """
    if isinstance(function, IRModule) or function is None:
        base = function if function is not None else IRModule()
        return lambda decorated: RelayScript(decorated, base)
    return RelayScript(function, IRModule())


__all__ = ["RelayScript", "script"]
