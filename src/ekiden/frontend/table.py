"""The frontends, a row each: what it takes, what it needs, where it is.

Reading the table imports no framework; a frontend is imported when one of its models comes. To add
one: a row here, and a folder with a module `entry` whose functions are those of `Entry`.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from ekiden.frontend.common.options import ImportOptions
from ekiden.ir.installed import version_of
from ekiden.runtime.errors import CompileError, ImportModelError

if TYPE_CHECKING:
    from ekiden.frontend.common.imported import ImportedModule
    from ekiden.frontend.common.survey import Survey


class Entry(Protocol):
    """The functions in the module `entry` of a frontend."""

    def import_model(self, model: object, options: ImportOptions) -> ImportedModule:
        """A model that the row takes, as a module. Raises ImportModelError for a broken one, and
        UnsupportedError listing every node that cannot be imported.
        """

    def survey(self, model: object) -> Survey:
        """What a model contains, without importing it; of rows with `has_survey`."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package that a frontend needs: the module it is imported as, the names it is published
    under, and from which version to below which.
    """

    module: str
    distributions: tuple[str, ...]
    oldest: str = ""
    below: str = ""

    def installed(self) -> str:
        """The version that is there; "" where none says it."""
        return next(filter(None, map(version_of, self.distributions)), "")


@dataclass(frozen=True, slots=True)
class Frontend:
    """A row."""

    name: str
    """Its folder: `ekiden.frontend.<name>`."""
    model: str
    """What its models are called: "an ONNX model"."""
    takes: str
    """What it takes, for messages: "a path, bytes or onnx.ModelProto"."""
    packages: tuple[Package, ...]
    extra: str = ""
    """The extra of Ekiden that installs them; "" for what Ekiden always brings."""
    suffixes: tuple[str, ...] = ()
    """How the names of its files end."""
    starts: tuple[tuple[int, bytes], ...] = ()
    """(offset, bytes): what stands in its files and bytes, where that tells them."""
    holds: tuple[str, ...] = ()
    """The files of which one is in each of its folders."""
    classes: tuple[str, ...] = ()
    """The classes of its objects, as "top-level package.class", subclasses with them."""
    options: frozenset[str] = frozenset()
    """The fields of ImportOptions that it honours."""
    serialize: Callable[[object], bytes] | None = None
    """The bytes of an object, if its artifacts are kept; needs nothing to be imported."""
    has_survey: bool = False
    relay: tuple[str, ...] = ()
    """TVM's functions for it, which `relay.frontend` has; they are in its module `relay`."""

    def entry(self) -> Entry:
        """Its functions. Raises ImportModelError with the command that installs what is missing."""
        self.check_packages()
        return cast(Entry, import_module(f"ekiden.frontend.{self.name}.entry"))

    def check_packages(self) -> None:
        """Raise ImportModelError where a package is missing or of a version that is not known."""
        for each in self.packages:
            install = f"'ekiden[{self.extra}]'" if self.extra else each.distributions[0]
            if find_spec(each.module) is None:
                text = f"the package {each.distributions[0]!r} is missing; pip install {install}"
                raise ImportModelError(f"import {self.model}: {text}")
            have = each.installed()
            too_old = have and each.oldest and _numbers(have) < _numbers(each.oldest)
            too_new = have and each.below and _numbers(have) >= _numbers(each.below)
            if too_old or too_new:
                wanted = " ".join(
                    f"{word} {number}"
                    for word, number in (("from", each.oldest), ("below", each.below))
                    if number
                )
                text = f"expected {each.distributions[0]} {wanted}, got {have}"
                raise ImportModelError(
                    f"import {self.model}: {text}; pip install --upgrade {install}"
                )

    def check_options(self, options: ImportOptions) -> None:
        """Raise CompileError for an option that is given and not honoured."""
        for name in options.given():
            if name not in self.options:
                known = ", ".join(f"'{n}'" for n in sorted(self.options)) or "none"
                raise CompileError(f"compile: {self.model} takes no '{name}'; it takes {known}")


def _numbers(text: str) -> tuple[int, ...]:
    """The version as numbers: "2.13.0+cpu" is (2, 13, 0)."""
    parts = text.partition("+")[0].split(".")
    return tuple(int(p) for p in parts if p.isdigit())


FRONTENDS = (
    Frontend(
        "onnx",
        model="an ONNX model",
        takes="an onnx.ModelProto",
        packages=(Package("onnx", ("onnx",), "1.17"),),
        suffixes=(".onnx",),
        classes=("onnx.ModelProto",),
        options=frozenset(("shape",)),
        serialize=operator.methodcaller("SerializeToString", deterministic=True),
        has_survey=True,
        relay=("from_onnx",),
    ),
    Frontend(
        "torch",
        model="a PyTorch model",
        takes="a torch.nn.Module with example_inputs, a torch.export.ExportedProgram",
        packages=(Package("torch", ("torch",), "2.6"),),
        extra="torch",
        suffixes=(".pt2",),
        classes=("torch.Module", "torch.ExportedProgram"),
        options=frozenset(("example_inputs", "example_kwargs", "dynamic_shapes")),
        relay=("from_pytorch",),
    ),
    Frontend(
        "tflite",
        model="a TensorFlow Lite model",
        takes="a .tflite file",
        packages=(Package("tflite", ("tflite",), "2.18"),),
        extra="tflite",
        suffixes=(".tflite",),
        starts=((4, b"TFL3"),),
        options=frozenset(("shape", "signature")),
        relay=("from_tflite",),
    ),
    Frontend(
        "tensorflow",
        model="a TensorFlow model",
        takes="a SavedModel, a GraphDef, a Keras model or a concrete function",
        packages=(Package("tensorflow", ("tensorflow", "tensorflow-cpu"), "2.16"),),
        extra="tensorflow",
        suffixes=(".pb", ".keras"),
        holds=("saved_model.pb",),
        classes=("tensorflow.GraphDef", "tensorflow.ConcreteFunction", "keras.Model"),
        options=frozenset(("shape", "signature")),
        relay=("from_tensorflow", "from_keras"),
    ),
    Frontend(
        "jax",
        model="a JAX program",
        takes="a function of JAX with example_inputs, a jax.export.Exported",
        packages=(Package("jax", ("jax",), "0.6"), Package("jaxlib", ("jaxlib",), "0.6")),
        extra="jax",
        suffixes=(".jax",),
        classes=(
            "jax.Exported",
            "jaxlib.PjitFunction",
            "builtins.function",
            "builtins.method",
            "functools.partial",
        ),
        options=frozenset(("example_inputs", "example_kwargs", "dynamic_shapes")),
        relay=("from_jax",),
    ),
)
"""The first row is for files and bytes that no other claims."""


@dataclass(frozen=True, slots=True)
class Other:
    """Files that no frontend takes, and what a user does with one."""

    what: str
    suffixes: tuple[str, ...]
    advice: str


OTHERS = (
    Other("a file of PyTorch that Python has to load", (".pt", ".pth", ".ckpt"),
          "give ekiden.compile the module, loaded by torch.load or torch.jit.load, with "
          "example_inputs"),
    Other("weights alone", (".safetensors", ".npz", ".msgpack"),
          "load them into the model in its framework, and give ekiden.compile that model"),
    Other("a model of Keras 2", (".h5", ".hdf5"),
          "give ekiden.compile the model, loaded by keras.models.load_model"),
    Other("a checkpoint of a language model", (".gguf",), "run it by `ekiden generate`"),
    Other("a model of CoreML", (".mlmodel", ".mlpackage"),
          "convert it to ONNX by onnxmltools.convert_coreml"),
    Other("compiled already", (".eki", ".so", ".dll", ".dylib"),
          "load it by ekiden.load, or look into it by `ekiden inspect`"),
    Other("a model of PaddlePaddle", (".pdmodel",), "convert it to ONNX by paddle2onnx"),
)  # fmt: skip


def frontend(name: str) -> Frontend:
    """The row of that name."""
    return next(row for row in FRONTENDS if row.name == name)


def frontend_of(model: object) -> Frontend | None:
    """The row that takes a model: a path, bytes, or an object of a framework; None if none does.

    Raises ImportModelError for a file of a kind that another tool makes a model of.
    """
    if isinstance(model, (str, os.PathLike)):
        return _of_path(Path(model))
    if isinstance(model, bytes):
        return _of_bytes(model) or FRONTENDS[0]
    names = {f"{c.__module__.partition('.')[0]}.{c.__qualname__}" for c in type(model).__mro__}
    return next((row for row in FRONTENDS if names.intersection(row.classes)), None)


def is_model_file(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a model, as its name, or what stands in a folder, tells."""
    where = Path(path)
    return any(where.name.endswith(row.suffixes) or _holds(row, where) for row in FRONTENDS)


def _of_path(path: Path) -> Frontend:
    for row in FRONTENDS:
        if path.name.endswith(row.suffixes) or _holds(row, path):
            return row
    for other in OTHERS:
        if path.name.endswith(other.suffixes):
            raise ImportModelError(f"import {path.name!r}: it is {other.what}: {other.advice}")
    if path.is_dir():
        raise ImportModelError(f"import {str(path)!r}: it is a folder, in which there is no model")
    if not path.is_file():  # a pipe is read once, by the importer
        return FRONTENDS[0]
    try:
        with open(path, "rb") as file:
            return _of_bytes(file.read(_HEAD)) or FRONTENDS[0]
    except OSError:  # whoever reads it says so
        return FRONTENDS[0]


_HEAD = 64
"""Bytes of a file in which its kind is looked for."""


def _holds(row: Frontend, path: Path) -> bool:
    return any((path / name).is_file() for name in row.holds)


def _of_bytes(data: bytes) -> Frontend | None:
    for row in FRONTENDS:
        if any(data[at : at + len(text)] == text for at, text in row.starts):
            return row
    return None


def taken() -> str:
    """What `compile` takes, in words."""
    return ", ".join(["a path", "bytes", *(row.takes for row in FRONTENDS)]) + (
        " or an ekiden.IRModule"
    )
