"""Datatypes of the Open Inference Protocol, and conversion of tensors from and to messages: one row
each.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16

from ekiden.runtime.artifact.metadata import STRING_DTYPE
from ekiden.runtime.errors import RequestError
from ekiden.runtime.lazy_dataclass import dataclass

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Datatype:
    """Datatype of the Open Inference Protocol: its names and encodings."""

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
        """Return whether elements are strings of any length."""
        return self.dtype == STRING_DTYPE


_NO_JSON_TYPES, _BOOL_TYPES, _INT_TYPES = frozenset[type](), frozenset({bool}), frozenset({int})
_FLOAT_TYPES, _TEXT_TYPES = frozenset({int, float}), frozenset({str})
# fmt: off
TENSOR_DATATYPES = (
    #        name      dtype       numpy                 contents           JSON
    Datatype("BOOL",   "bool",     np.dtype(np.bool_),   "bool_contents",   _BOOL_TYPES),
    Datatype("UINT8",  "uint8",    np.dtype(np.uint8),   "uint_contents",   _INT_TYPES),
    Datatype("UINT16", "uint16",   np.dtype(np.uint16),  "uint_contents",   _INT_TYPES),
    Datatype("UINT32", "uint32",   np.dtype(np.uint32),  "uint_contents",   _INT_TYPES),
    Datatype("UINT64", "uint64",   np.dtype(np.uint64),  "uint64_contents", _INT_TYPES),
    Datatype("INT8",   "int8",     np.dtype(np.int8),    "int_contents",    _INT_TYPES),
    Datatype("INT16",  "int16",    np.dtype(np.int16),   "int_contents",    _INT_TYPES),
    Datatype("INT32",  "int32",    np.dtype(np.int32),   "int_contents",    _INT_TYPES),
    Datatype("INT64",  "int64",    np.dtype(np.int64),   "int64_contents",  _INT_TYPES),
    Datatype("FP16",   "float16",  np.dtype(np.float16), "",                _FLOAT_TYPES),
    Datatype("BF16",   "bfloat16", np.dtype(bfloat16),   "",                _NO_JSON_TYPES),
    Datatype("FP32",   "float32",  np.dtype(np.float32), "fp32_contents",   _FLOAT_TYPES),
    Datatype("FP64",   "float64",  np.dtype(np.float64), "fp64_contents",   _FLOAT_TYPES),
    Datatype("BYTES",  STRING_DTYPE,       np.dtype(object),     "bytes_contents",  _TEXT_TYPES),
)
# fmt: on
DATATYPE_BY_NAME = {row.name: row for row in TENSOR_DATATYPES}
DATATYPE_BY_DTYPE = {row.dtype: row for row in TENSOR_DATATYPES}
MAX_TENSOR_ELEMENTS = 2**31 - 1
"""The most elements that a tensor of a request may have."""
MAX_STRING_ELEMENTS = 1 << 20
"""The most texts of a tensor: each is an object of 50 bytes and more."""
STRING_OVERHEAD_BYTES = 8
"""Bytes of memory that an element of a tensor of texts takes beside its text."""


def element_count(name: str, shape: Sequence[int]) -> int:
    """Return the number of elements of an untrusted shape, after validation. Raises RequestError
    for an invalid one.
    """
    for size in shape:
        if type(size) is not int or not 0 <= size <= MAX_TENSOR_ELEMENTS:
            raise RequestError(
                f"input '{name}': shape: sizes from 0 to {MAX_TENSOR_ELEMENTS} expected"
            )
    count = math.prod(shape)
    if len(shape) > 32 or count > MAX_TENSOR_ELEMENTS:
        raise RequestError(
            f"input '{name}': shape: at most 32 dimensions and {MAX_TENSOR_ELEMENTS} elements "
            "expected"
        )
    return count


def tensor_from_json(name: str, kind: Datatype, shape: Sequence[int], data: object) -> Array:
    """Convert a flat or nested list to a tensor. Raises RequestError."""
    if not isinstance(data, list):
        raise RequestError(f"input '{name}': data: a list expected, got {_json_type_name(data)}")
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
    return convert_values(name, kind, flat).reshape(tuple(shape))


def convert_values(name: str, kind: Datatype, flat: list[Any]) -> Array:
    """Convert values to the datatype. Raises RequestError for values out of range."""
    out_of_range = f"input '{name}': data: a value is out of the range of {kind.name}"
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, kind.numpy)
    except OverflowError:
        raise RequestError(out_of_range) from None
    if kind.numpy.kind == "f" and not _is_finite(array):
        raise RequestError(out_of_range)
    return array


def _is_finite(array: Array) -> bool:
    """Return whether all of at most some thousand elements are finite: by their bytes, as a
    reduction of NumPy's takes 2 us for the fewest.
    """
    return b"\0" not in np.isfinite(array).tobytes()


def tensor_to_json(name: str, kind: Datatype, array: Array) -> object:
    """Convert a tensor to JSON: a flat array or a list of strings. Raises RequestError for values
    that JSON cannot represent, but binary data can.
    """
    if kind.is_text:
        return [str(element) for element in array.ravel().tolist()]
    hint = "ask for binary data (binary_data_output)"
    if not kind.values:
        raise RequestError(f"output '{name}': {kind.name} has no form in JSON: {hint}")
    if kind.numpy.kind == "f":
        if not _is_finite(array):
            raise RequestError(f"output '{name}': it has infinities or NaN, no JSON: {hint}")
        if kind.numpy.itemsize == 2:
            array = array.astype(np.float32)
    return np.ascontiguousarray(array).reshape(-1)


def tensor_from_bytes(
    name: str, kind: Datatype, shape: Sequence[int], data: bytes | memoryview
) -> Array:
    """Interpret little-endian bytes as a tensor, without copying. Raises RequestError."""
    count = element_count(name, shape)
    if kind.is_text:
        return _split_length_prefixed_texts(name, data, count).reshape(tuple(shape))
    expected = count * kind.numpy.itemsize
    if len(data) != expected:
        raise RequestError(f"input '{name}': {expected} bytes expected, got {len(data)}")
    array = np.frombuffer(data, kind.numpy)
    if kind.values == _BOOL_TYPES and (np.frombuffer(data, np.uint8) > 1).any():
        raise RequestError(f"input '{name}': bytes 0 and 1 expected for BOOL")
    return array.reshape(tuple(shape))


def tensor_bytes(name: str, kind: Datatype, shape: Sequence[int]) -> int:
    """Return the memory of a request's tensor in bytes, without the contents of strings."""
    count = element_count(name, shape)
    if kind.is_text and count > MAX_STRING_ELEMENTS:
        raise RequestError(
            f"input '{name}': at most {MAX_STRING_ELEMENTS} texts expected", "too_large"
        )
    return count * (STRING_OVERHEAD_BYTES if kind.is_text else kind.numpy.itemsize)


def tensor_to_bytes(kind: Datatype, array: Array) -> bytes | memoryview:
    """Return a tensor's bytes in the format of `tensor_from_bytes`, sharing its memory if
    possible.
    """
    if not kind.is_text:
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    texts = [str(element).encode() for element in array.ravel().tolist()]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def text_array(name: str, texts: Sequence[bytes], shape: Sequence[int]) -> Array:
    """Decode UTF-8 strings into an object tensor. Raises RequestError for other bytes."""
    count = element_count(name, shape)
    if len(texts) != count:
        raise RequestError(f"input '{name}': {count} elements expected, got {len(texts)}")
    array = np.empty(count, object)
    try:
        array[:] = [bytes(text).decode() for text in texts]
    except UnicodeDecodeError:
        raise RequestError(f"input '{name}': texts in UTF-8 expected") from None
    return array.reshape(tuple(shape))


def _split_length_prefixed_texts(name: str, data: bytes | memoryview, count: int) -> Array:
    """Split strings that are each prefixed with a 4-byte little-endian length. Raises
    RequestError.
    """
    texts: list[bytes] = []
    at, view = 0, memoryview(data)
    while at + 4 <= len(view) and len(texts) < count:
        (size,) = struct.unpack_from("<I", view, at)
        if size > len(view) - at - 4:
            break
        texts.append(bytes(view[at + 4 : at + 4 + size]))
        at += 4 + size
    if at != len(view) or len(texts) != count:
        raise RequestError(f"input '{name}': {count} elements, a length before each, expected")
    return text_array(name, texts, [count])


_JSON_NAMES = {dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}


def _json_type_name(value: object) -> str:
    return _JSON_NAMES.get(type(value), "a number")
