"""Arguments shared by several commands."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np

import ekiden
from ekiden import rpc
from ekiden.compiler.compile import compile_artifact
from ekiden.compiler.export.library import EXPORT_FORMATS
from ekiden.compiler.options import CompileOptions
from ekiden.compiler.remote import RemoteExecutable
from ekiden.frontend.table import is_model_file
from ekiden.ir.op import Array
from ekiden.ir.pass_context import DECISIONS
from ekiden.runtime.artifact.frame import file_of
from ekiden.runtime.artifact.metadata import Dim
from ekiden.runtime.errors import InputError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.files import named

Number = TypeVar("Number", int, float)
MAX_THREADS = 256
"""EK_MAX_THREADS of the runtime."""
FILE_HELP = "an artifact that `ekiden compile` wrote, or a model to compile first"
"""The help of an argument that `open_executable` takes."""


def is_artifact(path: str) -> bool:
    """Return whether a file is an artifact of `ekiden compile`; a folder is not. Raises OSError if
    there is none.
    """
    if os.path.isdir(path):
        return False
    with named("read", path), open(path, "rb") as file:
        # The magic number: as in PNG, a high byte and a newline reveal damage by text transfers.
        return file.read(8) == b"\x89EKIDEN\n"


def needs_compiling(path: str, target: str | None) -> bool:
    """Return whether a file is a model to compile, as opposed to an artifact. Raises InputError for
    an artifact with a target option.
    """
    if is_model_file(path) and not is_artifact(path):
        return True
    if target:
        raise InputError(f"--target: '{path}' is an artifact: it has its targets")
    return False


def open_executable(path: str, target: str | None = None) -> Executable:
    """Load an artifact, or compile a model for a target, by default this machine. Raises InputError
    as `needs_compiling`.
    """
    if needs_compiling(path, target):
        return ekiden.compile(path, target=target)
    return ekiden.load(path)


def add_session(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of an RPC session."""
    parser.add_argument("--remote", metavar="HOST:PORT", help="run in a session with this server")
    parser.add_argument("--key", default="", help="the name of the device there")
    parser.add_argument("--credentials", metavar="FILE", help="the key file both sides have")


def add_remote(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of an RPC session for `open_given`."""
    add_session(parser)
    parser.add_argument(
        "--target",
        metavar="'llvm -mcpu=...'",
        help="what to compile a model for, else this machine",
    )


def open_given(options: argparse.Namespace) -> Executable | RemoteExecutable:
    """Open an artifact or model on this machine, or in a session with the server of `--remote`.
    Raises InputError for session options without `--remote`.
    """
    if options.remote is not None:
        return open_remote(options, options.file)
    check_session(options)
    return open_executable(options.file, options.target)


def check_session(options: argparse.Namespace) -> None:
    """Raise InputError for RPC session options without `--remote`."""
    if options.remote is None and (options.key or options.credentials):
        raise InputError("--key and --credentials are for --remote")


def open_remote(options: argparse.Namespace, path: str) -> RemoteExecutable:
    """Open an artifact, or a model compiled for `--target`, in a session with the server of
    `--remote`.
    """
    if needs_compiling(path, options.target):
        artifact = compile_artifact(path, CompileOptions(options.target or "llvm"))
        data = artifact if isinstance(artifact, memoryview) else file_of(artifact)
    else:
        with named("read", path):
            data = memoryview(Path(path).read_bytes())
    host, port = address(options.remote)
    session = rpc.connect(host, port, options.key, credentials=options.credentials)
    return RemoteExecutable(session, data)


def address(text: str) -> tuple[str, int]:
    """Parse `host:port`. Raises InputError."""
    host, colon, port = text.rpartition(":")
    number = whole_number(port)
    if not colon or number is None or number > 65_535:
        raise InputError(f"read an address: host:port expected, got '{text}'")
    return host.strip("[]"), number


def split_pair(text: str, example: str) -> tuple[str, str]:
    """Split NAME=VALUE at the last "="; the name may contain "=". Raises InputError that shows how
    it is written.
    """
    # From the right: names of ONNX tensors may contain "=".
    name, separator, value = text.rpartition("=")
    if not separator or not name or not value:
        raise InputError(f"read an argument: expected {example}, got '{text}'")
    return name, value


def pairs(texts: Iterable[str], example: str) -> dict[str, str]:
    """Parse NAME=VALUE texts into a dictionary. Raises InputError if a name is given twice."""
    by_name: dict[str, str] = {}
    for name, value in (split_pair(t, example) for t in texts):
        if name in by_name:
            raise InputError(f"read an argument: '{name}' is given twice")
        by_name[name] = value
    return by_name


def sizes(texts: Iterable[str]) -> dict[str, int]:
    """Parse `--dim NAME=SIZE` arguments into sizes by symbol name. into sizes by name. Raises
    InputError unless they are positive.
    """
    return {name: _size(name, text) for name, text in pairs(texts, "SYMBOL=4").items()}


def _size(name: str, text: str) -> int:
    number = whole_number(text)
    if not number:
        raise InputError(f"read a dimension: expected a number above 0 for '{name}', got '{text}'")
    return number


def whole_number(text: str) -> int | None:
    """Parse ASCII decimal digits as an integer; None for anything else, such as a superscript
    digit.
    """
    return _parsed(int, text) if text.isdecimal() else None


def add_dims(parser: argparse.ArgumentParser) -> None:
    """Add the argument `--dim`, which sets symbolic dimensions of random inputs."""
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="SYMBOL=4",
        help="a dimension (else 1, or more where the model needs it)",
    )


def positive(text: str) -> float:
    """Parse an argument that is a finite number above 0. Raises argparse.ArgumentTypeError for
    others.
    """
    value = _parsed(float, text)
    if value is None or not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got '{text}'")
    return value


def not_negative(text: str) -> float:
    """Parse an argument that is a finite number of at least 0. Raises argparse.ArgumentTypeError
    for others.
    """
    value = _parsed(float, text)
    if value is None or not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number, 0 or above, got '{text}'")
    return value


def count(text: str) -> int:
    """Parse an argument that is an integer above 0. Raises argparse.ArgumentTypeError for
    others.
    """
    value = _parsed(int, text)
    if value is None or value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got '{text}'")
    return value


def threads(text: str) -> int:
    """Parse a number of threads, as for `runtime.num_threads`. Raises argparse.ArgumentTypeError
    for more than MAX_THREADS.
    """
    number = count(text)
    if number > MAX_THREADS:
        raise argparse.ArgumentTypeError(f"expected at most {MAX_THREADS} threads, got {number}")
    return number


def _parsed(kind: Callable[[str], Number], text: str) -> Number | None:
    try:
        return kind(text)
    except ValueError:
        return None


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the arguments `--output` and `--cc`, for `write_artifact`."""
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="what to write; its suffix decides: "
        + ", ".join(f"{suffix} {row.what}" for suffix, row in EXPORT_FORMATS.items()),
    )
    parser.add_argument("--cc", help="the C compiler that makes .so and .o, else the system's")


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the arguments `--target` and `--shape` of a compilation."""
    parser.add_argument(
        "--target",
        action="append",
        metavar="'llvm -mcpu=...'",
        help="what to make code for, else this machine; several give variants, the best first",
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,H,W",
        help="fix dimensions of an input",
    )


def add_decisions(parser: argparse.ArgumentParser) -> None:
    """Add the argument `--decide`, for `decisions_of`."""
    parser.add_argument(
        "--decide",
        action="append",
        default=[],
        metavar="'dense_pack: rows=6'",
        help="fix what is chosen about kernels, by family, kernel or node",
    )


def decisions_of(options: argparse.Namespace) -> dict[str, str]:
    """Return the schedule decisions fixed by `--decide`, by family, kernel or node. Raises
    InputError.
    """
    by_name: dict[str, str] = {}
    for text in options.decide:
        # From the right: node names may contain ":".
        name, colon, choices = text.rpartition(":")
        if not colon or not name.strip() or not choices.strip() or name.strip() in by_name:
            example = "'dense_pack: rows=6 order=row', each name once"
            raise InputError(f"read a decision: expected {example}, got '{text}'")
        by_name[name.strip()] = choices.strip()
    return by_name


def decisions_config(options: argparse.Namespace) -> dict[str, object]:
    """Return the PassContext options for `--decide`. Raises as `decisions_of`."""
    decisions = decisions_of(options)
    return {DECISIONS: decisions} if decisions else {}


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[Dim, ...]]:
    """Parse `x=1,3,h,w` into shapes of numbers and symbols, by name."""
    texts_by_name = pairs(texts, "NAME=1,3,h,w")
    return {name: tuple(map(_dim, value.split(","))) for name, value in texts_by_name.items()}


def _dim(text: str) -> Dim:
    """Parse a dimension: an integer or the name of a symbol. Raises InputError."""
    text = text.strip()
    if number := whole_number(text):
        return number
    if not text.isidentifier():
        expected = "a number above 0 or a symbol's name"
        raise InputError(f"read a shape: expected {expected}, got '{text}'")
    return text


def read_arrays(texts: Iterable[str]) -> dict[str, Array]:
    """Load the arrays of NAME=FILE.npy arguments, by name. Raises InputError for a file that is no
    array.
    """
    paths = pairs(texts, "NAME=array.npy")
    return {name: _read_array(name, path) for name, path in paths.items()}


def _read_array(name: str, path: str) -> Array:
    """Load one array from a .npy file. Raises InputError."""
    with named(f"input '{name}': read", path):
        _check_is_array(name, path)
        try:
            # Pickled arrays can execute code when they are loaded.
            return np.asarray(np.load(path, allow_pickle=False))
        except (
            ValueError,
            EOFError,
        ) as error:  # whose words are of pickling
            content = "one of Python's objects, or one cut short"
            raise InputError(
                f"input '{name}': read '{path}': {_EXPECTED_ARRAY}, got {content}"
            ) from error


_EXPECTED_ARRAY = "expected a file of numpy.save, of numbers or text"


def _check_is_array(name: str, path: str) -> None:
    """Raise InputError for a file that does not start with the .npy magic bytes."""
    with open(path, "rb") as file:
        start = file.read(len(np.lib.format.MAGIC_PREFIX))
    if start.startswith(b"PK"):
        raise InputError(f"input '{name}': expected one array in '{path}', got an archive")
    if start != np.lib.format.MAGIC_PREFIX:
        content = "another format" if start else "an empty one"
        raise InputError(f"input '{name}': read '{path}': {_EXPECTED_ARRAY}, got {content}")
