"""What the arguments of several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ekiden.driver.executable import Dim, Executable, TensorInfo
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.runtime.errors import InputError


def split_pair(text: str, example: str) -> tuple[str, str]:
    """NAME=VALUE as a pair. Raises InputError that shows how it is written."""
    name, separator, value = text.rpartition("=")
    if not separator or not name:
        raise InputError(f"reading an argument: expected {example}, got {text!r}")
    return name, value


def parse_shape(text: str) -> tuple[str, tuple[Dim, ...]]:
    """`x=1,3,h,w` as a name and a shape of numbers and symbols."""
    name, value = split_pair(text, "NAME=1,3,h,w")
    return name, tuple(int(d) if d.isdigit() else d for d in value.split(",") if d)


def read_array(text: str) -> tuple[str, Array]:
    """`x=array.npy` as a name and an array. Raises InputError for a file that is no array."""
    name, path = split_pair(text, "NAME=array.npy")
    if not Path(path).is_file():
        raise InputError(f"input '{name}': no file {path!r}")
    try:
        return name, np.load(path, allow_pickle=False)
    except ValueError as error:
        raise InputError(f"input '{name}': {path!r} is not a NumPy array file: {error}") from error


def random_inputs(executable: Executable, dims: Iterable[str]) -> dict[str, Array]:
    """Random arrays for every input; symbols are bound by `dims` ("batch=4"), else 1."""
    bound = {name: int(value) for name, value in (split_pair(d, "SYMBOL=4") for d in dims)}
    rng = np.random.default_rng(0)
    return {info.name: _random(info, bound, rng) for info in executable.inputs}


def _random(info: TensorInfo, bound: dict[str, int], rng: np.random.Generator) -> Array:
    shape = [d if isinstance(d, int) else bound.get(d, 1) for d in info.shape]
    dtype = to_numpy(info.dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.random(shape).astype(dtype)
