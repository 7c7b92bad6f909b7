"""Translation of errors of third-party libraries into ImportModelError that cites the user's source
line.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ekiden.runtime.errors import EkidenError, ImportModelError


@contextmanager
def translate_errors(
    tool: str, label: str, libraries: Sequence[str] | None, advice: str = ""
) -> Iterator[None]:
    """Translate errors raised in a `with` block in which `tool` works on the model `label`.

    Args:
        tool: its name for messages.
        label: the model, as messages have it.
        libraries: packages whose frames are skipped to find the innermost line of the user's
            program;
            None where the tool calls no user code.
        advice: what else may help.

    Raises:
        ImportModelError: for whatever the block raises, except Ekiden's own errors and MemoryError.
    """
    try:
        yield
    # Our own errors are already phrased for the user, and memory exhaustion is no fault of the
    # model.
    except (EkidenError, MemoryError):
        raise
    except Exception as error:
        text = f"import {label}: {tool}: {_first_paragraph(error)}"
        source_line = "" if libraries is None else _user_code_line(error, libraries)
        text += f"\n  {source_line}" if source_line else ""
        raise ImportModelError(f"{text}\n  {advice}" if advice else text) from error


def check_readable(path: str | os.PathLike[str], label: str) -> None:
    """Raise ImportModelError for a file that cannot be opened."""
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        text = f"cannot read {os.fspath(path)!r}: {error.strerror}"
        raise ImportModelError(f"import {label}: {text}") from error


def _first_paragraph(error: Exception) -> str:
    """Return the first paragraph of an error's message, or of the error that it quotes.

    Behind it come debugging settings, links and whole configurations; all of it stays the error's
    cause.
    """
    paragraphs = [p.strip() for p in str(error).split("\n\n") if p.strip()]
    quoted = [p for p in paragraphs if p.startswith(_QUOTED_ERROR_PREFIX)]
    paragraph = quoted[0].removeprefix(_QUOTED_ERROR_PREFIX) if quoted else "".join(paragraphs[:1])
    words = paragraph.partition(" Full object config:")[0] or type(error).__name__
    return words if len(words) <= _MAX_MESSAGE_CHARS else f"{words[:_MAX_MESSAGE_CHARS]}..."


_MAX_MESSAGE_CHARS = 800
"""Characters of a library's message that are shown: some print whole arrays and modules."""


_QUOTED_ERROR_PREFIX = "Exception encountered: "


def format_source_line(file: str, line: int | str | None, code: str | None) -> str:
    """Format a source line as `model.py:12: y = x.relu()`."""
    name = file.rpartition(os.sep)[2]
    return f"{name}:{line}" + (f": {code.strip()}" if code and code.strip() else "")


def _user_code_line(error: Exception, libraries: Sequence[str]) -> str:
    """Return the innermost traceback line in user code, "" where there is none."""
    loaded = [sys.modules[name] for name in ("ekiden", *libraries) if name in sys.modules]
    folders = tuple(f + os.sep for module in loaded for f in module.__path__)
    standard = sysconfig.get_path("stdlib")
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is the importer's
    # The innermost frame outside the standard library and the frameworks is the user's.
    for frame in reversed(frames):
        file = os.path.abspath(frame.filename)
        is_standard = file.startswith(standard) and "site-packages" not in file
        if is_standard or not os.path.isfile(file):  # "<string>", or a file of Cython
            continue
        if not file.startswith(folders):
            return format_source_line(frame.filename, frame.lineno, frame.line)
    return ""
