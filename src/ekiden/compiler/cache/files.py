"""What lies in the folders of the cache: counted, packed into one file, taken from one, removed.

kernels/<compiler>/<key>.o    object code; the key is a digest of what it computes and the target
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
from ekiden.codegen.cache import checked_code, compiler_folder
from ekiden.ir.cache_layers import cache_layers
from ekiden.runtime.errors import EkidenError, InputError, LoadError
from ekiden.runtime.files import PathName, files_below, make_own_folder, named, shrink, write_whole
from ekiden.runtime.lazy_dataclass import dataclass

VERSION = 1
"""Of packed caches. Files of another version are refused."""
MANIFEST = "ekiden-cache.json"
LARGEST = 4 << 30
"""Most bytes of a file that is taken from a packed cache."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table of what is kept: its folder, how its files are called, whether what one
    holds is whole."""

    folder: str
    pattern: re.Pattern[str]
    is_whole: Callable[[bytes], bool]
    travels: bool = True
    """Whether other machines have a use for it."""


def _is_artifact(data: bytes) -> bool:
    if data[:1] == b"[":
        return isinstance(json.loads(data), list)
    runtime.Executable.from_bytes(data)
    return True


KINDS = (
    Kind("kernels", re.compile(r"[0-9a-f]{16}/[0-9a-f]{32}\.o"),
         lambda data: checked_code(data) is not None),
    Kind("artifacts", re.compile(r"[0-9a-f]{16,64}\.(eki|json)"), _is_artifact),
    Kind("device", re.compile(r"[0-9a-f]{32}"), bool),
    Kind("known", re.compile(r"[0-9a-f]{32}"), bool, travels=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a layer, by its name in that folder."""

    kind: Kind
    name: str
    path: Path

    @property
    def is_current(self) -> bool:
        """Whether this compiler would look it up, as far as its name says."""
        return self.kind.folder != "kernels" or f"/{compiler_folder()}/" in self.name


def layers() -> tuple[Path, ...]:
    """The folders of the cache, the one that is written first. Raises InputError where there is
    none."""
    home, others = cache_layers()
    found = tuple(map(Path, (*(() if home is None else (home,)), *others)))
    if not found:
        raise InputError("the cache is turned off: EKIDEN_CACHE_DIR names no folder")
    return found


def written_layer() -> Path:
    """The first folder. Raises InputError where none is written."""
    home, _ = cache_layers()
    if home is None:
        raise InputError("no folder of the cache is written: EKIDEN_CACHE_DIR names none first")
    return Path(home)


def entries(layer: Path) -> Iterator[Entry]:
    """What a layer holds, in order; files of other names are none of it."""
    for kind in KINDS:
        folder = layer / kind.folder
        for path in files_below(folder):
            name = path.relative_to(folder).as_posix()
            if kind.pattern.fullmatch(name):
                yield Entry(kind, f"{kind.folder}/{name}", path)


@dataclass(slots=True)
class Stats:
    """Of one kind in one layer: files, bytes, and how many files are of this compiler."""

    layer: str
    kind: str
    files: int = 0
    bytes: int = 0
    current: int = 0


def cache_stats() -> list[Stats]:
    """A row for each layer and kind."""
    rows: list[Stats] = []
    for layer in layers():
        found = {kind.folder: Stats(str(layer), kind.folder) for kind in KINDS}
        for entry in entries(layer):
            row = found[entry.kind.folder]
            row.files, row.current = row.files + 1, row.current + entry.is_current
            row.bytes += _size(entry.path)
        rows += found.values()
    return rows


def _size(path: Path) -> int:
    """Bytes of a file; 0 if another process has removed it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def export_cache(path: PathName, everything: bool = False) -> int:
    """Pack what this compiler can use of all layers into a file; gives how many files those are.
    `everything`: of other compilers too. The same content gives the same bytes.
    """
    found: dict[str, Entry] = {}
    for layer in layers():
        for entry in entries(layer):
            if entry.kind.travels and (everything or entry.is_current):
                found.setdefault(entry.name, entry)
    packed = io.BytesIO()
    count = 0
    with tarfile.open(fileobj=packed, mode="w") as archive:
        _add(archive, MANIFEST, json.dumps({"version": VERSION}).encode())
        for name in sorted(found):
            data = _whole(found[name])
            if data is not None:
                _add(archive, name, data)
                count += 1
    write_whole(path, lambda file: file.write(packed.getbuffer()))
    return count


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode = len(data), 0o644
    archive.addfile(about, io.BytesIO(data))


def _whole(entry: Entry) -> bytes | None:
    """What a file holds; None if it is damaged or gone."""
    try:
        data = entry.path.read_bytes()
    except OSError:
        return None
    return data if _checked(entry.kind, data) else None


def _checked(kind: Kind, data: bytes) -> bool:
    try:
        return kind.is_whole(data)
    except (EkidenError, ValueError, RecursionError):
        return False


@dataclass(slots=True)
class Imported:
    """How many files were new, were there, and were left out because they are damaged or nothing
    that a cache holds."""

    new: int = 0
    there: int = 0
    refused: int = 0


def import_cache(path: PathName) -> Imported:
    """Take the files of a packed cache into the layer that is written; those that are there stay.

    What it brings is native code, which runs when a model needs it: take only what you trust.
    Raises LoadError for what is no packed cache, or of another version, before anything is taken;
    OSError where a file cannot be read or written.
    """
    home, done = written_layer(), Imported()
    with named("read", path), open(path, "rb") as file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                _check_manifest(archive.next(), archive, path)
                for member in archive:
                    _take(member, archive, home, done)
        except tarfile.TarError as error:
            raise LoadError(f"'{path}' is no packed cache: {error}") from error
    return done


def _check_manifest(
    first: tarfile.TarInfo | None, archive: tarfile.TarFile, path: PathName
) -> None:
    text = archive.extractfile(first) if first and first.name == MANIFEST else None
    try:
        said = json.loads(text.read(1000)) if text is not None else None
    except ValueError:
        said = None
    version = said.get("version") if isinstance(said, dict) else None
    if version is None:
        raise LoadError(f"'{path}' is no packed cache: it does not begin with {MANIFEST}")
    if version != VERSION:
        raise LoadError(f"'{path}': packed cache of version {VERSION} expected, got {version}")


def _take(member: tarfile.TarInfo, archive: tarfile.TarFile, home: Path, done: Imported) -> None:
    """Write one file, whose name must be one of a cache's: it cannot lie anywhere else."""
    if member.name == MANIFEST:
        return
    folder, _, name = member.name.partition("/")
    kind = next((k for k in KINDS if k.folder == folder and k.pattern.fullmatch(name)), None)
    if kind is None or not kind.travels or not member.isreg() or member.size > LARGEST:
        done.refused += 1
        return
    target = home / folder / name
    if target.exists():
        done.there += 1
        return
    source = archive.extractfile(member)
    data = source.read() if source is not None else b""
    if not _checked(kind, data):
        done.refused += 1
        return
    make_own_folder(target.parent)
    write_whole(target, lambda file: file.write(data), is_owners=True)
    done.new += 1


def prune_cache(limit: int | None = None, stale: bool = False) -> tuple[int, int]:
    """Remove from the layer that is written what was used longest ago, until it has at most `limit`
    bytes; `stale`: first the kernels of other compilers. Gives how many files and bytes went."""
    home = written_layer()
    count = freed = 0
    if stale:
        kernels = home / "kernels"
        others = [p for p in _folders(kernels) if p.name != compiler_folder()]
        for folder in others:
            removed = shrink(folder, 0)
            count, freed = count + removed[0], freed + removed[1]
    if limit is not None:
        for removed in _shrunk(home, limit):
            count, freed = count + removed[0], freed + removed[1]
    return count, freed


def _folders(folder: Path) -> Sequence[Path]:
    return [each for each in folder.iterdir() if each.is_dir()] if folder.is_dir() else []


def _shrunk(home: Path, limit: int) -> Iterator[tuple[int, int]]:
    """Shrink each kind to its share of the limit: what it has of all bytes now."""
    sizes = {kind.folder: sum(map(_size, files_below(home / kind.folder))) for kind in KINDS}
    whole = sum(sizes.values())
    for name, size in sizes.items():
        if whole > limit:
            yield shrink(home / name, limit * size // whole)


def as_rows(stats: Sequence[Stats]) -> list[dict[str, object]]:
    """The rows as JSON has them."""
    names = ("layer", "kind", "files", "bytes", "current")
    return [{name: cast(object, getattr(row, name)) for name in names} for row in stats]
