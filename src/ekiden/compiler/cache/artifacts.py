"""Disk cache of compiled artifacts; a hit is memory-mapped.

    <folder>/<key>.eki      an artifact
    <digest>.json           the names of the files that a model has weights in, beside its own

Whatever fails is a miss, never an error. What was used last is kept, up to a limit of bytes. What
the first folder does not hold may be in others, which are only read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ekiden import runtime
from ekiden.compiler.cache.cache_keys import CacheRequest, create_cache_request
from ekiden.compiler.options import CompileOptions
from ekiden.frontend.registry import ModelSource
from ekiden.ir.cache_folders import cache_folders, is_nonempty_folder
from ekiden.ir.pass_context import INFO_LEVEL
from ekiden.runtime import environment
from ekiden.runtime.errors import CompileError, LoadError
from ekiden.runtime.files import (
    PathName,
    StreamedContent,
    Writer,
    check_trusted,
    evict_least_recent,
    log_skipped_cache_file,
    make_private_folder,
    write_atomic,
)
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.lazy_logger import LazyLogger

if TYPE_CHECKING:
    from ekiden.runtime.artifact.chunks import Bytes

_LOG = LazyLogger(__name__)

MIN_ARTIFACTS_IN_LIMIT = 4
"""Minimum number of artifacts of a given size that the limit must hold for one to be cached."""


class ArtifactCache:
    """Disk cache of artifacts of at most `limit` bytes; 0 disables it. `read_only_folders` are read
    only.
    """

    def __init__(
        self, folder: PathName | None, limit: int, others: Sequence[PathName] = ()
    ) -> None:
        self.folder = folder if limit > 0 else None
        self.read_only_folders = tuple(others) if limit > 0 else ()
        self.limit = limit

    @property
    def is_enabled(self) -> bool:
        """Return whether the cache has a folder."""
        return self.folder is not None or bool(self.read_only_folders)

    @staticmethod
    def default() -> ArtifactCache:
        """Return the cache in the user's cache folder, with the environment's limit."""
        home, fallbacks = cache_folders()
        folder = os.path.join(home, "artifacts") if home is not None else None
        folders = [os.path.join(fallback, "artifacts") for fallback in fallbacks]
        return ArtifactCache(folder, environment.cache_limit_bytes(), folders)

    def get(self, wanted_request: CacheRequest) -> runtime.Executable | None:
        """Return the artifact, mapped from its file; None on a miss. A file that fails its
        checksums is removed.
        """
        for layer in (self.folder, *self.read_only_folders):
            with suppress(OSError, ValueError):
                executable = None if layer is None else self._get_from_layer(layer, wanted_request)
                if executable is not None:
                    return executable
        return None

    def _get_from_layer(
        self, layer: PathName, wanted_request: CacheRequest
    ) -> runtime.Executable | None:
        if not is_nonempty_folder(layer):  # nobody has to read the model's bytes and the compiler's
            return None
        key = wanted_request.key(_weight_files(layer, wanted_request))
        return _map_artifact(_artifact_path(layer, key), None if layer is self.folder else layer)

    def put(
        self,
        wanted_request: CacheRequest,
        artifact: Bytes | StreamedContent,
        weight_files: Sequence[str],
    ) -> runtime.Executable | None:
        """Store an artifact atomically and evict the least recently used ones, unless the model
        changed since the request or this machine cannot run it. Return it mapped from its file, so
        that it need not stay in memory; None if it was not stored.
        """
        if self.folder is None or len(artifact) * MIN_ARTIFACTS_IN_LIMIT > self.limit:
            return None
        try:
            path = _artifact_path(self.folder, wanted_request.key(weight_files))
            # The artifact of a model that changed while it was compiled must not get the new file's
            # key.
            if not wanted_request.is_current(weight_files):
                return None
            make_private_folder(self.folder)
            if weight_files:
                names = json.dumps(list(weight_files)).encode()
                names_file = _weight_list_path(self.folder, wanted_request)
                # The list precedes the artifact, whose key depends on it.
                write_atomic(names_file, lambda file: file.write(names), is_owners=True)
            content = (
                artifact.write if isinstance(artifact, StreamedContent) else _make_writer(artifact)
            )
            write_atomic(path, content, is_owners=True)
            executable = _map_artifact(path, None)
            evict_least_recent(self.folder, self.limit)
        except (OSError, ValueError):
            return None
        return executable


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """Entry of one compilation in the artifact cache; one without a request stays empty."""

    cache: ArtifactCache
    request: CacheRequest | None

    def load(self) -> runtime.Executable | None:
        """Return the program, mapped from its file; None where there is none."""
        cached = None if self.request is None else self.cache.get(self.request)
        if cached is not None:
            _LOG.log(INFO_LEVEL, "compile: the artifact is in the cache")
        return cached

    def save(
        self, artifact: Bytes | StreamedContent, weight_files: Sequence[str]
    ) -> runtime.Executable | None:
        """Store an artifact and return the program, mapped from its file; None if it was not
        stored.
        """
        if self.request is None:
            return None
        return self.cache.put(self.request, artifact, weight_files)


def open_cache_entry(source: ModelSource, options: CompileOptions) -> CacheEntry:
    """Return the cache entry of a compilation.

    Raises CompileError for shapes that are no mapping, which have no digest.
    """
    shape: object = options.inputs.shape
    if shape is not None and not issubclass(type(shape), Mapping):
        expected = "expected a mapping of names of inputs to shapes"
        raise CompileError(f"compile: shape: {expected}, got {type(shape).__name__}")
    cache = ArtifactCache.default()
    return CacheEntry(cache, create_cache_request(source, options) if cache.is_enabled else None)


def _make_writer(data: Bytes) -> Callable[[Writer], object]:
    return lambda file: file.write(data)


def _artifact_path(layer: PathName, key: str) -> str:
    return os.path.join(layer, f"{key}.eki")


def _weight_list_path(layer: PathName, wanted_request: CacheRequest) -> str:
    return os.path.join(layer, f"{wanted_request.digest()}.json")


def _weight_files(layer: PathName, wanted_request: CacheRequest) -> list[str]:
    """Return the stored names of external weight files; most models have none."""
    try:
        with open(_weight_list_path(layer, wanted_request), "rb") as file:
            names = json.loads(file.read())
    except FileNotFoundError:
        return []
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(names, list):
        raise ValueError(f"a list of names expected in {_weight_list_path(layer, wanted_request)}")
    return list(map(str, names))


def _map_artifact(path: str, layer: PathName | None) -> runtime.Executable | None:
    """Map the artifact of a trusted file; None if it is missing, damaged or not owned by the user.
    A file of the own layer (`layer` is None) becomes the most recently used, and is removed if it
    cannot be loaded. Raises OSError where there is none.
    """
    is_own = layer is None
    try:
        check_trusted(path, layer)
        executable = runtime.Executable.load(path)
    except PermissionError as error:
        log_skipped_cache_file(error)
        return None
    except LoadError:
        if is_own:
            # A damaged file of our own layer is removed, so that the next compilation replaces it.
            with suppress(OSError):
                os.unlink(path)
        return None
    if is_own:
        with suppress(OSError):
            os.utime(path)
    return executable
