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
from ekiden.compiler.artifact import compile_artifact
from ekiden.compiler.export.library import EXPORT_FORMATS
from ekiden.compiler.options import CompileOptions
from ekiden.compiler.remote_model import RemoteModel
from ekiden.frontend.registry import identify_model, is_model_file
from ekiden.ir.op import Array
from ekiden.ir.pass_context import KERNEL_DECISIONS_OPTION
from ekiden.runtime.artifact.metadata import Dim
from ekiden.runtime.errors import InputError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.files import rewrite_os_errors

Number = TypeVar("Number", int, float)
MAX_NUM_THREADS = 256
"""EK_MAX_THREADS of the runtime."""
MODEL_FILE_HELP = "an artifact of `ekiden compile`, or a model to compile first"
"""The help of an argument that `open_executable` takes."""


def is_artifact(path: str) -> bool:
    """Return whether a file is an artifact of `ekiden compile`; a folder is not. Raises OSError if
    there is none.
    """
    if os.path.isdir(path):
        return False
    with rewrite_os_errors("read", path), open(path, "rb") as file:
        # The magic number: as in PNG, a high byte and a newline reveal damage by text transfers.
        return file.read(8) == b"\x89EKIDEN\n"


def is_uncompiled_model(path: str, target: str | None) -> bool:
    """Return whether a file is a model to compile, as opposed to an artifact. Raises InputError for
    an artifact with a target option.
    """
    if is_model_file(path) and not is_artifact(path):
        return True
    if target:
        raise InputError(f"--target: '{path}' is an artifact, which already has its targets")
    return False


def open_executable(path: str, target: str | None = None) -> Executable:
    """Load an artifact, or compile a model for a target, by default this machine. Raises InputError
    as `is_uncompiled_model`.
    """
    if is_uncompiled_model(path, target):
        return ekiden.compile(path, target=target)
    return ekiden.load(path)


def add_rpc_session_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of an RPC session."""
    parser.add_argument("--remote", metavar="HOST:PORT", help="run on this RPC server")
    parser.add_argument("--key", default="", help="the name of the device on the server")
    parser.add_argument("--credentials", metavar="FILE", help="the key file that both sides share")


def add_remote_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of an RPC session for `open_local_or_remote`."""
    add_rpc_session_arguments(parser)
    parser.add_argument(
        "--target",
        metavar="'llvm -mcpu=...'",
        help="the target to compile a model for (default: this machine)",
    )


def open_local_or_remote(options: argparse.Namespace) -> Executable | RemoteModel:
    """Open an artifact or model on this machine, or in a session with the server of `--remote`.
    Raises InputError for session options without `--remote`.
    """
    if options.remote is not None:
        return open_remote(options, options.file)
    check_rpc_options(options)
    return open_executable(options.file, options.target)


def check_rpc_options(options: argparse.Namespace) -> None:
    """Raise InputError for RPC session options without `--remote`."""
    if options.remote is None and (options.key or options.credentials):
        raise InputError("--key and --credentials need --remote")


def open_remote(options: argparse.Namespace, path: str) -> RemoteModel:
    """Open an artifact, or a model compiled for `--target`, in a session with the server of
    `--remote`.
    """
    if is_uncompiled_model(path, options.target):
        artifact = compile_artifact(identify_model(path), CompileOptions(options.target or "llvm"))
        data = artifact.to_bytes()
    else:
        with rewrite_os_errors("read", path):
            data = memoryview(Path(path).read_bytes())
    host, port = parse_host_port(options.remote)
    session = rpc.connect(host, port, options.key, credentials=options.credentials)
    return RemoteModel(session, data)


def parse_host_port(text: str) -> tuple[str, int]:
    """Parse `host:port`. Raises InputError."""
    host, colon, port = text.rpartition(":")
    number = parse_decimal(port)
    if not colon or number is None or number > 65_535:
        raise InputError(f"read an address: host:port expected, got '{text}'")
    return host.strip("[]"), number


def parse_key_value(text: str, example: str) -> tuple[str, str]:
    """Split NAME=VALUE at the last "="; the name may contain "=". Raises InputError that shows how
    it is written.
    """
    # From the right: names of ONNX tensors may contain "=".
    name, separator, value = text.rpartition("=")
    if not separator or not name or not value:
        raise InputError(f"read an argument: expected {example}, got '{text}'")
    return name, value


def parse_key_values(texts: Iterable[str], example: str) -> dict[str, str]:
    """Parse NAME=VALUE strings into a dictionary. Raises InputError if a name is given twice."""
    by_name: dict[str, str] = {}
    for name, value in (parse_key_value(t, example) for t in texts):
        if name in by_name:
            raise InputError(f"read an argument: '{name}' is given twice")
        by_name[name] = value
    return by_name


def parse_dim_sizes(texts: Iterable[str]) -> dict[str, int]:
    """Parse `--dim NAME=SIZE` arguments into sizes by symbol name. Raises InputError unless they
    are positive.
    """
    return {
        name: _parse_dim_size(name, text)
        for name, text in parse_key_values(texts, "SYMBOL=4").items()
    }


def _parse_dim_size(name: str, text: str) -> int:
    number = parse_decimal(text)
    if not number:
        raise InputError(f"read a dimension: expected a number above 0 for '{name}', got '{text}'")
    return number


def parse_decimal(text: str) -> int | None:
    """Parse ASCII decimal digits as an integer; None for anything else, such as a superscript
    digit.
    """
    return _parse_number(int, text) if text.isdecimal() else None


def add_dim_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument `--dim`, which sets symbolic dimensions of random inputs."""
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="SYMBOL=4",
        help="the size of a symbolic dimension (default: 1, or more where the model needs it)",
    )


def positive_float(text: str) -> float:
    """Parse an argument that is a finite number above 0. Raises argparse.ArgumentTypeError for
    others.
    """
    value = _parse_number(float, text)
    if value is None or not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got '{text}'")
    return value


def nonnegative_float(text: str) -> float:
    """Parse an argument that is a finite number of at least 0. Raises argparse.ArgumentTypeError
    for others.
    """
    value = _parse_number(float, text)
    if value is None or not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number, 0 or above, got '{text}'")
    return value


def positive_int(text: str) -> int:
    """Parse an argument that is an integer above 0. Raises argparse.ArgumentTypeError for
    others.
    """
    value = _parse_number(int, text)
    if value is None or value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got '{text}'")
    return value


def thread_count(text: str) -> int:
    """Parse a number of threads, as for `runtime.num_threads`. Raises argparse.ArgumentTypeError
    for more than MAX_NUM_THREADS.
    """
    number = positive_int(text)
    if number > MAX_NUM_THREADS:
        raise argparse.ArgumentTypeError(
            f"expected at most {MAX_NUM_THREADS} threads, got {number}"
        )
    return number


def _parse_number(kind: Callable[[str], Number], text: str) -> Number | None:
    try:
        return kind(text)
    except ValueError:
        return None


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments `--output` and `--cc`, for `write_artifact`."""
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="the file to write; its suffix decides: "
        + ", ".join(f"{suffix} {row.description}" for suffix, row in EXPORT_FORMATS.items()),
    )
    parser.add_argument("--cc", help="the C compiler for .so and .o (default: the system's)")


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments `--target` and `--shape` of a compilation."""
    parser.add_argument(
        "--target",
        action="append",
        metavar="'llvm -mcpu=...'",
        help="the target to compile for (default: this machine); several targets give "
        "variants, the best first",
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,H,W",
        help="fix dimensions of an input",
    )


def add_decision_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument `--decide`, for `parse_decisions`."""
    parser.add_argument(
        "--decide",
        action="append",
        default=[],
        metavar="'dense_pack: rows=6'",
        help="override decisions of kernels, by family, kernel or node",
    )


def parse_decisions(options: argparse.Namespace) -> dict[str, str]:
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
    """Return the PassContext options for `--decide`. Raises as `parse_decisions`."""
    decisions = parse_decisions(options)
    return {KERNEL_DECISIONS_OPTION: decisions} if decisions else {}


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[Dim, ...]]:
    """Parse `x=1,3,h,w` into shapes of numbers and symbols, by name."""
    texts_by_name = parse_key_values(texts, "NAME=1,3,h,w")
    return {name: tuple(map(_parse_dim, value.split(","))) for name, value in texts_by_name.items()}


def _parse_dim(text: str) -> Dim:
    """Parse a dimension: an integer or the name of a symbol. Raises InputError."""
    text = text.strip()
    if number := parse_decimal(text):
        return number
    if not text.isidentifier():
        expected = "a number above 0 or a symbol's name"
        raise InputError(f"read a shape: expected {expected}, got '{text}'")
    return text


def load_named_arrays(texts: Iterable[str]) -> dict[str, Array]:
    """Load the arrays of NAME=FILE.npy arguments, by name. Raises InputError for a file that is no
    array.
    """
    paths = parse_key_values(texts, "NAME=array.npy")
    return {name: _load_array(name, path) for name, path in paths.items()}


def _load_array(name: str, path: str) -> Array:
    """Load one array from a .npy file. Raises InputError."""
    with rewrite_os_errors(f"input '{name}': read", path):
        _check_npy_magic(name, path)
        try:
            # Pickled arrays can execute code when they are loaded.
            return np.asarray(np.load(path, allow_pickle=False))
        except (
            ValueError,
            EOFError,
        ) as error:  # whose words are of pickling
            content = "one of Python's objects, or one cut short"
            raise InputError(
                f"input '{name}': read '{path}': {_NPY_FORMAT_HINT}, got {content}"
            ) from error


_NPY_FORMAT_HINT = "expected a file of numpy.save, of numbers or text"


def _check_npy_magic(name: str, path: str) -> None:
    """Raise InputError for a file that does not start with the .npy magic bytes."""
    with open(path, "rb") as file:
        start = file.read(len(np.lib.format.MAGIC_PREFIX))
    if start.startswith(b"PK"):
        raise InputError(f"input '{name}': expected one array in '{path}', got an archive")
    if start != np.lib.format.MAGIC_PREFIX:
        content = "another format" if start else "an empty one"
        raise InputError(f"input '{name}': read '{path}': {_NPY_FORMAT_HINT}, got {content}")
