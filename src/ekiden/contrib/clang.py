"""Compilation of C to LLVM IR by the system's clang, with the interface of TVM's
`contrib.clang`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ekiden.runtime.errors import ExportError

__all__ = ["create_llvm", "find_clang"]


def find_clang(required: bool = True) -> list[str]:
    """Return the clang commands of this machine.

    Raises:
        ExportError: There is none and `required` is true.
    """
    names = ["clang", *(f"clang-{version}" for version in range(25, 9, -1))]
    commands = [path for name in names if (path := shutil.which(name)) is not None]
    if required and not commands:
        raise ExportError("clang: it is missing: apt install clang")
    return commands


def create_llvm(
    inputs: str | Sequence[str],
    output: str | os.PathLike[str] | None = None,
    options: Sequence[str] | None = None,
    cc: str | None = None,
) -> str:
    """Compile C or C++ source to LLVM IR text.

    Args:
        inputs: The code, or paths of files; several of them are refused.
        output: A file that gets the text, too.
        options: Further options.
        cc: The compiler; the one of this machine by default.

    Raises:
        ExportError: There is no clang, or it fails.
    """
    sources = [inputs] if isinstance(inputs, str) else list(inputs)
    if len(sources) != 1:
        raise ExportError(f"create_llvm: one source expected, got {len(sources)}")
    compiler = cc or find_clang()[0]
    with tempfile.TemporaryDirectory(prefix="ekiden-") as folder:
        source = Path(sources[0]) if "\n" not in sources[0] else Path(folder) / "input.cc"
        if not source.exists():
            source = Path(folder) / "input.cc"
            source.write_text(sources[0])
        ir_path = Path(folder) / "output.ll"
        command = [compiler, "-O3", "-emit-llvm", "-S", *(options or ()), str(source)]
        done = subprocess.run(
            [*command, "-o", str(ir_path)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ExportError(f"create_llvm: {done.stderr.strip()[:2000]}")
        text = ir_path.read_text()
    if output is not None:
        Path(output).write_text(text)
    return text
