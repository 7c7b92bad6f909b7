"""Memory-mapped files, read without copying.

    with allow_mapped_borrowing() as files:
        data = files.map(path)              a view that cannot be written
        ...                                 work on it: pages are read on demand, and may be dropped
        files.check_unchanged("compile")    each file was in one state throughout

Another process may write to such a file or truncate it while it is read: then the bytes are of both
states, or zeros beyond the new end (such a read does not kill the process with SIGBUS, as it would
in any other mapping). `check_unchanged` detects both: nothing derived from the bytes may be used
before it has passed. A file that is replaced by another of its name, or removed, stays as it was.
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

MIN_MAPPED_BYTES = 1 << 20
"""Bytes of a file from which it is mapped: a smaller one is read as fast."""
MAX_OPEN_FILES = 256
"""Files of one reader that stay open; others are read."""


@dataclass(frozen=True, slots=True, eq=False)
class _MappedFile:
    """Mapped file, kept open so that its state can be checked."""

    path: str
    mapped: Tensor
    handle: int
    state: tuple[int, int]

    def check_unchanged(self, what: str, error: type[EkidenError]) -> None:
        """Raise an error if the file has changed."""
        # Truncation would raise SIGBUS; the runtime maps zeros there and sets a flag that is tested
        # here.
        if (
            get_global_func("ek.files.is_cut")(self.mapped)
            or _file_fingerprint(os.fstat(self.handle)) != self.state
        ):
            raise error(
                f"{what}: the file {self.path!r} was changed while weights were read from it: write"
                " another file and rename it, or wait until the model is compiled"
            )


@dataclass(slots=True, eq=False)
class MappedFiles:
    """Registry of the files that one reader has mapped, each until the last array over it is
    gone.
    """

    files: list[_MappedFile] = field(default_factory=list)

    def map(self, path: PathName) -> memoryview | None:
        """Map a whole file. Return None for what must be read instead: no regular file, too small,
        or not mappable (some file systems have no mappings, and the number of watched files is
        limited). Raises OSError for a file that cannot be opened.
        """
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        view = self.adopt(handle, path)
        if view is None:
            os.close(handle)
        return view

    def adopt(self, handle: int, path: PathName) -> memoryview | None:
        """Map an open file, which is closed here later; it stays the caller's if this
        returns None.
        """
        status = os.fstat(handle)
        # Each mapped file holds a descriptor open, of which a process has few.
        mapped = _map_file(handle, status) if len(self.files) < MAX_OPEN_FILES else None
        if mapped is None:
            return None
        self.files.append(_MappedFile(os.fspath(path), mapped, handle, _file_fingerprint(status)))
        return mapped.numpy().data

    def check_unchanged(self, what: str, error: type[EkidenError] = ImportModelError) -> None:
        """Raise an error, prefixed with `what`, if a file has changed since it was mapped."""
        for file in self.files:
            file.check_unchanged(what, error)

    def close(self) -> None:
        """Stop checking the files; remaining views stay valid."""
        for file in self.files:
            os.close(file.handle)
        self.files.clear()

    def __del__(self) -> None:
        self.close()


def read_remaining(file: io.FileIO) -> memoryview:
    """Read all bytes of a file from its current position. A NumPy array has huge pages and takes a
    third of the time of `bytes`.
    """
    data = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
    # One readinto of the known size avoids the growing buffer of `read()`; `readall` covers pipes
    # and files that grew.
    size = file.readinto(data.data)  # less where it has shrunk; a pipe has no size at all
    remaining = file.readall()
    if size == len(data) and not remaining:
        return data.data
    return memoryview(data[:size].tobytes() + remaining)


def _map_file(handle: int, status: os.stat_result) -> Tensor | None:
    if not stat.S_ISREG(status.st_mode) or status.st_size < MIN_MAPPED_BYTES:
        return None
    return map_readonly_tensor(handle, status.st_size)


def map_readonly_tensor(handle: int, size: int) -> Tensor | None:
    """Map the bytes of an open, non-empty file read-only as a tensor that owns them; the file need
    not stay open. Return None if it cannot be mapped or too many are.
    """
    try:
        mapped_tensor = get_global_func("ek.files.map")(handle, size)
    except (OSError, ValueError):  # ValueError: a runtime without signals
        return None
    assert isinstance(mapped_tensor, Tensor)
    return mapped_tensor


def _file_fingerprint(status: os.stat_result) -> tuple[int, int]:
    """Return the inode fields that change with a file's contents but not with its names: size and
    modification time.
    """
    return status.st_size, status.st_mtime_ns


_BORROWABLE_FILES: ContextVar[MappedFiles | None] = ContextVar("borrowable_files", default=None)


@contextmanager
def allow_mapped_borrowing() -> Iterator[MappedFiles]:
    """Allow readers inside to return arrays that borrow mapped files; the caller copies what it
    keeps and calls `check`.
    """
    files = MappedFiles()
    token = _BORROWABLE_FILES.set(files)
    try:
        yield files
    finally:
        _BORROWABLE_FILES.reset(token)


def borrowable_files() -> MappedFiles | None:
    """Return the files in which a reader may map its arrays; None where they must be copied."""
    return _BORROWABLE_FILES.get()


def advise_dontneed(array: NDArray[np.generic]) -> None:
    """Release the resident pages of a mapped file under an array (MADV_DONTNEED); reading them
    again reloads them. Nothing, for an array that lies elsewhere.
    """
    # The span of a strided view in bytes; negative strides would need another begin.
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    if array.size and min(steps, default=0) >= 0:
        begin: int = array.__array_interface__["data"][0]
        get_global_func("ek.files.drop")(begin, sum(steps) + array.itemsize)


__all__ = [
    "MappedFiles",
    "advise_dontneed",
    "allow_mapped_borrowing",
    "borrowable_files",
    "map_readonly_tensor",
    "read_remaining",
]
