"""`relay.frontend.from_tflite`, with TVM's signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.frontend.registry import frontend_by_name
from ekiden.frontend.tflite.importer import import_tflite
from ekiden.ir.module import IRModule
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Function, Var
from ekiden.runtime import Tensor
from ekiden.runtime.errors import CompileError

Dim = int | str


class OperatorConverter:
    """Marker class of this frontend's converters, TVM's default of `op_converter`.

    TVM's class of this name converts operators by its methods. Here they are rows of a table.
    """


def from_tflite(
    model: object,
    shape_dict: Mapping[str, Sequence[Dim]] | None = None,
    dtype_dict: Mapping[str, str] | None = None,
    op_converter: type | None = None,
) -> tuple[IRModule, dict[str, Tensor]]:
    """Import a TensorFlow Lite model as a Relay module; the parameters are empty, as weights are
    constants.

    As in TVM it is the first graph, and inputs have the names of their tensors, whatever signatures
    name them.

    Args:
        model: an object of the package `tflite` (`tflite.Model.GetRootAsModel(data, 0)`), a path or
            bytes.
        shape_dict: replaces the declared shapes by name.
        dtype_dict: must agree with the model's dtypes.
        op_converter: `OperatorConverter` or None, which are one: the converters of Ekiden.

    Returns:
        The module, and no parameters.

    Raises:
        CompileError: for a class of converters of the user's, or other dtypes than the model's.
        UnsupportedError: as `ekiden.compile`.
    """
    if op_converter not in (None, OperatorConverter):
        raise CompileError("from_tflite: op_converter: classes of converters are not taken")
    source = _model_bytes(model)
    frontend_by_name("tflite").check_model(source, "from_tflite")
    imported = import_tflite(source, shape_dict, signature=None)
    main = imported.module["main"]
    assert isinstance(main, Function)
    for name, var in zip(imported.input_names, main.params, strict=True):
        stated, actual = (dtype_dict or {}).get(name), _dtype_of(var)
        if stated is not None and stated != actual:
            raise CompileError(f"from_tflite: dtype_dict: {name!r} is {actual}, not {stated}")
    return imported.to_module(), {}


def _dtype_of(var: Var) -> str:
    """Return the dtype of a parameter."""
    kind = var.checked_type
    assert isinstance(kind, TensorType), f"an input is a tensor, got {kind!r}"
    return kind.dtype


def _model_bytes(model: object) -> object:
    """Return the bytes of a parsed `tflite` model object; anything else unchanged."""
    table = getattr(model, "_tab", None)
    return model if table is None else bytes(table.Bytes)


__all__ = ["OperatorConverter", "from_tflite"]
