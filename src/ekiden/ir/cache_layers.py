"""The folders of the cache of what was compiled."""

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

__all__ = ["cache_layers", "is_filled"]


def cache_layers() -> tuple[str | None, tuple[str, ...]]:
    """The folder that is written, None where nothing is kept, and those that are read after it: as
    EKIDEN_CACHE_DIR says, else the user's."""
    chosen = environment.cache_folders()
    return (_users(), ()) if chosen is None else chosen


def _users() -> str | None:
    """The folder of the user that `platformdirs` names; None for a user who has no home. What it
    says on most machines is one line, and to import it takes a fifth of the time to start from the
    cache."""
    is_said = any(name in os.environ for name in ("XDG_CACHE_HOME", "ANDROID_DATA"))
    if sys.platform == "linux" and not is_said:
        found = os.path.expanduser("~/.cache/ekiden")
    else:
        found = platformdirs.user_cache_dir("ekiden")
    return found if os.path.isabs(found) else None


def is_filled(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is there and holds anything."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return False
