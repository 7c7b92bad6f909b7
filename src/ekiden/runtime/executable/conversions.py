"""Conversions of non-tensor arguments and results: sequences to lists, strings to arrays of str,
maps to dictionaries, sum types to their payload. An executable with such inputs or outputs loads
this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ekiden import runtime
from ekiden.runtime.artifact.metadata import (
    ANY_RANK_PREFIX,
    OBJECT_DTYPE,
    SEQUENCE_OF_MAPS_PREFIX,
    SEQUENCE_PREFIX,
    STRING_DTYPE,
    TensorInfo,
)
from ekiden.runtime.errors import EkidenError, InputError, RunError
from ekiden.runtime.executable.closures import vm_argument
from ekiden.runtime.string_tensors import decode_strings, encode_strings

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "from_vm_result",
    "list_to_sequence",
    "rows_to_dicts",
    "sequence_to_list",
    "to_vm_argument",
]

_CONS, _NIL = 0, 1


def list_to_sequence(
    values: Iterable[object], element: Callable[[int, object], object]
) -> runtime.ADT:
    """Build a sequence (cons cells) of `element(position, value)`; the last element is the head."""
    sequence = runtime.ADT(_NIL, ())
    for position, value in enumerate(values):
        sequence = runtime.ADT(_CONS, (element(position, value), sequence))
    return sequence


def rows_to_dicts(
    rows: npt.NDArray[Any], keys: Sequence[int | str]
) -> list[dict[int | str, object]]:
    """Return the rows of a matrix as dictionaries. Raises RunError unless there is a key for each
    column.
    """
    if rows.ndim != 2 or rows.shape[1] != len(keys):
        raise RunError(f"expected a matrix with rows of {len(keys)}, got the shape {rows.shape}")
    return [dict(zip(keys, row, strict=True)) for row in rows.tolist()]


def sequence_to_list(value: object) -> list[object]:
    """Return the elements of a sequence. Raises RunError for another value."""
    elements: list[object] = []
    while isinstance(value, tuple) and len(value) == 2:
        elements.append(value[0])
        value = value[1]
    if not isinstance(value, tuple) or value:
        raise RunError(f"expected a sequence, got {type(value).__name__}")
    return elements[::-1]


def unwrap_sum_value(value: object) -> object:
    """Return the payload of a sum type's value. Raises RunError for another value."""
    if not isinstance(value, tuple) or len(value) != 1:
        raise RunError(f"expected a value of one of several ranks, got {type(value).__name__}")
    content: object = value[0]
    return content


def _unwrap_random_key(value: object) -> object:
    """Return the words of a JAX random key as an array; other values unchanged."""
    # A key can exist only if its owner imported JAX, so JAX is never imported here.
    if type(value).__name__ != "PRNGKeyArray" or "jax" not in sys.modules:
        return value
    words: object = sys.modules["jax"].random.key_data(value)
    return words


def to_vm_argument(info: TensorInfo, value: object) -> object:
    """Convert an argument to the declared type: a tensor, or the value unchanged where no tensor is
    declared.
    """
    if info.dtype == OBJECT_DTYPE:
        return vm_argument(value)
    if info.dtype.startswith(SEQUENCE_PREFIX):
        if not isinstance(value, (list, tuple)):
            expected = f"a list of tensors, got {type(value).__name__}"
            raise InputError(f"input '{info.name}': expected {expected}")
        return list_to_sequence(value, lambda at, each: _convert_element(info, at, each))
    if info.dtype == STRING_DTYPE:
        return _encode_text(info, value)
    try:
        value = _unwrap_random_key(value)
        tensor = runtime.tensor(value)  # type: ignore[arg-type]  # whatever a user gives
    except (TypeError, ValueError, BufferError) as error:
        dtype = getattr(value, "dtype", None)
        actual = type(value).__name__ if dtype is None else f"one of {dtype}"
        reason = f": {error}" if isinstance(error, BufferError) else ""  # it is one, and is kept
        if isinstance(value, Mapping):
            reason = "; inputs by name are keywords: executable(**inputs)"
        expected = f"an array of {info.dtype}, got {actual}{reason}"
        raise InputError(f"input '{info.name}': expected {expected}") from error
    # Our errors are RuntimeErrors too, but they name their cause already.
    except EkidenError:
        raise
    except RuntimeError as error:  # what a framework says of a tensor that it cannot share
        reason = str(error).partition("\n")[0]
        expected = (
            f"an array of {info.dtype} that can be read, got {type(value).__name__}: {reason}"
        )
        raise InputError(f"input '{info.name}': expected {expected}") from error
    return tensor


def from_vm_result(info: TensorInfo, value: object) -> object:
    """Convert an output of the machine to its Python form. Raises RunError for a value of
    another kind.
    """
    if info.dtype.startswith(SEQUENCE_PREFIX):
        return sequence_to_list(value)
    if info.dtype.startswith(ANY_RANK_PREFIX):
        return unwrap_sum_value(value)
    if info.dtype != STRING_DTYPE and not info.dtype.startswith(SEQUENCE_OF_MAPS_PREFIX):
        return value
    if not isinstance(value, runtime.Tensor):
        raise RunError(f"output '{info.name}': a tensor expected, got {type(value).__name__}")
    if info.dtype != STRING_DTYPE:
        return rows_to_dicts(value.numpy(), info.keys)
    if value.dtype != "uint8" or not value.shape:
        raise RunError(f"output '{info.name}': bytes expected, got {value.dtype}{value.shape}")
    return decode_strings(value.numpy())


def _encode_text(info: TensorInfo, value: object) -> runtime.Tensor:
    try:
        encoded = runtime.tensor(encode_strings(value))
    except TypeError as error:
        raise InputError(f"input '{info.name}': expected an array of str: {error}") from error
    rank = len(encoded.shape) - 1  # behind the last axis of the text are its bytes
    if rank != len(info.shape):
        expected = f"{len(info.shape)} dimensions ({', '.join(map(str, info.shape))})"
        raise InputError(f"input '{info.name}': expected {expected} of str, got {rank}")
    return encoded


def _convert_element(info: TensorInfo, position: int, value: object) -> object:
    """Convert one element of a sequence, which has the rank and the static dimensions of all."""
    name, dtype = f"{info.name}[{position}]", info.dtype.removeprefix(SEQUENCE_PREFIX)
    tensor = to_vm_argument(TensorInfo(name, info.shape, dtype), value)
    assert isinstance(tensor, runtime.Tensor)
    fits = len(tensor.shape) == len(info.shape) and all(
        isinstance(d, str) or d == size for d, size in zip(info.shape, tensor.shape, strict=True)
    )
    if not fits or tensor.dtype != dtype:
        expected = f"Tensor[({', '.join(map(str, info.shape))}), {dtype}]"
        actual = f"({', '.join(map(str, tensor.shape))}) {tensor.dtype}"
        raise InputError(f"input '{name}': expected {expected}, got {actual}")
    return tensor
