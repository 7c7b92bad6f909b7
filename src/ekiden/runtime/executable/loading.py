"""`load()`: load a compiled model."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from ekiden import runtime
from ekiden._lazy import LazyModule, load_module
from ekiden.runtime.errors import LoadError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.files import PathName, rewrite_os_errors

if TYPE_CHECKING:
    import pathlib
    from pathlib import Path

    from ekiden.runtime.artifact import container_format
else:
    pathlib = LazyModule("pathlib")
    container_format = LazyModule("ekiden.runtime.artifact.container_format")

__all__ = ["BinaryReader", "load"]


class BinaryReader(Protocol):
    """File that is open for reading bytes."""

    def read(self) -> bytes:
        """Return the remaining bytes."""


def load(
    file: PathName | bytes | bytearray | memoryview | BinaryReader,
    *,
    num_threads: int | None = None,
) -> Executable:
    """Load an executable.

    Args:
        file: path of an artifact, which is mapped, or of a library or archive (`.tar`) that
            `export_library` wrote; or the bytes of an artifact, or a file open for bytes.
        num_threads: most threads of a run; `runtime.num_threads` by default.

    Returns:
        The executable.

    Raises:
        LoadError: for anything else.
        OSError: for a file that cannot be read.
        ValueError: for an invalid number of threads.
    """
    if isinstance(file, (str, os.PathLike)):
        raw = _load_path(pathlib.Path(file))
    else:
        data = file if isinstance(file, (bytes, bytearray, memoryview)) else _read_all(file)
        raw = runtime.Executable.from_bytes(data)
    if num_threads is not None:
        raw.num_threads = num_threads
    return Executable(raw)


def _read_all(file: object) -> bytes:
    read = getattr(file, "read", None)
    data = read() if callable(read) else None
    if isinstance(data, bytes):
        return data
    expected = "a path, bytes or a file open for bytes"
    kind = type(file).__name__ + " open for text" * isinstance(data, str)
    raise TypeError(f"load: expected {expected}, got {kind}")


def _load_path(path: Path) -> runtime.Executable:
    with rewrite_os_errors("load", path), open(path, "rb") as file:
        start = file.read(len(container_format.ARTIFACT_MAGIC))
    # A tar archive has no signature in its first bytes, so its suffix decides.
    if start.startswith(b"\x7fELF") or path.suffix == ".tar":
        module = runtime.load_module(path)
        if "get_executable" not in module:
            raise LoadError(f"load '{path}': it contains no model that Ekiden exported")
        executable = module["get_executable"]()
        assert isinstance(executable, runtime.Executable)
        return executable
    # The test comes last because it imports frontends, which an artifact does not need.
    if start != container_format.ARTIFACT_MAGIC and _is_importable_model(path):
        raise LoadError(
            f"load '{path}': it is a model, not an artifact: compile it by ekiden.compile"
        )
    return runtime.Executable.load(os.fspath(path))


def _is_importable_model(path: Path) -> bool:
    """Return whether the compiler imports the file; without the compiler, no file is a model."""
    if find_spec("ekiden.frontend") is None:
        return False
    return bool(load_module("ekiden.frontend.registry").is_model_file(path))
