"""Removal of large weights from a serialised model before protobuf parses it.

    ModelProto.graph.initializer[i].raw_data of 400 MB
      ->  the same message with  external_data {location: MARK, offset: "0"}  in its place,
          and places[0] == (where these bytes begin in the file, where they end)

The wire format is decoded only as far as needed to find those fields, of tensors anywhere in a
graph or a function. What is malformed, or repeats a singular field, is left unchanged for protobuf
to parse or to reject. https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from ekiden.frontend.onnx.dtype import BYTEWISE_TYPES
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.runtime.lazy_dataclass import dataclass

MIN_CUT_BYTES = 1 << 14
"""Bytes of a tensor from which it stays out: below that to find it takes longer than to copy it."""
CUT_LOCATION = f"ekiden:{os.urandom(8).hex()}"
"""The location of such a tensor, which no file can have by itself."""
ByteSpans = list[tuple[int, int]]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Kinds of fields."""
_MODEL, _GRAPH, _FUNCTION, _NODE, _ATTRIBUTE, _TENSOR = range(6)
_SUBMESSAGES: Mapping[int, Mapping[int, int]] = {
    _MODEL: {7: _GRAPH, 25: _FUNCTION},
    _GRAPH: {1: _NODE, 5: _TENSOR},
    _FUNCTION: {7: _NODE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH},
    _TENSOR: {},
}
"""Message -> number of a field -> the message that it is."""
_SINGULAR_FIELDS = {(_MODEL, 7), (_ATTRIBUTE, 5), (_ATTRIBUTE, 6)}
"""Fields that protobuf joins where there are several."""
_DATA_TYPE, _RAW_DATA = 2, 9
_EXTERNAL_FIELDS = {3, 13, 14}
"""segment, external_data, data_location: bytes of such a tensor are not simply those it has."""
_PROTO = onnx.TensorProto


class _MalformedError(Exception):
    """Bytes that are no message, or one that is left to protobuf."""


class _WireField(NamedTuple):
    """Field of a protobuf message on the wire: number, wire type, start, offset of its length,
    content span, and a varint's value.
    """

    number: int
    kind: int
    start: int
    length_at: int
    begin: int
    end: int
    value: int


@dataclass(slots=True)
class _WireMessage:
    """Protobuf message on the wire that contains large submessages."""

    kind: int
    parent_index: int
    length_at: int
    begin: int
    end: int
    size_delta: int = 0
    """Bytes by which it becomes longer."""


def cut_weights(data: memoryview, first: int = 0) -> tuple[bytes | memoryview, ByteSpans]:
    """Cut the raw data of large tensors out of a serialised model; return the rest and the spans
    that were cut.
    """
    # Raw data are little-endian; other hosts need the conversion that onnx does.
    if len(data) < MIN_CUT_BYTES or sys.byteorder != "little":
        return data, []
    try:
        edits, spans = _plan_edits(data, first)
    except _MalformedError:
        return data, []
    if not spans:
        return data, []
    pieces: list[bytes | memoryview] = []
    position = 0
    for start, end, instead in sorted(edits):
        pieces += [data[position:start], instead]
        position = end
    return b"".join([*pieces, data[position:]]), spans


def _plan_edits(data: memoryview, first: int) -> tuple[list[tuple[int, int, bytes]], ByteSpans]:
    """Return the replacements (begin, end, new bytes) and the spans of the weights."""
    messages = [_WireMessage(_MODEL, -1, 0, 0, len(data))]
    edits: list[tuple[int, int, bytes]] = []
    spans: ByteSpans = []
    position = 0
    while position < len(messages):  # what is found inside of one stands behind it
        message = messages[position]
        if message.kind == _TENSOR:
            _cut_raw_data(data, message, edits, spans, first)
        else:
            messages += _large_submessages(data, message, position)
        position += 1
    # Innermost first: a message's length prefix grows or shrinks with those of the messages inside
    # it.
    for message in reversed(messages[1:]):
        if message.size_delta:
            length = _encode_varint(message.end - message.begin + message.size_delta)
            edits.append((message.length_at, message.begin, length))
            longer = len(length) - (message.begin - message.length_at)
            messages[message.parent_index].size_delta += message.size_delta + longer
    return edits, spans


def _large_submessages(data: memoryview, message: _WireMessage, at: int) -> list[_WireMessage]:
    """Return the submessages that are large enough to contain weights."""
    large, seen_fields, inside = [], set(), _SUBMESSAGES[message.kind]
    offset = message.begin
    while offset < message.end:
        field = _decode_field(data, offset, message.end)
        offset = field.end
        kind = inside.get(field.number)
        if kind is None:
            continue
        field_key = message.kind, field.number
        # Protobuf merges repeated singular submessages; cutting one of them would change the merge.
        if field.kind != _BYTES or (field_key in seen_fields and field_key in _SINGULAR_FIELDS):
            raise _MalformedError
        seen_fields.add(field_key)
        if field.end - field.begin >= MIN_CUT_BYTES:
            large.append(_WireMessage(kind, at, field.length_at, field.begin, field.end))
    return large


def _cut_raw_data(
    data: memoryview,
    tensor: _WireMessage,
    edits: list[tuple[int, int, bytes]],
    spans: ByteSpans,
    first: int,
) -> None:
    """Replace a tensor's large raw data by its registry number, if it has no other data."""
    raw, kind, offset = None, -1, tensor.begin
    while offset < tensor.end:
        field = _decode_field(data, offset, tensor.end)
        offset = field.end
        if field.number in _EXTERNAL_FIELDS or (
            field.number == _RAW_DATA and (raw or field.kind != _BYTES)
        ):
            return
        if field.number == _RAW_DATA:
            raw = field
        elif field.number == _DATA_TYPE:
            kind = field.value
    if raw is None or raw.end - raw.begin < MIN_CUT_BYTES or kind not in BYTEWISE_TYPES:
        return
    # Only the fields of the mark are serialised; dtype and dims stay in the tensor's own bytes.
    instead = _PROTO()
    mark_cut(instead, first + len(spans))
    text = instead.SerializeToString()
    spans.append((raw.begin, raw.end))
    edits.append((raw.start, raw.end, text))
    tensor.size_delta = len(text) - (raw.end - raw.start)


def mark_cut(tensor: onnx.TensorProto, number: int) -> None:
    """Mark a tensor as cut out: external data at CUT_LOCATION, its registry number as the
    offset.
    """
    del tensor.external_data[:]
    tensor.data_location = _PROTO.EXTERNAL
    for key, value in ("location", CUT_LOCATION), ("offset", str(number)):
        tensor.external_data.add(key=key, value=value)


def _decode_field(data: memoryview, start: int, end: int) -> _WireField:
    """Decode the field at an offset of a message."""
    tag, position = _decode_varint(data, start, end)
    number, kind, length_at, value = tag >> 3, tag & 7, position, 0
    match kind:
        case 0:  # _VARINT
            value, begin = _decode_varint(data, position, end)
            stop = begin
        case 1:  # _FIXED64
            begin, stop = position, position + 8
        case 5:  # _FIXED32
            begin, stop = position, position + 4
        case 2:  # _BYTES
            size, begin = _decode_varint(data, position, end)
            stop = begin + size
        case _:
            raise _MalformedError
    if number == 0 or stop > end:
        raise _MalformedError
    return _WireField(number, kind, start, length_at, begin, stop, value)


def _decode_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Decode a base-128 varint of at most 10 bytes; return its value and the offset after it."""
    value = 0
    # A 64-bit varint has at most ten bytes of 7 bits each.
    for index in range(at, min(at + 10, end)):
        byte = data[index]
        value |= (byte & 127) << 7 * (index - at)
        if byte < 128:
            return value, index + 1
    raise _MalformedError


def _encode_varint(value: int) -> bytes:
    """Encode a number as a base-128 varint."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


__all__ = ["CUT_LOCATION", "MIN_CUT_BYTES", "ByteSpans", "cut_weights", "mark_cut"]
