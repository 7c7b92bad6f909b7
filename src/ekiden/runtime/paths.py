"""Where the C runtime lies, for C programs that build against it."""

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

_FOLDER = os.path.dirname(os.path.dirname(_core.__file__))


def include_dir() -> Path:
    """The folder to give a C compiler with -I, so that it finds <ekiden/runtime.h>."""
    return pathlib.Path(_FOLDER, "include")


def library_path() -> Path:
    """The shared library that C programs link with."""
    return pathlib.Path(_FOLDER, "libekiden_runtime.so")


def static_library_path() -> Path:
    """The same to link into a library that is to carry the runtime with it; nothing of it is seen
    outside that library.
    """
    return pathlib.Path(_FOLDER, "libekiden_runtime.a")


def general_kernels_path() -> str:
    """The library of general kernels, which programs that compile load."""
    return os.path.join(_FOLDER, "libekiden_general.so")


def source_dir() -> Path:
    """The runtime's own sources, to build it for other machines."""
    return pathlib.Path(_FOLDER, "src")


def server_source_dir() -> Path:
    """The sources of the program ekiden-rpc, which is built with those of the runtime."""
    return pathlib.Path(_FOLDER, "rpc")


def web_source_dir() -> Path:
    """What takes the place of a system's in WebAssembly, and the package for JavaScript there."""
    return pathlib.Path(_FOLDER, "web")


def micro_source_dir() -> Path:
    """The sources of programs for machines without an allocator, beside a model that is C."""
    return pathlib.Path(_FOLDER, "micro")


def cmake_dir() -> Path:
    """The folder with the CMake package: give it as -Dekiden-runtime_DIR, then
    `find_package(ekiden-runtime)` has the targets ekiden::runtime and ekiden::runtime_static.
    """
    return pathlib.Path(_FOLDER, "cmake")
