"""C compiler of the system, with the interface of TVM's `contrib.cc`: `cc.create_shared("net.so",
["net.o"])`.

What `export_library(fcompile=...)` and programs of their own call to make a library of objects and
sources. The compiler is the one that `export_library` finds, unless `cc` says another.
"""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ekiden.compiler.export.library import c_compiler_for, run_c_compiler
from ekiden.runtime.errors import ExportError
from ekiden.runtime.paths import static_library_path

__all__ = ["create_executable", "create_shared", "cross_compiler", "get_cc"]

Path: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = Path | Sequence[Path]
Compile: TypeAlias = Callable[..., None]


def get_cc() -> str | None:
    """Return the C compiler command; None if there is none."""
    try:
        return shlex.join(c_compiler_for("get_cc", platform.machine()))
    except ExportError:
        return None


def create_shared(
    output: Path,
    objects: Paths,
    options: Sequence[str] | None = None,
    cc: str | None = None,
    cwd: Path | None = None,
) -> None:
    """Build a shared library from objects, archives and C files. Raises ExportError.

    What `module.save("net.o")` wrote needs Ekiden's runtime, which this machine's compiler links
    where a file requires it; the runtime of another machine (`cc`) is not available here.
    """
    # Another machine's compiler cannot link this machine's static runtime.
    needed = (str(static_library_path().resolve()), "-pthread", "-ldl") if cc is None else ()
    linked = ("-shared", "-fPIC", *(options or ()), *needed)
    _run_compiler(output, objects, linked, cc, cwd)


def create_executable(
    output: Path,
    objects: Paths,
    options: Sequence[str] | None = None,
    cc: str | None = None,
    cwd: Path | None = None,
) -> None:
    """Build an executable from objects, archives and C files."""
    _run_compiler(output, objects, options or (), cc, cwd)


def cross_compiler(
    compile_func: str | Compile,
    options: Sequence[str] | None = None,
    output_format: str | None = None,
) -> Compile:
    """Return a function that builds libraries for another target triple, for `fcompile`.

    Args:
        compile_func: A compiler command, such as "aarch64-linux-gnu-gcc", or a function with
            the arguments of `create_shared`.
        options: Options placed before those of a call.
        output_format: The format noted on the returned function ("so").
    """
    before = tuple(options or ())

    def compile_with_options(
        output: Path, objects: Paths, options: Sequence[str] | None = None, **kwargs: object
    ) -> None:
        """Compile with the options of the compiler followed by those of the call."""
        all_options = [*before, *(options or ())]
        if isinstance(compile_func, str):
            kwargs = {"cc": compile_func, **kwargs}
            create_shared(output, objects, all_options, **kwargs)  # type: ignore[arg-type]
        else:
            compile_func(output, objects, options=all_options, **kwargs)

    compile_with_options.output_format = output_format or "so"  # type: ignore[attr-defined]
    return compile_with_options


def _run_compiler(
    output: Path, objects: Paths, options: Sequence[str], cc: str | None, cwd: Path | None
) -> None:
    """Run the C compiler on objects in the folder `cwd`. Objects come first, followed by the
    libraries in the options.
    """
    object_list = [objects] if isinstance(objects, (str, os.PathLike)) else [*objects]
    command = c_compiler_for(f"make '{output}'", platform.machine(), cc)
    arguments = [
        "-o",
        os.fspath(output),
        *(os.fspath(object_path) for object_path in object_list),
        *options,
    ]
    run_c_compiler(os.fspath(cwd or os.curdir), [*command, *arguments], f"make '{output}'")
