"""The datatypes of the protocol, and arrays from and to what its messages hold: one row each."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16

from ekiden.runtime.artifact.metadata import TEXT
from ekiden.runtime.errors import RequestError
from ekiden.runtime.lazy_dataclass import dataclass

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Datatype:
    """How one datatype is called and carried."""

    name: str
    """As the protocol calls it."""
    dtype: str
    """As the runtime calls it."""
    numpy: np.dtype[Any]
    field: str
    """Where gRPC's InferTensorContents has it; empty: only as raw bytes."""
    values: frozenset[type]
    """What its elements are in JSON; none: JSON cannot say it."""

    @property
    def is_text(self) -> bool:
        """Whether elements are strings, of any length."""
        return self.dtype == TEXT


_NONE, _BOOL, _INT = frozenset[type](), frozenset({bool}), frozenset({int})
_FLOAT, _TEXT = frozenset({int, float}), frozenset({str})
# fmt: off
DATATYPES = (
    #        name      dtype       numpy                 contents           JSON
    Datatype("BOOL",   "bool",     np.dtype(np.bool_),   "bool_contents",   _BOOL),
    Datatype("UINT8",  "uint8",    np.dtype(np.uint8),   "uint_contents",   _INT),
    Datatype("UINT16", "uint16",   np.dtype(np.uint16),  "uint_contents",   _INT),
    Datatype("UINT32", "uint32",   np.dtype(np.uint32),  "uint_contents",   _INT),
    Datatype("UINT64", "uint64",   np.dtype(np.uint64),  "uint64_contents", _INT),
    Datatype("INT8",   "int8",     np.dtype(np.int8),    "int_contents",    _INT),
    Datatype("INT16",  "int16",    np.dtype(np.int16),   "int_contents",    _INT),
    Datatype("INT32",  "int32",    np.dtype(np.int32),   "int_contents",    _INT),
    Datatype("INT64",  "int64",    np.dtype(np.int64),   "int64_contents",  _INT),
    Datatype("FP16",   "float16",  np.dtype(np.float16), "",                _FLOAT),
    Datatype("BF16",   "bfloat16", np.dtype(bfloat16),   "",                _NONE),
    Datatype("FP32",   "float32",  np.dtype(np.float32), "fp32_contents",   _FLOAT),
    Datatype("FP64",   "float64",  np.dtype(np.float64), "fp64_contents",   _FLOAT),
    Datatype("BYTES",  TEXT,       np.dtype(object),     "bytes_contents",  _TEXT),
)
# fmt: on
BY_NAME = {row.name: row for row in DATATYPES}
BY_DTYPE = {row.dtype: row for row in DATATYPES}
LARGEST = 2**31 - 1
"""The most elements that a tensor of a request may have."""
MAX_TEXTS = 1 << 20
"""The most texts of a tensor: each is an object of 50 bytes and more."""
TEXT_BYTES = 8
"""Bytes of memory that an element of a tensor of texts takes beside its text."""


def element_count(name: str, shape: Sequence[int]) -> int:
    """The elements of a shape from outside. Raises RequestError for one that cannot be."""
    for size in shape:
        if type(size) is not int or not 0 <= size <= LARGEST:
            raise RequestError(f"input '{name}': shape: sizes from 0 to {LARGEST} expected")
    count = math.prod(shape)
    if len(shape) > 32 or count > LARGEST:
        raise RequestError(
            f"input '{name}': shape: at most 32 dimensions and {LARGEST} elements expected"
        )
    return count


def from_json(name: str, kind: Datatype, shape: Sequence[int], data: object) -> Array:
    """The tensor of a list of values, flat or nested. Raises RequestError for what is none."""
    if not isinstance(data, list):
        raise RequestError(f"input '{name}': data: a list expected, got {_json_name(data)}")
    if not kind.values:
        raise RequestError(f"input '{name}': {kind.name} has no form in JSON: send binary data")
    count = element_count(name, shape)
    flat = data
    if data and isinstance(data[0], list):
        nested = np.array(data, object)  # of lists where they are uneven
        flat = nested.ravel().tolist() if nested.shape == tuple(shape) else []
    if len(flat) != count:
        expected = f"{count} elements, flat or as the shape {list(shape)},"
        raise RequestError(f"input '{name}': data: {expected} expected")
    if not kind.values.issuperset(map(type, flat)):
        raise RequestError(f"input '{name}': data: values of {kind.name} expected")
    return to_array(name, kind, flat).reshape(tuple(shape))


def to_array(name: str, kind: Datatype, flat: list[Any]) -> Array:
    """Return values in the datatype. Raises RequestError for those that it lacks."""
    out_of_range = f"input '{name}': data: a value is out of the range of {kind.name}"
    try:
        with np.errstate(over="ignore"):
            made = np.array(flat, kind.numpy)
    except OverflowError:
        raise RequestError(out_of_range) from None
    if kind.numpy.kind == "f" and not np.isfinite(made).all():
        raise RequestError(out_of_range)
    return made


def to_json(name: str, kind: Datatype, array: Array) -> object:
    """What stands for a tensor in JSON: an array that is written flat, or a list of strings.

    Raises RequestError where JSON has no such values, which binary data has.
    """
    if kind.is_text:
        return [str(each) for each in array.ravel().tolist()]
    hint = "ask for binary data (binary_data_output)"
    if not kind.values:
        raise RequestError(f"output '{name}': {kind.name} has no form in JSON: {hint}")
    if kind.numpy.kind == "f":
        if not np.isfinite(array).all():
            raise RequestError(f"output '{name}': it has infinities or NaN, no JSON: {hint}")
        if kind.numpy.itemsize == 2:
            array = array.astype(np.float32)
    return np.ascontiguousarray(array).reshape(-1)


def from_raw(name: str, kind: Datatype, shape: Sequence[int], data: bytes | memoryview) -> Array:
    """The tensor of bytes as they lie, little-endian, which it shares. Raises RequestError."""
    count = element_count(name, shape)
    if kind.is_text:
        return _texts(name, data, count).reshape(tuple(shape))
    expected = count * kind.numpy.itemsize
    if len(data) != expected:
        raise RequestError(f"input '{name}': {expected} bytes expected, got {len(data)}")
    found = np.frombuffer(data, kind.numpy)
    if kind.values == _BOOL and (np.frombuffer(data, np.uint8) > 1).any():
        raise RequestError(f"input '{name}': bytes 0 and 1 expected for BOOL")
    return found.reshape(tuple(shape))


def tensor_bytes(name: str, kind: Datatype, shape: Sequence[int]) -> int:
    """Return the bytes that a tensor of a request takes in memory, without its texts.

    Raises RequestError for a shape that cannot be, and for too many texts.
    """
    count = element_count(name, shape)
    if kind.is_text and count > MAX_TEXTS:
        raise RequestError(f"input '{name}': at most {MAX_TEXTS} texts expected", "too_large")
    return count * (TEXT_BYTES if kind.is_text else kind.numpy.itemsize)


def to_raw(kind: Datatype, array: Array) -> bytes | memoryview:
    """The bytes of a tensor, as `from_raw` takes them; its own memory where it has them."""
    if not kind.is_text:
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    texts = [str(each).encode() for each in array.ravel().tolist()]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def text_array(name: str, texts: Sequence[bytes], shape: Sequence[int]) -> Array:
    """A tensor of strings from their bytes in UTF-8. Raises RequestError for others."""
    count = element_count(name, shape)
    if len(texts) != count:
        raise RequestError(f"input '{name}': {count} elements expected, got {len(texts)}")
    made = np.empty(count, object)
    try:
        made[:] = [bytes(text).decode() for text in texts]
    except UnicodeDecodeError:
        raise RequestError(f"input '{name}': texts in UTF-8 expected") from None
    return made.reshape(tuple(shape))


def _texts(name: str, data: bytes | memoryview, count: int) -> Array:
    """Strings that each have their length in front, in 4 bytes."""
    found: list[bytes] = []
    at, view = 0, memoryview(data)
    while at + 4 <= len(view) and len(found) < count:
        (size,) = struct.unpack_from("<I", view, at)
        if size > len(view) - at - 4:
            break
        found.append(bytes(view[at + 4 : at + 4 + size]))
        at += 4 + size
    if at != len(view) or len(found) != count:
        raise RequestError(f"input '{name}': {count} elements, a length before each, expected")
    return text_array(name, found, [count])


_JSON_NAMES = {dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}


def _json_name(value: object) -> str:
    return _JSON_NAMES.get(type(value), "a number")
