"""`relay.frontend.from_onnx` with TVM's signature."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.options import check_convert_config
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.importer import import_onnx
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.load import read_model
from ekiden.frontend.onnx.node import node_name
from ekiden.frontend.registry import frontend_by_name
from ekiden.ir.module import IRModule
from ekiden.runtime import Tensor, tensor
from ekiden.runtime.errors import CompileError

Dim = object
"""A number, a name, None, or one of Relay's dimensions."""
_CONVERT_CONFIG_KEYS = ("use_nt_batch_matmul",)
_RENAMED_MODEL_FILE = "renamed_model.onnx"


def from_onnx(
    model: onnx.ModelProto | str | bytes,
    shape: Mapping[str, Sequence[Dim]] | None = None,
    opset: int | None = None,
    freeze_params: bool = True,
    *,
    dtype: str | Mapping[str, str] = "float32",
    convert_config: Mapping[str, object] | None = None,
    export_node_renamed_model_path: str | os.PathLike[str] | None = None,
) -> tuple[IRModule, dict[str, Tensor]]:
    """Import an ONNX model and return its module and parameters, like TVM's function.

    Weights are constants in the module and the parameters are empty; with `freeze_params=False` the
    weights are parameters of `main` by their names in the model, and their values are returned.

    Args:
        model: a ModelProto, path or bytes.
        shape: input name -> shape that replaces the declared one.
        opset: overrides the version that the model states.
        freeze_params: whether weights become constants.
        dtype: input name -> dtype, which must be the model's. One dtype for all has no effect, as
            in TVM: the model declares them.
        convert_config: TVM's choices between forms of a product, which are one kernel here: the
            names are checked, and change nothing.
        export_node_renamed_model_path: a folder, made where it is missing, that gets the model as
            `renamed_model.onnx`, in which every node has the name that spans give.

    Raises:
        CompileError: a dtype in the place of `opset`, another dtype than the model's, or an unknown
            entry of `convert_config`.
    """
    if isinstance(opset, (str, Mapping)):
        raise CompileError(
            f"from_onnx: opset: expected a number, got {opset!r}; TVM's third argument is the "
            f"dtype, which is given by name here: dtype={opset!r}"
        )
    check_convert_config("from_onnx", convert_config, _CONVERT_CONFIG_KEYS)
    frontend_by_name("onnx").check_model(model, "from_onnx")
    imported = import_onnx(model, shape, opset, freeze_params)  # type: ignore[arg-type]
    if isinstance(dtype, Mapping) or export_node_renamed_model_path is not None:
        proto = read_model(model)[0]
        if isinstance(dtype, Mapping):
            _check_dtypes(proto, dtype)
        if export_node_renamed_model_path is not None:
            _save_renamed(proto, Path(export_node_renamed_model_path))
    params, module = imported.params, _drop_input_names(imported).to_module()
    return module, {name: tensor(value) for name, value in params.items()}


def _check_dtypes(proto: onnx.ModelProto, dtypes: Mapping[str, str]) -> None:
    """Raise CompileError where a stated dtype is not that of the model's input."""
    declared = {i.name: i.type.tensor_type.elem_type for i in proto.graph.input}
    for name, stated in dtypes.items():
        actual = from_onnx_dtype(declared[name]) if declared.get(name) else None
        if stated != actual:
            is_or_has = "is no input" if actual is None else f"is {actual}, not {stated}"
            raise CompileError(f"from_onnx: dtype: {name!r} {is_or_has}")


def _save_renamed(proto: onnx.ModelProto, folder: Path) -> None:
    """Save a copy of a model to a folder, in which each node has a name."""
    renamed = onnx.ModelProto()
    renamed.CopyFrom(proto)
    for node in renamed.graph.node:
        node.name = node_name(node)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(renamed, str(folder / _RENAMED_MODEL_FILE))


def _drop_input_names(imported: ImportResult) -> ImportResult:
    """Drop the input names of a module with parameters: inputs then go by their variables'
    names.
    """
    return replace(imported, params={}, input_names=()) if imported.params else imported


__all__ = ["from_onnx"]
