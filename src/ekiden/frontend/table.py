"""The frontends, a row each: what it takes, what it needs, where it is.

Reading the table imports no framework; a frontend is imported when one of its models comes. To add
one: a row here, and a folder with a module `entry` whose functions are those of `Entry`.
"""

from __future__ import annotations

import json
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from types import ModuleType
from typing import IO, TYPE_CHECKING, Protocol, cast
from warnings import catch_warnings, simplefilter

from ekiden._lazy import load_module
from ekiden.frontend.common.options import ImportOptions
from ekiden.ir.installed import version_of
from ekiden.runtime.errors import CompileError, ImportModelError
from ekiden.runtime.lazy_dataclass import dataclass

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
    """A package that a frontend needs, or an advice: the module it is imported as, the names it is
    published under, from which version to below which, and a function that the module must have.
    """

    module: str
    distributions: tuple[str, ...]
    oldest: str = ""
    below: str = ""
    function: str = ""

    def installed(self) -> str:
        """The version that is there; "" where none says it."""
        return next(filter(None, map(version_of, self.distributions)), "")

    @property
    def distribution(self) -> str:
        """The name under which it is there, or is to be installed."""
        return next(filter(version_of, self.distributions), self.distributions[0])

    def misfit(self) -> Misfit | None:
        """Why it does not do as it is installed: not there, or of a version that is not known."""
        if not _is_installed(self.module):
            return Misfit(f"the package {self.distributions[0]!r} is missing", "pip install")
        have = self.installed()
        too_old = have and self.oldest and _numbers(have) < _numbers(self.oldest)
        too_new = have and self.below and _numbers(have) >= _numbers(self.below)
        if not too_old and not too_new:
            return None
        bounds = ("from", self.oldest), ("below", self.below)
        wanted = " ".join(f"{word} {number}" for word, number in bounds if number)
        text = f"expected {self.distributions[0]} {wanted}, got {have}"
        return Misfit(text, "pip install --upgrade")

    def unusable(self) -> str:
        """The same of a package that nothing of ours imports, in words, with the command that
        installs it; also where importing it fails. "" where all is well.
        """
        found = self.misfit()
        if found is None:
            try:
                with catch_warnings():
                    simplefilter("ignore")
                    module = import_module(self.module)
                if self.function:
                    getattr(module, self.function)
            except BROKEN as error:
                found = broken((self,), error)
        return "" if found is None else found.told(self.distribution)


@dataclass(frozen=True, slots=True)
class Misfit:
    """What is wrong with a package, and how pip mends it."""

    what: str
    command: str

    def told(self, install: str) -> str:
        """Both in words. `install` is what pip is to install."""
        return f"{self.what}; {self.command} {install}"


BROKEN = (Exception, SystemExit)
"""What importing a package may raise."""


def broken(packages: Sequence[Package], error: BaseException) -> Misfit:
    """Of packages that are there in versions which would do, and raise while they are imported: pip
    takes them for installed unless it is told to install them again.
    """
    have = ", ".join(f"{p.distribution} {p.installed()}".strip() for p in packages)
    said = str(error) or type(error).__name__
    return Misfit(f"{have} cannot be imported: {said}", "pip install --force-reinstall")


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
    is_own: Callable[[bytes], bool] | None = None
    """Whether bytes are one of its models, where no fixed place in them says so."""
    holds: tuple[str, ...] = ()
    """The files of which one is in each of its folders."""
    members: tuple[str, ...] = ()
    """Names of which one is in each of its files that are zip archives."""
    classes: tuple[str, ...] = ()
    """The classes of its objects, as "top-level package.class", subclasses with them."""
    tensors: tuple[str, ...] = ()
    """The classes of its tensors, the same."""
    options: frozenset[str] = frozenset()
    """The fields of ImportOptions that it honours."""
    serialize: Callable[[object], bytes] | None = None
    """The bytes of an object, if its artifacts are kept; needs nothing to be imported."""
    has_survey: bool = False
    relay: tuple[str, ...] = ()
    """TVM's functions for it, which `relay.frontend` has; they are in its module `relay`."""

    def entry(self) -> Entry:
        """Its functions. Raises ImportModelError with the command that installs what is missing."""
        return cast(Entry, self.module("entry"))

    def module(self, name: str) -> ModuleType:
        """One of its modules. Raises ImportModelError with the command that installs what is
        missing, or cannot be imported itself.
        """
        self.check_packages()
        try:
            return load_module(f"ekiden.frontend.{self.name}.{name}")
        except BROKEN as error:  # of a package, which may raise anything
            found = broken(self.packages, error)
            text = found.told(" ".join(p.distribution for p in self.packages))
            raise ImportModelError(f"import {self.model}: {text}") from error

    def check_packages(self) -> None:
        """Raise ImportModelError where a package is missing or of a version that is not known."""
        for each in self.packages:
            found = each.misfit()
            if found is not None:
                install = f"'ekiden[{self.extra}]'" if self.extra else each.distributions[0]
                raise ImportModelError(f"import {self.model}: {found.told(install)}")

    def check_options(self, options: ImportOptions) -> None:
        """Raise CompileError for an option that is given and not honoured, and for example inputs
        of another framework.
        """
        for name in options.given():
            if name not in self.options:
                known = ", ".join(f"'{n}'" for n in sorted(self.options)) or "none"
                raise CompileError(f"compile: {self.model} takes no '{name}'; it takes {known}")
        kwargs: object = options.example_kwargs
        if kwargs is not None and not isinstance(kwargs, Mapping):
            got = type(kwargs).__name__
            raise CompileError(f"compile: example_kwargs: a dictionary expected, got {got}")
        given = options.example_inputs
        inputs = given if isinstance(given, (list, tuple)) else [given]
        named = [(str(at), each) for at, each in enumerate(inputs)]
        for name, each in [*named, *(options.example_kwargs or {}).items()]:
            row = next((r for r in FRONTENDS if _is_one_of(each, r.tensors)), self)
            if row is not self:
                text = f"example input {name} is a {type(each).__name__} of another framework"
                raise CompileError(f"compile: {self.model}: {text}; {row.model} is {row.takes}")

    def check_model(self, model: object, function: str) -> None:
        """Raise CompileError where `function`, which is one of this row, is given another's model
        or none.
        """
        if isinstance(as_bytes(model), (str, os.PathLike, bytes)):
            return  # whoever reads it says what it is
        if frontend_of(model) is not self:
            text = f"expected {self.takes}, or a path or bytes of one, got {described(model)}"
            raise CompileError(f"{function}: {text}")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # where something stands in the way of importing it
        return False


def _numbers(text: str) -> tuple[int, ...]:
    """The version as numbers: "2.13.0+cpu" is (2, 13, 0)."""
    parts = text.partition("+")[0].split(".")
    return tuple(int(p) for p in parts if p.isdigit())


def _is_exported(data: bytes) -> bool:
    """Return whether bytes are what `jax.export.Exported.serialize` writes: a flatbuffer without an
    identifier, in which there is a portable artifact of StableHLO.
    """
    root = int.from_bytes(data[:4], "little")
    is_flatbuffer = 4 <= root <= _ROOT and root % 2 == 0
    return is_flatbuffer and b"ML\xefR\rStableHLO_v" in data


_MLIR_WORDS = (b"module {", b"module @", b"module attributes", b"func.func ", b"#loc", b"// ")
"""How the text of a program in MLIR begins: what comes before it, or a comment."""
_ROOT = 1024
"""The largest offset of a root table that jax.export writes: its own fields are few."""


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
        members=("archive_format", "serialized_exported_program.json"),
        classes=("torch.Module", "torch.ExportedProgram", "torch.ScriptFunction"),
        tensors=("torch.Tensor",),
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
        members=("model.weights.h5",),
        classes=("tensorflow.GraphDef", "tensorflow.ConcreteFunction", "keras.Model"),
        tensors=("tensorflow.Tensor",),
        options=frozenset(("shape", "signature")),
        relay=("from_tensorflow", "from_keras"),
    ),
    Frontend(
        "jax",
        model="a JAX program",
        takes="a function of JAX with example_inputs, a jax.export.Exported, StableHLO",
        packages=(Package("jax", ("jax",), "0.6"), Package("jaxlib", ("jaxlib",), "0.6")),
        extra="jax",
        suffixes=(".jax", ".mlir", ".stablehlo", ".mlirbc"),
        starts=((0, b"ML\xefR"), *((0, word) for word in _MLIR_WORDS)),
        is_own=_is_exported,
        classes=(
            "jax.Exported",
            "jaxlib.Module",
            "jaxlib.PjitFunction",
            "builtins.function",
            "builtins.method",
            "functools.partial",
        ),
        tensors=("jaxlib.ArrayImpl",),
        options=frozenset(("example_inputs", "example_kwargs", "dynamic_shapes", "signature")),
        relay=("from_jax",),
    ),
    Frontend(
        "text",
        model="a Relay program",
        takes="Relay's text",
        packages=(),
        suffixes=(".relay",),
        starts=((0, b"#[version = "),),
    ),
)
"""The first row is for files and bytes that no other claims."""


@dataclass(frozen=True, slots=True)
class Other:
    """Files and objects that no frontend takes, and what a user does with one. `starts`, `holds`,
    `members` and `classes` are as those of a frontend; `converter` is what the advice needs.
    """

    what: str
    suffixes: tuple[str, ...]
    advice: str
    starts: tuple[tuple[int, bytes], ...] = ()
    holds: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    converter: Package | None = None


def _by(*package: str) -> Package:
    """What converts models to ONNX: its module, its oldest version, its function."""
    module, oldest, function = package
    return Package(module, (module,), oldest, function=function)


_CONVERT = "convert it to ONNX by"
_ORIGIN = "give ekiden.compile the model that it was made of"

OTHERS = (
    Other("a pointer of Git LFS", (), "fetch the file itself: git lfs pull",
          starts=((0, b"version https://git-lfs"),)),
    Other("a web page", (".html",), "the download gave no model: look at what it says",
          starts=((0, b"<!DOCTYPE"), (0, b"<!doctype"), (0, b"<html"))),
    Other("a file of TorchScript", (),
          "give ekiden.compile the module, loaded by torch.jit.load, with example_inputs",
          members=("constants.pkl",)),
    Other("what torch.save wrote", (),
          "give ekiden.compile the module, loaded by torch.load, with example_inputs",
          starts=((0, b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."),), members=("data.pkl",)),
    Other("a file of PyTorch that Python has to load", (".pt", ".pth", ".ckpt"),
          "give ekiden.compile the module, loaded by torch.load or torch.jit.load, with "
          "example_inputs"),
    Other("a checkpoint of transformers", (), "give ekiden.compile the module that from_pretrained "
          "makes of it, with example_inputs, or run it by `ekiden generate`",
          holds=("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                 "pytorch_model.bin.index.json")),
    Other("weights alone", (".safetensors", ".npz", ".msgpack", ".pdiparams", ".params",
                            ".weights.h5"),
          "load them into the model in its framework, and give ekiden.compile that model",
          starts=((5, b'\0\0\0{"'),), holds=("checkpoint", "_CHECKPOINT_METADATA", "_METADATA"),
          classes=("builtins.dict",)),
    Other("in ONNX Runtime's own format", (".ort",),
          "give ekiden.compile the .onnx file that it was made of", starts=((4, b"ORTM"),),
          classes=("onnxruntime.InferenceSession",)),
    Other("pickled", (".pkl", ".pickle", ".joblib"),
          "load it; ekiden.compile takes what is a model of a framework",
          starts=tuple((0, bytes((0x80, protocol))) for protocol in range(2, 6))),
    Other("an expression of Relay", (), "make a function of it: relay.Function(parameters, it)",
          classes=("ekiden.ExprWithOp",)),
    Other("a part of an ONNX model", (), "make a model of it by onnx.helper.make_model",
          classes=("onnx.GraphProto", "onnx.FunctionProto")),
    Other("a model of LightGBM", (), _CONVERT, classes=("lightgbm.LGBMModel", "lightgbm.Booster"),
          converter=_by("onnxmltools", "1.12", "convert_lightgbm")),
    Other("a model of XGBoost", (".ubj",), _CONVERT,
          classes=("xgboost.XGBModel", "xgboost.Booster"),
          converter=_by("onnxmltools", "1.12", "convert_xgboost")),
    Other("a model of CatBoost", (".cbm",), "save it by save_model(path, format='onnx')",
          classes=("catboost.CatBoost",)),
    Other("an estimator of scikit-learn", (), _CONVERT, classes=("sklearn.BaseEstimator",),
          converter=_by("skl2onnx", "1.17", "to_onnx")),
    Other("a module of Flax", (), "give ekiden.compile a function that calls it, as "
          "lambda x: module.apply(variables, x), with example_inputs", classes=("flax.Module",)),
    Other("lowered already", (), "give ekiden.compile the function, or jax.export.export of it",
          classes=("jax.Lowered", "jax.Compiled")),
    Other("a function of TensorFlow for inputs of many types", (),
          "give ekiden.compile f.get_concrete_function(tf.TensorSpec(...))",
          classes=("tensorflow.Function",)),
    Other("a layer of Keras", (), "make a model of it: keras.Sequential([keras.Input(...), it])",
          classes=("keras.Layer",)),
    Other("a module of TensorFlow", (), "give ekiden.compile one of its functions, by "
          "get_concrete_function, or the folder that tf.saved_model.save wrote",
          classes=("tensorflow.Module",)),
    Other("a graph of TensorFlow", (), "give ekiden.compile its GraphDef, frozen: as_graph_def()",
          classes=("tensorflow.Graph",)),
    Other("a model of Keras 2", (), "export it, and give ekiden.compile the folder: "
          "model.export(path)", classes=("tf_keras.Model",)),
    Other("a model of Keras 2", (".h5", ".hdf5"),
          "give ekiden.compile the model, loaded by keras.models.load_model",
          starts=((0, b"\x89HDF\r\n"),)),
    Other("a checkpoint of a language model", (".gguf",), "run it by `ekiden generate`",
          starts=((0, b"GGUF"),)),
    Other("a model of CoreML", (".mlmodel", ".mlpackage"),
          _CONVERT, classes=("coremltools.MLModel",),
          converter=_by("onnxmltools", "1.12", "convert_coreml")),
    Other("compiled already", (".eki", ".so", ".dll", ".dylib"),
          "load it by ekiden.load, or look into it by `ekiden inspect`",
          starts=((0, b"\x7fELF"),)),
    Other("a model of OpenVINO", (".xml",), _ORIGIN,
          classes=("openvino.Model", "openvino.CompiledModel")),
    Other("made for another engine", (".engine", ".plan", ".trt", ".pte", ".mnn"), _ORIGIN),
    Other("a model of Caffe", (".caffemodel", ".prototxt"), "convert it to ONNX"),
    Other("compressed", (".gz", ".tgz", ".xz", ".bz2", ".zst", ".zip", ".tar"),
          "unpack it, and give ekiden.compile the model that is in it",
          starts=((0, b"\x1f\x8b\x08"), (0, b"\xfd7zXZ"), (0, b"BZh"), (0, b"\x28\xb5\x2f\xfd"))),
    Other("a model of PaddlePaddle", (".pdmodel",), _CONVERT, classes=("paddle.Layer",),
          converter=_by("paddle2onnx", "1.2", "export")),
)  # fmt: skip


def frontend(name: str) -> Frontend:
    """The row of that name."""
    return next(row for row in FRONTENDS if row.name == name)


def frontend_of(model: object) -> Frontend | None:
    """The row that takes a model: a path, bytes, or an object of a framework; None if none does.

    Raises ImportModelError for a file or an object of which another tool makes a model.
    """
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model) or os.curdir
        row = _of_path(path)
        is_keras = not path.endswith(".pb") and not os.path.isdir(path)
        return _of_keras_file(row, repr(_name(path))) if is_keras else row
    model = as_bytes(model)
    if isinstance(model, bytes):
        found = _of_archive(BytesIO(model), "bytes") if model[:4] == _ZIP else None
        for other in OTHERS:
            if _starts(other, model[:_HEAD]):
                raise _turned_away("bytes", other)
        own = (row for row in FRONTENDS if row.is_own is not None and row.is_own(model))
        found = _of_keras_file(found, "bytes")
        return found or _of_bytes(model) or next(own, FRONTENDS[0])
    for row in FRONTENDS:
        if _is_one_of(model, row.classes):
            return _of_keras("the model") if _is_one_of(model, (_KERAS,)) else row
    for other in OTHERS:
        if _is_one_of(model, other.classes):
            raise _turned_away(f"an object of class {type(model).__name__!r}", other)
    return None


_KERAS = "keras.Model"
_BACKENDS = {"tensorflow": "tensorflow", "jax": "jax", "torch": "torch"}
"""What Keras computes with -> the row of its models."""


def _of_keras(what: str) -> Frontend:
    """The row of what Keras computes with. Raises ImportModelError for one that there is not."""
    backend = keras_backend()
    if backend not in _BACKENDS:
        known = ", ".join(repr(name) for name in _BACKENDS)
        text = f"{what}: Keras computes with {backend!r}; set KERAS_BACKEND to one of {known}"
        raise ImportModelError(f"import {text}")
    return frontend(_BACKENDS[backend])


def keras_backend() -> str:
    """Return what Keras computes with: as it says itself where it is loaded, else as it will find
    it in KERAS_BACKEND or its file of settings.
    """
    loaded = sys.modules.get("keras")
    if loaded is not None and hasattr(loaded, "config"):
        return str(loaded.config.backend())
    chosen = os.environ.get("KERAS_BACKEND", "")
    if chosen:
        return chosen
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    try:
        with open(os.path.join(home, "keras.json"), encoding="utf-8") as file:
            return str(json.load(file).get("backend", "tensorflow"))
    except (OSError, ValueError, AttributeError):
        return "tensorflow"


def _of_keras_file(row: Frontend | None, name: str) -> Frontend | None:
    """The row of a file of Keras, which is one of TensorFlow's until here. Raises ImportModelError
    where Keras computes with PyTorch, whose models are traced with examples.
    """
    if row is None or row.name != _BACKENDS["tensorflow"]:
        return row
    found = _of_keras(name)
    if found.name == "torch":
        raise ImportModelError(
            f"import {name}: Keras computes with 'torch': give ekiden.compile the model, loaded by "
            "keras.saving.load_model, with example_inputs"
        )
    return found


def as_bytes(model: object) -> object:
    """Return a buffer of bytes that may change as `bytes`, anything else as it is."""
    return bytes(model) if isinstance(model, (bytearray, memoryview)) else model


def _is_one_of(value: object, classes: Sequence[str]) -> bool:
    """Whether one of these names, as `Frontend.classes` has them, is that of its class."""
    kinds = type(value).__mro__
    return any(f"{c.__module__.partition('.')[0]}.{c.__qualname__}" in classes for c in kinds)


def _turned_away(name: str, other: Other) -> ImportModelError:
    text, by = f"import {name}: it is {other.what}: {other.advice}", other.converter
    if by is not None:
        trouble = by.unusable()
        text += f" {by.module}.{by.function}" + (f"\n  {trouble}" if trouble else "")
    return ImportModelError(text)


def described(model: object) -> str:
    """What was given in the place of a model, in words."""
    if isinstance(model, type):
        return f"the class {model.__name__}; an instance of it is meant, perhaps"
    return type(model).__name__


def is_model_file(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a model, as its name, or what stands in a folder, tells."""
    where = os.fspath(path)
    name = _name(where).lower()
    return any(name.endswith(row.suffixes) or _holds(row, where) for row in FRONTENDS)


def _name(path: str) -> str:
    """The last part of a path, also of a folder's that ends with its separator."""
    return os.path.basename(path.rstrip(os.sep))


def _of_path(path: str) -> Frontend:
    if "\0" in path:
        raise ImportModelError(f"import {path!r}: no path has a character of zero")
    head, found, shown = b"", None, _name(path)
    if os.path.isfile(path):  # a pipe is read once, by the importer
        with suppress(OSError), open(path, "rb") as file:  # whoever reads it says so
            head = file.read(_HEAD)
            found = _of_archive(file, repr(shown)) if head[:4] == _ZIP else None
    found = found or next((row for row in FRONTENDS if _holds(row, path)), None)
    if found is not None:
        return found
    around = os.path.dirname(path) or os.curdir
    if any(shown in row.holds and _holds(row, around) for row in FRONTENDS):
        text = f"it is a part of a model: give the folder, {around!r}"
        raise ImportModelError(f"import {shown!r}: {text}")
    if names := _models_in(path):
        raise ImportModelError(f"import {path!r}: it is a folder: give the path of {names}")
    name = shown.lower()
    if os.path.exists(path):  # of what is not there, the importer says that
        for other in OTHERS:
            if _starts(other, head) or name.endswith(other.suffixes) or _holds(other, path):
                raise _turned_away(repr(shown), other)
    for row in FRONTENDS:
        if name.endswith(row.suffixes):
            return row
    if os.path.isdir(path):
        raise ImportModelError(f"import {path!r}: it is a folder, in which there is no model")
    return _of_bytes(head) or FRONTENDS[0]


def _models_in(folder: str) -> str:
    """The models in a folder, in words; "" where there are none, or it is no folder."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return ""
    names = sorted(repr(n) for n in entries if is_model_file(os.path.join(folder, n)))
    rest = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return " or ".join([*names[:_NAMED], *rest])


_NAMED = 5
"""Models of a folder that a message names."""

_HEAD = 64
"""Bytes of a file in which its kind is looked for."""


def _holds(row: Frontend | Other, path: str) -> bool:
    return any(os.path.isfile(os.path.join(path, name)) for name in row.holds)


def _starts(row: Frontend | Other, data: bytes) -> bool:
    return any(data[at : at + len(text)] == text for at, text in row.starts)


def _of_bytes(data: bytes) -> Frontend | None:
    return next((row for row in FRONTENDS if _starts(row, data)), None)


def _of_archive(file: IO[bytes], name: str) -> Frontend | None:
    """The row of a zip archive by what is in it. Raises ImportModelError as `frontend_of`."""
    from zipfile import BadZipFile, ZipFile  # noqa: PLC0415 - for archives alone

    try:
        with ZipFile(file) as archive:
            parts = archive.infolist()
            if all(part.header_offset for part in parts):
                return None  # an archive inside of one that is cut short
            members = {part.filename.rpartition("/")[2] for part in parts}
    except (OSError, ValueError, BadZipFile):
        return None  # cut short: whoever takes it by its name says so
    for row in FRONTENDS:
        if members.intersection(row.members):
            return row
    for other in OTHERS:
        if members.intersection(other.members):
            raise _turned_away(name, other)
    return None


_ZIP = b"PK\x03\x04"


def taken() -> str:
    """What `compile` takes, in words."""
    return ", ".join(["a path", "bytes", *(row.takes for row in FRONTENDS)]) + (
        ", a relay.Function or an ekiden.IRModule"
    )
