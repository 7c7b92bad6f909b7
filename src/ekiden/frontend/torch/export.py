"""From a module to a program of operators that the table has: torch.export and decompositions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from ekiden.frontend.torch.apart import APART
from ekiden.frontend.torch.registry import converter_of
from ekiden.frontend.torch.symbols import plain_name
from ekiden.runtime.errors import ImportModelError

Decompositions = dict[torch._ops.OpOverload, Callable[..., Any]]


def decompositions() -> Decompositions:
    """How operators without a converter are made of others: PyTorch's own definitions, and ours of
    those that it has none for."""
    found: Decompositions = dict(torch.export.default_decompositions())
    for target, function in torch._decomp.decomposition_table.items():
        if isinstance(target, torch._ops.OpOverload):
            found.setdefault(target, function)
    found.update(APART)
    return {t: f for t, f in found.items() if converter_of(t) is None}


def exported(
    module: torch.nn.Module,
    example_inputs: Sequence[object],
    example_kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
) -> ExportedProgram:
    """The program of a module. Raises ImportModelError with what torch.export says."""
    if isinstance(module, torch.jit.ScriptModule):
        return _of_script(module, example_inputs)
    kwargs = None if example_kwargs is None else dict(example_kwargs)
    try:
        return torch.export.export(
            module, tuple(example_inputs), kwargs,
            dynamic_shapes=dynamic_shapes, strict=False,  # type: ignore[arg-type]
        )  # fmt: skip
    except Exception as error:  # whatever is wrong with the module is told by PyTorch
        text = str(error).strip()
        raise ImportModelError(f"import {label_of(module)}: torch.export: {text}") from error


def _of_script(module: torch.jit.ScriptModule, example_inputs: Sequence[object]) -> ExportedProgram:
    """TorchScript, by PyTorch's converter of it."""
    from torch._export.converter import TS2EPConverter  # noqa: PLC0415

    try:
        program: ExportedProgram = TS2EPConverter(module, tuple(example_inputs)).convert()
        return program
    except Exception as error:
        text = str(error).strip()
        raise ImportModelError(f"import a TorchScript module: {text}") from error


def decomposed(program: ExportedProgram, label: str = "program") -> ExportedProgram:
    """A program of operators that the table has, as far as PyTorch says how."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of its own deprecations
        try:
            made: ExportedProgram = program.run_decompositions(decompositions())
            return made
        except Exception as error:
            text = str(error).strip()
            raise ImportModelError(f"import {label}: torch.export: {text}") from error


def label_of(module: object) -> str:
    """A model as messages have it."""
    return f"module {type(module).__name__}"


def symbol_names(program: ExportedProgram, dynamic_shapes: object) -> dict[str, str]:
    """The names that a user gave to dimensions (torch.export.Dim), by the program's symbols."""
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    inputs = [nodes[name] for name in program.graph_signature.user_inputs if name in nodes]
    found: dict[str, str] = {}
    for node, spec in zip(inputs, _specs(dynamic_shapes, inputs), strict=False):
        meta = node.meta.get("val")
        if not isinstance(meta, torch.Tensor):
            continue
        for axis, dim in _dims(spec):
            symbol = plain_name(meta.shape[axis]) if axis < meta.dim() else None
            shown = dim if isinstance(dim, str) else getattr(dim, "__name__", None)
            if symbol is not None and isinstance(shown, str) and not shown.startswith("_"):
                found.setdefault(symbol, shown)
    return found


def _specs(dynamic_shapes: object, inputs: Sequence[torch.fx.Node]) -> list[object]:
    """What is said of each input, where the inputs are tensors by themselves."""
    if isinstance(dynamic_shapes, Mapping):
        return [dynamic_shapes.get(n.name) for n in inputs]
    return list(dynamic_shapes) if isinstance(dynamic_shapes, (list, tuple)) else []


def _dims(spec: object) -> list[tuple[int, object]]:
    if isinstance(spec, Mapping):
        return [(axis, dim) for axis, dim in spec.items() if isinstance(axis, int)]
    return list(enumerate(spec)) if isinstance(spec, (list, tuple)) else []
