"""A compiled model as one shared library, for programs in any language."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ekiden import runtime
from ekiden.runtime.errors import ExportError
from ekiden.runtime.files import check_folder, write_whole

_HEAD = """\
#include <stdint.h>

#define SHOWN __attribute__((visibility("default")))
SHOWN extern const unsigned char __ek_executable[];
SHOWN extern const uint64_t __ek_executable_size;
const uint64_t __ek_executable_size = {size}u;

/* A section of its own, so that its alignment is that of the constants in it. */
__asm__(".section .rodata.ekiden,\\"a\\",@progbits\\n"
        ".balign 64\\n"
        ".globl __ek_executable\\n"
        ".type __ek_executable,@object\\n"
        ".size __ek_executable,{size}\\n"
        "__ek_executable:\\n"
        ".incbin \\"executable.eki\\"\\n"
        ".previous\\n");

typedef struct {{
  void *function;
  const char *name;
  const void *begin;
  uint64_t size;
}} ek_export;

int ek_export_call(ek_export *program, const void *args, int32_t nargs, void *ret);
"""

_FUNCTION = """
SHOWN int __tvm_ffi_{name}(void *self, const void *args, int32_t nargs, void *ret);
int __tvm_ffi_{name}(void *self, const void *args, int32_t nargs, void *ret) {{
  static ek_export program = {{0, "{name}", __ek_executable, {size}u}};
  (void)self;
  return ek_export_call(&program, args, nargs, ret);
}}
"""

_LINK = ("-shared", "-fPIC", "-O2", "-s", "-Wl,--gc-sections", "-Wl,-z,nodelete", "-Wl,-z,defs")


def export_library(
    executable: runtime.Executable,
    path: str | os.PathLike[str],
    *,
    cc: str | None = None,
    options: Sequence[str] = (),
) -> None:
    """Write one shared library with the executable and the runtime inside.

    Each function of the executable becomes a symbol `__tvm_ffi_<name>`, so that
    `ekiden.runtime.load_module(path)["main"]` runs it, `ek_module_load` does in C, and
    `tvm_ffi.load_module` of the published package. The library needs libc and threads alone.

    `cc` is the C compiler; else $CC, cc, gcc or clang is taken, or that of the package ziglang.
    `options` go to its command line. Raises ExportError when there is none or it fails.
    """
    target = check_folder(path).absolute()
    command = _compiler(cc)
    data = executable.to_bytes()
    names = [name for name in executable.globals if re.fullmatch(r"[A-Za-z0-9_]+", name)]
    source = _HEAD.format(size=len(data))
    source += "".join(_FUNCTION.format(name=name, size=len(data)) for name in names)
    with tempfile.TemporaryDirectory(prefix="ekiden-export-") as folder:
        Path(folder, "executable.eki").write_bytes(data)
        Path(folder, "library.c").write_text(source)
        archive = str(runtime.static_library_path().resolve())
        made = Path(folder, "library.so")
        arguments = [*command, *_LINK, *options, "library.c", archive, "-o", made.name]
        _run([*arguments, "-pthread", "-ldl"], folder, target)
        with open(made, "rb") as library:
            write_whole(target, partial(shutil.copyfileobj, library), is_program=True)


def _compiler(cc: str | None) -> list[str]:
    """The command of a C compiler, in words."""
    named = cc or os.environ.get("CC")
    if named:
        return named.split()
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    raise ExportError(
        "export library: a C compiler expected (cc, gcc or clang), got none; "
        "install one, or: pip install ziglang"
    )


def _run(command: Sequence[str], folder: str, target: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ExportError(f"export library '{target}': run '{command[0]}': {error}") from error
    if done.returncode != 0:
        shown = "\n".join(done.stderr.splitlines()[:20])
        raise ExportError(f"export library '{target}': the C compiler failed:\n{shown}")
