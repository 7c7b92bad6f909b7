"""Bounded parsing of untrusted JSON: how many values, how deep, how long.

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
from ekiden.serve.event_loop_yield import yield_to_loop

__all__ = [
    "SCAN_CHUNK_BYTES",
    "LongArrays",
    "StringState",
    "StructuralMarks",
    "parse_bounded",
    "parse_bounded_object",
    "structural_marks",
]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Integers: TypeAlias = npt.NDArray[np.int64]

SCAN_CHUNK_BYTES = 32 << 10
"""Bytes that are looked at, or parsed, in one step: about a millisecond of Python's lock."""
MAX_JSON_VALUES = 16 << 10
"""Values of a request beside those of long arrays: parsing these takes a few milliseconds."""
MAX_JSON_DEPTH = 64
MAX_SKELETON_BYTES = 1 << 20
"""Bytes of a request beside those of long arrays."""
TENSOR_ARRAY_DEPTH = 4
"""Brackets around the values of a tensor: the request, its inputs, the input, its data."""
_ESCAPE_PATTERN = re.compile(rb"\\.", re.DOTALL)
_QUOTE_BYTE, _COMMA, _BACKSLASH = b'",\\'
_OPEN_LIST, _CLOSE_LIST, _OPEN_OBJECT, _CLOSE_OBJECT = b"[]{}"


@dataclass(slots=True)
class StructuralMarks:
    """Structural characters of a chunk: brackets and commas outside of strings."""

    opening_brackets: npt.NDArray[np.bool_]
    closing_brackets: npt.NDArray[np.bool_]
    commas: npt.NDArray[np.bool_]
    outside_strings: npt.NDArray[np.bool_]
    codes: Bytes


@dataclass(slots=True)
class StringState:
    """Scanner state at the start of a chunk: inside a string, after a backslash."""

    is_inside: int = 0
    is_escaped: bool = False


def structural_marks(piece: bytes, texts: StringState) -> StructuralMarks:
    """Return the brackets and commas of a chunk outside strings; `texts` is the string state,
    updated to the chunk's end.
    """
    # The first byte is escaped by a backslash that ended the previous chunk.
    masked = b" " + piece[1:] if texts.is_escaped and piece else piece
    if _BACKSLASH in masked:
        masked = _ESCAPE_PATTERN.sub(b"  ", masked)
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
    return StructuralMarks(opens, closes, (codes == _COMMA) & outside, outside, codes)


def iter_chunks(data: memoryview) -> Iterator[tuple[int, bytes]]:
    """Yield the chunks of a body with their offsets."""
    for start in range(0, len(data), SCAN_CHUNK_BYTES):
        yield_to_loop()
        yield start, bytes(data[start : start + SCAN_CHUNK_BYTES])


@dataclass(slots=True)
class _JsonScan:
    """Scanner state of a JSON body."""

    depth: int = 0
    num_values: int = 0
    """Brackets and commas, which are as many as there are values, or more."""
    num_skipped_values: int = 0
    """Those in long arrays that have ended."""
    skipped_bytes: int = 0
    array_begin: int = -1
    """Where the array of a tensor began that has not ended; -1: none."""
    values_at_begin: int = 0
    array_ranges: list[tuple[int, int]] = field(default_factory=list)

    def scan_chunk(self, start: int, marks: StructuralMarks, takes_arrays: bool) -> None:
        """Scan one chunk."""
        steps = marks.opening_brackets.astype(np.int64) - marks.closing_brackets
        depths = np.cumsum(steps) + self.depth
        if len(depths) and (int(depths.max()) > MAX_JSON_DEPTH or int(depths.min()) < 0):
            raise RequestError(f"the body is no JSON of at most {MAX_JSON_DEPTH} levels")
        # An upper bound of the number of values, without parsing any.
        counts = np.cumsum(marks.opening_brackets | marks.commas) + self.num_values
        if takes_arrays:
            self._record_arrays(start, marks, depths, counts)
        self.depth, self.num_values = int(depths[-1]), int(counts[-1])

    def _record_arrays(
        self, start: int, marks: StructuralMarks, depths: Integers, counts: Integers
    ) -> None:
        """Record where long arrays of numbers begin and end."""
        begins = (
            marks.opening_brackets & (marks.codes == _OPEN_LIST) & (depths == TENSOR_ARRAY_DEPTH)
        )
        ends = (
            marks.closing_brackets
            & (marks.codes == _CLOSE_LIST)
            & (depths == TENSOR_ARRAY_DEPTH - 1)
        )
        positions = np.flatnonzero(begins | ends)
        # Each position costs Python time below, so their number is bounded first.
        if len(positions) > MAX_JSON_VALUES:
            raise RequestError("the body has too many arrays", "too_large")
        for position in positions.tolist():
            if begins[position]:
                self.array_begin, self.values_at_begin = start + position, int(counts[position])
            elif self.array_begin >= 0:
                self._end_array(start + position + 1, int(counts[position]))

    def _end_array(self, end: int, count: int) -> None:
        if end - self.array_begin > SCAN_CHUNK_BYTES:
            self.array_ranges.append((self.array_begin, end))
            self.num_skipped_values += count - self.values_at_begin
            self.skipped_bytes += end - self.array_begin
        self.array_begin = -1

    def check(self, scanned: int) -> None:
        """Raise RequestError ("too_large") if too many values lie outside of long arrays."""
        values, skipped = self.num_skipped_values, self.skipped_bytes
        if self.array_begin >= 0 and scanned - self.array_begin > SCAN_CHUNK_BYTES:
            values += self.num_values - self.values_at_begin
            skipped += scanned - self.array_begin
        if self.num_values - values > MAX_JSON_VALUES:
            raise RequestError(
                f"the body has more than {MAX_JSON_VALUES} values beside its tensors", "too_large"
            )
        if scanned - skipped > MAX_SKELETON_BYTES:
            raise RequestError(
                f"the body has more than {MAX_SKELETON_BYTES} bytes beside its tensors", "too_large"
            )


class LongArrays:
    """Long arrays cut out of a request, each replaced in the JSON by an unguessable placeholder."""

    def __init__(self, data: memoryview, spans: list[tuple[int, int]]) -> None:
        self._mark = secrets.token_hex(16)
        self._left = {
            f"{self._mark} {number}": data[begin:end] for number, (begin, end) in enumerate(spans)
        }

    @property
    def names(self) -> list[str]:
        """Return the placeholders whose arrays were not popped."""
        return list(self._left)

    def pop_array(self, value: object) -> memoryview | None:
        """Return the array of a placeholder, once; None for other values."""
        return self._left.pop(value, None) if isinstance(value, str) else None


def parse_bounded(data: memoryview) -> tuple[dict[str, Any], LongArrays]:
    """Parse a JSON object whose long arrays are cut out. Raises RequestError for JSON that is
    invalid, too deep, or has too many values besides long arrays.
    """
    scan, texts = _JsonScan(), StringState()
    for start, piece in iter_chunks(data):
        scan.scan_chunk(start, structural_marks(piece, texts), takes_arrays=True)
        # After each chunk: an oversized body is refused before all of it has been scanned.
        scan.check(start + len(piece))
    arrays = LongArrays(data, scan.array_ranges)
    chunks: list[bytes | memoryview] = []
    at = 0
    for name, (begin, end) in zip(arrays.names, scan.array_ranges, strict=True):
        chunks += [data[at:begin], b'"', name.encode(), b'"']
        at = end
    # The skeleton is small, so parsing it holds the interpreter lock only briefly.
    value = parse_object(b"".join([*chunks, data[at:]]))
    return value, arrays


def check_values(data: bytes | bytearray | memoryview, values: int) -> None:
    """Raise RequestError for JSON that is nested too deeply or may exceed the allowed number of
    values.
    """
    scan, texts = _JsonScan(), StringState()
    for start, piece in iter_chunks(memoryview(data)):
        scan.scan_chunk(start, structural_marks(piece, texts), takes_arrays=False)
        if scan.num_values > values:
            raise RequestError(f"the body has more than {values} values", "too_large")


def parse_bounded_object(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Parse a body's JSON object with a limit on its number of values but not on its size.

    Raises RequestError for what is none, too deep, or has too many values.
    """
    if len(data) > SCAN_CHUNK_BYTES:
        check_values(data, MAX_JSON_VALUES)
    return parse_object(data)


def parse_object(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Parse a JSON object without limits. Raises RequestError."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is no JSON: {error.msg}") from None
    if not isinstance(value, dict):
        raise RequestError("the body: an object expected")
    return value
