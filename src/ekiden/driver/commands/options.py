"""What the arguments of several commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from types import MappingProxyType
from typing import TypeVar

import numpy as np

import ekiden
from ekiden.driver.executable import Executable
from ekiden.driver.library import FORMATS
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.ir.pass_context import DECISIONS
from ekiden.runtime.errors import InputError, MemoryLimitError, RunError
from ekiden.runtime.files import named
from ekiden.runtime.memory import free_memory
from ekiden.runtime.metadata import Dim, TensorInfo

Number = TypeVar("Number", int, float)
_NONE: Mapping[str, Array] = MappingProxyType({})
FILE = "an artifact that `ekiden compile` wrote, or a model to compile first"
"""The help of an argument that `open_executable` takes."""


def is_artifact(path: str) -> bool:
    """Whether a file is what `ekiden compile` writes. Raises OSError where there is none."""
    with named("read", path), open(path, "rb") as file:
        return file.read(8) == b"\x89EKIDEN\n"


def open_executable(path: str) -> Executable:
    """The executable of an artifact, or of an ONNX file compiled for this machine."""
    is_model = path.endswith(".onnx") and not is_artifact(path)
    return ekiden.compile(path) if is_model else ekiden.load(path)


def split_pair(text: str, example: str) -> tuple[str, str]:
    """NAME=VALUE as a pair; the name may hold '='. Raises InputError that shows how it is
    written.
    """
    name, separator, value = text.rpartition("=")
    if not separator or not name or not value:
        raise InputError(f"read an argument: expected {example}, got '{text}'")
    return name, value


def pairs(texts: Iterable[str], example: str) -> dict[str, str]:
    """Several of them by name. Raises InputError when a name is given twice."""
    found: dict[str, str] = {}
    for name, value in (split_pair(t, example) for t in texts):
        if name in found:
            raise InputError(f"read an argument: '{name}' is given twice")
        found[name] = value
    return found


def add_dims(parser: argparse.ArgumentParser) -> None:
    """The argument `--dim`, as `random_inputs` takes it."""
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="SYMBOL=4",
        help="a dimension (else 1, or more where the model needs it)",
    )


def positive(text: str) -> float:
    """The type of an argument that is a finite number above 0."""
    value = _parsed(float, text)
    if value is None or not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got '{text}'")
    return value


def not_negative(text: str) -> float:
    """The type of an argument that is a finite number, 0 or above."""
    value = _parsed(float, text)
    if value is None or not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number, 0 or above, got '{text}'")
    return value


def count(text: str) -> int:
    """The type of an argument that counts: a whole number above 0."""
    value = _parsed(int, text)
    if value is None or value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got '{text}'")
    return value


def _parsed(kind: Callable[[str], Number], text: str) -> Number | None:
    try:
        return kind(text)
    except ValueError:
        return None


def add_output(parser: argparse.ArgumentParser) -> None:
    """The arguments `--output` and `--cc`, as `write_artifact` takes them."""
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="what to write; its suffix decides: "
        + ", ".join(f"{suffix} {row.what}" for suffix, row in FORMATS.items()),
    )
    parser.add_argument("--cc", help="the C compiler that makes .so and .o, else the system's")


def add_target(parser: argparse.ArgumentParser) -> None:
    """The arguments `--target` and `--shape` of a compilation."""
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
    """The argument `--decide`, as `decisions_config` takes it."""
    parser.add_argument(
        "--decide",
        action="append",
        default=[],
        metavar="'dense_pack: rows=6'",
        help="fix what is chosen about kernels, by family, kernel or node",
    )


def decisions_config(options: argparse.Namespace) -> dict[str, object]:
    """The options of a PassContext that `--decide` asks for. Raises InputError for a wrong text."""
    found: dict[str, str] = {}
    for text in options.decide:
        name, colon, choices = text.rpartition(":")
        if not colon or not name.strip() or not choices.strip() or name.strip() in found:
            example = "'dense_pack: rows=6 order=row', each name once"
            raise InputError(f"read a decision: expected {example}, got '{text}'")
        found[name.strip()] = choices.strip()
    return {DECISIONS: found} if found else {}


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[Dim, ...]]:
    """`x=1,3,h,w` as shapes of numbers and symbols, by name."""
    found = pairs(texts, "NAME=1,3,h,w")
    return {name: tuple(map(_dim, value.split(","))) for name, value in found.items()}


def _dim(text: str) -> Dim:
    text = text.strip()
    if text.isdigit() and int(text) > 0:
        return int(text)
    if not text.isidentifier():
        wanted = "a number above 0 or a symbol's name"
        raise InputError(f"read a shape: expected {wanted}, got '{text}'")
    return text


def read_arrays(texts: Iterable[str]) -> dict[str, Array]:
    """`x=array.npy` as arrays by name. Raises InputError for a file that is no array."""
    found = pairs(texts, "NAME=array.npy")
    return {name: _read_array(name, path) for name, path in found.items()}


def _read_array(name: str, path: str) -> Array:
    try:
        with named(f"input '{name}': read", path):
            array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"input '{name}': '{path}' is not a NumPy array file: {reason}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"input '{name}': expected one array in '{path}', got an archive")
    return array


TRIED = (8, 64, 256, 512)
"""Sizes of a dimension that is not given, where 1 is too small for the model."""


def tried_sizes(dims: Mapping[str, int], given: Container[str]) -> Iterator[dict[str, int]]:
    """These dimensions; then with one of those not given larger."""
    yield dict(dims)
    for size in TRIED:
        for name in dims:
            if name not in given:
                yield {**dims, name: size}


def random_inputs(
    executable: Executable, dims: Iterable[str], arrays: Mapping[str, Array] = _NONE
) -> dict[str, Array]:
    """Random arrays for every input that is not among `arrays`. Symbols are bound by `dims`
    ("batch=4"), else 1; where the model does not run with 1, one of them grows until it does, if
    it does.

    Raises InputError for what is no dimension.
    """
    found = pairs(dims, "SYMBOL=4")
    unknown = [name for name in arrays if name not in {i.name for i in executable.inputs}]
    if unknown:
        there = ", ".join(f"'{i.name}'" for i in executable.inputs)
        raise InputError(f"no input is named '{unknown[0]}'; there are {there}")
    names = [d for info in executable.inputs for d in info.shape if isinstance(d, str)]
    given = {n: _size(n, v, set(names)) for n, v in found.items()}
    feeds: list[dict[str, Array]] = []
    for bound in tried_sizes(dict.fromkeys(names, 1) | given, given):
        rng = np.random.default_rng(0)
        _check_memory([i for i in executable.inputs if i.name not in arrays], bound)
        feeds.append({i.name: _random(i, bound, rng) for i in executable.inputs} | dict(arrays))
        with suppress(InputError, RunError):
            executable(**feeds[-1])
            return feeds[-1]
    return feeds[0]


def _size(name: str, value: str, symbols: set[str]) -> int:
    if name not in symbols:
        there = ", ".join(sorted(f"'{s}'" for s in symbols)) or "none"
        raise InputError(f"read a dimension: no symbol is named '{name}'; there are {there}")
    if not value.isdigit() or int(value) == 0:
        raise InputError(f"read a dimension: expected a number above 0 for '{name}', got '{value}'")
    return int(value)


def _check_memory(infos: Sequence[TensorInfo], bound: Mapping[str, int]) -> None:
    """Raise MemoryLimitError where inputs of these sizes take more memory than is free."""
    free = free_memory()
    if free is None:
        return
    shapes = {i.name: [bound[d] if isinstance(d, str) else d for d in i.shape] for i in infos}
    sizes = {i.name: prod(shapes[i.name]) * to_numpy(i.dtype).itemsize for i in infos}
    needed = sum(sizes.values())
    if needed > free:
        name = max(sizes, key=lambda n: sizes[n])
        raise MemoryLimitError(
            f"random inputs: {_gigabytes(needed)} of memory asked for, most by input '{name}' of "
            f"shape {tuple(shapes[name])}; {_gigabytes(free)} are free"
        )


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:,.1f} GB"


def _random(info: TensorInfo, bound: dict[str, int], rng: np.random.Generator) -> Array:
    shape = [d if isinstance(d, int) else bound[d] for d in info.shape]
    dtype = to_numpy(info.dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.random(shape).astype(dtype)
