"""Chunked conversion of long JSON arrays to tensors and back.

No piece takes Python's lock for more than some milliseconds, and no more Python objects exist at
once than those of one piece; texts alone stay objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from ekiden.runtime.errors import RequestError
from ekiden.serve.bounded_json import (
    SCAN_CHUNK_BYTES,
    StringState,
    StructuralMarks,
    structural_marks,
)
from ekiden.serve.datatypes import Array, Datatype, convert_values, element_count, tensor_to_json
from ekiden.serve.event_loop_yield import yield_to_loop

__all__ = ["MIN_CHUNKED_ELEMENTS", "format_tensor", "parse_tensor"]

MAX_VALUE_BYTES = 16 << 20
"""Bytes of one text of a tensor, quotes and escapes included, or of a number with blanks."""
MIN_CHUNKED_ELEMENTS = 4096
"""Elements from which on a tensor is written piece by piece."""
_MISPLACED_BRACKET_PATTERN = re.compile(rb"[^\s,\[]\s*\[|\]\s*[^\s,\]]")
"""A bracket beside a value without a comma between them."""
_COMMA, _BLANK, _LETTER = b", x"


def parse_tensor(name: str, kind: Datatype, shape: Sequence[int], data: memoryview) -> Array:
    """Convert a JSON array, flat or nested as its shape, to a tensor."""
    count = element_count(name, shape)
    error = f"input '{name}': data: {count} elements, flat or as the shape {list(shape)}, expected"
    nesting = BracketNesting(shape, count)
    result = np.empty(count, kind.numpy)
    filled = 0
    for piece, marks in split_values(name, data):
        if not nesting.accepts(marks):
            raise RequestError(error)
        values = parse_values(piece, marks)
        if filled + len(values) > count:
            raise RequestError(error)
        if not kind.values.issuperset(map(type, values)):
            raise RequestError(f"input '{name}': data: values of {kind.name} expected")
        result[filled : filled + len(values)] = convert_values(name, kind, values)
        filled += len(values)
    if filled != count or not nesting.is_complete:
        raise RequestError(error)
    return result.reshape(tuple(shape))


def split_values(name: str, data: memoryview) -> Iterator[tuple[bytes, StructuralMarks]]:
    """Yield the bytes of an array in chunks that end with a comma."""
    at, size = 0, SCAN_CHUNK_BYTES
    while at < len(data):
        yield_to_loop()
        piece = bytes(data[at : at + size])
        marks = structural_marks(piece, StringState())
        if at + size < len(data):
            commas = np.flatnonzero(marks.commas)
            # A piece without a comma ends inside a value, so a larger one is tried.
            if not len(commas):
                if size > MAX_VALUE_BYTES:
                    raise RequestError(f"input '{name}': data: a value is too long", "too_large")
                size *= 2
                continue
            end = int(commas[-1]) + 1
            piece = piece[:end]
            marks = StructuralMarks(marks.opening_brackets[:end], marks.closing_brackets[:end],
                marks.commas[:end],
                                    marks.outside_strings[:end], marks.codes[:end])  # fmt: skip
        yield piece, marks
        at, size = at + len(piece), SCAN_CHUNK_BYTES


def parse_values(piece: bytes, marks: StructuralMarks) -> list[Any]:
    """Parse the values of a chunk whose brackets were checked."""
    # The view of `bytes` is read-only, so it is copied before brackets are blanked.
    codes = np.frombuffer(piece, np.uint8).copy()
    # The brackets of a nested array are those between values: `1[,2]` is no JSON.
    shown = np.where(marks.outside_strings, marks.codes, _LETTER)
    if _MISPLACED_BRACKET_PATTERN.search(shown.astype(np.uint8).tobytes()):
        raise RequestError("the body is no JSON: a bracket stands beside a value")
    codes[(marks.opening_brackets | marks.closing_brackets) & ((codes == 91) | (codes == 93))] = (
        _BLANK
    )
    # The comma at the end separates this chunk from the next.
    if len(codes) and marks.commas[-1]:
        codes[-1] = _BLANK
    try:
        values: list[Any] = orjson.loads(b"[" + codes.tobytes() + b"]")
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is no JSON: {error.msg}") from None
    return values


class BracketNesting:
    """Validator of the nesting of an array's brackets against a shape: flat, or as its shape
    requires.

    Before the comma behind value i, in an array of the sizes (..., c, b, a), there are as many
    closed brackets as i is multiples of a, of a b, and so on, and as many more open ones.
    """

    def __init__(self, shape: Sequence[int], count: int) -> None:
        self._shape, self._count = shape, count
        self._strides: list[int] | None = None
        self._opens = self._closes = self._commas = 0

    def accepts(self, marks: StructuralMarks) -> bool:
        """Check a chunk against the shape; return whether it conforms."""
        comma_positions = np.flatnonzero(marks.commas)
        opens = np.cumsum(marks.opening_brackets) + self._opens
        closes = np.cumsum(marks.closing_brackets) + self._closes
        if self._strides is None and not self._check_opening(
            int(opens[comma_positions[0] if len(comma_positions) else -1])
        ):
            return False
        assert self._strides is not None
        numbers = np.arange(self._commas + 1, self._commas + len(comma_positions) + 1)
        closed = sum((numbers // n for n in self._strides), np.zeros_like(numbers))
        begun = sum(((numbers - 1) // n for n in self._strides), np.zeros_like(numbers))
        depth = len(self._strides) + 1
        fits = _arrays_equal(closes[comma_positions], closed) and _arrays_equal(
            opens[comma_positions], begun + depth
        )
        self._opens, self._closes = int(opens[-1]), int(closes[-1])
        self._commas += len(comma_positions)
        return fits

    def _check_opening(self, depth: int) -> bool:
        """Check the brackets before the first value."""
        if self._count == 0 or depth not in (1, len(self._shape)):
            return False
        sizes = self._shape[1:] if depth > 1 else ()
        self._strides = [int(np.prod(sizes[n:])) for n in range(len(sizes))]
        return True

    @property
    def is_complete(self) -> bool:
        """Return whether all brackets are closed and the number of commas is right."""
        return self._opens == self._closes and self._commas == self._count - 1


def _arrays_equal(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    """Return whether two arrays are equal."""
    return bool((actual == expected).all())


def format_tensor(name: str, kind: Datatype, array: Array) -> Iterator[bytes]:
    """Yield a tensor as a JSON array."""
    flat = array.reshape(-1)
    yield b"["
    for begin in range(0, len(flat), MIN_CHUNKED_ELEMENTS):
        yield_to_loop()
        values = tensor_to_json(name, kind, flat[begin : begin + MIN_CHUNKED_ELEMENTS])
        text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        yield b"," + text if begin else text
    yield b"]"
