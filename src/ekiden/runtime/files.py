"""Writing files so that they appear whole or not at all.

What stands at the path already stays what it is: a link leads to the file that is replaced, and a
device, a pipe or a socket is written to. Errors name the path as the caller wrote it.
"""

from __future__ import annotations

import io
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from ekiden._lazy import LazyModule
from ekiden.runtime.binding._core import _states_below
from ekiden.runtime.logs import LazyLogger

if TYPE_CHECKING:
    import pathlib
    from pathlib import Path
else:
    pathlib = LazyModule("pathlib")

__all__ = [
    "File",
    "PathName",
    "Writer",
    "Written",
    "check_folder",
    "expect_trusted",
    "files_below",
    "log_once",
    "make_own_folder",
    "named",
    "reason",
    "shrink",
    "states_below",
    "write_text",
    "write_to",
    "write_whole",
]

PathName: TypeAlias = str | os.PathLike[str]


class Writer(Protocol):
    """What `write_whole` needs of a file."""

    def write(self, data: bytes | bytearray | memoryview, /) -> object:
        """Take all of these bytes."""


@runtime_checkable
class Written(Protocol):
    """A content that need not be in memory as a whole: its bytes, and what writes them."""

    def __len__(self) -> int: ...

    def write(self, file: Writer, /) -> object:
        """All of them into a file that has none."""


File: TypeAlias = PathName | Writer
"""Where a user has something written to: a path, or a file that is open for bytes."""


def reason(error: OSError) -> str:
    """What the system says, without the number and whatever file it was about."""
    return (error.strerror or str(error)).lower()


def check_folder(path: PathName) -> Path:
    """The path of a file to be written. Raises FileNotFoundError if its folder does not exist,
    IsADirectoryError if it is a folder itself, PermissionError if it may not be written.
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


def write_to(file: File, write: Callable[[Writer], object]) -> None:
    """`write_whole` for a path; a file that is open is given to `write` as it is. Raises TypeError
    for what is neither, or open for text.
    """
    kind: type = type(file)
    if isinstance(file, (str, os.PathLike)):
        write_whole(file, write)
    elif issubclass(kind, io.TextIOBase) or getattr(file, "write", None) is None:
        wanted = "a path or a file open for bytes"
        raise TypeError(f"write: expected {wanted}, got {kind.__name__}")
    elif isinstance(file, io.RawIOBase):
        write(_Stream(file.write))
    else:
        write(file)


def write_whole(
    path: PathName,
    write: Callable[[Writer], object],
    is_program: bool = False,
    *,
    is_owners: bool = False,
) -> None:
    """Give `write` a file beside `path` that takes its place when all is written.

    Whatever goes wrong, `path` is as it was and nothing is left behind. What is there and is no
    regular file (/dev/null, a named pipe) is written to directly. `is_program` lets it be executed.
    A new file cannot be written by all users, whatever the umask says; one that `is_owners` by its
    owner alone. Raises OSError that names `path`.
    """
    target = check_folder(path)
    with named("write", target):
        found = _status(target)
        if found is None or stat.S_ISREG(found.st_mode):
            _replace(pathlib.Path(os.path.realpath(target)), found, write, is_program, is_owners)
        else:
            _write_through(target, write)


WRITABLE = stat.S_IWGRP | stat.S_IWOTH
"""Permissions by which others than the owner may write."""


def make_own_folder(folder: PathName) -> None:
    """Make a folder and those above it, which others than their owner cannot write. Raises OSError.

    What exists already stays as it is.
    """
    missing = []
    path = os.path.abspath(folder)
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(each, 0o777 & ~WRITABLE)


def expect_trusted(path: PathName, layer: PathName | None = None) -> None:
    """Look at a file of a cache before code in it is run. Raises PermissionError where another user
    may have written it: where it or its folder belongs to neither this user nor root, or others
    than the owner may write it. `layer` is a folder that a user named to be read, whose owner is
    trusted, too.

    In a folder that all may write and none may remove from (/tmp), the file alone counts.
    """
    owners = {os.geteuid(), 0} | (set() if layer is None else {os.stat(layer).st_uid})
    for name in (path, os.path.dirname(os.path.abspath(path))):
        state = os.stat(name)
        is_shared = bool(state.st_mode & WRITABLE) and not state.st_mode & stat.S_ISVTX
        if state.st_uid not in owners or is_shared:
            raise PermissionError(
                f"read '{os.fspath(path)}': others than you may have written it: '{name!s}' has"
                f" owner {state.st_uid} and mode {stat.S_IMODE(state.st_mode):o}"
            )


_LOG = LazyLogger("ekiden")
_LOGGED: set[str] = set()


def log_once(error: OSError) -> None:
    """Log a file of a cache that is passed over, the first of each folder."""
    folder = os.path.dirname(str(error).partition("'")[2].partition("'")[0])
    if folder not in _LOGGED:
        _LOGGED.add(folder)
        _LOG.warning("cache: %s; it is not used", error)


def write_text(path: PathName, text: str) -> None:
    """`write_whole` for text, as UTF-8."""
    write_whole(path, lambda file: file.write(text.encode()))


def shrink(folder: PathName, limit: int) -> tuple[int, int]:
    """Remove the files below a folder that were used longest ago until the others have at most
    `limit` bytes; gives how many were removed and how many bytes they had. What another process
    removes or writes meanwhile is left to it; what one was ended in the middle of goes as well.
    Raises OSError where the folder cannot be read.
    """
    _remove_unfinished(folder)
    found = []
    for path in files_below(folder):
        with suppress(OSError):
            state = path.stat()
            found.append((state.st_mtime_ns, state.st_size, path))
    excess = sum(size for _, size, _ in found) - limit
    count = freed = 0
    for _, size, path in sorted(found):
        if excess <= freed:
            break
        with suppress(OSError):
            path.unlink()
            count, freed = count + 1, freed + size
    return count, freed


UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}")
"""Names of files that `write_whole` has not finished."""
GIVEN_UP = 3600.0
"""Seconds without a change after which nobody writes such a file any more."""


def _remove_unfinished(folder: PathName) -> None:
    """What processes left that were ended while they wrote (SIGKILL, a machine that went down)."""
    before = time.time() - GIVEN_UP
    for at, _, names in os.walk(folder):
        for path in (os.path.join(at, n) for n in names if UNFINISHED.fullmatch(n)):
            with suppress(OSError):
                if os.stat(path).st_mtime < before:
                    os.unlink(path)


def files_below(folder: PathName) -> list[Path]:
    """The files below a folder, in order, without what `write_whole` has not finished. None where
    there is no folder."""
    walked = os.walk(folder)
    found = [pathlib.Path(at, name) for at, _, names in walked for name in names if name[0] != "."]
    return sorted(found)


def states_below(folder: str, endings: tuple[str, ...]) -> tuple[bytes, int]:
    """Of all files below a folder whose names have one of these endings: the path from there, a 0
    byte, and 40 bytes of what tells the file from any other and from itself before it was written;
    and when the last of them changed, in nanoseconds. It takes a third of the time of asking by
    Python. Links to folders are not followed, hidden folders and Python's caches left out. Raises
    OSError for a folder that cannot be read.
    """
    return _states_below(folder, endings)


def _status(path: Path) -> os.stat_result | None:
    """What stands at a path, links followed; None for nothing."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _replace(
    target: Path,
    found: os.stat_result | None,
    write: Callable[[Writer], object],
    is_program: bool,
    is_owners: bool,
) -> None:
    """Write a file that takes the place of `found`, with its permissions."""
    allowed = ~WRITABLE if is_owners else ~stat.S_IWOTH

    def create(name: str, flags: int) -> int:
        return os.open(name, flags, 0o666 & allowed)

    begun = os.fsdecode(os.fsencode(target.name)[:200])
    partial = target.with_name(f".{begun}.{os.urandom(4).hex()}")
    try:
        with open(partial, "xb", opener=create) as file:  # nobody else may open it meanwhile
            write(file)
            mode = stat.S_IMODE((os.fstat(file.fileno()) if found is None else found).st_mode)
            if is_owners:
                mode &= allowed
            if is_program:
                mode |= (mode & 0o444) >> 2
            os.fchmod(file.fileno(), mode)
        os.replace(partial, target)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


class _Stream:
    """A file that can only be written to: others ask for the position, which a pipe has not."""

    def __init__(self, write: Callable[[memoryview], int | None]) -> None:
        self._write = write

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """All of these bytes; a pipe may take them in parts."""
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            left = left[self._write(left) or 0 :]
        return size


def _write_through(target: Path, write: Callable[[Writer], object]) -> None:
    handle = os.open(target, os.O_WRONLY | os.O_CLOEXEC)
    with open(handle, "wb", buffering=0) as file:
        write(_Stream(file.write))


@contextmanager
def named(doing: str, path: PathName) -> Iterator[None]:
    """Errors of the system say what was being done, and name the path that the user gave, not a
    file beside it.
    """
    try:
        yield
    except OSError as error:
        made = type(error)(f"{doing} '{os.fspath(path)}': {reason(error)}")
        made.errno = error.errno
        raise made from error
