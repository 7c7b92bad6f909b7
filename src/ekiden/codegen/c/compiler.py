"""Compile C to an object file with the system compiler."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from ekiden.runtime import include_dir
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.target.features import X86
from ekiden.target.processors import GENERIC_PROCESSORS, PROCESSORS

COMPILER_FLAGS = (
    "-std=c11", "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fPIC", "-fwrapv",
    "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables", "-fcf-protection=none", "-w",
    "-Werror=implicit-function-declaration",
)  # fmt: skip
"""Compiler flags. Without `-fno-trapping-math` GCC branches on lane selects to preserve exception
flags that nobody reads, and exp is not vectorised (a softmax takes 0.31 of the time with it). The
model of costs is that of `-O3`: that of `-O2` makes vectors of no loop whose turns they may not
divide.
"""


@functools.cache
def find_compiler() -> str:
    """Return the path of the system C compiler. Raises CompileError if there is none."""
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path is not None:
            return path
    raise CompileError("target 'c': there is no C compiler (cc, gcc or clang) on PATH")


@functools.cache
def compiler_version() -> str:
    """Return the compiler's version, a part of the object cache's key."""
    shown = subprocess.run(
        [find_compiler(), "--version"], capture_output=True, text=True, check=True
    )
    return shown.stdout.splitlines()[0]


@functools.cache
def machine() -> str:
    """Return the architecture that the system compiler targets, the first word of its triple."""
    shown = subprocess.run(
        [find_compiler(), "-dumpmachine"], capture_output=True, text=True, check=True
    )
    return shown.stdout.partition("-")[0]


def check_target(target: Target, what: str) -> None:
    """Raise CompileError if the system compiler targets another architecture."""
    architecture = target.triple.partition("-")[0]
    if machine() != architecture:
        raise CompileError(
            f"{what}: target 'c': {find_compiler()} makes code for {machine()}, not for "
            f"{architecture}; target kind 'llvm' does"
        )


@functools.cache
def _supports_flags(flags: tuple[str, ...]) -> bool:
    command = [find_compiler(), *flags, "-E", "-x", "c", "/dev/null"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _target_flags(target: Target) -> tuple[str, ...]:
    """Return the processor flags for the compiler. If it is too old to know the processor, use the
    best one it knows that the target can execute.
    """
    option = "-march" if target.architecture == X86 else "-mcpu"
    plain = replace(target, features=())
    lesser = [
        p.name
        for p in PROCESSORS.values()
        if p.name.startswith(GENERIC_PROCESSORS[target.architecture])
        and Target(target, cpu=p.name, features=()).serves(plain)
    ]
    name = next(
        n
        for n in (target.cpu, *reversed(lesser), "")
        if _supports_flags((f"{option}={n}",)) or not n
    )
    cpu_flags = (f"{option}={name}",) if name else ()
    if target.architecture != X86:
        return cpu_flags
    signs = [f"-mno-{f[1:]}" if f[0] == "-" else f"-m{f}" for f in target.features]
    signs += [f"-mno-{f}" for f in sorted(target.idle)]
    return (*cpu_flags, *(flag for flag in signs if _supports_flags((flag,))))


def compile_c(text: str, target: Target, debug_path: Path | None = None) -> bytes:
    """Compile C to a relocatable ELF object, with debug lines that refer to `debug_path`, if given.

    Raises:
        CompileError: with the compiler's message.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = debug_path or Path(folder) / "kernel.c"
        source.write_text(text, encoding="utf-8")
        object_path = Path(folder) / "kernel.o"
        command = [
            find_compiler(), *COMPILER_FLAGS, *_target_flags(target), "-DEK_KERNEL_IMAGE",
            *(("-g",) if debug_path else ()), f"-I{include_dir()}", "-c", str(source),
            "-o", str(object_path),
        ]  # fmt: skip
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise CompileError(f"target 'c': {command[0]} failed: {result.stderr.strip()[:2000]}")
        return object_path.read_bytes()
