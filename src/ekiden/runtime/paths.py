"""Where the C runtime lies, for C programs that build against it."""

from pathlib import Path

from ekiden.runtime import _core

_FOLDER = Path(_core.__file__).parent


def include_dir() -> Path:
    """The folder to give a C compiler with -I, so that it finds <ekiden/runtime.h>."""
    return _FOLDER / "include"


def library_path() -> Path:
    """The shared library that C programs link with."""
    return _FOLDER / "libekiden_runtime.so"
