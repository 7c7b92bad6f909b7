"""Library archives of `export_library`: sources with a Makefile, and the .eki file, which is loaded
without compiling them.

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

_RETAINED_MAPPINGS: list[mmap.mmap] = []
"""What modules lie in: code of theirs may run as long as the process."""


@register_func("ek.module.load.tar")
def load_archive(path: str) -> Module:
    """Load the module in an archive, which stays in memory as long as the process. Raises OSError
    for a file that cannot be read, LoadError for one that is no such archive.
    """
    try:
        with tarfile.open(path, "r:") as archive:
            content = _extract_artifact(path, archive, os.path.getsize(path))
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise LoadError(f"load module '{path}': {error}") from error
    module = module_from_bytes(memoryview(content))
    _RETAINED_MAPPINGS.append(content)
    return module


def _extract_artifact(path: str, archive: tarfile.TarFile, size_limit: int) -> mmap.mmap:
    """Copy the archive's single .eki, of at most `size_limit` bytes, into anonymous memory, since a
    session server may not write files elsewhere.
    """
    artifacts = [member for member in archive if member.isfile() and member.name.endswith(".eki")]
    if len(artifacts) != 1 or artifacts[0].size == 0:
        raise LoadError(
            f"load module '{path}': an archive that export_library wrote has one .eki, "
            f"got {len(artifacts)}"
        )
    if artifacts[0].size > size_limit:
        raise LoadError(f"load module '{path}': unexpected end of data")
    source, memory = archive.extractfile(artifacts[0]), mmap.mmap(-1, artifacts[0].size)
    assert source is not None
    while data := source.read(1 << 20):
        memory.write(data)
    if memory.tell() != artifacts[0].size:
        raise LoadError(f"load module '{path}': unexpected end of data")
    return memory


__all__ = ["load_archive"]
