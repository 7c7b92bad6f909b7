"""Archives: library archives of `export_library`, and the files of packages from others.

A library archive has sources with a Makefile, and the .eki file, which is loaded without compiling
them.

    name/name.eki     an executable, or modules that import each other
    name/name.c ...   what makes name.so of it
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.runtime.binding._core import Module, module_from_bytes, register_func
from ekiden.runtime.errors import LoadError
from ekiden.runtime.files import PathName, rewrite_os_errors

if TYPE_CHECKING:
    import lzma
    import mmap
    import tarfile
    import zlib
else:
    mmap, tarfile = LazyModule("mmap"), LazyModule("tarfile")
    lzma, zlib = LazyModule("lzma"), LazyModule("zlib")

MAX_ARCHIVE_BYTES = 1 << 30
"""Of all files of a packed or sparse archive; those of a plain one are no more than its own."""

_LOADED_MAPPINGS: list[mmap.mmap] = []
"""Mappings that contain loaded modules. They are never unmapped, since code in them may run as long
as the process."""


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
    _LOADED_MAPPINGS.append(content)
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


def read_archive_files(path: PathName) -> dict[str, bytes]:
    """Read the files of an archive by their paths. Raises OSError, and LoadError for what is no
    archive, files outside its root, a file in place of a folder, or more bytes than the archive
    and MAX_ARCHIVE_BYTES.
    """
    files: dict[str, bytes] = {}
    try:
        with rewrite_os_errors("read", path), tarfile.open(path) as archive:
            remaining = limit = max(MAX_ARCHIVE_BYTES, os.path.getsize(path))
            for member in archive:
                name = os.path.normpath(member.name)
                # Path traversal: an archive must not write outside of its folder.
                if name.startswith(("/", "..")) or name == "." or not name.isprintable():
                    raise LoadError(f"read '{path}': it has a file outside of it: {member.name!r}")
                # Checked before reading, so that a decompression bomb fails early.
                remaining -= member.size
                if remaining < 0:
                    raise LoadError(f"read '{path}': an archive of at most {limit} bytes expected")
                data = archive.extractfile(member) if member.isfile() else None
                if data is not None:
                    files[name] = data.read()
    except (tarfile.TarError, ValueError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise LoadError(f"read '{path}': no tar: {error}") from error
    folders = {name[:index] for name in files for index, char in enumerate(name) if char == "/"}
    if clash := folders & files.keys():
        raise LoadError(f"read '{path}': {min(clash)!r} is a file and a folder")
    return files
