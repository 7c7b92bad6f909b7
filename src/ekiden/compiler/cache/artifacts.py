"""The disk cache of whole artifacts, beside that of kernels: a model that was compiled before is
mapped, not compiled again.

    <folder>/<key>.eki      an artifact
    <digest>.json           the names of the files that a model has weights in, beside its own

Whatever fails is a miss, never an error. What was used last is kept, up to a limit of bytes. What
the first folder does not hold may be in others, which are only read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ekiden import runtime
from ekiden.compiler.cache.keys import Request
from ekiden.ir.cache_layers import cache_layers, is_filled
from ekiden.runtime import environment
from ekiden.runtime.errors import LoadError
from ekiden.runtime.files import (
    PathName,
    Writer,
    Written,
    expect_trusted,
    log_once,
    make_own_folder,
    shrink,
    write_whole,
)

if TYPE_CHECKING:
    from ekiden.runtime.artifact.pieces import Bytes

LARGEST = 4
"""An artifact is kept if that many of its size fit in the limit."""


class ArtifactCache:
    """A folder of artifacts of at most `limit` bytes in all; 0 keeps none. `others` are read."""

    def __init__(
        self, folder: PathName | None, limit: int, others: Sequence[PathName] = ()
    ) -> None:
        self.folder = folder if limit > 0 else None
        self.others = tuple(others) if limit > 0 else ()
        self.limit = limit

    @property
    def is_used(self) -> bool:
        """Whether there is any folder."""
        return self.folder is not None or bool(self.others)

    @staticmethod
    def default() -> ArtifactCache:
        """The folder beside that of the kernels, with the limit that the environment sets."""
        home, others = cache_layers()
        folder = os.path.join(home, "artifacts") if home is not None else None
        folders = [os.path.join(each, "artifacts") for each in others]
        return ArtifactCache(folder, environment.cache_limit(), folders)

    def get(self, wanted: Request) -> runtime.Executable | None:
        """The artifact, mapped from its file; None if it is not there. A file that is damaged, as
        its checksums tell, is removed.
        """
        for layer in (self.folder, *self.others):
            with suppress(OSError, ValueError):
                found = None if layer is None else self._get(layer, wanted)
                if found is not None:
                    return found
        return None

    def _get(self, layer: PathName, wanted: Request) -> runtime.Executable | None:
        if not is_filled(layer):  # nobody has to read the model's bytes and the compiler's
            return None
        key = wanted.key(_weight_files(layer, wanted))
        return _mapped(_artifact(layer, key), None if layer is self.folder else layer)

    def put(
        self, wanted: Request, made: Bytes | Written, weight_files: Sequence[str]
    ) -> runtime.Executable | None:
        """Keep an artifact, given by its bytes or by what writes them, unless the model has changed
        since it was asked for or this machine cannot run it, and remove those not used for longest;
        readers see all of a file or none.

        Gives it as it is mapped from its file, so that it need not stay in memory; None where it
        was not kept.
        """
        if self.folder is None or len(made) * LARGEST > self.limit:
            return None
        try:
            path = _artifact(self.folder, wanted.key(weight_files))
            if not wanted.is_current(weight_files):
                return None
            make_own_folder(self.folder)
            if weight_files:
                names = json.dumps(list(weight_files)).encode()
                names_file = _list(self.folder, wanted)
                write_whole(names_file, lambda file: file.write(names), is_owners=True)
            content = made.write if isinstance(made, Written) else _writes(made)
            write_whole(path, content, is_owners=True)
            found = _mapped(path, None)
            shrink(self.folder, self.limit)
        except (OSError, ValueError):
            return None
        return found


def _writes(data: Bytes) -> Callable[[Writer], object]:
    return lambda file: file.write(data)


def _artifact(layer: PathName, key: str) -> str:
    return os.path.join(layer, f"{key}.eki")


def _list(layer: PathName, wanted: Request) -> str:
    return os.path.join(layer, f"{wanted.digest()}.json")


def _weight_files(layer: PathName, wanted: Request) -> list[str]:
    """The names kept of the files with weights, of which most models have none."""
    try:
        with open(_list(layer, wanted), "rb") as file:
            found = json.loads(file.read())
    except FileNotFoundError:
        return []
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(found, list):
        raise ValueError(f"a list of names expected in {_list(layer, wanted)}")
    return list(map(str, found))


def _mapped(path: str, layer: PathName | None) -> runtime.Executable | None:
    """Return the artifact of a file that no other user can have written; None for another.

    `layer` is None for the own layer, whose file is now the one used last, and is removed where it
    cannot be loaded, which gives None. Raises OSError where there is none.
    """
    is_own = layer is None
    try:
        expect_trusted(path, layer)
        found = runtime.Executable.load(path)
    except PermissionError as error:
        log_once(error)
        return None
    except LoadError:
        if is_own:
            with suppress(OSError):
                os.unlink(path)
        return None
    if is_own:
        with suppress(OSError):
            os.utime(path)
    return found
