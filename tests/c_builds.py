"""Builds of the C runtime and its tests in several configurations, shared by a run's workers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from shared_files import made_once

HERE = Path(__file__).parent / "c"
RUNTIME = HERE.parents[1] / "runtime"
COMPILER = shutil.which(os.environ.get("CC", "cc"))
WARNINGS = [
    "-std=c11",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
    "-Wconversion",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    "-Wwrite-strings",
    "-Wundef",
    "-Werror",
]
INCLUDES = [f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'src'}", f"-I{HERE}"]
COMPUTED_GOTO = {"ek_vm.c"}
"""Files that use an extension of the compilers, and so cannot be pedantic."""
TESTS = sorted(p.stem for p in HERE.glob("test_*.c"))
TIMEOUT = 120


@dataclass(frozen=True)
class Build:
    """One way to compile the runtime and its tests; the tests are never optimised."""

    flags: tuple[str, ...]
    level: str = "-O1"
    """How far the runtime is optimised."""
    only: tuple[str, ...] | None = None
    """The tests worth running in this build; None is all."""
    like: str = ""
    """A build whose object files are those of this one, but for files that name its macros."""
    macros: tuple[str, ...] = ()

    def is_own(self, source: Path) -> bool:
        """Whether a file is another one in this build."""
        text = source.read_text()
        return not self.like or any(macro in text for macro in self.macros)


ADDRESS = ("-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
BUILDS = {
    "plain": Build((), "-O2"),
    "address": Build(ADDRESS, "-O0"),
    "hard": Build(ADDRESS, "-O0", like="address", macros=("EK_HARD_TEST", "EK_VM_SWITCH")),
    "thread": Build(
        ("-g1", "-fsanitize=thread"),
        only=(
            "test_async",
            "test_pool",
            "test_object",
            "test_registry",
            "test_alloc",
            "test_program",
            "test_limit",
            "test_native",
            "test_swap",
            "test_together",
            "soak",
        ),
    ),
}


def compile_file(source: Path, output: Path, flags: tuple[str, ...]) -> None:
    """Compile one file to an object file; a warning is an error."""
    warnings = [w for w in WARNINGS if w != "-Wpedantic" or source.name not in COMPUTED_GOTO]
    command = [str(COMPILER), *warnings, "-D_GNU_SOURCE", "-fPIC", "-fvisibility=hidden"]
    command += [*flags, *INCLUDES, "-c", str(source), "-o", str(output)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert result.returncode == 0, f"{source.name}: {result.stderr}"


def link(objects: list[Path], output: Path, flags: tuple[str, ...]) -> None:
    """Link object files to a program, or to a library with -shared among the flags."""
    command = [str(COMPILER), *flags, *map(str, objects), "-o", str(output), "-pthread", "-ldl"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert result.returncode == 0, result.stderr


def compile_files(sources: list[Path], folder: Path, flags: tuple[str, ...]) -> list[Path]:
    """The object files of several sources."""
    objects = [folder / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda s, o: compile_file(s, o, flags), sources, objects))
    return objects


class Objects:
    """The object files and programs of builds, made when first asked for."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self.runtime, self.tests = cache(self._runtime), cache(self._tests)
        self.program = cache(self._program)

    def _runtime(self, name: str) -> list[Path]:
        """Those of the runtime in the build of a name."""
        sources = sorted((RUNTIME / "src").glob("*.c"))
        return self._compiled(name, "runtime", sources, BUILDS[name].level)

    def _tests(self, name: str) -> list[Path]:
        """The build's tests, and the library that they load."""
        only = BUILDS[name].only
        expected = [*TESTS, "soak", "fuzz_load"] if only is None else only
        sources = [HERE / f"{test}.c" for test in ("library", *expected)]
        return self._compiled(name, "tests", sources, "-O0")

    def _program(self, name: str, test: str) -> Path:
        """A test program, or library.so."""
        flags, linked = BUILDS[name].flags, self.runtime(name)
        if test == "library.so":
            flags, linked = ("-shared",), []
        (result,) = (item for item in self.tests(name) if item.stem == test.removesuffix(".so"))
        return made_once(
            self._factory, f"{name}-{test}", lambda to: link([*linked, result], to, flags)
        )

    def _compiled(self, name: str, kind: str, sources: Sequence[Path], level: str) -> list[Path]:
        """What a build has of its own, and links to the files of the build that it is like."""
        build = BUILDS[name]
        own = [source for source in sources if build.is_own(source)]
        flags = (level, *build.flags, *(f"-D{macro}" for macro in build.macros))

        def make(folder: Path) -> None:
            folder.mkdir(exist_ok=True)
            compile_files(own, folder, flags)
            for file in getattr(self, kind)(build.like) if build.like else ():
                if not (folder / file.name).exists():
                    (folder / file.name).symlink_to(file)

        folder = made_once(self._factory, f"{name}-{kind}", make)
        return [folder / f"{source.stem}.o" for source in sources]
