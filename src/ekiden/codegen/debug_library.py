"""Compile functions to a shared library with debug information, for gdb and perf.

An image in memory has no name and no file, so tools that look at a process cannot say what it is.
For debugging, the same object code is linked by the system's C compiler into a library on disk,
beside the text its lines are those of. What the runtime gives to compiled code is reached through
jumps filled when the library is loaded.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ekiden.codegen.c.compiler import find_compiler
from ekiden.codegen.llvm import elf
from ekiden.codegen.llvm.image import EXTERN_PREFIX
from ekiden.runtime import Module, library_path, load_module
from ekiden.runtime.errors import CompileError
from ekiden.tir.printer import print_with_lines
from ekiden.tir.stmt import PrimFunc, Stmt

CompileWithLines = Callable[[Path, Mapping[Stmt, int]], bytes]
"""Function (text path, line of each statement) -> relocatable object with debug lines."""

_SHIM_TEMPLATE = """\
typedef void (*address)(void);
extern address ek_service(const char *name);
__attribute__((visibility("hidden"))) address ek_debug_services[{count}];
__attribute__((constructor)) static void find_services(void) {{
{fill}
}}
"""
_library_ids = itertools.count()


def print_functions(funcs: Sequence[PrimFunc]) -> tuple[str, dict[Stmt, int]]:
    """Print several functions; return the text, and the line of each of their statements."""
    texts: list[str] = []
    lines: dict[Stmt, int] = {}
    begin = 0
    for func in funcs:
        text, where = print_with_lines(func)
        lines.update({s: line + begin for s, line in where.items()})
        texts.append(text)
        begin += text.count("\n") + 1
    return "\n".join(texts), lines


def build_debug_library(
    funcs: Sequence[PrimFunc], folder: Path, compile_object: CompileWithLines
) -> Module:
    """Build the module of lowered functions as `folder/NAME-PID-N.so`, with its text in `.tir.py`.
    Raises CompileError if the C compiler cannot link it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{_sanitize_file_name(funcs[0].name)}-{os.getpid()}-{next(_library_ids)}"
    text, lines = print_functions(funcs)
    source = stem.with_suffix(".tir.py")
    source.write_text(text, encoding="utf-8")
    code = compile_object(source, lines)
    stem.with_suffix(".o").write_bytes(code)
    stem.with_suffix(".c").write_text(_emit_shim(code))
    _link_shared_library(stem, [f.name for f in funcs])
    return load_module(stem.with_suffix(".so"))


def _sanitize_file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_." else "_" for c in name)[:80]


def _emit_shim(code: bytes) -> str:
    """Return C definitions of the runtime services and call sites that the object refers to."""
    outside = sorted(
        {
            s.name
            for s in elf.parse_elf(code).symbols
            if s.section == elf.UNDEFINED_SECTION and s.name
        }
    )
    externs = [n for n in outside if n.startswith(EXTERN_PREFIX)]
    services = [n for n in outside if n.startswith("ek_") and n not in externs]
    sites = [n for n in outside if n.startswith("packed:")]
    assignments = (f'  ek_debug_services[{i}] = ek_service("{n}");' for i, n in enumerate(services))
    jumps = [
        f'__asm__(".text\\n.globl {n}\\n.hidden {n}\\n.type {n},@function\\n'
        f'{n}: jmp *ek_debug_services+{8 * i}(%rip)\\n");'
        for i, n in enumerate(services)
    ]
    cells = [
        f'struct {{ void *f; const char *name; void *image; }} site{i} __asm__("{n}")'
        f' = {{0, "{n.removeprefix("packed:")}", 0}};'
        for i, n in enumerate(sites)
    ]
    jumps += [
        f'__asm__(".text\\n.globl {n}\\n.hidden {n}\\n.type {n},@function\\n'
        f'{n}: jmp {n.removeprefix(EXTERN_PREFIX)}@PLT\\n");'
        for n in externs
    ]
    head = _SHIM_TEMPLATE.format(count=max(len(services), 1), fill="\n".join(assignments))
    return "\n".join([head, *jumps, *cells, ""])


def _link_shared_library(stem: Path, names: Sequence[str]) -> None:
    library = stem.with_suffix(".so")
    command = [
        find_compiler(), "-shared", "-fPIC", "-O1", str(stem.with_suffix(".c")),
        str(stem.with_suffix(".o")), str(library_path()), "-o", str(library),
        *(f"-Wl,--defsym=__tvm_ffi_{name}={name}" for name in names),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    for suffix in (".o", ".c"):
        stem.with_suffix(suffix).unlink()
    if result.returncode != 0:
        raise CompileError(
            f"link {library} for debugging: {command[0]} failed: {result.stderr.strip()[:2000]}"
        )
