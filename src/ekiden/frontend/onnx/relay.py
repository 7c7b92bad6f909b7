"""`relay.frontend.from_onnx` with TVM's signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ekiden.frontend.common.imported import ImportedModule
from ekiden.frontend.onnx.importer import import_onnx
from ekiden.frontend.onnx.messages import onnx
from ekiden.frontend.table import frontend
from ekiden.ir.module import IRModule
from ekiden.runtime import Tensor, tensor

Dim = int | str


def from_onnx(
    model: onnx.ModelProto | str | bytes,
    shape: Mapping[str, Sequence[Dim]] | None = None,
    opset: int | None = None,
    freeze_params: bool = True,
) -> tuple[IRModule, dict[str, Tensor]]:
    """Import an ONNX model and return its module and parameters, like TVM's function.

    Weights are constants in the module and the parameters are empty; with `freeze_params=False` the
    weights are parameters of `main` by their names in the model, and their values are returned.

    Args:
        model: a ModelProto, path or bytes.
        shape: input name -> shape that replaces the declared one.
        opset: overrides the version that the model states.
        freeze_params: whether weights become constants.
    """
    frontend("onnx").check_model(model, "from_onnx")
    imported = import_onnx(model, shape, opset, freeze_params)
    params, module = imported.params, _drop_input_names(imported).as_module()
    return module, {name: tensor(value) for name, value in params.items()}


def _drop_input_names(imported: ImportedModule) -> ImportedModule:
    """Drop the input names of a module with parameters: inputs then go by their variables'
    names.
    """
    return replace(imported, params={}, input_names=()) if imported.params else imported


__all__ = ["from_onnx"]
