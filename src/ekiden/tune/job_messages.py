"""Messages between tuner processes: a JSON object and some byte strings, over pipes.

A message is its length, the length of the JSON, the JSON, the byte strings; the JSON's "parts" has
their lengths. Nothing that is read is code: a process that went wrong can send what it likes.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Head: TypeAlias = dict[str, object]
Message: TypeAlias = tuple[Head, list[bytes]]

_MESSAGE_HEADER = struct.Struct("<QQ")
MAX_MESSAGE_BYTES = 1 << 32
"""Maximum accepted message size in bytes."""


def encode_message(head: Mapping[str, object], blobs: Sequence[bytes] = ()) -> bytes:
    """Serialize a message."""
    text = json.dumps({**head, "parts": [len(p) for p in blobs]}).encode()
    body = b"".join([text, *blobs])
    return _MESSAGE_HEADER.pack(len(body), len(text)) + body


def send_message(handle: int, head: Mapping[str, object], blobs: Sequence[bytes] = ()) -> None:
    """Write a message. Raises OSError if the other side has closed."""
    data = memoryview(encode_message(head, blobs))
    while data:
        data = data[os.write(handle, data) :]


class MessageReader:
    """Reader of messages from a pipe, with a deadline in `time.monotonic` seconds."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._bytes = bytearray()

    def receive(self, until: float | None = None) -> Message | None:
        """Return the next message; None if the other side closed or sent something invalid. Raises
        TimeoutError.
        """
        while (messages := self._parse_message()) is None:
            if not self._read_more(until):
                return None
        return messages[0] if messages else None

    def _read_more(self, until: float | None) -> bool:
        wait = None if until is None else max(0.0, until - time.monotonic())
        ready, _, _ = select.select([self.handle], [], [], wait)
        if not ready:
            raise TimeoutError
        more = os.read(self.handle, 1 << 20)
        self._bytes += more
        return bool(more)

    def _parse_message(self) -> tuple[Message, ...] | None:
        """Return a complete received message; None if none is complete, () if the data is
        invalid.
        """
        if len(self._bytes) < _MESSAGE_HEADER.size:
            return None
        size, text = _MESSAGE_HEADER.unpack_from(self._bytes)
        if text > size or size > MAX_MESSAGE_BYTES:
            return ()
        if len(self._bytes) < _MESSAGE_HEADER.size + size:
            return None
        body = bytes(self._bytes[_MESSAGE_HEADER.size : _MESSAGE_HEADER.size + size])
        del self._bytes[: _MESSAGE_HEADER.size + size]
        try:
            head = json.loads(body[:text])
            return ((head, _split_blobs(body[text:], head.pop("parts"))),)
        except (ValueError, KeyError, TypeError, AttributeError):
            return ()


def _split_blobs(body: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Split a body by blob lengths. Raises ValueError if they do not add up."""
    if any(type(n) is not int or n < 0 for n in lengths) or sum(lengths) != len(body):
        raise ValueError("lengths of parts")
    blobs, position = [], 0
    for length in lengths:
        blobs.append(body[position : position + length])
        position += length
    return blobs
