"""What a kind of input is to the fuzzer: how its cases are made, and what is done with one.

A case is refused with an error of the project's own, or accepted; anything else that it raises, a
signal or a hang is a find. The tables of kinds are in file_kinds.py, model_kinds.py,
relay_kinds.py, tensorflow_kinds.py, template_kinds.py and message_kinds.py.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

Loader = Callable[[Any], None]
"""Does with a case what a user would; returns where it is accepted."""


def case_folder() -> Path:
    """Return a new folder for the files of cases, in memory where there is such: opening a file on
    a disk takes as long as the rest of a small case.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="ekiden-fuzz-", dir=memory))


class SlowError(BaseException):
    """A case takes too long: not an Exception, which is caught on the way."""


class WrongResultError(AssertionError):
    """A result that is not what it must be; the subject, an operator mostly, tells finds apart."""

    def __init__(self, subject: str, text: str) -> None:
        super().__init__(f"{subject}: {text}")
        self.subject = subject


@dataclass(frozen=True)
class Kind:
    """A row of the table.

    start: makes what all cases of a worker need, once, and gives (make, load): `make(rng)` is the
    next case, `load(case)` tries it. needs: packages without which the kind is skipped.
    """

    name: str
    about: str
    start: Callable[[], tuple[Callable[[Random], Any], Loader]]
    needs: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """Return the packages that are not installed."""
        return [name for name in self.needs if find_spec(name) is None]
