"""Archives of sources and a Makefile, as `export_library` writes them: what their compiler would
put into a library stands in them as it is, and is loaded without one.

    name/name.eki     an executable, or modules that import each other
    name/name.c ...   what makes name.so of it
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from ekiden.runtime._core import Module, load_module, module_from_bytes, register_func
from ekiden.runtime.errors import LoadError
from ekiden.runtime.late import Late

if TYPE_CHECKING:
    import mmap
    import tarfile
    import tempfile

    from ekiden.runtime import artifact
else:
    mmap, tarfile, tempfile = Late("mmap"), Late("tarfile"), Late("tempfile")
    artifact = Late("ekiden.runtime.artifact")

_KEPT: list[mmap.mmap] = []
"""What modules lie in that are no executable: code of theirs may run as long as the process."""


@register_func("ek.module.load.tar")
def load_archive(path: str) -> Module:
    """The module in an archive. Raises OSError for a file that cannot be read, LoadError for one
    that is no such archive."""
    try:
        with tarfile.open(path) as archive, tempfile.NamedTemporaryFile(suffix=".eki") as made:
            _extract(path, archive, made)
            with open(made.name, "rb") as file:
                if file.read(len(artifact.MAGIC)) == artifact.MAGIC:
                    return load_module(made.name)
                _KEPT.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            return module_from_bytes(memoryview(_KEPT[-1]))
    except (tarfile.TarError, EOFError) as error:
        raise LoadError(f"load module '{path}': {error}") from error


def _extract(path: str, archive: tarfile.TarFile, to: IO[bytes]) -> None:
    found = [each for each in archive if each.isfile() and each.name.endswith(".eki")]
    if len(found) != 1 or found[0].size == 0:
        raise LoadError(
            f"load module '{path}': an archive that export_library wrote has one .eki, "
            f"got {len(found)}"
        )
    source = archive.extractfile(found[0])
    assert source is not None
    while data := source.read(1 << 20):
        to.write(data)
    to.flush()


__all__ = ["load_archive"]
