"""The folders of the cache of what was compiled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ekiden.runtime import environment
from ekiden.runtime.late import Late

if TYPE_CHECKING:
    import platformdirs
else:
    platformdirs = Late("platformdirs")

__all__ = ["cache_layers", "is_filled"]


def cache_layers() -> tuple[Path | None, tuple[Path, ...]]:
    """The folder that is written, None where nothing is kept, and those that are read after it: as
    EKIDEN_CACHE_DIR says, else the user's."""
    chosen = environment.cache_folders()
    return (Path(platformdirs.user_cache_dir("ekiden")), ()) if chosen is None else chosen


def is_filled(folder: Path) -> bool:
    """Whether a folder is there and holds anything."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return False
