"""Import of models by tvmc's format names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ekiden.compiler.build import import_model
from ekiden.driver.tvmc.model import TVMCModel
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.registry import FRONTENDS
from ekiden.runtime.errors import InputError

__all__ = ["get_frontend_names", "load_model"]

TVM_FORMATS: Mapping[str, str] = {
    "keras": "tensorflow", "onnx": "onnx", "pb": "tensorflow", "tflite": "tflite",
    "pytorch": "torch", "relay": "text",
}  # fmt: skip
"""Format of `--model-format` -> frontend."""
KERAS_SUFFIXES = (".h5", ".keras")


def get_frontend_names() -> list[str]:
    """Return the formats that `--model-format` accepts."""
    return list(TVM_FORMATS)


def load_model(
    path: str,
    model_format: str | None = None,
    shape_dict: Mapping[str, Sequence[int]] | None = None,
    **kwargs: Any,  # noqa: ANN401  of TVM's frontends
) -> TVMCModel:
    """Import a model.

    Args:
        path: The file or folder.
        model_format: One of `get_frontend_names`; by default what the file says.
        shape_dict: Shapes of inputs by name.
        **kwargs: Options of a frontend, which Ekiden's do not have.

    Raises:
        OSError: The file is missing.
        InputError: An unknown format, a file of another, or an option.
        ImportModelError: The model cannot be imported.
    """
    if model_format is not None and model_format not in TVM_FORMATS:
        names = ", ".join(TVM_FORMATS)
        raise InputError(f"tvmc: no format is called '{model_format}'; there are: {names}")
    if kwargs:
        raise InputError(f"tvmc: load: no frontend takes {', '.join(kwargs)}")
    if not Path(path).exists():
        raise FileNotFoundError(f"tvmc: input file '{path}' does not exist")
    if Path(path).suffix in KERAS_SUFFIXES or model_format == "keras":
        return TVMCModel(*_load_keras(path, shape_dict))
    if model_format is not None:
        row = next(r for r in FRONTENDS if r.name == TVM_FORMATS[model_format])
        if row.suffixes and Path(path).suffix not in row.suffixes and Path(path).is_file():
            raise InputError(
                f"tvmc: '{path}': {row.model_noun} ends in {' or '.join(row.suffixes)}"
            )
    shapes = {name: tuple(shape) for name, shape in (shape_dict or {}).items()}
    return TVMCModel(import_model(path, ImportOptions(shapes or None)), {})


def _load_keras(
    path: str, shape_dict: Mapping[str, Sequence[int]] | None
) -> tuple[Any, dict[str, Any]]:
    """Load a Keras file as a module and parameters. Raises InputError without Keras."""
    try:
        keras = import_module("keras")
    except ImportError as error:
        raise InputError("tvmc: a Keras file needs keras: pip install keras") from error
    relay_frontend = import_module("ekiden.relay.frontend")
    model = keras.models.load_model(path, compile=False)
    shapes = {name: list(shape) for name, shape in (shape_dict or {}).items()}
    module, params = relay_frontend.from_keras(model, shapes or None, layout="NHWC")
    return module, params
