"""Folders that go away again, as TVM's programs ask for them: `tempdir().relpath("net.so")`."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path
from shutil import rmtree

__all__ = ["TempDirectory", "tempdir"]


class TempDirectory:
    """A folder that is removed with all in it, by `remove()` or when nothing holds it any more.

    temp_dir: its path.
    """

    def __init__(self, custom_path: str | os.PathLike[str] | None = None) -> None:
        """A new folder of the system's for such; or `custom_path`, which must not be there: what is
        removed later is nothing that somebody else made. FileExistsError where it is.
        """
        if custom_path is None:
            self.temp_dir = tempfile.mkdtemp(prefix="ekiden-")
        else:
            Path(custom_path).mkdir(parents=True)
            self.temp_dir = os.path.abspath(custom_path)
        self._remove = weakref.finalize(self, rmtree, self.temp_dir, ignore_errors=True)

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.temp_dir)

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        """Return the path of a file in it, which need not exist."""
        return self.path / name

    def relpath(self, name: str) -> str:
        """The path of a file in it, which need not exist."""
        return os.path.join(self.temp_dir, name)

    def listdir(self) -> list[str]:
        """Names of what is in it."""
        return os.listdir(self.temp_dir)

    def remove(self) -> None:
        """Remove it now; a second time does nothing."""
        self._remove()

    def __enter__(self) -> TempDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def tempdir(custom_path: str | os.PathLike[str] | None = None) -> TempDirectory:
    """A folder for files that nobody needs afterwards."""
    return TempDirectory(custom_path)
