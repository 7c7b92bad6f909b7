"""Atomic file writes.

What stands at the path already stays what it is: a link leads to the file that is replaced, and a
device, a pipe or a socket is written to. Errors name the path as the caller wrote it.
"""

from __future__ import annotations

import io
import os
import re
import stat
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from ekiden._lazy import LazyModule
from ekiden.runtime.binding._core import _states_below
from ekiden.runtime.lazy_logger import LazyLogger

if TYPE_CHECKING:
    import pathlib
    from pathlib import Path
else:
    pathlib = LazyModule("pathlib")

__all__ = [
    "File",
    "PathName",
    "StreamedContent",
    "Writer",
    "check_folder",
    "check_trusted",
    "evict_least_recent",
    "folder_fingerprint",
    "list_files",
    "log_skipped_cache_file",
    "make_private_folder",
    "os_error_text",
    "rewrite_os_errors",
    "write_atomic",
    "write_path_or_stream",
    "write_text",
]

PathName: TypeAlias = str | os.PathLike[str]


class Writer(Protocol):
    """Stream that `write_atomic` writes to."""

    def write(self, data: bytes | bytearray | memoryview, /) -> object:
        """Write all of these bytes."""


@runtime_checkable
class StreamedContent(Protocol):
    """Content that need not be in memory as a whole: its size, and a method that writes it."""

    def __len__(self) -> int: ...

    def write(self, file: Writer, /) -> object:
        """Write the content to an empty file."""


File: TypeAlias = PathName | Writer
"""Output destination: a path, or a file open for writing bytes."""


def os_error_text(error: OSError) -> str:
    """Return the system's error message, without the number and the file."""
    return (error.strerror or str(error)).lower()


def check_folder(path: PathName) -> Path:
    """Return the path of a file to be written. Raises FileNotFoundError if its folder does not
    exist, IsADirectoryError if it is a folder, PermissionError if it may not be written.
    """
    target = pathlib.Path(path)
    if os.path.isdir(target):  # unlike Path.is_dir, it raises nothing
        raise IsADirectoryError(f"write '{target}': it is a folder")
    folder = pathlib.Path(os.path.realpath(target)).parent
    if not folder.is_dir():
        shown = folder if target.is_symlink() else target.parent
        raise FileNotFoundError(f"write '{target}': no folder '{shown}'")
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise PermissionError(f"write '{target}': permission denied")
    return target


def write_path_or_stream(file: File, write: Callable[[Writer], object]) -> None:
    """Write to a path atomically, or to an open binary file. Raises TypeError for anything else."""
    kind: type = type(file)
    if isinstance(file, (str, os.PathLike)):
        write_atomic(file, write)
    elif issubclass(kind, io.TextIOBase) or getattr(file, "write", None) is None:
        expected = "a path or a file open for bytes"
        raise TypeError(f"write: expected {expected}, got {kind.__name__}")
    elif isinstance(file, io.RawIOBase):
        write(_WriteOnlyStream(file.write))
    else:
        write(file)


def write_atomic(
    path: PathName,
    write: Callable[[Writer], object],
    is_program: bool = False,
    *,
    is_owners: bool = False,
) -> None:
    """Write a file atomically: `write` gets a file beside `path` that replaces it when it is
    complete. On any error `path` is unchanged and nothing is left behind. A target that is no
    regular file (/dev/null, a named pipe) is written directly.

    Args:
        path: the target.
        write: writes the contents to the open file.
        is_program: make the file executable.
        is_owners: only the owner may write a new file; otherwise not all users, whatever the umask.

    Raises:
        OSError: naming the path.
    """
    target = check_folder(path)
    with rewrite_os_errors("write", target):
        status = _file_status(target)
        # A device or pipe cannot be replaced by rename.
        if status is None or stat.S_ISREG(status.st_mode):
            _write_and_rename(
                pathlib.Path(os.path.realpath(target)), status, write, is_program, is_owners
            )
        else:
            _write_in_place(target, write)


GROUP_OTHER_WRITE = stat.S_IWGRP | stat.S_IWOTH
"""Permissions by which others than the owner may write."""


def make_private_folder(folder: PathName) -> None:
    """Create a folder and its parents, writable by their owner only. Existing folders stay as they
    are. Raises OSError.
    """
    missing = []
    path = os.path.abspath(folder)
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    # makedirs applies its mode to the last folder only; each parent must be private as well.
    for parent in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(parent, 0o777 & ~GROUP_OTHER_WRITE)


def check_trusted(path: PathName, layer: PathName | None = None) -> None:
    """Check the owner and permissions of a cache file before its code is run. Raises
    PermissionError where another user may have written it: where it or its folder belongs to
    neither this user nor root, or others than the owner may write it. `layer` is a folder that a
    user named to be read, whose owner is trusted, too.

    In a folder that all may write and none may remove from (/tmp), the file alone counts.
    """
    owners = {os.geteuid(), 0} | (set() if layer is None else {os.stat(layer).st_uid})
    for name in (path, os.path.dirname(os.path.abspath(path))):
        state = os.stat(name)
        # A sticky folder such as /tmp lets only the owner rename or remove files.
        is_shared = bool(state.st_mode & GROUP_OTHER_WRITE) and not state.st_mode & stat.S_ISVTX
        if not _has_owner(name, owners) or is_shared:
            raise PermissionError(
                f"read '{os.fspath(path)}': others than you may have written it: '{name!s}' has"
                f" owner {state.st_uid} and mode {stat.S_IMODE(state.st_mode):o}"
            )


def _has_owner(path: PathName, owners: Container[int]) -> bool:
    """Return whether a file, and the link that `path` may be, belong to one of some users: the
    owner of a link chooses what it leads to.
    """
    return os.stat(path).st_uid in owners and os.lstat(path).st_uid in owners


_LOG = LazyLogger("ekiden")
_LOGGED_FOLDERS: set[str] = set()


def log_skipped_cache_file(error: OSError) -> None:
    """Log a cache file that is skipped, once per folder."""
    folder = os.path.dirname(str(error).partition("'")[2].partition("'")[0])
    if folder not in _LOGGED_FOLDERS:
        _LOGGED_FOLDERS.add(folder)
        _LOG.warning("cache: %s; it is not used", error)


def write_text(path: PathName, text: str) -> None:
    """Write text atomically, as UTF-8."""
    write_atomic(path, lambda file: file.write(text.encode()))


def evict_least_recent(folder: PathName, limit: int) -> tuple[int, int]:
    """Remove the least recently used files below a folder until the others have at most `limit`
    bytes. Concurrent processes are tolerated; leftovers of interrupted writes are removed too.
    Raises OSError where the folder cannot be read, or where another user may have placed it or
    made it a link to one that is no cache.

    Returns:
        The number of removed files and their bytes.
    """
    if not os.path.isdir(folder):
        return 0, 0
    if not _has_owner(folder, (os.geteuid(), 0)):
        raise PermissionError(f"remove from '{folder!s}': the folder or link is another user's")
    _remove_stale_partials(folder)
    files = []
    for path in list_files(folder):
        with suppress(OSError):
            state = path.stat()
            files.append((state.st_mtime_ns, state.st_size, path))
    excess = sum(size for _, size, _ in files) - limit
    count = freed = 0
    # Oldest first: reading a file of the cache updates its time.
    for _, size, path in sorted(files):
        if excess <= freed:
            break
        with suppress(OSError):
            path.unlink()
            count, freed = count + 1, freed + size
    return count, freed


PARTIAL_FILE_PATTERN = re.compile(r"\..+\.[0-9a-f]{8}")
"""Names of files that `write_atomic` has not finished."""
PARTIAL_EXPIRY_S = 3600.0
"""Seconds without a change after which nobody writes such a file any more."""


def _remove_stale_partials(folder: PathName) -> None:
    """Remove the partial files of interrupted processes (SIGKILL, power loss)."""
    before = time.time() - PARTIAL_EXPIRY_S
    for position, _, names in os.walk(folder):
        for path in (os.path.join(position, n) for n in names if PARTIAL_FILE_PATTERN.fullmatch(n)):
            with suppress(OSError):
                if os.stat(path).st_mtime < before:
                    os.unlink(path)


def list_files(folder: PathName) -> list[Path]:
    """Return the files below a folder, sorted, without partial files; [] where there is no
    folder.
    """
    walked = os.walk(folder)
    paths = [
        pathlib.Path(position, name)
        for position, _, names in walked
        for name in names
        if name[0] != "."
    ]
    return sorted(paths)


def folder_fingerprint(folder: str, endings: tuple[str, ...]) -> tuple[bytes, int]:
    """Return a fingerprint of the files below a folder with one of these suffixes, and the last
    modification time in nanoseconds. The fingerprint has for each the relative path, a 0 byte,
    and 40 bytes that identify the file and its state. Links to folders are not followed, hidden
    folders and Python's caches are skipped. It takes a third of the time of os.walk. Raises
    OSError for a folder that cannot be read.
    """
    return _states_below(folder, endings)


def _file_status(path: Path) -> os.stat_result | None:
    """Return a path's status, following links; None if nothing exists."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _write_and_rename(
    target: Path,
    previous: os.stat_result | None,
    write: Callable[[Writer], object],
    is_program: bool,
    is_owners: bool,
) -> None:
    """Write a file that replaces `previous`, with its permissions."""
    allowed = ~GROUP_OTHER_WRITE if is_owners else ~stat.S_IWOTH

    def open_temporary(name: str, flags: int) -> int:
        return os.open(name, flags, 0o666 & allowed)

    # File names have at most 255 bytes: 200, and a dot and suffix of at most 10.
    begun = os.fsdecode(os.fsencode(target.name)[:200])
    partial = target.with_name(f".{begun}.{os.urandom(4).hex()}")
    try:
        with open(
            partial, "xb", opener=open_temporary
        ) as file:  # nobody else may open it meanwhile
            write(file)
            mode = stat.S_IMODE((os.fstat(file.fileno()) if previous is None else previous).st_mode)
            if is_owners:
                mode &= allowed
            if is_program:
                mode |= (mode & 0o444) >> 2
            # The permissions are set before the rename, so that the file never appears with wrong
            # ones.
            os.fchmod(file.fileno(), mode)
        # POSIX rename is atomic: a reader sees the old file or the new one.
        os.replace(partial, target)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


class _WriteOnlyStream:
    """Write-only stream: callers that ask for the position would fail on a pipe."""

    def __init__(self, write: Callable[[memoryview], int | None]) -> None:
        self._write = write

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write all of these bytes; a pipe may take them in parts."""
        remaining = memoryview(data).cast("B")
        size = len(remaining)
        while remaining:
            remaining = remaining[self._write(remaining) or 0 :]
        return size


def _write_in_place(target: Path, write: Callable[[Writer], object]) -> None:
    handle = os.open(target, os.O_WRONLY | os.O_CLOEXEC)
    with open(handle, "wb", buffering=0) as file:
        write(_WriteOnlyStream(file.write))


@contextmanager
def rewrite_os_errors(doing: str, path: PathName) -> Iterator[None]:
    """Rewrite system errors to say what was being done and name the user's path instead of the
    temporary file.
    """
    try:
        yield
    except OSError as error:
        renamed = type(error)(f"{doing} '{os.fspath(path)}': {os_error_text(error)}")
        renamed.errno = error.errno
        raise renamed from error
