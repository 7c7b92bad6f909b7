"""Temporary folders, with the interface of TVM's `contrib.utils`: `tempdir().relpath("net.so")`."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path
from shutil import rmtree

__all__ = ["TempDirectory", "tempdir"]


class TempDirectory:
    """Temporary folder, deleted with its contents by `remove()` or when it is no longer referenced.
    temp_dir: its path.
    """

    def __init__(self, custom_path: str | os.PathLike[str] | None = None) -> None:
        """Create a temporary folder, or `custom_path`, which must not exist, since its removal must
        not delete anyone else's files. Raises FileExistsError if it does.
        """
        if custom_path is None:
            self.temp_dir = tempfile.mkdtemp(prefix="ekiden-")
        else:
            Path(custom_path).mkdir(parents=True)
            self.temp_dir = os.path.abspath(custom_path)
        self._remove = weakref.finalize(self, rmtree, self.temp_dir, ignore_errors=True)

    @property
    def path(self) -> Path:
        """Return the folder's path."""
        return Path(self.temp_dir)

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        """Return the path of a file in the folder, which need not exist."""
        return self.path / name

    def relpath(self, name: str) -> str:
        """Return the path of a file in the folder, which need not exist."""
        return os.path.join(self.temp_dir, name)

    def listdir(self) -> list[str]:
        """Return the names of the folder's entries."""
        return os.listdir(self.temp_dir)

    def remove(self) -> None:
        """Remove the folder; further calls do nothing."""
        self._remove()

    def __enter__(self) -> TempDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def tempdir(custom_path: str | os.PathLike[str] | None = None) -> TempDirectory:
    """Create a temporary folder."""
    return TempDirectory(custom_path)
