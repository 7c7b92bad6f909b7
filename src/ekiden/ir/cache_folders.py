"""Folders of the compilation cache: the writable one and the read-only layers below it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.runtime import environment

if TYPE_CHECKING:
    import platformdirs
else:
    platformdirs = LazyModule("platformdirs")

__all__ = ["cache_folders", "is_nonempty_folder"]


def cache_folders() -> tuple[str | None, tuple[str, ...]]:
    """Return the writable cache folder (None if caching is off) and the read-only folders searched
    after it.

    They are as EKIDEN_CACHE_DIR says, else the user's.
    """
    chosen = environment.cache_folders()
    return (_user_cache_folder(), ()) if chosen is None else chosen


def _user_cache_folder() -> str | None:
    """Return the user's cache folder as `platformdirs` would, or None for a user without a home.

    On most machines its answer is one line, and importing it takes a fifth of the time to start
    from the cache.
    """
    is_overridden = any(name in os.environ for name in ("XDG_CACHE_HOME", "ANDROID_DATA"))
    if sys.platform == "linux" and not is_overridden:
        # Importing platformdirs costs more than the look-up; this is its result on Linux.
        folder = os.path.expanduser("~/.cache/ekiden")
    else:
        folder = platformdirs.user_cache_dir("ekiden")
    return folder if os.path.isabs(folder) else None


def is_nonempty_folder(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder exists and is not empty."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return False
