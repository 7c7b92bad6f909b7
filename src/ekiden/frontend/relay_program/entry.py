"""Entry point of the frontend for Relay programs (see ekiden.frontend.registry.FrontendEntry)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from ekiden._lazy import LazyModule
from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.common.specialize_inputs import specialize_input_shapes
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.relay.analysis.well_formedness import find_errors
from ekiden.relay.expr import Function, Var
from ekiden.relay.visitor import bound_vars, fresh_copy
from ekiden.runtime.errors import CompileError, ImportModelError

if TYPE_CHECKING:
    from ekiden.relay import parser
else:
    # Programs that are built in Python need no parser.
    parser = LazyModule("ekiden.relay.parser")

_MAX_SHOWN_ERRORS = 3


def import_model(model: object, options: ImportOptions) -> ImportResult:
    """Import a Relay program: a module, a function, which becomes `main`, or text in a file or
    bytes, whose constants are inline or in its metadata section.

    Raises CompileError for a program that is not well formed, ImportModelError for text that
    cannot be read and for shapes that the program excludes, ParseError with line, column and a
    caret.
    """
    if isinstance(model, (IRModule, Function)):
        module = _check_module(as_module(model))
    else:
        module = _parse_text(cast("str | os.PathLike[str] | bytes", model))
    if options.shape:
        module = specialize_input_shapes(module, options.shape)
    return ImportResult.from_module(module)


def as_module(program: IRModule | Function) -> IRModule:
    """Return a Relay program as a module; a function becomes `main`."""
    return program if isinstance(program, IRModule) else IRModule({"main": program})


def _parse_text(source: str | os.PathLike[str] | bytes) -> IRModule:
    """Parse a file or bytes of Relay text.

    Raises ImportModelError for what is no text, cannot be read or has no function `main`.
    """
    name, data = "text", source
    if not isinstance(data, bytes):
        name = os.path.basename(os.fspath(data))
        try:
            with open(data, "rb") as file:
                data = file.read()
        except OSError as error:
            reason = error.strerror or error
            raise ImportModelError(f"import {os.fspath(source)!r}: {reason}") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        position = f"byte {error.start} begins no character of UTF-8"
        raise ImportModelError(f"import {name!r}: no text of Relay: {position}") from error
    module = parser.parse(text, name)
    if "main" not in {function.name_hint for function in module.functions}:
        names = ", ".join(f"@{global_var.name_hint}" for global_var in module.functions) or "none"
        raise ImportModelError(f"import {name!r}: a function @main is expected, there are: {names}")
    return module


def _check_module(module: IRModule) -> IRModule:
    """Check a program that was built in Python, and give functions that share variables their own.

    Raises CompileError naming what is not well formed.
    """
    module = _rename_shared_variables(module)
    if errors := find_errors(module):
        omitted = len(errors) - _MAX_SHOWN_ERRORS
        more = f"; {omitted} more" if omitted > 0 else ""
        raise CompileError(f"compile: {'; '.join(errors[:_MAX_SHOWN_ERRORS])}{more}")
    for attribute in ("Primitive", "Compiler"):
        if "main" in module and module["main"].attr(attribute):
            raise CompileError(
                f"compile: @main is marked {attribute!r}, which is only for functions that @main "
                "calls"
            )
    return module


def _rename_shared_variables(module: IRModule) -> IRModule:
    """Give every function its own variables: passes key facts by variable."""
    bound: set[Var] = set()
    renamed: dict[GlobalVar, BaseFunc] = {}
    for name, function in module.functions.items():
        if isinstance(function, Function):
            variables = set(bound_vars(function))
            if variables & bound:
                renamed[name] = cast(Function, fresh_copy(function))
            bound |= variables
    return module.with_functions({**module.functions, **renamed}) if renamed else module
