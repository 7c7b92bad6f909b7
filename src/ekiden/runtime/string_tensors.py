"""String tensors as programs store them. The last axis of uint8 [..., width] is one text in UTF-8
with bytes 0xFF behind it, which no text in UTF-8 contains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"

STRING_TERMINATOR = 255
"""The byte behind a text."""


def encode_strings(texts: object, width: int | None = None) -> Array:
    """Encode an array (or nested lists) of str, or bytes in UTF-8, as bytes with one axis more, as
    long as the longest text or `width`. Raises TypeError for other elements.
    """
    strings = np.asarray(texts, object)
    raw = [_to_utf8(t) for t in strings.ravel()]
    wide = max([1, *map(len, raw)]) if width is None else width
    padded = np.full((len(raw), wide), STRING_TERMINATOR, np.uint8)
    sizes = np.fromiter(map(len, raw), np.int64, len(raw))
    padded[np.arange(wide) < sizes[:, None]] = np.frombuffer(b"".join(raw), np.uint8)
    return padded.reshape(*strings.shape, wide)


def _to_utf8(text: object) -> bytes:
    if isinstance(text, bytes):
        return text
    if isinstance(text, str):
        return text.encode()
    raise TypeError(f"texts must be str, got {type(text).__name__}")


def decode_strings(data: Array) -> Array:
    """Decode bytes to an object array of str."""
    rows = np.ascontiguousarray(data).reshape(math.prod(data.shape[:-1]), data.shape[-1])
    ends = np.concatenate(
        [rows == STRING_TERMINATOR, np.ones((len(rows), 1), np.bool_)], axis=1
    ).argmax(1)
    decoded = np.empty(len(rows), object)
    for i, (row, end) in enumerate(zip(rows, ends, strict=True)):
        decoded[i] = row[:end].tobytes().decode(errors="replace")
    return decoded.reshape(data.shape[:-1])


def sort_strings(texts: Iterable[str]) -> list[str]:
    """Sort texts by their padded bytes: a text sorts after its extensions."""
    return sorted(texts, key=lambda t: t.encode() + bytes([STRING_TERMINATOR]))
