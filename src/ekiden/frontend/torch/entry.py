"""Entry point of the PyTorch frontend (see ekiden.frontend.registry.FrontendEntry)."""

from __future__ import annotations

import io
import os

import torch
from torch.export import ExportedProgram

from ekiden.frontend.common.error_translation import check_readable
from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.torch.example_inputs import warn_about_training_mode
from ekiden.frontend.torch.export import (
    export_module,
    import_exported,
    model_label,
    symbol_names,
    translate_torch_errors,
)
from ekiden.runtime.errors import CompileError


def import_model(model: object, options: ImportOptions) -> ImportResult:
    """Import a module with example inputs, an exported program, or a saved program's file.

    Raises:
        CompileError: A module cannot be exported with its examples, or export options accompany a
            program that is exported already.
    """
    label = model_label(model)
    if isinstance(model, (str, os.PathLike, bytes)):
        name = repr(os.path.basename(os.fspath(model))) if not isinstance(model, bytes) else ""
        label = f"program {name}".rstrip()
        model = _load_program(model, label)
    if isinstance(model, ExportedProgram):
        label = "program" if label.startswith("module") else label
        for name in options.set_option_names():
            raise CompileError(f"compile: {label} is already exported: it takes no '{name}'")
        program = model
    else:
        assert isinstance(model, (torch.nn.Module, torch.jit.ScriptFunction))
        if options.example_inputs is None and options.example_kwargs is None:
            text = "example_inputs are missing: compile(module, (x, ...))"
            raise CompileError(f"compile: {label}: {text}")
        examples: object = options.example_inputs or ()
        inputs = examples if isinstance(examples, (list, tuple)) else (examples,)
        program = export_module(model, inputs, options.example_kwargs, options.dynamic_shapes)
        warn_about_training_mode(program, label)
    names = symbol_names(program, options.dynamic_shapes)
    return import_exported(program, label, names=names)


def _load_program(source: str | os.PathLike[str] | bytes, label: str) -> ExportedProgram:
    if not isinstance(source, bytes):
        check_readable(source, label)
    with translate_torch_errors("no program that torch.export saved", label):
        return torch.export.load(io.BytesIO(source) if isinstance(source, bytes) else source)
