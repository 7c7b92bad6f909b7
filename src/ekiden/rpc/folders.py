"""Session folders, and cleanup of those left by killed servers.

A folder is locked as long as its server lives: the kernel drops the lock with the process, however
that ends. `ekiden-rpc` makes and removes them in the same way (runtime/rpc/ek_rpc_main.c).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["SessionFolder", "remove_stale_folders"]

SESSION_FOLDER_PREFIX = "ekiden-session-"
_UNLOCKED_PREFIX = "ekiden-rpc-"
"""Prefix of a folder that is not locked yet, so that no other server removes it as stale."""


@dataclass(eq=False, slots=True)
class SessionFolder:
    """Temporary folder of a session, locked so that only its owner removes it."""

    path: str
    lock: int
    """A descriptor of the folder, which holds its lock."""

    @staticmethod
    def create() -> SessionFolder:
        """Create a folder."""
        unlocked = tempfile.mkdtemp(prefix=_UNLOCKED_PREFIX)
        lock = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # a file system without locks: then nothing is found to be stale
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        parent, name = os.path.split(unlocked)
        path = os.path.join(parent, SESSION_FOLDER_PREFIX + name.removeprefix(_UNLOCKED_PREFIX))
        os.rename(unlocked, path)
        return SessionFolder(path, lock)

    def remove(self) -> None:
        """Remove the folder with its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def remove_stale_folders() -> None:
    """Remove the session folders of killed servers: this user's own ones, whose lock
    nobody holds.
    """
    with os.scandir(tempfile.gettempdir()) as entries:
        names = [e.name for e in entries if e.name.startswith(SESSION_FOLDER_PREFIX)]
    for name in names:
        with suppress(OSError):  # removed meanwhile, a link, or another user's
            _remove_if_stale(Path(tempfile.gettempdir(), name))


def _remove_if_stale(path: Path) -> None:
    """Remove a folder of this user whose lock is free."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError while it is used
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
