"""Large weights stay out of what protobuf parses: its parser copies every byte, and its face for
Python copies the bytes of a tensor once more when they are asked for.

    ModelProto.graph.initializer[i].raw_data of 400 MB
      ->  the same message with  external_data {location: MARK, offset: "0"}  in its place,
          and places[0] == (where these bytes begin in the file, where they end)

The format is read as far as it takes to find those fields, of tensors anywhere in a graph or a
function. What does not look like it, or says a thing twice that is said once, is left as it is:
what to make of that is for protobuf to say. https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from ekiden.frontend.onnx.dtype import PLAIN
from ekiden.frontend.onnx.messages import onnx
from ekiden.runtime.lazy_dataclass import dataclass

LEAST = 1 << 14
"""Bytes of a tensor from which it stays out: below that to find it takes longer than to copy it."""
MARK = f"ekiden:{os.urandom(8).hex()}"
"""The location of such a tensor, which no file can have by itself."""
Places = list[tuple[int, int]]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Kinds of fields."""
_MODEL, _GRAPH, _FUNCTION, _NODE, _ATTRIBUTE, _TENSOR = range(6)
_INSIDE: Mapping[int, Mapping[int, int]] = {
    _MODEL: {7: _GRAPH, 25: _FUNCTION},
    _GRAPH: {1: _NODE, 5: _TENSOR},
    _FUNCTION: {7: _NODE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH},
    _TENSOR: {},
}
"""Message -> number of a field -> the message that it is."""
_ONCE = {(_MODEL, 7), (_ATTRIBUTE, 5), (_ATTRIBUTE, 6)}
"""Fields that protobuf joins where there are several."""
_DATA_TYPE, _RAW_DATA = 2, 9
_APART = {3, 13, 14}
"""segment, external_data, data_location: bytes of such a tensor are not simply those it has."""
_KIND = onnx.TensorProto


class _MalformedError(Exception):
    """It is no message, or one that is left to protobuf."""


class _Field(NamedTuple):
    """A field: its number, its kind, where it begins, its length, its content, and where that ends;
    of a number its value."""

    number: int
    kind: int
    start: int
    length_at: int
    begin: int
    end: int
    value: int


@dataclass(slots=True)
class _Message:
    """A message that has large ones inside, by the place of the one around it."""

    kind: int
    around: int
    length_at: int
    begin: int
    end: int
    growth: int = 0
    """Bytes by which it becomes longer."""


def without_weights(data: memoryview, first: int = 0) -> tuple[bytes | memoryview, Places]:
    """A model's message without its large weights, which are numbered from `first` on, and where
    these are in `data`."""
    if len(data) < LEAST or sys.byteorder != "little":
        return data, []
    try:
        edits, places = _edits(data, first)
    except _MalformedError:
        return data, []
    if not places:
        return data, []
    pieces: list[bytes | memoryview] = []
    at = 0
    for start, end, instead in sorted(edits):
        pieces += [data[at:start], instead]
        at = end
    return b"".join([*pieces, data[at:]]), places


def _edits(data: memoryview, first: int) -> tuple[list[tuple[int, int, bytes]], Places]:
    """(begin, end, what stands there instead), and the places of weights."""
    messages = [_Message(_MODEL, -1, 0, 0, len(data))]
    edits: list[tuple[int, int, bytes]] = []
    places: Places = []
    at = 0
    while at < len(messages):  # what is found inside of one stands behind it
        message = messages[at]
        if message.kind == _TENSOR:
            _cut(data, message, edits, places, first)
        else:
            messages += _large_inside(data, message, at)
        at += 1
    for message in reversed(messages[1:]):
        if message.growth:
            length = _varint(message.end - message.begin + message.growth)
            edits.append((message.length_at, message.begin, length))
            longer = len(length) - (message.begin - message.length_at)
            messages[message.around].growth += message.growth + longer
    return edits, places


def _large_inside(data: memoryview, message: _Message, at: int) -> list[_Message]:
    """The messages in one that may have large weights."""
    found, seen, inside = [], set(), _INSIDE[message.kind]
    here = message.begin
    while here < message.end:
        each = _field(data, here, message.end)
        here = each.end
        kind = inside.get(each.number)
        if kind is None:
            continue
        said = message.kind, each.number
        if each.kind != _BYTES or (said in seen and said in _ONCE):
            raise _MalformedError
        seen.add(said)
        if each.end - each.begin >= LEAST:
            found.append(_Message(kind, at, each.length_at, each.begin, each.end))
    return found


def _cut(
    data: memoryview,
    tensor: _Message,
    edits: list[tuple[int, int, bytes]],
    places: Places,
    first: int,
) -> None:
    """Put the place of a tensor's bytes where they are, if they are large and all that it has."""
    raw, kind, here = None, -1, tensor.begin
    while here < tensor.end:
        each = _field(data, here, tensor.end)
        here = each.end
        if each.number in _APART or (each.number == _RAW_DATA and (raw or each.kind != _BYTES)):
            return
        if each.number == _RAW_DATA:
            raw = each
        elif each.number == _DATA_TYPE:
            kind = each.value
    if raw is None or raw.end - raw.begin < LEAST or kind not in PLAIN:
        return
    instead = _KIND()
    mark(instead, first + len(places))
    text = instead.SerializeToString()
    places.append((raw.begin, raw.end))
    edits.append((raw.start, raw.end, text))
    tensor.growth = len(text) - (raw.end - raw.start)


def mark(tensor: onnx.TensorProto, number: int) -> None:
    """Let a tensor say that its bytes have stayed out, and their number."""
    del tensor.external_data[:]
    tensor.data_location = _KIND.EXTERNAL
    for key, value in ("location", MARK), ("offset", str(number)):
        tensor.external_data.add(key=key, value=value)


def _field(data: memoryview, start: int, end: int) -> _Field:
    """The field that begins at a place of a message. Raises _MalformedError."""
    tag, at = _number(data, start, end)
    number, kind, length_at, value = tag >> 3, tag & 7, at, 0
    match kind:
        case 0:  # _VARINT
            value, begin = _number(data, at, end)
            stop = begin
        case 1:  # _FIXED64
            begin, stop = at, at + 8
        case 5:  # _FIXED32
            begin, stop = at, at + 4
        case 2:  # _BYTES
            size, begin = _number(data, at, end)
            stop = begin + size
        case _:
            raise _MalformedError
    if number == 0 or stop > end:
        raise _MalformedError
    return _Field(number, kind, start, length_at, begin, stop, value)


def _number(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """A number of seven bits a byte, the last one's highest bit 0, and where it ends."""
    value = 0
    for place in range(at, min(at + 10, end)):
        byte = data[place]
        value |= (byte & 127) << 7 * (place - at)
        if byte < 128:
            return value, place + 1
    raise _MalformedError


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


__all__ = ["LEAST", "MARK", "Places", "mark", "without_weights"]
