"""Entry point of the JAX frontend (see ekiden.frontend.registry.FrontendEntry)."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Sequence
from typing import cast

from jax.export import Exported
from jaxlib.mlir import ir

from ekiden._lazy import load_module
from ekiden.frontend.common.error_translation import check_readable
from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.jax.export import (
    argument_names,
    deserialize_program,
    export_function,
    model_label,
)
from ekiden.frontend.jax.program import import_program, import_stablehlo
from ekiden.frontend.jax.stablehlo_parser import is_stablehlo, read_bytes, write_bytecode
from ekiden.runtime.errors import CompileError


def import_model(model: object, options: ImportOptions) -> ImportResult:
    """Import a JAX function with example inputs, a jax.export program, or StableHLO.

    Raises CompileError for examples that a function cannot be traced with, and for options of a
    trace beside a program that is exported already.
    """
    if _is_keras_model(model):
        return _import_keras(model, options)
    label = model_label(model)
    if isinstance(model, (str, os.PathLike)):
        label = f"program {os.path.basename(os.fspath(model))!r}"
        check_readable(model, label)
        model = read_bytes(model)
    if isinstance(model, ir.Module):
        label, model = "a module of MLIR", write_bytecode(model)
    if isinstance(model, (bytes, bytearray, str)):
        label = label if label.startswith(("program", "a module")) else "a program of JAX"
        model = model.encode() if isinstance(model, str) else bytes(model)
        if is_stablehlo(model):
            _reject_options(options, label, ("signature",))
            return import_stablehlo(model, label, options.signature)
        model = deserialize_program(model, label)
    if isinstance(model, Exported):
        _reject_options(options, label)
        return import_program(model, label)
    _reject_options(options, label, ("example_inputs", "example_kwargs", "dynamic_shapes"))
    if options.example_inputs is None and options.example_kwargs is None:
        text = "example_inputs are missing: compile(function, (x, ...))"
        raise CompileError(f"compile: {label}: {text}")
    examples: object = () if options.example_inputs is None else options.example_inputs
    inputs = examples if isinstance(examples, (list, tuple)) else (examples,)
    function = cast("Callable[..., object]", model)
    program = export_function(function, inputs, options.example_kwargs, options.dynamic_shapes)
    return import_program(program, label, argument_names(function, len(inputs)))


def _is_keras_model(model: object) -> bool:
    """Return whether a model is a Keras model or a .keras file."""
    if isinstance(model, (str, os.PathLike)):
        return zipfile.is_zipfile(model) or os.fspath(model).endswith(".keras")
    if isinstance(model, bytes):
        return model.startswith(b"PK")
    return any(c.__module__.startswith("keras.") for c in type(model).__mro__)


def _import_keras(model: object, options: ImportOptions) -> ImportResult:
    """Import a Keras model by its own input specifications or by example inputs."""
    keras_models = load_module("ekiden.frontend.jax.keras_models")
    if isinstance(model, (str, os.PathLike, bytes)):
        is_path = not isinstance(model, bytes)
        label = f"model {os.path.basename(os.fspath(model))!r}" if is_path else "a model of Keras"
        model = keras_models.load(model, label)
    label = keras_models.model_label(model)
    _reject_options(options, label, ("example_inputs", "dynamic_shapes"))
    if options.example_inputs is None:
        function, inputs, names = keras_models.trace_inputs(model, label)
        return import_program(export_function(function, inputs, None, None, label), label, names)
    function = keras_models.inference_function(model)
    examples = options.example_inputs
    inputs = examples if isinstance(examples, (list, tuple)) else (examples,)
    program = export_function(function, inputs, None, options.dynamic_shapes, label)
    names = argument_names(getattr(model, "call", function), len(inputs))
    return import_program(program, label, names)


def _reject_options(options: ImportOptions, label: str, honoured: Sequence[str] = ()) -> None:
    """Raise CompileError for an option that this kind of model does not honour."""
    for name in options.set_option_names():
        if name not in honoured:
            reason = (
                "is traced when it is compiled"
                if "example_inputs" in honoured
                else "is already exported"
            )
            raise CompileError(f"compile: {label} {reason}: it takes no '{name}'")
