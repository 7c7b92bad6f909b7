"""C compiler of Android's NDK, with the interface of TVM's `contrib.ndk`, for `fcompile`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ekiden.contrib import cc
from ekiden.runtime.errors import ExportError

__all__ = ["COMPILER_VARIABLE", "create_shared"]

COMPILER_VARIABLE = "TVM_NDK_CC"
"""Environment variable that names the compiler of the NDK, as in TVM."""


def create_shared(output: cc.Path, objects: cc.Paths, options: Sequence[str] | None = None) -> None:
    """Build a shared library for Android from objects, archives and C files.

    Args:
        output: the library.
        objects: what it is made of.
        options: further options of the compiler.

    Raises:
        ExportError: TVM_NDK_CC names no compiler, or the compiler fails.
    """
    compiler = os.environ.get(COMPILER_VARIABLE)
    if not compiler:
        text = "set it to the compiler of a standalone toolchain of the NDK"
        raise ExportError(f"ndk: the environment variable {COMPILER_VARIABLE} is not set: {text}")
    cc.create_shared(output, objects, options, cc=compiler)


create_shared.output_format = "so"  # type: ignore[attr-defined]
