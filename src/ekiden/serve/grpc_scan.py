"""Splitting of long gRPC messages before protobuf parses them: the skeleton without tensors, and
the tensors as bytes.

The library of protobuf makes an object of a field of two bytes, and holds Python's lock until it is
done. So tensors are taken out of long requests here, by the wire format of protobuf
(https://protobuf.dev/programming-guides/encoding/), and what is left is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ekiden.runtime.errors import RequestError
from ekiden.serve.datatypes import MAX_STRING_ELEMENTS, Array, Datatype, element_count, text_array
from ekiden.serve.event_loop_yield import yield_to_loop

__all__ = ["PackedContents", "encode_bytes_field", "is_brief_message", "split_request"]

MAX_INLINE_MESSAGE_BYTES = 16 << 10
"""Bytes of a message that the library parses at once."""
MAX_MESSAGE_FIELDS = 16 << 10
"""Fields of a request beside the elements of its tensors."""
MAX_SKELETON_BYTES = 128 << 10
"""Bytes of a request beside its tensors."""
DECODE_CHUNK_BYTES = 64 << 10
"""Bytes of numbers that are decoded in one step."""
WIRE_VARINT, WIRE_FIXED64, WIRE_LENGTH, WIRE_FIXED32 = 0, 1, 2, 5
INPUTS_FIELD, RAW_CONTENTS_FIELD, CONTENTS_FIELD = 5, 7, 5
"""Numbers of fields: of a request, and of an input."""
CONTENTS_FIELDS = {
    1: "bool_contents", 2: "int_contents", 3: "int64_contents", 4: "uint_contents",
    5: "uint64_contents", 6: "fp32_contents", 7: "fp64_contents", 8: "bytes_contents",
}  # fmt: skip
"""Those of the contents of an input."""
_FLOAT_DTYPES = {"fp32_contents": "<f4", "fp64_contents": "<f8"}
Field: TypeAlias = tuple[int, int, int, int, int]
"""Number, wire type, where it begins, where its value begins, and where it ends."""


def is_brief_message(data: bytes) -> bool:
    """Return whether a message is short enough to be parsed on the event loop."""
    return len(data) <= MAX_INLINE_MESSAGE_BYTES


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return a varint and the position after it."""
    value = 0
    # A 64-bit varint has at most 10 bytes (protobuf encoding).
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
    raise RequestError("the message is no ModelInferRequest")


def iter_fields(data: memoryview) -> Iterator[Field]:
    """Yield the fields of a message in order."""
    at = 0
    while at < len(data):
        begin = at
        tag, at = read_varint(data, at)
        kind = tag & 7
        if kind == WIRE_LENGTH:
            size, at = read_varint(data, at)
        elif kind == WIRE_VARINT:
            size = read_varint(data, at)[1] - at
        else:
            size = {WIRE_FIXED64: 8, WIRE_FIXED32: 4}.get(kind, -1)
        # Field number 0 and group wire types are invalid; sizes come from the client.
        if tag >> 3 == 0 or size < 0 or at + size > len(data):
            raise RequestError("the message is no ModelInferRequest")
        yield tag >> 3, kind, begin, at, at + size
        at += size


class PackedContents:
    """Typed values of an input, as serialised bytes of packed fields."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def tensor(self, name: str, kind: Datatype, shape: list[int]) -> Array:
        """Decode the tensor. Raises RequestError for values of another type or number."""
        count = element_count(name, shape)
        if not kind.field:
            raise RequestError(f"input '{name}': {kind.name} has no contents: send raw contents")
        payloads = []
        limit = MAX_STRING_ELEMENTS if kind.is_text else MAX_MESSAGE_FIELDS
        for number, wire, _, begin, end in iter_fields(self._data):
            if CONTENTS_FIELDS.get(number) != kind.field or wire != WIRE_LENGTH:
                raise RequestError(f"input '{name}': {kind.field} alone expected for {kind.name}")
            payloads.append(self._data[begin:end])
            if len(payloads) > limit:
                raise RequestError(f"input '{name}': too many contents", "too_large")
        if kind.is_text:
            return text_array(name, [bytes(payload) for payload in payloads], shape)
        arrays = [decoded for payload in payloads for decoded in _decode_numbers(kind, payload)]
        total = sum(map(len, arrays))
        if total != count:
            raise RequestError(f"input '{name}': {count} elements expected, got {total}")
        result = np.empty(count, kind.numpy)
        at = 0
        for array in arrays:
            result[at : at + len(array)] = _checked_cast(name, kind, array)
            at += len(array)
        return result.reshape(tuple(shape))


def _decode_numbers(kind: Datatype, payload: memoryview) -> Iterator[npt.NDArray[Any]]:
    """Yield the numbers of a packed field."""
    if kind.field in _FLOAT_DTYPES:
        dtype = np.dtype(_FLOAT_DTYPES[kind.field])
        if len(payload) % dtype.itemsize:
            raise RequestError("the message is no ModelInferRequest")
        yield np.frombuffer(payload, dtype)
        return
    at = 0
    while at < len(payload):
        yield_to_loop()
        # In chunks, because masks and 64-bit shifts take many times the bytes of their input.
        codes = np.frombuffer(payload[at : at + DECODE_CHUNK_BYTES], np.uint8)
        ends = np.flatnonzero(codes < 128)
        if not len(ends):
            raise RequestError("the message is no ModelInferRequest")
        yield _narrow_to_field(kind, _decode_varints(codes[: ends[-1] + 1], ends))
        at += int(ends[-1]) + 1


def _decode_varints(codes: npt.NDArray[np.uint8], ends: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Decode the LEB128 varints that end at the given positions. Raises RequestError if one is too
    long.
    """
    begins = np.concatenate(([0], ends[:-1] + 1))
    sizes = ends - begins + 1
    if int(sizes.max()) > 10:
        raise RequestError("the message is no ModelInferRequest")
    # All varints of a chunk are decoded by array operations, without a Python loop per number.
    shifts = (np.arange(len(codes)) - np.repeat(begins, sizes)) * 7
    shifted = (codes & 127).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(shifted, begins)


def _narrow_to_field(kind: Datatype, values: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    """Return numbers in the field's type, no wider than the datatype needs, or raise
    RequestError.
    """
    if kind.field == "bool_contents":
        return np.not_equal(values, 0)
    wide = values.view(np.int64) if kind.field in ("int_contents", "int64_contents") else values
    return _checked_cast("", kind, wide) if _fits_field(kind, wide) else wide


def _fits_field(kind: Datatype, values: npt.NDArray[Any]) -> bool:
    info = np.iinfo(kind.numpy)
    return int(values.min()) >= info.min and int(values.max()) <= info.max


def _checked_cast(name: str, kind: Datatype, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert values to the datatype, checking their range."""
    if kind.numpy.kind in "iu" and values.dtype != kind.numpy and not _fits_field(kind, values):
        raise RequestError(f"input '{name}': a value is out of the range of {kind.name}")
    return values.astype(kind.numpy, copy=False)


def split_request(data: bytes) -> tuple[bytes, list[memoryview], list[PackedContents | None]]:
    """Split a request into its skeleton without tensors, its raw contents, and the contents of each
    input. Raises RequestError for an invalid message, or one with too much besides its tensors.
    """
    view = memoryview(data)
    skeleton: list[bytes] = []
    raw: list[memoryview] = []
    contents: list[PackedContents | None] = []
    size = fields = 0
    for number, kind, begin, start, end in iter_fields(view):
        fields += 1
        if number == RAW_CONTENTS_FIELD and kind == WIRE_LENGTH:
            raw.append(view[start:end])
        elif number == INPUTS_FIELD and kind == WIRE_LENGTH:
            input_skeleton, values, count = _split_input(
                view[start:end], MAX_MESSAGE_FIELDS - fields
            )
            contents.append(values)
            skeleton.append(encode_bytes_field(INPUTS_FIELD, input_skeleton))
            fields += count
        # A field larger than the whole bound is not copied before it is refused.
        elif end - begin <= MAX_SKELETON_BYTES:
            skeleton.append(bytes(view[begin:end]))
        else:
            size = MAX_SKELETON_BYTES + 1
        size += len(skeleton[-1]) if skeleton else 0
        if fields > MAX_MESSAGE_FIELDS or size > MAX_SKELETON_BYTES:
            raise RequestError("the message has too much beside its tensors", "too_large")
    return b"".join(skeleton), raw, contents


def _split_input(data: memoryview, max_fields: int) -> tuple[bytes, PackedContents | None, int]:
    """Split an input into its bytes without contents, the contents, and its number of fields."""
    kept_fields: list[bytes] = []
    contents: PackedContents | None = None
    size = count = 0
    for number, kind, begin, start, end in iter_fields(data):
        count += 1
        if number == CONTENTS_FIELD and kind == WIRE_LENGTH:
            if contents is not None:
                raise RequestError("the message has an input with two contents")
            contents = PackedContents(data[start:end])
            continue
        size += end - begin
        if count > max_fields or size > MAX_SKELETON_BYTES:
            raise RequestError("the message has too much beside its tensors", "too_large")
        kept_fields.append(bytes(data[begin:end]))
    return b"".join(kept_fields), contents, count


def encode_varint(value: int) -> bytes:
    """Encode a varint."""
    result = bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes([*result, value])


def encode_field_prefix(number: int, size: int) -> bytes:
    """Return the prefix of a length-delimited field."""
    return encode_varint(number << 3 | WIRE_LENGTH) + encode_varint(size)


def encode_bytes_field(number: int, value: bytes) -> bytes:
    """Encode a field of bytes, text or a message."""
    return encode_field_prefix(number, len(value)) + value
