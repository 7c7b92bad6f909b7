"""Archives of sources and a Makefile, as `export_library` writes them: what their compiler would
put into a library stands in them as it is, and is loaded without one.

    name/name.eki     an executable, or modules that import each other
    name/name.c ...   what makes name.so of it
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.runtime.binding._core import Module, module_from_bytes, register_func
from ekiden.runtime.errors import LoadError

if TYPE_CHECKING:
    import mmap
    import tarfile
else:
    mmap, tarfile = LazyModule("mmap"), LazyModule("tarfile")

_KEPT: list[mmap.mmap] = []
"""What modules lie in: code of theirs may run as long as the process."""


@register_func("ek.module.load.tar")
def load_archive(path: str) -> Module:
    """The module in an archive, which is in memory as long as the process. Raises OSError for a
    file that cannot be read, LoadError for one that is no such archive."""
    try:
        with tarfile.open(path, "r:") as archive:
            made = _content(path, archive, os.path.getsize(path))
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise LoadError(f"load module '{path}': {error}") from error
    module = module_from_bytes(memoryview(made))
    _KEPT.append(made)
    return module


def _content(path: str, archive: tarfile.TarFile, most: int) -> mmap.mmap:
    """The one .eki, of at most so many bytes. It is held in memory alone, as who serves a session
    may write in few places."""
    found = [each for each in archive if each.isfile() and each.name.endswith(".eki")]
    if len(found) != 1 or found[0].size == 0:
        raise LoadError(
            f"load module '{path}': an archive that export_library wrote has one .eki, "
            f"got {len(found)}"
        )
    if found[0].size > most:
        raise LoadError(f"load module '{path}': unexpected end of data")
    source, made = archive.extractfile(found[0]), mmap.mmap(-1, found[0].size)
    assert source is not None
    while data := source.read(1 << 20):
        made.write(data)
    if made.tell() != found[0].size:
        raise LoadError(f"load module '{path}': unexpected end of data")
    return made


__all__ = ["load_archive"]
