"""Import of models by tvmc's format names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from ekiden.compiler.build import import_model
from ekiden.driver.tvmc.model import TVMCImportError, TVMCModel
from ekiden.frontend import relay as frontend
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.registry import FRONTENDS
from ekiden.frontend.relay_program import entry as relay_entry
from ekiden.ir.module import IRModule
from ekiden.runtime.errors import InputError

__all__ = [
    "ALL_FRONTENDS",
    "Frontend",
    "get_frontend_by_name",
    "get_frontend_names",
    "guess_frontend",
    "load_model",
]

Shapes = Mapping[str, Sequence[Any]]
Loaded = tuple[IRModule, dict[str, Any]]


class Frontend:
    """Importer of a model format."""

    NAME: ClassVar[str]
    SUFFIXES: ClassVar[tuple[str, ...]]
    PACKAGE: ClassVar[str] = ""
    """Python package that reads the format."""
    READER: ClassVar[str] = ""
    """Name of the reader in `frontend.registry.FRONTENDS`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.NAME

    @classmethod
    def suffixes(cls) -> list[str]:
        """Return the file suffixes of the format, without the dot."""
        return list(cls.SUFFIXES)

    def load(self, path: str, shape_dict: Shapes | None = None, **kwargs: Any) -> Loaded:  # noqa: ANN401
        """Return the module and parameters of a file.

        Args:
            path: The file.
            shape_dict: Shapes of inputs by name.
            **kwargs: Options of the function of `relay.frontend`.

        Raises:
            InputError: The file is of another format, or an option that the format does not have.
            TVMCImportError: A package is missing.
        """
        if self.PACKAGE:
            self._package()
        row = next(row for row in FRONTENDS if row.name == self.READER)
        if row.suffixes and Path(path).is_file() and Path(path).suffix not in row.suffixes:
            raise InputError(
                f"tvmc: '{path}': {row.model_noun} ends in {' or '.join(row.suffixes)}"
            )
        if kwargs:
            return self._load_with_options(path, shape_dict, **kwargs)
        shapes = {name: tuple(shape) for name, shape in (shape_dict or {}).items()}
        return import_model(path, ImportOptions(shapes or None)), {}

    def _load_with_options(self, path: str, shape_dict: Shapes | None, **kwargs: Any) -> Loaded:  # noqa: ANN401
        raise InputError(f"tvmc: the format '{self.NAME}' has no option '{next(iter(kwargs))}'")

    def _package(self) -> Any:  # noqa: ANN401
        try:
            return import_module(self.PACKAGE)
        except ImportError as error:
            raise TVMCImportError(
                f"tvmc: a model of the format '{self.NAME}' needs {self.PACKAGE}: pip install"
                f" {self.PACKAGE}"
            ) from error


class KerasFrontend(Frontend):
    """Importer of Keras models."""

    NAME, SUFFIXES, PACKAGE = "keras", ("h5", "keras"), "tensorflow"

    def load(self, path: str, shape_dict: Shapes | None = None, **kwargs: Any) -> Loaded:  # noqa: ANN401
        """Return the module and parameters of a file; `layout` is "NHWC" unless given."""
        model = self._package().keras.models.load_model(path, compile=False)
        return frontend.from_keras(model, _shapes(shape_dict), **{"layout": "NHWC", **kwargs})


class OnnxFrontend(Frontend):
    """Importer of ONNX models."""

    NAME, SUFFIXES, PACKAGE, READER = "onnx", ("onnx",), "onnx", "onnx"

    def _load_with_options(self, path: str, shape_dict: Shapes | None, **kwargs: Any) -> Loaded:  # noqa: ANN401
        return frontend.from_onnx(self._package().load(path), _shapes(shape_dict), **kwargs)


class TensorflowFrontend(Frontend):
    """Importer of TensorFlow graphs."""

    NAME, SUFFIXES, PACKAGE, READER = "pb", ("pb",), "tensorflow", "tensorflow"

    def _load_with_options(self, path: str, shape_dict: Shapes | None, **kwargs: Any) -> Loaded:  # noqa: ANN401
        graph = self._package().compat.v1.GraphDef()
        graph.ParseFromString(Path(path).read_bytes())
        return frontend.from_tensorflow(graph, shape=_shapes(shape_dict), **kwargs)


class TFLiteFrontend(Frontend):
    """Importer of TFLite models."""

    NAME, SUFFIXES, PACKAGE, READER = "tflite", ("tflite",), "tflite", "tflite"

    def _load_with_options(self, path: str, shape_dict: Shapes | None, **kwargs: Any) -> Loaded:  # noqa: ANN401
        return frontend.from_tflite(Path(path).read_bytes(), _shapes(shape_dict), **kwargs)


class PyTorchFrontend(Frontend):
    """Importer of TorchScript files and exported programs."""

    NAME, SUFFIXES, PACKAGE, READER = "pytorch", ("pth", "zip", "pt2", "pt"), "torch", "torch"

    def _load_with_options(self, path: str, shape_dict: Shapes | None, **kwargs: Any) -> Loaded:  # noqa: ANN401
        torch = self._package()
        read = torch.export.load if Path(path).suffix == ".pt2" else torch.jit.load
        shapes = [(name, list(shape)) for name, shape in (shape_dict or {}).items()]
        return frontend.from_pytorch(read(path), shapes, **kwargs)


class PaddleFrontend(Frontend):
    """Importer of Paddle models, which are refused with the way through ONNX."""

    NAME, SUFFIXES = "paddle", ("pdmodel",)

    def load(self, path: str, shape_dict: Shapes | None = None, **kwargs: Any) -> Loaded:  # noqa: ANN401
        """Refuse the file with the way through ONNX."""
        refuse: Callable[..., NoReturn] = import_module("ekiden.relay.frontend").from_paddle
        refuse(path)


class RelayFrontend(Frontend):
    """Importer of Relay text."""

    NAME, SUFFIXES = "relay", ("relay",)

    def load(self, path: str, shape_dict: Shapes | None = None, **kwargs: Any) -> Loaded:  # noqa: ANN401
        """Return the module of a file of any suffix. Raises InputError for options, and
        ImportModelError for what is no Relay program or shapes that the program excludes.
        """
        if kwargs:
            return self._load_with_options(path, shape_dict, **kwargs)
        return relay_entry.import_model(path, ImportOptions(shape_dict or None)).to_module(), {}


ALL_FRONTENDS: tuple[type[Frontend], ...] = (
    KerasFrontend, OnnxFrontend, TensorflowFrontend, TFLiteFrontend, PyTorchFrontend,
    PaddleFrontend, RelayFrontend,
)  # fmt: skip


def _shapes(shape_dict: Shapes | None) -> dict[str, list[Any]] | None:
    return {name: list(shape) for name, shape in shape_dict.items()} if shape_dict else None


def get_frontend_names() -> list[str]:
    """Return the formats that `--model-format` accepts."""
    return [row.NAME for row in ALL_FRONTENDS]


def get_frontend_by_name(name: str) -> Frontend:
    """Return the importer of a format. Raises InputError for an unknown one."""
    for row in ALL_FRONTENDS:
        if name == row.NAME:
            return row()
    names = ", ".join(get_frontend_names())
    raise InputError(f"tvmc: no format is called '{name}'; there are: {names}")


def guess_frontend(path: str) -> Frontend:
    """Return the importer that a file's suffix names. Raises InputError for another suffix."""
    suffix = Path(path).suffix.lower().removeprefix(".")
    for row in ALL_FRONTENDS:
        if suffix in row.SUFFIXES:
            return row()
    raise InputError(f"tvmc: '{path}': the suffix '{suffix}' is of no format: use --model-format")


def load_model(
    path: str,
    model_format: str | None = None,
    shape_dict: Shapes | None = None,
    **kwargs: Any,  # noqa: ANN401  of TVM's frontends
) -> TVMCModel:
    """Import a model.

    Args:
        path: The file.
        model_format: One of `get_frontend_names`; by default what the suffix says.
        shape_dict: Shapes of inputs by name.
        **kwargs: Options of the function of `relay.frontend`, such as `layout` or `freeze_params`.

    Raises:
        OSError: The file is missing.
        InputError: An unknown format or option, or a file of another format.
        ImportModelError: The model cannot be imported.
    """
    named = None if model_format is None else get_frontend_by_name(model_format)
    if not Path(path).exists():
        raise FileNotFoundError(f"tvmc: input file '{path}' does not exist")
    if Path(path).is_dir():
        named = named or TensorflowFrontend()  # a SavedModel
    row = named or guess_frontend(path)
    return TVMCModel(*row.load(path, shape_dict, **kwargs))
