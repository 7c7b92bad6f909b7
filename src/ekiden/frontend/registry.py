"""Registry of frontends with the models they accept, their packages and their modules.

Reading the table imports no framework; a frontend is imported when one of its models is given. To
add one: a row here, and a folder with a module `entry` whose functions are those of
`FrontendEntry`.
"""

from __future__ import annotations

import json
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from types import ModuleType
from typing import IO, TYPE_CHECKING, Protocol, cast

from ekiden._lazy import load_module
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.packages import IMPORT_ERRORS, Package, importer_problem
from ekiden.frontend.rejected_kinds import REJECTED_KINDS, RejectedKind
from ekiden.runtime.errors import CompileError, ImportModelError
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ekiden.frontend.common.import_result import ImportResult
    from ekiden.frontend.common.survey import Survey


class FrontendEntry(Protocol):
    """Interface of a frontend's module `entry`."""

    def import_model(self, model: object, options: ImportOptions) -> ImportResult:
        """Import a model that the frontend accepts.

        Raises ImportModelError for a broken one, and UnsupportedError listing every node that
        cannot be imported.
        """

    def survey(self, model: object) -> Survey:
        """Survey a model without importing it, for frontends with `has_survey`."""


@dataclass(frozen=True, slots=True)
class Frontend:
    """Registry entry of a frontend: its packages, and how its models are recognised."""

    name: str
    """Name of its package, `ekiden.frontend.<name>`."""
    model_noun: str
    """Noun for its models in messages: "an ONNX model"."""
    accepted_forms: str
    """Accepted objects, for messages: "an onnx.ModelProto"."""
    packages: tuple[Package, ...]
    extra: str = ""
    """Extra of Ekiden that installs the packages; "" if Ekiden always requires them."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of its files."""
    magic_bytes: tuple[tuple[int, bytes], ...] = ()
    """Magic bytes of its files, as (offset, bytes)."""
    matches_bytes: Callable[[bytes], bool] | None = None
    """Predicate of bytes that are one of its models, for formats without magic bytes."""
    marker_files: tuple[str, ...] = ()
    """File names, one of which is in each of its model folders."""
    archive_members: tuple[str, ...] = ()
    """Member names, one of which is in each of its zip archives."""
    class_names: tuple[str, ...] = ()
    """Classes of its models, as "top-level package.class"; includes their subclasses."""
    tensor_class_names: tuple[str, ...] = ()
    """Classes of its tensors, in the same form."""
    honoured_options: frozenset[str] = frozenset()
    """Fields of ImportOptions that it supports; others are refused."""
    serialize: Callable[[object], bytes] | None = None
    """Function that serialises a model for its digest in the artifact cache; None if models are not
    cached. It imports nothing.
    """
    has_survey: bool = False
    relay_functions: tuple[str, ...] = ()
    """Names of TVM's import functions, defined in its module `relay_functions`."""

    def entry_module(self) -> FrontendEntry:
        """Import the frontend's entry module; raise ImportModelError for a missing package."""
        return cast(FrontendEntry, self.import_submodule("entry"))

    def import_submodule(self, name: str) -> ModuleType:
        """Import one of the frontend's modules.

        Raises ImportModelError with the command that installs what is missing or cannot be
        imported.
        """
        self.check_packages()
        try:
            return load_module(f"ekiden.frontend.{self.name}.{name}")
        except IMPORT_ERRORS as error:  # of a package, which may raise anything
            problem = importer_problem(self.packages, error)
            raise ImportModelError(f"import {self.model_noun}: {problem}") from error

    def check_packages(self) -> None:
        """Raise ImportModelError for a missing package or an unsupported version."""
        for package in self.packages:
            problem = package.problem()
            if problem is not None:
                install = f"'ekiden[{self.extra}]'" if self.extra else package.distributions[0]
                raise ImportModelError(f"import {self.model_noun}: {problem.as_text(install)}")

    def check_options(self, options: ImportOptions) -> None:
        """Raise CompileError for an unsupported option or example inputs of another framework."""
        for name in options.set_option_names():
            if name not in self.honoured_options:
                supported = ", ".join(f"'{n}'" for n in sorted(self.honoured_options))
                raise CompileError(
                    f"compile: {self.model_noun} takes no '{name}'; it takes {supported}"
                )
        kwargs: object = options.example_kwargs
        if kwargs is not None and not isinstance(kwargs, Mapping):
            actual = type(kwargs).__name__
            raise CompileError(f"compile: example_kwargs: a dictionary expected, got {actual}")
        examples = options.example_inputs
        inputs = examples if isinstance(examples, (list, tuple)) else [examples]
        named = [(str(index), positional) for index, positional in enumerate(inputs)]
        for name, example in [*named, *(options.example_kwargs or {}).items()]:
            # By class name, so that no framework is imported to look at an example.
            row = next(
                (r for r in FRONTENDS if _is_instance_by_name(example, r.tensor_class_names)), self
            )
            if row is not self:
                text = f"example input {name} is a {type(example).__name__} of another framework"
                raise CompileError(
                    f"compile: {self.model_noun}: {text}; {row.model_noun} is {row.accepted_forms}"
                )

    def check_model(self, model: object, function: str) -> None:
        """Raise CompileError if `function` is given a model of another frontend."""
        if isinstance(to_bytes(model), (str, os.PathLike, bytes)):
            return  # the importer reports what it is
        if find_frontend(model) is not self:
            raise CompileError(
                f"{function}: expected {self.accepted_forms}, or a path or bytes of one, "
                f"got {describe_model(model)}"
            )


def _is_jax_export(data: bytes) -> bool:
    """Return whether bytes are a serialised `jax.export.Exported`: a flatbuffer with a StableHLO
    portable artifact.
    """
    root = int.from_bytes(data[:4], "little")
    is_flatbuffer = 4 <= root <= _MAX_ROOT_OFFSET and root % 2 == 0
    return is_flatbuffer and b"ML\xefR\rStableHLO_v" in data


_MLIR_PREFIXES = (b"module {", b"module @", b"module attributes", b"func.func ", b"#loc", b"// ")
"""Possible beginnings of MLIR text: an operation, an attribute alias, or a comment."""
_MAX_ROOT_OFFSET = 1024
"""Largest plausible root-table offset of a file by jax.export, whose root has few fields."""


FRONTENDS = (
    Frontend(
        "onnx",
        model_noun="an ONNX model",
        accepted_forms="an onnx.ModelProto",
        packages=(Package("onnx", ("onnx",), "1.17", tested_version="1.23.2"),),
        suffixes=(".onnx",),
        class_names=("onnx.ModelProto",),
        honoured_options=frozenset(("shape",)),
        serialize=operator.methodcaller("SerializeToString", deterministic=True),
        has_survey=True,
        relay_functions=("from_onnx",),
    ),
    Frontend(
        "torch",
        model_noun="a PyTorch model",
        accepted_forms="a torch.nn.Module with example_inputs, a torch.export.ExportedProgram",
        packages=(Package("torch", ("torch",), "2.6", tested_version="2.15.0"),),
        extra="torch",
        suffixes=(".pt2",),
        archive_members=("archive_format", "serialized_exported_program.json"),
        class_names=("torch.Module", "torch.ExportedProgram", "torch.ScriptFunction"),
        tensor_class_names=("torch.Tensor",),
        honoured_options=frozenset(("example_inputs", "example_kwargs", "dynamic_shapes")),
        relay_functions=("from_pytorch",),
    ),
    Frontend(
        "tflite",
        model_noun="a TensorFlow Lite model",
        accepted_forms="a .tflite file",
        packages=(Package("tflite", ("tflite",), "2.18"),),
        extra="tflite",
        suffixes=(".tflite",),
        magic_bytes=((4, b"TFL3"),),
        honoured_options=frozenset(("shape", "signature")),
        relay_functions=("from_tflite",),
    ),
    Frontend(
        "tensorflow",
        model_noun="a TensorFlow model",
        accepted_forms="a SavedModel, a GraphDef, a Keras model or a concrete function",
        packages=(
            Package(
                "tensorflow", ("tensorflow", "tensorflow-cpu"), "2.16", tested_version="2.21.0"
            ),
        ),
        extra="tensorflow",
        suffixes=(".pb", ".keras"),
        marker_files=("saved_model.pb",),
        archive_members=("model.weights.h5",),
        class_names=("tensorflow.GraphDef", "tensorflow.ConcreteFunction", "keras.Model"),
        tensor_class_names=("tensorflow.Tensor",),
        honoured_options=frozenset(("shape", "signature")),
        relay_functions=("from_tensorflow", "from_keras"),
    ),
    Frontend(
        "jax",
        model_noun="a JAX program",
        accepted_forms="a function of JAX with example_inputs, a jax.export.Exported, StableHLO",
        packages=(
            Package("jax", ("jax",), "0.6", tested_version="0.10.2"),
            Package("jaxlib", ("jaxlib",), "0.6", tested_version="0.10.2"),
        ),
        extra="jax",
        suffixes=(".jax", ".mlir", ".stablehlo", ".mlirbc"),
        magic_bytes=((0, b"ML\xefR"), *((0, word) for word in _MLIR_PREFIXES)),
        matches_bytes=_is_jax_export,
        class_names=(
            "jax.Exported",
            "jaxlib.Module",
            "jaxlib.PjitFunction",
            "builtins.function",
            "builtins.method",
            "functools.partial",
        ),
        tensor_class_names=("jaxlib.ArrayImpl",),
        honoured_options=frozenset(
            ("example_inputs", "example_kwargs", "dynamic_shapes", "signature")
        ),
        relay_functions=("from_jax",),
    ),
    Frontend(
        "relay_program",
        model_noun="a Relay program",
        accepted_forms="Relay's text, a relay.Function or an ekiden.IRModule",
        packages=(),
        suffixes=(".relay",),
        magic_bytes=((0, b"#[version = "),),
        class_names=("ekiden.IRModule", "ekiden.Function"),
        honoured_options=frozenset(("shape",)),
    ),
)
"""Frontends by priority; the first also gets the files and bytes that no other recognises."""


def frontend_by_name(name: str) -> Frontend:
    """Return the frontend of a name."""
    return next(row for row in FRONTENDS if row.name == name)


def find_frontend(model: object) -> Frontend | None:
    """Return the frontend that accepts a path, bytes or object; None if there is none.

    Raises ImportModelError for a file or an object that another tool must convert first.
    """
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model) or os.curdir
        row = _find_frontend_of_path(path)
        is_keras = not path.endswith(".pb") and not os.path.isdir(path)
        return _keras_file_frontend(row, repr(_base_name(path))) if is_keras else row
    model = to_bytes(model)
    if isinstance(model, bytes):
        archive_row = (
            _find_frontend_of_archive(BytesIO(model), "bytes") if model[:4] == _ZIP_MAGIC else None
        )
        for rejected in REJECTED_KINDS:
            if _has_magic_bytes(rejected, model[:_MAGIC_BYTES_READ]):
                raise _rejection_error("bytes", rejected)
        # Lazy: predicates search all bytes, which magic bytes make unnecessary.
        matching_rows = (
            row for row in FRONTENDS if row.matches_bytes is not None and row.matches_bytes(model)
        )
        archive_row = _keras_file_frontend(archive_row, "bytes")
        return archive_row or _find_frontend_of_bytes(model) or next(matching_rows, FRONTENDS[0])
    for row in FRONTENDS:
        if _is_instance_by_name(model, row.class_names):
            return (
                _keras_frontend("the model")
                if _is_instance_by_name(model, (_KERAS_MODEL_CLASS,))
                else row
            )
    for rejected in REJECTED_KINDS:
        if _is_instance_by_name(model, rejected.class_names):
            raise _rejection_error(f"an object of class {type(model).__name__!r}", rejected)
    return None


_KERAS_MODEL_CLASS = "keras.Model"
_FRONTEND_OF_KERAS_BACKEND = {"tensorflow": "tensorflow", "jax": "jax", "torch": "torch"}
"""Backend of Keras -> name of the frontend that imports its models."""


def _keras_frontend(what: str) -> Frontend:
    """Return the frontend of Keras's backend; raise ImportModelError for an unknown one."""
    backend = keras_backend()
    if backend not in _FRONTEND_OF_KERAS_BACKEND:
        supported = ", ".join(repr(name) for name in _FRONTEND_OF_KERAS_BACKEND)
        text = f"{what}: Keras computes with {backend!r}; set KERAS_BACKEND to one of {supported}"
        raise ImportModelError(f"import {text}")
    return frontend_by_name(_FRONTEND_OF_KERAS_BACKEND[backend])


def keras_backend() -> str:
    """Return the backend of Keras: of the loaded package, KERAS_BACKEND, or its
    configuration file.
    """
    # Importing Keras takes seconds, so an unloaded one is judged by its configuration alone.
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


def _keras_file_frontend(row: Frontend | None, name: str) -> Frontend | None:
    """Return the frontend of a Keras file by its backend; other entries are returned unchanged.

    Raises ImportModelError where the backend is PyTorch, whose models are traced with examples.
    """
    if row is None or row.name != _FRONTEND_OF_KERAS_BACKEND["tensorflow"]:
        return row
    backend_row = _keras_frontend(name)
    if backend_row.name == "torch":
        raise ImportModelError(
            f"import {name}: Keras computes with 'torch': give ekiden.compile the model, loaded by "
            "keras.saving.load_model, with example_inputs"
        )
    return backend_row


def to_bytes(model: object) -> object:
    """Convert a bytearray or memoryview to `bytes`; other objects are unchanged."""
    return bytes(model) if isinstance(model, (bytearray, memoryview)) else model


def _is_instance_by_name(value: object, classes: Sequence[str]) -> bool:
    """Return whether a value's class or a base has one of these names, "top-level
    package.class".
    """
    kinds = type(value).__mro__
    return any(f"{c.__module__.partition('.')[0]}.{c.__qualname__}" in classes for c in kinds)


def _rejection_error(name: str, rejected: RejectedKind) -> ImportModelError:
    """Return the error that rejects a model, with the advice of its kind."""
    text, converter = (
        f"import {name}: it is {rejected.description}: {rejected.advice}",
        rejected.converter,
    )
    if converter is not None:
        trouble = converter.unusable_reason()
        text += f" {converter.module}.{converter.required_function}" + (
            f"\n  {trouble}" if trouble else ""
        )
    return ImportModelError(text)


def describe_model(model: object) -> str:
    """Return the class name of an object given as a model, for messages."""
    if isinstance(model, type):
        return f"the class {model.__name__}; an instance of it is meant, perhaps"
    return type(model).__name__


def is_model_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a path names a model, by its suffix or its folder's files."""
    where = os.fspath(path)
    name = _base_name(where).lower()
    return any(name.endswith(row.suffixes) or _has_marker_file(row, where) for row in FRONTENDS)


def _base_name(path: str) -> str:
    """Return the last component of a path, ignoring a trailing separator."""
    return os.path.basename(path.rstrip(os.sep))


def _find_frontend_of_path(path: str) -> Frontend:
    """Return the frontend of a path by its first bytes, archive members, marker files or suffix."""
    if "\0" in path:
        raise ImportModelError(f"import {path!r}: no path has a character of zero")
    head, matching_row, shown = b"", None, _base_name(path)
    # Content comes before the suffix: a renamed file still finds its frontend.
    if os.path.isfile(path):  # a pipe is read once, by the importer
        with suppress(OSError), open(path, "rb") as file:  # the importer reports it
            head = file.read(_MAGIC_BYTES_READ)
            matching_row = (
                _find_frontend_of_archive(file, repr(shown)) if head[:4] == _ZIP_MAGIC else None
            )
    matching_row = matching_row or next(
        (row for row in FRONTENDS if _has_marker_file(row, path)), None
    )
    if matching_row is not None:
        return matching_row
    around = os.path.dirname(path) or os.curdir
    if any(shown in row.marker_files and _has_marker_file(row, around) for row in FRONTENDS):
        text = f"it is a part of a model: give the folder, {around!r}"
        raise ImportModelError(f"import {shown!r}: {text}")
    if names := _list_models(path):
        raise ImportModelError(f"import {path!r}: it is a folder: give the path of {names}")
    name = shown.lower()
    if os.path.exists(path):  # otherwise, the importer reports the missing file
        for rejected in REJECTED_KINDS:
            if (
                _has_magic_bytes(rejected, head)
                or name.endswith(rejected.suffixes)
                or _has_marker_file(rejected, path)
            ):
                raise _rejection_error(repr(shown), rejected)
    for row in FRONTENDS:
        if name.endswith(row.suffixes):
            return row
    if os.path.isdir(path):
        raise ImportModelError(f"import {path!r}: it is a folder, in which there is no model")
    return _find_frontend_of_bytes(head) or FRONTENDS[0]


def _list_models(folder: str) -> str:
    """Return the models in a folder as text for a message; "" if there are none."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return ""
    names = sorted(repr(n) for n in entries if is_model_file(os.path.join(folder, n)))
    omitted = [f"{len(names) - _MAX_NAMED_MODELS} more"] if len(names) > _MAX_NAMED_MODELS else []
    return " or ".join([*names[:_MAX_NAMED_MODELS], *omitted])


_MAX_NAMED_MODELS = 5
"""Maximum number of models of a folder that a message names."""

_MAGIC_BYTES_READ = 64
"""Bytes read of a file to identify its format."""


def _has_marker_file(row: Frontend | RejectedKind, path: str) -> bool:
    """Return whether a folder contains one of an entry's marker files."""
    return any(os.path.isfile(os.path.join(path, name)) for name in row.marker_files)


def _has_magic_bytes(row: Frontend | RejectedKind, data: bytes) -> bool:
    """Return whether data have an entry's magic bytes at their offset."""
    return any(data[position : position + len(text)] == text for position, text in row.magic_bytes)


def _find_frontend_of_bytes(data: bytes) -> Frontend | None:
    """Return the frontend whose magic bytes data begin with; None if there is none."""
    return next((row for row in FRONTENDS if _has_magic_bytes(row, data)), None)


def _find_frontend_of_archive(file: IO[bytes], name: str) -> Frontend | None:
    """Return the frontend of a zip archive by its members; raise ImportModelError for rejected
    kinds.
    """
    from zipfile import BadZipFile, ZipFile  # noqa: PLC0415 - for archives alone

    try:
        with ZipFile(file) as archive:
            entries = archive.infolist()
            # A local header that does not begin the file belongs to an archive embedded in
            # truncated data.
            if all(entry.header_offset for entry in entries):
                return None  # an archive embedded in a truncated one
            members = {entry.filename.rpartition("/")[2] for entry in entries}
    except (OSError, ValueError, BadZipFile):
        return None  # truncated: the importer that its name selects reports it
    for row in FRONTENDS:
        if members.intersection(row.archive_members):
            return row
    for rejected in REJECTED_KINDS:
        if members.intersection(rejected.archive_members):
            raise _rejection_error(name, rejected)
    return None


_ZIP_MAGIC = b"PK\x03\x04"


def accepted_models() -> str:
    """Return the models that `compile` accepts, as text."""
    return ", ".join(["a path", "bytes", *(row.accepted_forms for row in FRONTENDS)])


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A user's model with the frontend that reads it, which is looked up once per compilation."""

    model: object
    """Path, bytes, or object; bytearrays and memoryviews have become bytes."""
    frontend: Frontend

    @property
    def accepts_examples(self) -> bool:
        """Return whether the model's shapes and dtypes may be inferred from example inputs."""
        return "example_inputs" in self.frontend.honoured_options

    @property
    def absolute_path(self) -> str | None:
        """Return the absolute path of a model in a file or folder, since the working directory may
        change before it is read; None for bytes and objects.
        """
        model = self.model
        return os.path.abspath(model) if isinstance(model, (str, os.PathLike)) else None

    def import_model(self, options: ImportOptions) -> ImportResult:
        """Import the model by its frontend.

        Raises CompileError for options that the frontend does not know; ImportModelError and
        UnsupportedError as the frontend's entry does.
        """
        # Options that the frontend ignores are errors: silently dropping `shape` would compile
        # another model.
        self.frontend.check_options(options)
        return self.frontend.entry_module().import_model(self.model, options)


def identify_model(model: object) -> ModelSource:
    """Return a model with the frontend that accepts it.

    Raises CompileError for an object that no frontend accepts, ImportModelError for a file or an
    object that another tool must convert first.
    """
    model = to_bytes(model)
    frontend = find_frontend(model)
    if frontend is None:
        raise CompileError(f"compile: expected {accepted_models()}, got {describe_model(model)}")
    return ModelSource(model, frontend)
