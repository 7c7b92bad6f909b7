"""`relay.frontend.from_onnx`, with TVM's signature."""

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
    """A module, and no parameters: the weights are constants in it. With `freeze_params=False` they
    are parameters of `main` by their names in the model, and their values are given beside it.

    `shape` replaces the declared shapes of inputs by name, `opset` the version that the model
    states.
    """
    frontend("onnx").check_model(model, "from_onnx")
    made = import_onnx(model, shape, opset, freeze_params)
    params, module = made.params, _unnamed(made).as_module()
    return module, {name: tensor(value) for name, value in params.items()}


def _unnamed(made: ImportedModule) -> ImportedModule:
    """Without what would not hold any more once parameters are constants: the names of inputs are
    then those of the variables.
    """
    return replace(made, params={}, input_names=()) if made.params else made


__all__ = ["from_onnx"]
