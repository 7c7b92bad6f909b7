"""Broken files: what a converter meets where the parts of a node do not fit its operator."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from ekiden.runtime.errors import ImportModelError

_MISFITS = (
    struct.error, LookupError, AttributeError, TypeError, ArithmeticError, StopIteration,
    AssertionError, RecursionError,
)  # fmt: skip


@contextmanager
def fitting(parts: str) -> Iterator[None]:
    """A `with` block that reads `parts`, a name for messages, of a file.

    Raises ImportModelError where they are not what they should be: files are broken in more ways
    than readers can ask for.
    """
    try:
        yield
    except _MISFITS as error:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        raise ImportModelError(f"{parts} ({what})") from error
