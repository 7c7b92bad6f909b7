"""Model files of a repository folder: its versions, their fingerprints, and the programs loaded
from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import ekiden
from ekiden.compiler.sample_inputs import random_inputs
from ekiden.frontend.registry import is_model_file
from ekiden.runtime.errors import EkidenError, LoadError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.config import ModelConfig
from ekiden.serve.datatypes import Array
from ekiden.serve.encoders import open_text_model
from ekiden.serve.sequences import SequenceSession, session_factory
from ekiden.serve.signature import (
    BATCH_TRIAL_ROWS,
    ModelSignature,
    has_independent_rows,
    output_arrays,
    read_signature,
)
from ekiden.serve.text import AnyTextModel, find_text_model

__all__ = [
    "FileStamp",
    "ServedProgram",
    "file_stamp",
    "is_version_name",
    "load_program",
    "source_bytes",
    "version_files",
]

FileStamp = tuple[str, int, int, int]
"""A file as it was when it was loaded: path, inode, size, time of its last change."""


@dataclass(frozen=True, slots=True)
class ServedProgram:
    """Program of a version's file, independent of the event loop."""

    executable: Executable | None
    signature: ModelSignature
    make_session: Callable[[], SequenceSession] | None
    text: AnyTextModel | None = None

    def run(self, arrays: Sequence[Array], seconds: float) -> list[Array]:
        """Run the program. Raises what the executable raises."""
        assert self.executable is not None
        return output_arrays(self.executable(*arrays, timeout=seconds))


def is_version_name(text: str) -> bool:
    """Return whether a folder's name is a version number of at most 9 digits."""
    return text.isascii() and text.isdigit() and len(text) < 10


def source_bytes(path: Path, config: ModelConfig) -> int:
    """Return the size of the files that a version is loaded from, in bytes: an artifact or a model,
    or the weights of a checkpoint. 0 for a text model that is a Python object.
    """
    if config.text.object:
        return 0
    source = path.parent / config.text.checkpoint if config.text.checkpoint else path
    try:
        if not source.is_dir():
            return source.stat().st_size
        return sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
    except OSError as error:
        raise LoadError(f"load '{source}': {(error.strerror or '').lower()}") from None


def file_stamp(path: Path) -> FileStamp:
    """Return a fingerprint of a file (identity, size, modification time). Raises LoadError if it is
    not readable.
    """
    if str(path) == "":
        return ("", 0, 0, 0)
    try:
        stat = path.stat()
    except OSError as error:
        raise LoadError(f"load '{path}': {(error.strerror or '').lower()}") from None
    # The inode changes when a file is replaced by rename, even within the resolution of mtime.
    return (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)


def version_files(path: Path, config: ModelConfig) -> dict[int, Path]:
    """Return the file of each configured version. Raises LoadError if one is missing or
    ambiguous.
    """
    if config.text.is_given:
        return {1: path / "model.toml"}
    if not path.is_dir():
        return {1: path}
    numbers = [int(p.name) for p in path.iterdir() if p.is_dir() and is_version_name(p.name)]
    if isinstance(config.versions, list):
        if missing := [n for n in config.versions if n not in numbers]:
            raise LoadError(f"load '{path}': there is no version {missing[0]}")
        numbers = config.versions
    elif config.versions == "latest":
        numbers = sorted(numbers)[-1:]
    if not numbers:
        raise LoadError(f"load '{path}': a folder of each version expected, such as '{path}/1'")
    return {number: _single_model_file(path / str(number)) for number in numbers}


def _single_model_file(folder: Path) -> Path:
    """Return the single model file of a folder. Raises LoadError."""
    files = [p for p in folder.iterdir() if not p.name.startswith(".")]
    models = [p for p in files if p.stem == "model"] or files
    if len(models) != 1:
        raise LoadError(f"load '{folder}': one file expected, got {len(models)}")
    return models[0]


def load_program(
    path: Path, config: ModelConfig, known_independence: bool | None = None
) -> ServedProgram:
    """Load a file: an artifact, a library, or a model that is compiled first. An artifact is read,
    not mapped, since overwriting a mapped file would change answers.

    Args:
        path: The file.
        config: The configuration of the model.
        known_independence: Whether requests of this file can be batched, if it was loaded before.

    Raises EkidenError for what cannot be served.
    """
    if config.text.object:
        return ServedProgram(
            None, ModelSignature((), ()), None, find_text_model(config.text.object)
        )
    if config.text.checkpoint:
        text = open_text_model(path.parent, config.text)
        return ServedProgram(None, ModelSignature((), ()), None, text)
    executable = _open_executable(path)
    if config.threads:
        executable.num_threads = config.threads
    full_signature = read_signature(executable, str(path))
    signature, maker = session_factory(
        executable, full_signature, config.sequences.state, str(path)
    )
    # Batching is enabled only for programs that were shown to treat rows independently.
    if signature.batch_symbol and (
        maker is not None
        or not config.batching.enabled
        or not (
            _has_independent_rows(executable, signature)
            if known_independence is None
            else known_independence
        )
    ):
        signature = ModelSignature(signature.inputs, signature.outputs)
    return ServedProgram(executable, signature, maker)


def _open_executable(path: Path) -> Executable:
    try:
        if path.is_dir() or (path.suffix != ".eki" and is_model_file(path)):
            return ekiden.compile(path)
        return ekiden.load(path.read_bytes() if path.suffix == ".eki" else path)
    except OSError as error:
        raise LoadError(f"load '{path}': {(error.strerror or '').lower()}") from None


def _has_independent_rows(executable: Executable, signature: ModelSignature) -> bool:
    """Return whether batch rows are independent, tested on rows that differ; false if no inputs can
    be generated.
    """
    if any(port.datatype.is_text for port in signature.inputs):
        return False
    try:
        sample_inputs = random_inputs(executable, {signature.batch_symbol: BATCH_TRIAL_ROWS})
    except EkidenError:
        return False
    feeds = [sample_inputs[port.name] for port in signature.inputs]
    return has_independent_rows(executable, signature, feeds)
