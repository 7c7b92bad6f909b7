"""Checks on untrusted JSON before it is parsed: how many values, how deep, how long.

A parser makes an object of 64 bytes of a value of two, and holds Python's lock until it is done: 44
MB of `{},` stop every other thread for ten seconds. So a body is first looked at in pieces, by
NumPy, which gives the lock back: what has too many values is refused, and long arrays of tensors
are left out, to be parsed piece by piece (`ekiden.serve.json_tensors`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from ekiden.runtime.errors import RequestError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.loop_turns import give_turn

__all__ = [
    "PIECE_BYTES",
    "LongArrays",
    "Marks",
    "TextState",
    "load_bounded",
    "marks_of",
    "read_json",
]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Integers: TypeAlias = npt.NDArray[np.int64]

PIECE_BYTES = 32 << 10
"""Bytes that are looked at, or parsed, in one step: about a millisecond of Python's lock."""
MAX_VALUES = 16 << 10
"""Values of a request beside those of long arrays: parsing these takes a few milliseconds."""
MAX_DEPTH = 64
MAX_SKELETON_BYTES = 1 << 20
"""Bytes of a request beside those of long arrays."""
TENSOR_DEPTH = 4
"""Brackets around the values of a tensor: the request, its inputs, the input, its data."""
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_QUOTE_BYTE, _COMMA, _BACKSLASH = b'",\\'
_OPEN_LIST, _CLOSE_LIST, _OPEN_OBJECT, _CLOSE_OBJECT = b"[]{}"


@dataclass(slots=True)
class Marks:
    """The brackets and commas of a chunk that stand outside strings."""

    opens: npt.NDArray[np.bool_]
    closes: npt.NDArray[np.bool_]
    commas: npt.NDArray[np.bool_]
    outside: npt.NDArray[np.bool_]
    codes: Bytes


@dataclass(slots=True)
class TextState:
    """The state at the start of a chunk: inside a string or not, after a backslash or not."""

    is_inside: int = 0
    is_escaped: bool = False


def marks_of(piece: bytes, texts: TextState) -> Marks:
    """Return the brackets and commas of a chunk outside strings; `texts` goes on to its end."""
    # The first byte is escaped by a backslash that ended the previous chunk.
    masked = b" " + piece[1:] if texts.is_escaped and piece else piece
    if _BACKSLASH in masked:
        masked = _ESCAPED.sub(b"  ", masked)
    texts.is_escaped = masked.endswith(b"\\")
    codes = np.frombuffer(masked, np.uint8)
    # The parity of the quotes so far tells whether a byte is inside a string.
    inside = np.cumsum(codes == _QUOTE_BYTE, dtype=np.int64)
    inside += texts.is_inside
    inside &= 1
    texts.is_inside = int(inside[-1]) if len(inside) else texts.is_inside
    outside = inside == 0
    opens = ((codes == _OPEN_LIST) | (codes == _OPEN_OBJECT)) & outside
    closes = ((codes == _CLOSE_LIST) | (codes == _CLOSE_OBJECT)) & outside
    return Marks(opens, closes, (codes == _COMMA) & outside, outside, codes)


def pieces_of(data: memoryview) -> Iterator[tuple[int, bytes]]:
    """Yield the chunks of bytes, each with its position."""
    for start in range(0, len(data), PIECE_BYTES):
        give_turn()
        yield start, bytes(data[start : start + PIECE_BYTES])


@dataclass(slots=True)
class _Scan:
    """What has been seen of a body so far."""

    depth: int = 0
    values: int = 0
    """Brackets and commas, which are as many as there are values, or more."""
    left_out: int = 0
    """Those in long arrays that have ended."""
    skipped_bytes: int = 0
    begin: int = -1
    """Where the array of a tensor began that has not ended; -1: none."""
    values_at_begin: int = 0
    arrays: list[tuple[int, int]] = field(default_factory=list)

    def add(self, start: int, marks: Marks, takes_arrays: bool) -> None:
        """Scan one chunk."""
        steps = marks.opens.astype(np.int64) - marks.closes
        depths = np.cumsum(steps) + self.depth
        if len(depths) and (int(depths.max()) > MAX_DEPTH or int(depths.min()) < 0):
            raise RequestError(f"the body is no JSON of at most {MAX_DEPTH} levels")
        counts = np.cumsum(marks.opens | marks.commas) + self.values
        if takes_arrays:
            self._note_arrays(start, marks, depths, counts)
        self.depth, self.values = int(depths[-1]), int(counts[-1])

    def _note_arrays(self, start: int, marks: Marks, depths: Integers, counts: Integers) -> None:
        """Note where tensors begin and end."""
        begins = marks.opens & (marks.codes == _OPEN_LIST) & (depths == TENSOR_DEPTH)
        ends = marks.closes & (marks.codes == _CLOSE_LIST) & (depths == TENSOR_DEPTH - 1)
        positions = np.flatnonzero(begins | ends)
        if len(positions) > MAX_VALUES:
            raise RequestError("the body has too many arrays", "too_large")
        for position in positions.tolist():
            if begins[position]:
                self.begin, self.values_at_begin = start + position, int(counts[position])
            elif self.begin >= 0:
                self._end(start + position + 1, int(counts[position]))

    def _end(self, end: int, count: int) -> None:
        if end - self.begin > PIECE_BYTES:
            self.arrays.append((self.begin, end))
            self.left_out += count - self.values_at_begin
            self.skipped_bytes += end - self.begin
        self.begin = -1

    def check(self, scanned: int) -> None:
        """Raises RequestError ("too_large") if there is too much outside long arrays."""
        values, skipped = self.left_out, self.skipped_bytes
        if self.begin >= 0 and scanned - self.begin > PIECE_BYTES:
            values += self.values - self.values_at_begin
            skipped += scanned - self.begin
        if self.values - values > MAX_VALUES:
            raise RequestError(
                f"the body has more than {MAX_VALUES} values beside its tensors", "too_large"
            )
        if scanned - skipped > MAX_SKELETON_BYTES:
            raise RequestError(
                f"the body has more than {MAX_SKELETON_BYTES} bytes beside its tensors", "too_large"
            )


class LongArrays:
    """The long arrays of a request, replaced in its JSON by unguessable strings."""

    def __init__(self, data: memoryview, spans: list[tuple[int, int]]) -> None:
        self._mark = secrets.token_hex(16)
        self._left = {
            f"{self._mark} {number}": data[begin:end] for number, (begin, end) in enumerate(spans)
        }

    @property
    def names(self) -> list[str]:
        """Return the strings that have not been taken."""
        return list(self._left)

    def take(self, value: object) -> memoryview | None:
        """Return the array that a JSON value stands for, once; None where it is another value."""
        return self._left.pop(value, None) if isinstance(value, str) else None


def load_bounded(data: memoryview) -> tuple[dict[str, Any], LongArrays]:
    """Parse a JSON object with its long arrays left out. Raises RequestError for JSON that is
    invalid, too deep, or has too many values besides long arrays.
    """
    scan, texts = _Scan(), TextState()
    for start, piece in pieces_of(data):
        scan.add(start, marks_of(piece, texts), takes_arrays=True)
        scan.check(start + len(piece))
    arrays = LongArrays(data, scan.arrays)
    chunks: list[bytes | memoryview] = []
    at = 0
    for name, (begin, end) in zip(arrays.names, scan.arrays, strict=True):
        chunks += [data[at:begin], b'"', name.encode(), b'"']
        at = end
    value = parse_object(b"".join([*chunks, data[at:]]))
    return value, arrays


def check_values(data: bytes | bytearray | memoryview, values: int) -> None:
    """Raises RequestError for JSON that is too deep or may have more values than allowed."""
    scan, texts = _Scan(), TextState()
    for start, piece in pieces_of(memoryview(data)):
        scan.add(start, marks_of(piece, texts), takes_arrays=False)
        if scan.values > values:
            raise RequestError(f"the body has more than {values} values", "too_large")


def read_json(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Parse the object of a body; of any size, but not of any number of values.

    Raises RequestError for what is none, too deep, or has too many values.
    """
    if len(data) > PIECE_BYTES:
        check_values(data, MAX_VALUES)
    return parse_object(data)


def parse_object(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Parse a JSON object, however long that takes. Raises RequestError."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is no JSON: {error.msg}") from None
    if not isinstance(value, dict):
        raise RequestError("the body: an object expected")
    return value
