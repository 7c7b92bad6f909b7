#!/usr/bin/env python3
"""Compile the programs of tests/compat/artifact_programs.py into tests/compat/MAJOR.MINOR, for the
test that later versions load them.

What is there already is left as it is: a release's artifacts are what that release wrote. The
library is for x86-64 and the oldest C library that wheels run with; the package `ziglang` links it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ekiden

REPOSITORY_ROOT = Path(__file__).resolve().parents[1]
COMPATIBILITY_TESTS_FOLDER = REPOSITORY_ROOT / "tests" / "compat"
sys.path.insert(0, str(COMPATIBILITY_TESTS_FOLDER))
from artifact_programs import LIBRARY, PROGRAMS, TARGETS  # noqa: E402 - found there

GLIBC_2_17_LINKER = f"{sys.executable} -m ziglang cc -target x86_64-linux-gnu.2.17"


def main() -> int:
    """Write the artifacts of this version; return the exit status."""
    folder = COMPATIBILITY_TESTS_FOLDER / ekiden.__version__.rpartition(".")[0]
    folder.mkdir(exist_ok=True)
    for name, program in PROGRAMS.items():
        path = folder / f"{name}.eki"
        if not path.exists():
            ekiden.export(program.build(), path, TARGETS, executor=program.executor)
            print(path.relative_to(REPOSITORY_ROOT))
    path = folder / f"{LIBRARY}.so"
    if not path.exists():
        ekiden.export(
            PROGRAMS[LIBRARY].build(), path, TARGETS[0], cc=GLIBC_2_17_LINKER, options=["-s"]
        )
        print(path.relative_to(REPOSITORY_ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
