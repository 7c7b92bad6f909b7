"""C to an object file, by the system's compiler."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from ekiden.runtime import include_dir
from ekiden.runtime.errors import CompileError
from ekiden.target import Target

FLAGS = (
    "-std=c11", "-O2", "-ftree-vectorize", "-fPIC", "-fwrapv", "-ffp-contract=off",
    "-fno-math-errno", "-fno-stack-protector", "-fno-asynchronous-unwind-tables",
    "-fcf-protection=none", "-w", "-Werror=implicit-function-declaration",
)  # fmt: skip


@functools.cache
def find_compiler() -> str:
    """The system's C compiler. Raises CompileError where there is none."""
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise CompileError("target 'c': there is no C compiler (cc, gcc or clang) on PATH")


@functools.cache
def compiler_version() -> str:
    """Part of the key under which object code is cached."""
    shown = subprocess.run(
        [find_compiler(), "--version"], capture_output=True, text=True, check=True
    )
    return shown.stdout.splitlines()[0]


@functools.cache
def _machine_flags(cpu: str) -> tuple[str, ...]:
    """-march=cpu, or the newest x86-64 level that an older compiler knows."""
    for name in (cpu, "x86-64-v4", "x86-64-v3"):
        known = subprocess.run(
            [find_compiler(), f"-march={name}", "-E", "-x", "c", "/dev/null"],
            capture_output=True,
            check=False,
        )
        if known.returncode == 0:
            return (f"-march={name}",)
    return ()


def compile_text(text: str, target: Target, debug_path: Path | None = None) -> bytes:
    """C to a relocatable ELF object; with debug lines of the file `debug_path`, if given.

    Raises CompileError with what the compiler said.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = debug_path or Path(folder) / "kernel.c"
        source.write_text(text, encoding="utf-8")
        made = Path(folder) / "kernel.o"
        command = [
            find_compiler(), *FLAGS, *_machine_flags(target.cpu), "-DEK_KERNEL_IMAGE",
            *(("-g",) if debug_path else ()), f"-I{include_dir()}", "-c", str(source),
            "-o", str(made),
        ]  # fmt: skip
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise CompileError(f"target 'c': {command[0]} failed: {result.stderr.strip()[:2000]}")
        return made.read_bytes()
