"""Other libraries at work for an import: what they raise becomes one error of ours, which has the
line of the user's own program where the library was led wrong.
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
def told_by(
    tool: str, label: str, libraries: Sequence[str] | None, advice: str = ""
) -> Iterator[None]:
    """A `with` block in which `tool`, a name for messages, works on the model `label`. The line is
    the innermost one outside of the packages `libraries`, which are None where the tool
    calls nobody's program; `advice` is what else may help.

    Raises ImportModelError for whatever the block raises, but for errors of ours and for memory.
    """
    try:
        yield
    except (EkidenError, MemoryError):
        raise
    except Exception as error:
        text = f"import {label}: {tool}: {_first_words(error)}"
        place = "" if libraries is None else _line(error, libraries)
        text += f"\n  {place}" if place else ""
        raise ImportModelError(f"{text}\n  {advice}" if advice else text) from error


def check_readable(path: str | os.PathLike[str], label: str) -> None:
    """Raise ImportModelError for a file that cannot be opened, before a library says so in its own
    words.
    """
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        text = f"cannot read {os.fspath(path)!r}: {error.strerror}"
        raise ImportModelError(f"import {label}: {text}") from error


def _first_words(error: Exception) -> str:
    """The first paragraph, behind which come settings for debugging, links and whole configurations
    (all of it stays the error's cause); of an error that quotes another, that one's.
    """
    paragraphs = [p.strip() for p in str(error).split("\n\n") if p.strip()]
    quoted = [p for p in paragraphs if p.startswith(_QUOTE)]
    found = quoted[0].removeprefix(_QUOTE) if quoted else "".join(paragraphs[:1])
    words = found.partition(" Full object config:")[0] or type(error).__name__
    return words if len(words) <= _MOST else f"{words[:_MOST]}..."


_MOST = 800
"""Characters of a library's message that are shown: some print whole arrays and modules."""


_QUOTE = "Exception encountered: "


def shown(file: str, line: int | str | None, code: str | None) -> str:
    """`model.py:12: y = x.relu()`."""
    name = file.rpartition(os.sep)[2]
    return f"{name}:{line}" + (f": {code.strip()}" if code and code.strip() else "")


def _line(error: Exception, libraries: Sequence[str]) -> str:
    """The innermost line of what the library called, "" where it called nobody's program."""
    loaded = [sys.modules[name] for name in ("ekiden", *libraries) if name in sys.modules]
    folders = tuple(f + os.sep for module in loaded for f in module.__path__)
    standard = sysconfig.get_path("stdlib")
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is the importer's
    for frame in reversed(frames):
        file = os.path.abspath(frame.filename)
        is_standard = file.startswith(standard) and "site-packages" not in file
        if is_standard or not os.path.isfile(file):  # "<string>", or a file of Cython
            continue
        if not file.startswith(folders):
            return shown(frame.filename, frame.lineno, frame.line)
    return ""
