"""Translation of Python errors that malformed model files cause into ImportModelError."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from ekiden.runtime.errors import ImportModelError

_MALFORMED_ERRORS = (
    struct.error, LookupError, AttributeError, TypeError, ArithmeticError, StopIteration,
    AssertionError, RecursionError,
)  # fmt: skip


@contextmanager
def reject_malformed(subject: str) -> Iterator[None]:
    """Translate Python errors of a `with` block that parses a file into ImportModelError; `subject`
    begins its message.

    Raises ImportModelError where the parts are malformed: files are broken in more ways than
    readers can check for.
    """
    try:
        yield
    # Parsers index and unpack what the file declares: a malformed file shows as one of these, never
    # as a crash.
    except _MALFORMED_ERRORS as error:
        detail = f"{type(error).__name__}: {error}".rstrip(": ")
        raise ImportModelError(f"{subject} ({detail})") from error
