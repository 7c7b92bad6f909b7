"""Bytes that are made in a fork of this process, for parts of LLVM that may end it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from tempfile import TemporaryFile

from ekiden.runtime.errors import CompileError
from ekiden.runtime.forks import forking

MOST_SAID = 600
"""Bytes shown of what a child said before it ended."""


def made_apart(make: Callable[[], bytes], what: str) -> bytes:
    """What `make` gives in a child. Raises CompileError, for which thing, where that ends or
    none can be forked."""
    with TemporaryFile() as said:
        try:
            with forking():
                read, write = os.pipe()
                pid = os.fork()
        except OSError as error:
            raise CompileError(f"{what}: {error}") from error
        if pid == 0:
            _run(make, read, write, said.fileno())
        os.close(write)
        with os.fdopen(read, "rb") as results:
            made = results.read()
        _, status = os.waitpid(pid, 0)
        if status == 0:
            return made
        said.seek(0)
        heard = said.read(MOST_SAID).decode(errors="replace").strip()
    raise CompileError(f"{what}: LLVM gave up: {heard or os.waitstatus_to_exitcode(status)}")


def _run(make: Callable[[], bytes], read: int, write: int, errors: int) -> None:
    """The child; it ends here, and nothing of the parent's is undone."""
    try:
        os.close(read)
        if sys.__stderr__ is not None:  # else 2 may be one of these files
            os.dup2(errors, 2)
        with os.fdopen(write, "wb") as results:
            results.write(make())
        os._exit(0)
    except BaseException as error:
        os.write(errors, str(error).encode())
    finally:
        os._exit(1)


__all__ = ["made_apart"]
