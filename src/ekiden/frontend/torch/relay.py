"""`relay.frontend.from_pytorch`, with TVM's signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from ekiden.frontend.common.options import parse_shape_option
from ekiden.frontend.registry import frontend_by_name
from ekiden.frontend.torch.dtype import TORCH_DTYPES
from ekiden.frontend.torch.export import export_module, import_exported, model_label
from ekiden.ir.module import IRModule
from ekiden.ir.prim import PrimExpr
from ekiden.runtime import Tensor, tensor
from ekiden.runtime.errors import CompileError, UnsupportedError

Extent = int | PrimExpr
"""A number, `relay.Any()` or `relay.SizeVar(name)`."""
Info = tuple[str, Sequence[Extent] | tuple[Sequence[Extent], str]]
"""(name, shape) or (name, (shape, dtype))."""
EXAMPLE_EXTENT = 64
"""Extent that an open dimension is traced with: networks halve images up to five times."""


def from_pytorch(
    script_module: torch.nn.Module | ExportedProgram,
    input_infos: Sequence[Info],
    custom_convert_map: Mapping[str, Callable[..., object]] | None = None,
    default_dtype: str = "float32",
    use_parser_friendly_name: bool = False,
    keep_quantized_weight: bool = False,
    export_renamed_c_graph_path: str | None = None,
    preserve_pytorch_scopes: bool = False,
) -> tuple[IRModule, dict[str, Tensor]]:
    """Import a module as a Relay module and its parameters, by its inputs' names, shapes and
    dtypes.

    The module (TorchScript or any other) is traced with zeros; an exported program is taken as
    traced. Without a dtype, an input has that of the TorchScript trace, else `default_dtype`.

    Args:
        script_module: The module, or an exported program.
        input_infos: (name, shape) or (name, (shape, dtype)) of each input. A dimension may be
            `relay.Any()`, or `relay.SizeVar(name)` where several are equal.
        custom_convert_map: Rejected: ekiden.frontend.torch.register adds an operator.
        default_dtype: Dtype of inputs for which no trace has one.
        use_parser_friendly_name: Ignored: names are always parser friendly.
        keep_quantized_weight: Rejected.
        export_renamed_c_graph_path: Rejected.
        preserve_pytorch_scopes: Rejected: spans have the node's name.

    Returns:
        The module, and the parameters by name.

    Raises:
        CompileError: input_infos are malformed, or custom_convert_map is given.
        UnsupportedError: An unsupported option or node.
    """
    del use_parser_friendly_name  # they always are
    if custom_convert_map:
        text = "custom_convert_map: use ekiden.frontend.torch.register"
        raise CompileError(f"from_pytorch: {text}")
    if keep_quantized_weight or export_renamed_c_graph_path or preserve_pytorch_scopes:
        text = "keep_quantized_weight, export_renamed_c_graph_path and preserve_pytorch_scopes"
        raise UnsupportedError(f"from_pytorch: {text} are not supported")
    frontend_by_name("torch").check_model(script_module, "from_pytorch")
    if isinstance(script_module, (str, bytes)):
        raise CompileError("from_pytorch: a module or a program expected, got a file of one")
    infos = _check_input_infos(input_infos)
    dtypes = _traced_dtypes(script_module, len(infos))
    inputs = [
        _example_input(info, default_dtype if dtype is None else dtype)
        for info, dtype in zip(infos, dtypes, strict=True)
    ]
    label = model_label(script_module)
    program = script_module
    if not isinstance(program, ExportedProgram):
        program = export_module(program, inputs, dynamic_shapes=_dynamic_shapes(infos))
    names = [name for name, _ in input_infos]
    imported = import_exported(program, label, freeze_params=False, input_names=names)
    params = {name: tensor(array) for name, array in imported.params.items()}
    return replace(imported, params={}, input_names=(), owns_results=False).to_module(), params


def _check_input_infos(infos: Any) -> Sequence[Info]:  # noqa: ANN401 - whatever a user gave
    """Return the input infos as a sequence. Raises CompileError for other than (name, shape) or
    (name, (shape, dtype)).
    """
    entries = infos if isinstance(infos, (list, tuple)) else [infos]
    for entry in entries:
        is_pair = isinstance(entry, (list, tuple)) and len(entry) == 2 and isinstance(entry[0], str)
        if not is_pair or isinstance(entry[1], str) or not isinstance(entry[1], Sequence):
            expected = "[(name, shape)] or [(name, (shape, dtype))] expected"
            raise CompileError(f"from_pytorch: input_infos: {expected}, got {entry!r}")
    return entries


def _traced_dtypes(module: object, count: int) -> list[str | None]:
    """Return the dtypes of the first inputs of a TorchScript graph; None where it states none."""
    if not isinstance(module, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return [None] * count
    graph: Any = module.graph
    values = [v for v in graph.inputs() if not isinstance(v.type(), torch._C.ClassType)]
    dtypes = [
        v.type().dtype() if isinstance(v.type(), torch._C.TensorType) else None for v in values
    ]
    names = [None if dtype is None else TORCH_DTYPES.get(dtype) for dtype in dtypes]
    return [*names, *[None] * count][:count]


def _user_shape(info: Info) -> list[int | str | None]:
    """Return the shape of an input: numbers, names, and None for any extent."""
    name, spec = info
    is_pair = len(spec) == 2 and isinstance(spec[1], str)
    return parse_shape_option(name, spec[0] if is_pair else spec)


def _dynamic_shapes(infos: Sequence[Info]) -> list[dict[int, Any]] | None:
    """Return the open dimensions of the inputs as torch.export expects them; None if all are
    numbers.
    """
    shapes = [_user_shape(info) for info in infos]
    names = {dim for shape in shapes for dim in shape if isinstance(dim, str)}
    dims: dict[object, Any] = {name: Dim(name) for name in names}
    # DYNAMIC, as AUTO would let PyTorch fix the dimension to the extent of the example.
    dims[None] = Dim.DYNAMIC
    specs = [
        {axis: dims[dim] for axis, dim in enumerate(shape) if not isinstance(dim, int)}
        for shape in shapes
    ]
    return specs if any(specs) else None


def _example_input(info: Info, default_dtype: str) -> torch.Tensor:
    """Return zeros of the shape and dtype of an input."""
    name, spec = info
    dtype = spec[1] if len(spec) == 2 and isinstance(spec[1], str) else default_dtype
    shape = [dim if isinstance(dim, int) else EXAMPLE_EXTENT for dim in _user_shape(info)]
    kinds = {ours: theirs for theirs, ours in TORCH_DTYPES.items()}
    if str(dtype) not in kinds:
        text = f"{name!r} has the dtype {str(dtype)!r}: one of {', '.join(kinds)} expected"
        raise CompileError(f"from_pytorch: input_infos: {text}")
    return torch.zeros(shape, dtype=kinds[str(dtype)])
