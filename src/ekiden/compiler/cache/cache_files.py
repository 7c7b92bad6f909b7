"""Maintenance of the cache folders: statistics, export, import and pruning.

kernels/<compiler>/<key>.o    object code; the key is a digest of what it computes and the
                              target
artifacts/<key>.eki           whole models, and beside them the names of files with weights
device/<key>                  what compilers of devices have made
known/<key>                   facts about files and this machine, which are of no use elsewhere
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

from ekiden import runtime
from ekiden.codegen.cache import compiler_folder, verify_checksum
from ekiden.ir.cache_folders import cache_folders
from ekiden.runtime.errors import EkidenError, InputError, LoadError
from ekiden.runtime.files import (
    PathName,
    evict_least_recent,
    list_files,
    make_private_folder,
    rewrite_os_errors,
    write_atomic,
)
from ekiden.runtime.lazy_dataclass import dataclass

PACKED_FORMAT_VERSION = 1
"""Format version of packed caches; other versions are refused. Files of another version are
refused.
"""
MANIFEST_NAME = "ekiden-cache.json"
MAX_PACKED_FILE_BYTES = 4 << 30
"""Maximum bytes of a file imported from a packed cache."""


@dataclass(frozen=True, slots=True)
class CacheKind:
    """Kind of cached file: its folder, the pattern of its names, and the integrity check of its
    contents.
    """

    folder: str
    pattern: re.Pattern[str]
    is_intact: Callable[[bytes], bool]
    is_portable: bool = True
    """Whether other machines can use the files."""


def _is_artifact(data: bytes) -> bool:
    if data[:1] == b"[":
        return isinstance(json.loads(data), list)
    runtime.Executable.from_bytes(data)
    return True


CACHE_KINDS = (
    CacheKind("kernels", re.compile(r"[0-9a-f]{16}/[0-9a-f]{32}\.o"),
              lambda data: verify_checksum(data) is not None),
    CacheKind("artifacts", re.compile(r"[0-9a-f]{16,64}\.(eki|json)"), _is_artifact),
    CacheKind("device", re.compile(r"[0-9a-f]{32}"), bool),
    CacheKind("known", re.compile(r"[0-9a-f]{32}"), bool, is_portable=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """File of a cache layer, identified by its kind and name."""

    kind: CacheKind
    name: str
    path: Path

    @property
    def is_current(self) -> bool:
        """Return whether this compiler version can hit the file, according to its name."""
        return self.kind.folder != "kernels" or f"/{compiler_folder()}/" in self.name


def all_cache_layers() -> tuple[Path, ...]:
    """Return the cache folders, the written one first. Raises InputError where there is none."""
    layer, fallbacks = cache_folders()
    paths = tuple(map(Path, (*(() if layer is None else (layer,)), *fallbacks)))
    if not paths:
        raise InputError("the cache is turned off: EKIDEN_CACHE_DIR names no folder")
    return paths


def writable_layer() -> Path:
    """Return the cache folder that files are written to. Raises InputError where none is
    written.
    """
    layer, _ = cache_folders()
    if layer is None:
        raise InputError("no folder of the cache is written: EKIDEN_CACHE_DIR names none first")
    return Path(layer)


def iter_entries(layer: Path) -> Iterator[CacheEntry]:
    """Yield the cache files of a layer in order, ignoring other files."""
    for kind in CACHE_KINDS:
        folder = layer / kind.folder
        for path in list_files(folder):
            name = path.relative_to(folder).as_posix()
            if kind.pattern.fullmatch(name):
                yield CacheEntry(kind, f"{kind.folder}/{name}", path)


@dataclass(slots=True)
class CacheStats:
    """Statistics of one kind in one layer: files, bytes, and files of this compiler version."""

    layer: str
    kind: str
    files: int = 0
    bytes: int = 0
    current: int = 0


def cache_stats() -> list[CacheStats]:
    """Return the statistics of each layer and kind."""
    rows: list[CacheStats] = []
    for layer in all_cache_layers():
        by_folder = {kind.folder: CacheStats(str(layer), kind.folder) for kind in CACHE_KINDS}
        for entry in iter_entries(layer):
            row = by_folder[entry.kind.folder]
            row.files, row.current = row.files + 1, row.current + entry.is_current
            row.bytes += _file_size(entry.path)
        rows += by_folder.values()
    return rows


def _file_size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if another process has removed it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def export_cache(path: PathName, everything: bool = False) -> int:
    """Pack the files that this compiler can use into one file; return their number. `everything`
    includes those of other compiler versions. The same content gives the same bytes.
    """
    chosen: dict[str, CacheEntry] = {}
    for layer in all_cache_layers():
        for entry in iter_entries(layer):
            if entry.kind.is_portable and (everything or entry.is_current):
                # The written layer comes first and shadows the fallback layers.
                chosen.setdefault(entry.name, entry)
    packed = io.BytesIO()
    count = 0
    with tarfile.open(fileobj=packed, mode="w") as archive:
        _add_file(archive, MANIFEST_NAME, json.dumps({"version": PACKED_FORMAT_VERSION}).encode())
        for name in sorted(chosen):
            data = _intact_contents(chosen[name])
            if data is not None:
                _add_file(archive, name, data)
                count += 1
    write_atomic(path, lambda file: file.write(packed.getbuffer()))
    return count


def _add_file(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode = len(data), 0o644
    archive.addfile(about, io.BytesIO(data))


def _intact_contents(entry: CacheEntry) -> bytes | None:
    """Return a file's contents, or None if it is damaged or removed."""
    try:
        data = entry.path.read_bytes()
    except OSError:
        return None
    return data if _check_contents(entry.kind, data) else None


def _check_contents(kind: CacheKind, data: bytes) -> bool:
    try:
        return kind.is_intact(data)
    except (EkidenError, ValueError, RecursionError):
        return False


@dataclass(slots=True)
class ImportCounts:
    """Counts of imported files: new, already present, and rejected as damaged or unknown."""

    imported: int = 0
    present: int = 0
    refused: int = 0


def import_cache(path: PathName) -> ImportCounts:
    """Import a packed cache into the written layer; existing files are kept.

    What it brings is native code, which runs when a model needs it: take only what you trust.
    Raises LoadError for what is no packed cache, or of another version, before anything is taken;
    OSError where a file cannot be read or written.
    """
    layer, done = writable_layer(), ImportCounts()
    with rewrite_os_errors("read", path), open(path, "rb") as file:
        try:
            # Uncompressed only: a small compressed archive could expand without bound.
            with tarfile.open(fileobj=file, mode="r:") as archive:
                _check_manifest(archive.next(), archive, path)
                for member in archive:
                    _import_member(member, archive, layer, done)
        except tarfile.TarError as error:
            raise LoadError(f"'{path}' is no packed cache: {error}") from error
    return done


def _check_manifest(
    first: tarfile.TarInfo | None, archive: tarfile.TarFile, path: PathName
) -> None:
    text = archive.extractfile(first) if first and first.name == MANIFEST_NAME else None
    try:
        manifest = json.loads(text.read(1000)) if text is not None else None
    except ValueError:
        manifest = None
    version = manifest.get("version") if isinstance(manifest, dict) else None
    if version is None:
        raise LoadError(f"'{path}' is no packed cache: it does not begin with {MANIFEST_NAME}")
    if version != PACKED_FORMAT_VERSION:
        raise LoadError(
            f"'{path}': packed cache of version {PACKED_FORMAT_VERSION} expected, got {version}"
        )


def _import_member(
    member: tarfile.TarInfo, archive: tarfile.TarFile, layer: Path, done: ImportCounts
) -> None:
    """Import one file of an archive. Its name must be that of a cache file, which rules out paths
    elsewhere.
    """
    if member.name == MANIFEST_NAME:
        return
    folder, _, name = member.name.partition("/")
    # The pattern admits no path separators beyond those of a cache, so no member can escape the
    # folder.
    kind = next((k for k in CACHE_KINDS if k.folder == folder and k.pattern.fullmatch(name)), None)
    if (
        kind is None
        or not kind.is_portable
        or not member.isreg()
        or member.size > MAX_PACKED_FILE_BYTES
    ):
        done.refused += 1
        return
    target = layer / folder / name
    if target.exists():
        done.present += 1
        return
    source = archive.extractfile(member)
    data = source.read() if source is not None else b""
    # Code is imported only with an intact checksum.
    if not _check_contents(kind, data):
        done.refused += 1
        return
    make_private_folder(target.parent)
    write_atomic(target, lambda file: file.write(data), is_owners=True)
    done.imported += 1


def prune_cache(limit: int | None = None, stale: bool = False) -> tuple[int, int]:
    """Evict the least recently used files of the written layer down to `limit` bytes; with `stale`,
    kernels of other compiler versions first. Return the number of removed files and bytes.
    """
    layer = writable_layer()
    count = freed = 0
    if stale:
        kernels = layer / "kernels"
        stale_folders = [p for p in _subfolders(kernels) if p.name != compiler_folder()]
        for folder in stale_folders:
            removed = evict_least_recent(folder, 0)
            count, freed = count + removed[0], freed + removed[1]
    if limit is not None:
        for removed in _shrink_kinds(layer, limit):
            count, freed = count + removed[0], freed + removed[1]
    return count, freed


def _subfolders(folder: Path) -> Sequence[Path]:
    return [entry for entry in folder.iterdir() if entry.is_dir()] if folder.is_dir() else []


def _shrink_kinds(layer: Path, limit: int) -> Iterator[tuple[int, int]]:
    """Shrink each kind to its share of the limit, in proportion to its current size."""
    sizes = {
        kind.folder: sum(map(_file_size, list_files(layer / kind.folder))) for kind in CACHE_KINDS
    }
    total_bytes = sum(sizes.values())
    for name, size in sizes.items():
        if total_bytes > limit:
            yield evict_least_recent(layer / name, limit * size // total_bytes)


def stats_to_json(stats: Sequence[CacheStats]) -> list[dict[str, object]]:
    """Return the statistics as JSON-compatible rows."""
    names = ("layer", "kind", "files", "bytes", "current")
    return [{name: cast(object, getattr(row, name)) for name in names} for row in stats]
