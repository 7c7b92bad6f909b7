"""Paths of the C runtime, for C programs that build against it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.runtime.binding import _core

if TYPE_CHECKING:
    import pathlib
    from pathlib import Path
else:
    pathlib = LazyModule("pathlib")

_RUNTIME_FOLDER = os.path.dirname(os.path.dirname(_core.__file__))


def include_dir() -> Path:
    """Return the folder for a C compiler's -I, so that it finds <ekiden/runtime.h>."""
    return pathlib.Path(_RUNTIME_FOLDER, "include")


def library_path() -> Path:
    """Return the shared library that C programs link with."""
    return pathlib.Path(_RUNTIME_FOLDER, "libekiden_runtime.so")


def static_library_path() -> Path:
    """Return the static library for a shared library that embeds the runtime; its symbols are
    hidden outside.
    """
    return pathlib.Path(_RUNTIME_FOLDER, "libekiden_runtime.a")


def general_kernels_path() -> str:
    """Return the library of general kernels, which compiling programs load."""
    return os.path.join(_RUNTIME_FOLDER, "libekiden_general.so")


def source_dir() -> Path:
    """Return the folder of the runtime's sources, to build it for other machines."""
    return pathlib.Path(_RUNTIME_FOLDER, "src")


def server_source_dir() -> Path:
    """Return the sources of the program ekiden-rpc, which is built with the runtime's."""
    return pathlib.Path(_RUNTIME_FOLDER, "rpc")


def web_source_dir() -> Path:
    """Return the folder of the WebAssembly platform layer and the JavaScript package."""
    return pathlib.Path(_RUNTIME_FOLDER, "web")


def micro_source_dir() -> Path:
    """Return the folder of the C sources for microcontrollers: start-up, board, RPC."""
    return pathlib.Path(_RUNTIME_FOLDER, "micro")


def cmake_dir() -> Path:
    """Return the folder of the CMake package: pass it as -Dekiden-runtime_DIR, then
    `find_package(ekiden-runtime)` provides the targets ekiden::runtime and
    ekiden::runtime_static.
    """
    return pathlib.Path(_RUNTIME_FOLDER, "cmake")
