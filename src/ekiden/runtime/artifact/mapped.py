"""Files that are read where the system has them in memory, without a copy of their bytes.

    with lending() as files:
        data = files.map(path)      a view that cannot be written
        ...                         work on it: pages come when they are read, and may be dropped
        files.check("compile")      what was read was one state of each file

Somebody may write to such a file, or cut it short, while it is read: then bytes are of both states,
or zeros where nothing is any more (a read of what has gone does not end the process, as it would
of any other mapping). Both are known afterwards: what was made of them must not be used before
`check` has passed. A file that is replaced by another of its name, or removed, stays what it was.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from ekiden.runtime.binding._core import Tensor, get_global_func
from ekiden.runtime.errors import EkidenError, ImportModelError
from ekiden.runtime.files import PathName
from ekiden.runtime.lazy_dataclass import dataclass

LEAST = 1 << 20
"""Bytes of a file from which it is mapped: a smaller one is read as fast."""
MOST = 256
"""Files of one reader that stay open; others are read."""


@dataclass(frozen=True, slots=True, eq=False)
class _File:
    """A file that is mapped: it stays open, so that its state can be asked for."""

    path: str
    mapped: Tensor
    handle: int
    state: tuple[int, int]

    def check(self, what: str, error: type[EkidenError]) -> None:
        """Raise an error where it is not as it was."""
        if (
            get_global_func("ek.files.is_cut")(self.mapped)
            or _state(os.fstat(self.handle)) != self.state
        ):
            raise error(
                f"{what}: the file {self.path!r} was changed while weights were read from it: write"
                " another file and rename it, or wait until the model is compiled"
            )


@dataclass(slots=True, eq=False)
class Files:
    """The files that one reader has mapped, until the last array over each has gone."""

    files: list[_File] = field(default_factory=list)

    def map(self, path: PathName) -> memoryview | None:
        """All of a file; None for what is to be read instead: what is no file, too small, or cannot
        be mapped (some file systems have no mappings, and there is an end to how many are watched).
        Raises OSError for a file that cannot be opened.
        """
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        found = self.adopt(handle, path)
        if found is None:
            os.close(handle)
        return found

    def adopt(self, handle: int, path: PathName) -> memoryview | None:
        """The same of a file that is open already, which is closed here later; it stays the
        caller's where this gives None."""
        found = os.fstat(handle)
        mapped = _mapped(handle, found) if len(self.files) < MOST else None
        if mapped is None:
            return None
        self.files.append(_File(os.fspath(path), mapped, handle, _state(found)))
        return mapped.numpy().data

    def check(self, what: str, error: type[EkidenError] = ImportModelError) -> None:
        """Raise an error, which says in what, for a file that is not as it was when it was
        mapped."""
        for each in self.files:
            each.check(what, error)

    def close(self) -> None:
        """Nothing is checked any more; views that are left stay what they are."""
        for each in self.files:
            os.close(each.handle)
        self.files.clear()

    def __del__(self) -> None:
        self.close()


def read_whole(file: io.FileIO) -> memoryview:
    """All bytes of a file from where it is, read: an array of NumPy has large pages, and takes a
    third of the time that `bytes` do."""
    data = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
    size = file.readinto(data.data)  # less where it has shrunk; a pipe has no size at all
    rest = file.readall()
    if size == len(data) and not rest:
        return data.data
    return memoryview(data[:size].tobytes() + rest)


def _mapped(handle: int, found: os.stat_result) -> Tensor | None:
    if not stat.S_ISREG(found.st_mode) or found.st_size < LEAST:
        return None
    return guarded(handle, found.st_size)


def guarded(handle: int, size: int) -> Tensor | None:
    """The bytes of an open file of a size that is not 0, read-only, as a tensor that keeps them:
    the file need not stay open. None where files cannot be mapped so, or no more of them.
    """
    try:
        found = get_global_func("ek.files.map")(handle, size)
    except (OSError, ValueError):  # ValueError: a runtime without signals
        return None
    assert isinstance(found, Tensor)
    return found


def _state(found: os.stat_result) -> tuple[int, int]:
    """What changes with the bytes of a file, and not with its names."""
    return found.st_size, found.st_mtime_ns


_LENT: ContextVar[Files | None] = ContextVar("lent", default=None)


@contextmanager
def lending() -> Iterator[Files]:
    """Readers inside may give arrays that lie in mapped files, to who copies what it keeps of them
    and calls `check` of what this gives then."""
    files = Files()
    token = _LENT.set(files)
    try:
        yield files
    finally:
        _LENT.reset(token)


def lent() -> Files | None:
    """Where a reader maps files whose arrays it gives; None where they must be copied."""
    return _LENT.get()


def drop(array: NDArray[np.generic]) -> None:
    """Let the part of a mapped file that an array has go from memory: it comes again when it is
    read. Nothing, for an array that lies elsewhere."""
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    if array.size and min(steps, default=0) >= 0:
        begin: int = array.__array_interface__["data"][0]
        get_global_func("ek.files.drop")(begin, sum(steps) + array.itemsize)


__all__ = ["Files", "drop", "guarded", "lending", "lent", "read_whole"]
