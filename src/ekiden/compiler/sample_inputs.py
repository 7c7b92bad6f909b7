"""Random sample inputs of a model from its input names, shapes and dtypes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from ekiden.compiler.remote_model import RemoteModel
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.runtime.artifact.metadata import (
    OBJECT_DTYPE,
    SEQUENCE_OF_MAPS_PREFIX,
    SEQUENCE_PREFIX,
    STRING_DTYPE,
    TensorInfo,
)
from ekiden.runtime.devices.memory import free_memory
from ekiden.runtime.errors import InputError, MemoryLimitError, RunError
from ekiden.runtime.executable.executable import Executable

__all__ = ["random_inputs", "trial_dims"]

_NO_DIMS: Mapping[str, Array] = MappingProxyType({})


RANDOM_SEQUENCE_LENGTH = 2
"""Elements of a random sequence input."""
TRIAL_DIM_SIZES = (8, 64, 256, 512)
"""Sizes tried for a free dimension for which 1 is too small."""


def trial_dims(dims: Mapping[str, int], fixed: Container[str]) -> Iterator[dict[str, int]]:
    """Yield dimension sizes to try: as declared, with all free dimensions but the batch larger,
    then with all larger.
    """
    yield dict(dims)
    free = [name for name in dims if name not in fixed]
    groups = [(name,) for name in free] + [tuple(free[n:]) for n in (1, 0) if len(free) - n > 1]
    for size in TRIAL_DIM_SIZES:
        for group in groups:
            yield {**dims, **dict.fromkeys(group, size)}


def random_inputs(
    executable: Executable | RemoteModel,
    dims: Mapping[str, int],
    arrays: Mapping[str, Array] = _NO_DIMS,
) -> dict[str, Any]:
    """Return random arrays (lists of arrays for sequences) for every input missing from `arrays`.
    Symbols are bound by `dims`, else 1; if the model does not run with 1, one symbol grows until it
    does. Raises InputError for an unknown name, MemoryLimitError for more than is free.
    """
    unknown = [name for name in arrays if name not in {i.name for i in executable.inputs}]
    if unknown:
        known_names = ", ".join(f"'{i.name}'" for i in executable.inputs)
        raise InputError(f"no input is named '{unknown[0]}'; there are {known_names}")
    names = [d for info in executable.inputs for d in info.shape if isinstance(d, str)]
    if unbound := [n for n in dims if n not in names]:
        known_names = ", ".join(sorted({f"'{n}'" for n in names})) or "none"
        raise InputError(
            f"read a dimension: no symbol is named '{unbound[0]}'; there are {known_names}"
        )
    feeds: list[dict[str, Any]] = []
    for bound in trial_dims(dict.fromkeys(names, 1) | dict(dims), dims):
        rng = np.random.default_rng(0)
        missing = [i for i in executable.inputs if i.name not in arrays]
        _check_memory(missing, bound)
        feeds.append({i.name: _random_value(i, bound, rng) for i in missing} | dict(arrays))
        with suppress(InputError, RunError):
            executable(**feeds[-1])
            return feeds[-1]
    return feeds[0]


def _check_memory(infos: Sequence[TensorInfo], bound: Mapping[str, int]) -> None:
    """Raise MemoryLimitError if inputs of these sizes exceed the free memory."""
    free = free_memory()
    if free is None:
        return
    shapes = {i.name: [bound[d] if isinstance(d, str) else d for d in i.shape] for i in infos}
    sizes = {i.name: prod(shapes[i.name]) * element_dtype(i).itemsize for i in infos}
    needed = sum(sizes.values())
    if needed > free:
        name = max(sizes, key=lambda n: sizes[n])
        raise MemoryLimitError(
            f"random inputs: {_format_gigabytes(needed)} of memory asked for, most by input "
            f"'{name}' of shape {tuple(shapes[name])}; {_format_gigabytes(free)} are free"
        )


def _format_gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:,.1f} GB"


def element_dtype(info: TensorInfo) -> np.dtype[np.generic]:
    """Return the dtype of an input's elements. Raises InputError for inputs without a
    random value.
    """
    name = info.dtype.removeprefix(SEQUENCE_PREFIX)
    if name == OBJECT_DTYPE or name.startswith(SEQUENCE_OF_MAPS_PREFIX):
        raise InputError(f"random inputs: '{info.name}' is a {info.dtype}: give it one")
    return np.dtype("U1") if name == STRING_DTYPE else to_numpy(name)


def _random_value(info: TensorInfo, bound: dict[str, int], rng: np.random.Generator) -> object:
    """Return a tensor, or a list of tensors for a sequence."""
    shape = [d if isinstance(d, int) else bound[d] for d in info.shape]
    dtype = element_dtype(info)

    def random_array() -> Array:
        values = rng.integers(0, 2, shape) if dtype.kind in "iubU" else rng.random(shape)
        return values.astype(dtype)

    return (
        [random_array() for _ in range(RANDOM_SEQUENCE_LENGTH)]
        if info.dtype.startswith(SEQUENCE_PREFIX)
        else random_array()
    )
