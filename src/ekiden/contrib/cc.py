"""The system's C compiler, as TVM's programs call it: `cc.create_shared("net.so", ["net.o"])`.

What `export_library(fcompile=...)` and programs of their own call to make a library of objects and
sources. The compiler is the one that `export_library` finds, unless `cc` says another.
"""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ekiden.compiler.export.library import compile_in, compiler_for
from ekiden.runtime.errors import ExportError
from ekiden.runtime.paths import static_library_path

__all__ = ["create_executable", "create_shared", "cross_compiler", "get_cc"]

Path: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = Path | Sequence[Path]
Compile: TypeAlias = Callable[..., None]


def get_cc() -> str | None:
    """The command of the C compiler, None where there is none."""
    try:
        return shlex.join(compiler_for("get_cc", platform.machine()))
    except ExportError:
        return None


def create_shared(
    output: Path,
    objects: Paths,
    options: Sequence[str] | None = None,
    cc: str | None = None,
    cwd: Path | None = None,
) -> None:
    """Make a shared library of objects, archives and C. Raises ExportError.

    What `module.save("net.o")` wrote needs Ekiden's runtime, which this machine's compiler links
    where something asks for it; that of another machine (`cc`) is not here.
    """
    needed = (str(static_library_path().resolve()), "-pthread", "-ldl") if cc is None else ()
    linked = ("-shared", "-fPIC", *(options or ()), *needed)
    _compile(output, objects, linked, cc, cwd)


def create_executable(
    output: Path,
    objects: Paths,
    options: Sequence[str] | None = None,
    cc: str | None = None,
    cwd: Path | None = None,
) -> None:
    """Make a program of objects, archives and C. Raises ExportError."""
    _compile(output, objects, options or (), cc, cwd)


def cross_compiler(
    compile_func: str | Compile,
    options: Sequence[str] | None = None,
    output_format: str | None = None,
) -> Compile:
    """What makes libraries for another machine, to be given as `fcompile`.

    `compile_func` is the command of a compiler, such as "aarch64-linux-gnu-gcc", or a function with
    the arguments of `create_shared`; `options` come before those of a call. `output_format` ("so")
    is noted on what is given.
    """
    before = tuple(options or ())

    def make(
        output: Path, objects: Paths, options: Sequence[str] | None = None, **others: object
    ) -> None:
        """Compile, with the options of both."""
        given = [*before, *(options or ())]
        if isinstance(compile_func, str):
            others = {"cc": compile_func, **others}
            create_shared(output, objects, given, **others)  # type: ignore[arg-type]
        else:
            compile_func(output, objects, options=given, **others)

    make.output_format = output_format or "so"  # type: ignore[attr-defined]
    return make


def _compile(
    output: Path, objects: Paths, options: Sequence[str], cc: str | None, cwd: Path | None
) -> None:
    """Run the compiler in `cwd`. What is linked comes first, the libraries of options behind it."""
    many = [objects] if isinstance(objects, (str, os.PathLike)) else [*objects]
    command = compiler_for(f"make '{output}'", platform.machine(), cc)
    arguments = ["-o", os.fspath(output), *(os.fspath(each) for each in many), *options]
    compile_in(os.fspath(cwd or os.curdir), [*command, *arguments], f"make '{output}'")
