"""The disk cache of whole artifacts, beside that of kernels: a model that was compiled before is
mapped, not compiled again.

    <folder>/<key>.eki      an artifact
    <digest>.json           the names of the files that a model has weights in, beside its own

Whatever fails is a miss, never an error. What was used last is kept, up to a limit of bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs

from ekiden import runtime
from ekiden.driver.artifact_key import Request
from ekiden.runtime import environment
from ekiden.runtime.artifact import Bytes
from ekiden.runtime.errors import LoadError
from ekiden.runtime.files import write_whole

LARGEST = 4
"""An artifact is kept if that many of its size fit in the limit."""


class ArtifactCache:
    """A folder of artifacts of at most `limit` bytes in all; 0 keeps none."""

    def __init__(self, folder: Path | None, limit: int) -> None:
        self.folder = folder if limit > 0 else None
        self.limit = limit

    @staticmethod
    def default() -> ArtifactCache:
        """The folder beside that of the kernels, with the limit that the environment sets."""
        home = environment.cache_dir(Path(platformdirs.user_cache_dir("ekiden")))
        folder = home / "artifacts" if home is not None else None
        return ArtifactCache(folder, environment.cache_limit())

    def get(self, wanted: Request) -> runtime.Executable | None:
        """The artifact, mapped from its file; None if it is not there. A file that is damaged, as
        its checksums tell, is removed.
        """
        if self.folder is None:
            return None
        try:
            found = _mapped(self._artifact(wanted.key(self._weight_files(wanted))))
        except (OSError, ValueError):
            return None
        return found

    def put(
        self, wanted: Request, made: Bytes, weight_files: Sequence[str]
    ) -> runtime.Executable | None:
        """Keep an artifact, unless the model has changed since it was asked for or this machine
        cannot run it, and remove those not used for longest; readers see all of a file or none.

        Gives it as it is mapped from its file, so that it need not stay in memory; None where it
        was not kept.
        """
        if self.folder is None or len(made) * LARGEST > self.limit:
            return None
        try:
            if not wanted.is_current(weight_files):
                return None
            path = self._artifact(wanted.key(weight_files))
            self.folder.mkdir(parents=True, exist_ok=True)
            if weight_files:
                names = json.dumps(list(weight_files)).encode()
                write_whole(self._list(wanted), lambda file: file.write(names))
            write_whole(path, lambda file: file.write(made))
            found = _mapped(path)
            self._shrink()
        except (OSError, ValueError):
            return None
        return found

    def _artifact(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{key}.eki"

    def _list(self, wanted: Request) -> Path:
        assert self.folder is not None
        return self.folder / f"{wanted.digest}.json"

    def _weight_files(self, wanted: Request) -> list[str]:
        """The names kept of the files with weights, of which most models have none."""
        try:
            found = json.loads(self._list(wanted).read_bytes())
        except FileNotFoundError:
            return []
        except RecursionError as error:
            raise ValueError(str(error)) from error
        if not isinstance(found, list):
            raise ValueError(f"a list of names expected in {self._list(wanted)}")
        return list(map(str, found))

    def _shrink(self) -> None:
        assert self.folder is not None
        with os.scandir(self.folder) as entries:
            found = [(entry.stat(), entry.path) for entry in entries]
        files = [(state.st_mtime_ns, state.st_size, path) for state, path in found]
        excess = sum(size for _, size, _ in files) - self.limit
        for _, size, path in sorted(files):
            if excess <= 0:
                return
            _remove(Path(path))
            excess -= size


def _mapped(path: Path) -> runtime.Executable | None:
    """The artifact of a file, which is now the one used last; None, and the file removed, where it
    cannot be loaded. Raises OSError where there is none.
    """
    try:
        found = runtime.Executable.load(path)
    except LoadError:
        _remove(path)
        return None
    with suppress(OSError):
        os.utime(path)
    return found


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
