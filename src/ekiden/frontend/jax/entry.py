"""What the table of frontends asks of JAX (see ekiden.frontend.table.Entry)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import cast

from jax.export import Exported

from ekiden.frontend.common.imported import ImportedModule
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.jax.export import exported, label_of, loaded
from ekiden.frontend.jax.program import import_program
from ekiden.runtime.errors import CompileError


def import_model(model: object, options: ImportOptions) -> ImportedModule:
    """A function with its example inputs, a program of jax.export, or one that was saved: a path or
    bytes. Raises CompileError for examples that a function cannot be traced with, and for options
    of a trace beside a program that is exported already."""
    label = label_of(model)
    if isinstance(model, (str, os.PathLike)):
        label = f"program {os.path.basename(os.fspath(model))!r}"
        model = loaded(model, label)
    elif isinstance(model, (bytes, bytearray)):
        label = "a program of jax.export"
        model = loaded(bytes(model), label)
    if isinstance(model, Exported):
        for name in options.given():
            raise CompileError(f"compile: {label} is exported already: it takes no '{name}'")
        return import_program(model, label)
    if options.example_inputs is None and options.example_kwargs is None:
        text = "example_inputs are missing: compile(function, (x, ...))"
        raise CompileError(f"compile: {label}: {text}")
    given: object = () if options.example_inputs is None else options.example_inputs
    inputs = given if isinstance(given, (list, tuple)) else (given,)
    function = cast("Callable[..., object]", model)
    program = exported(function, inputs, options.example_kwargs, options.dynamic_shapes)
    return import_program(program, label)
