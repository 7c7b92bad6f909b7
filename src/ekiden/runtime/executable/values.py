"""Arguments and results of a call: what Python has, and the tensors of the runtime."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from ekiden import runtime
from ekiden.runtime.artifact.metadata import (
    ANY_OBJECT,
    ANY_RANK,
    MAPS,
    SEQUENCE,
    TEXT,
    TensorInfo,
)
from ekiden.runtime.errors import (
    EkidenError,
    InputError,
    RunError,
)
from ekiden.runtime.executable.closures import plain
from ekiden.runtime.executable.sequences import from_list, held, to_list, to_maps
from ekiden.runtime.text import decode, encode


def _words(value: object) -> object:
    """Return the words of random keys of JAX, which are no numbers to others; else the value."""
    if type(value).__name__ != "PRNGKeyArray" or "jax" not in sys.modules:
        return value
    words: object = sys.modules["jax"].random.key_data(value)
    return words


def argument_tensor(info: TensorInfo, value: object) -> object:
    """Return an argument as a tensor; as it is where no tensor is declared. Raises InputError."""
    if info.dtype == ANY_OBJECT:
        return plain(value)
    if info.dtype.startswith(SEQUENCE):
        if not isinstance(value, (list, tuple)):
            wanted = f"a list of tensors, got {type(value).__name__}"
            raise InputError(f"input '{info.name}': expected {wanted}")
        return from_list(value, lambda at, each: _element(info, at, each))
    if info.dtype == TEXT:
        return _text(info, value)
    try:
        value = _words(value)
        tensor = runtime.tensor(value)  # type: ignore[arg-type]  # whatever a user gives
    except (TypeError, ValueError, BufferError) as error:
        dtype = getattr(value, "dtype", None)
        got = type(value).__name__ if dtype is None else f"one of {dtype}"
        reason = f": {error}" if isinstance(error, BufferError) else ""  # it is one, and is kept
        if isinstance(value, Mapping):
            reason = "; inputs by name are keywords: executable(**inputs)"
        wanted = f"an array of {info.dtype}, got {got}{reason}"
        raise InputError(f"input '{info.name}': expected {wanted}") from error
    except EkidenError:
        raise
    except RuntimeError as error:  # what a framework says of a tensor that it cannot share
        reason = str(error).partition("\n")[0]
        wanted = f"an array of {info.dtype} that can be read, got {type(value).__name__}: {reason}"
        raise InputError(f"input '{info.name}': expected {wanted}") from error
    return tensor


def is_object(info: TensorInfo) -> bool:
    """Return whether an input or output is something else than a tensor: text, a sequence, maps."""
    return info.dtype == TEXT or info.dtype.startswith((SEQUENCE, MAPS, ANY_RANK))


def python_value(info: TensorInfo, value: object) -> object:
    """Return an output as Python has it. Raises RunError for a value that is no such output."""
    if info.dtype.startswith(SEQUENCE):
        return to_list(value)
    if info.dtype.startswith(ANY_RANK):
        return held(value)
    if info.dtype != TEXT and not info.dtype.startswith(MAPS):
        return value
    if not isinstance(value, runtime.Tensor):
        raise RunError(f"output '{info.name}': a tensor expected, got {type(value).__name__}")
    if info.dtype != TEXT:
        return to_maps(value.numpy(), info.keys)
    if value.dtype != "uint8" or not value.shape:
        raise RunError(f"output '{info.name}': bytes expected, got {value.dtype}{value.shape}")
    return decode(value.numpy())


def _text(info: TensorInfo, value: object) -> runtime.Tensor:
    """Return an array of strings as a tensor of bytes. Raises InputError."""
    try:
        found = runtime.tensor(encode(value))
    except TypeError as error:
        raise InputError(f"input '{info.name}': expected an array of str: {error}") from error
    rank = len(found.shape) - 1  # behind the last axis of the text are its bytes
    if rank != len(info.shape):
        wanted = f"{len(info.shape)} dimensions ({', '.join(map(str, info.shape))})"
        raise InputError(f"input '{info.name}': expected {wanted} of str, got {rank}")
    return found


def _element(info: TensorInfo, position: int, value: object) -> object:
    """Return one element of a sequence, checked for the rank and the known dimensions of all."""
    name, dtype = f"{info.name}[{position}]", info.dtype.removeprefix(SEQUENCE)
    tensor = argument_tensor(TensorInfo(name, info.shape, dtype), value)
    assert isinstance(tensor, runtime.Tensor)
    fits = len(tensor.shape) == len(info.shape) and all(
        isinstance(d, str) or d == got for d, got in zip(info.shape, tensor.shape, strict=True)
    )
    if not fits or tensor.dtype != dtype:
        wanted = f"Tensor[({', '.join(map(str, info.shape))}), {dtype}]"
        got = f"({', '.join(map(str, tensor.shape))}) {tensor.dtype}"
        raise InputError(f"input '{name}': expected {wanted}, got {got}")
    return tensor
