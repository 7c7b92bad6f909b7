"""Build of `ekiden-rpc`, the RPC server in C, for this or another architecture."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ekiden.compiler.export.library import c_compiler_for, run_c_compiler
from ekiden.runtime.files import PathName, check_folder, write_atomic
from ekiden.runtime.paths import include_dir, server_source_dir, source_dir

__all__ = ["SIZE_OPTIMIZATION_FLAGS", "build_server"]

SIZE_OPTIMIZATION_FLAGS = (
    "-Os", "-ffunction-sections", "-fdata-sections", "-fno-asynchronous-unwind-tables",
    "-fno-unwind-tables", "-fno-stack-protector", "-fno-pie", "-no-pie", "-flto",
    "-Wl,--gc-sections", "-Wl,-z,noseparate-code", "-Wl,-z,norelro", "-Wl,-z,max-page-size=4096",
    "-s",
)  # fmt: skip
"""Compiler flags that minimise the size."""
_COMMON_FLAGS = (
    "-std=gnu11", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64",
    "-DEK_STATIC", '-DEK_API=__attribute__((visibility("hidden")))',
    "-fvisibility=hidden", "-DEK_SMALL", "-DNDEBUG",
)  # fmt: skip
_ARCHITECTURE_FLAGS = {"aarch64": ("-mno-outline-atomics", "-mcmodel=tiny")}
"""Compiler flags per architecture that minimise the size."""


def build_server(
    path: PathName,
    architecture: str = "",
    *,
    cc: str | None = None,
    flags: Sequence[str] = SIZE_OPTIMIZATION_FLAGS,
    options: Sequence[str] = (),
) -> None:
    """Build the RPC server for an architecture (`x86_64`, `aarch64`, `riscv64`, `armv7`, or this
    machine's), with the runtime linked in.

    `cc` is the C compiler; else $CC, one for the architecture that is installed, or ziglang's.
    Raises ExportError where there is none or it fails.
    """
    target = check_folder(path).absolute()
    what = f"build '{target}'"
    machine = architecture or platform.machine()
    command = [*c_compiler_for(what, machine, cc), *_ARCHITECTURE_FLAGS.get(machine, ())]
    sources = [*source_dir().glob("*.c"), *server_source_dir().glob("*.c")]
    folders = [f"-I{folder}" for folder in (include_dir(), source_dir(), server_source_dir())]
    with tempfile.TemporaryDirectory(prefix="ekiden-rpc-") as folder:
        words = [
            *command,
            *_COMMON_FLAGS,
            *flags,
            *folders,
            *map(str, sorted(sources)),
            "-o",
            "made",
        ]
        run_c_compiler(folder, [*words, "-pthread", "-ldl", *options], what)
        with open(Path(folder, "made"), "rb") as built:
            write_atomic(target, partial(shutil.copyfileobj, built), is_program=True)
