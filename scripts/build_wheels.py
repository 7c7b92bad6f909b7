#!/usr/bin/env python3
"""Build the files of a release into dist/: wheels of ekiden and ekiden-runtime, the sdist.

    scripts/build_wheels.py --python python3.11 --python python3.12 --arch x86_64 --arch aarch64

Each wheel is for one CPython and one processor. Code for both processors comes of the package
`ziglang`, against the glibc that `PLATFORMS` names, so that no container is needed; of a CPython
only the headers are. docs/releasing.md says what a release is, and where headers are to be had.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from generated_files import REPOSITORY_ROOT
from wheel_files import runtime_wheel

MIN_GLIBC_VERSION = (2, 17)
"""The oldest C library that the wheels run with; that of manylinux2014."""
PLATFORMS = {
    arch: f"manylinux_{MIN_GLIBC_VERSION[0]}_{MIN_GLIBC_VERSION[1]}_{arch}"
    for arch in ("x86_64", "aarch64")
}
MAX_RUNTIME_WHEEL_BYTES = 1_000_000
"""Bytes of a wheel of ekiden-runtime."""
_TOOL_WRAPPER = """\
#!/bin/sh
for each do # zig has names of its own for the classes of x86-64
  case $each in -march=x86-64*) each=-march=x86_64$(echo "${{each#-march=x86-64}}" | tr - _) ;; esac
  set -- "$@" "$each"
  shift
done
exec '{python}' -m ziglang {tool} {target} "$@"
"""


@dataclass(frozen=True, slots=True)
class CPython:
    """CPython to build for: its version, such as (3, 14), and its header folder."""

    version: tuple[int, int]
    headers: Path

    @property
    def tag(self) -> str:
        """Return its wheel tag, such as cp314."""
        return f"cp{self.version[0]}{self.version[1]}"


def locate_cpython(text: str) -> CPython:
    """Return the CPython of an interpreter, or of a folder that contains Python.h. Raises
    SystemExit.
    """
    path = Path(text)
    if not path.is_dir():
        code = "import sysconfig; print(sysconfig.get_path('include'))"
        try:
            query = subprocess.run([text, "-c", code], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"--python {text}: expected an interpreter that runs, or a folder with"
                             f" Python.h: {error}") from error  # fmt: skip
        path = Path(query.stdout.strip())
    head = path / "patchlevel.h"
    version_parts = re.findall(r"#define PY_M(?:AJOR|INOR)_VERSION\s+(\d+)", _read_if_exists(head))
    if len(version_parts) != 2:
        raise SystemExit(f"--python {text}: expected the headers of a CPython, got {path}")
    return CPython((int(version_parts[0]), int(version_parts[1])), path.resolve())


def _read_if_exists(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def toolchain(folder: Path, arch: str, headers: Path) -> dict[str, str]:
    """Write zig wrapper scripts for an architecture, and return the CMake variables that select
    them.
    """
    folder.mkdir(parents=True)
    # zig links against stubs of this glibc version, so newer symbols cannot slip in.
    target = f"-target {arch}-linux-gnu.{MIN_GLIBC_VERSION[0]}.{MIN_GLIBC_VERSION[1]}"
    for tool in ("cc", "ar", "ranlib"):
        path = folder / tool
        words = {"python": sys.executable, "tool": tool, "target": target if tool == "cc" else ""}
        path.write_text(_TOOL_WRAPPER.format(**words), encoding="utf-8")
        path.chmod(0o755)
    return {
        "CMAKE_C_COMPILER": str(folder / "cc"),
        "CMAKE_AR": str(folder / "ar"),
        "CMAKE_RANLIB": str(folder / "ranlib"),
        # No path of this machine, and nothing for debuggers, of which each library would have
        # more than code. Debian's pyconfig.h includes that of the processor from the folder above,
        # which may have another C library's headers too.
        "CMAKE_C_FLAGS": f"-g0 -ffile-prefix-map={REPOSITORY_ROOT}=."
        f" -ffile-prefix-map={folder.parent}=."
        f" -idirafter {headers.parent} -idirafter {prepare_pyconfig(arch, headers, folder)}",
        "CMAKE_SHARED_LINKER_FLAGS": "-s",
        "CMAKE_MODULE_LINKER_FLAGS": "-s",
    }


def prepare_pyconfig(arch: str, headers: Path, folder: Path) -> Path:
    """Return an include folder with the architecture-specific pyconfig.h that Debian's header
    includes; empty if the headers need none. A Debian package contains only its own processor's
    file. Another processor's stands in, as non-Debian headers do for all: the processors of
    `PLATFORMS` have the same type sizes and byte order.
    """
    config_dir = folder / "config"
    name = f"{headers.name}/pyconfig.h"
    pyconfig_files = sorted(headers.parent.glob(f"*-linux-gnu/{name}"))
    required = f"{arch}-linux-gnu/{name}"
    if pyconfig_files and headers.parent / required not in pyconfig_files:
        (config_dir / required).parent.mkdir(parents=True)
        shutil.copy(pyconfig_files[0], config_dir / required)
    return config_dir


def build_wheel(python: CPython, arch: str, out: Path) -> Path:
    """Build Ekiden's wheel for one CPython and processor."""
    soabi = f"cpython-{python.version[0]}{python.version[1]}-{arch}-linux-gnu"
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        defines = toolchain(work / "bin", arch, python.headers) | {
            "EKIDEN_PYTHON_HEADERS": str(python.headers),
            "EKIDEN_PYTHON_SOABI": soabi,
        }
        settings = [
            f"wheel.tags={python.tag}-{python.tag}-{PLATFORMS[arch]}",
            f"build-dir={work / 'build'}",
            "install.strip=false",  # the linker strips, and knows the processor
            *(f"cmake.define.{key}={value}" for key, value in defines.items()),
        ]
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-build-isolation",
            "--no-deps",
            "--quiet",
            "--wheel-dir",
            str(work / "wheels"),
            str(REPOSITORY_ROOT),
        ]
        path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"  # cmake, ninja
        subprocess.run([*command, *(f"-C{setting}" for setting in settings)],
                       check=True, env=os.environ | {"PATH": path})  # fmt: skip
        (wheel,) = (work / "wheels").glob("*.whl")
        return Path(shutil.move(wheel, out / wheel.name))


def audit_wheel(wheel: Path) -> None:
    """Raise SystemExit if auditwheel finds that a wheel requires more than its platform tag
    promises.
    """
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    report = subprocess.run(command, capture_output=True, text=True, check=False)
    report_text = " ".join(report.stdout.split())
    promised = wheel.stem.rpartition("-")[2]
    tag_match = re.search(r'consistent with the following platform tag: "([^"]+)"', report_text)
    if report.returncode or tag_match is None or tag_match[1] != promised:
        raise SystemExit(f"{wheel.name}: auditwheel: {report_text}{report.stderr}")


def build_sdist(out: Path) -> None:
    """Build the source archive."""
    code = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(out)], check=True, cwd=REPOSITORY_ROOT)


def format_sizes(out: Path) -> str:
    """Return a table of the built files."""
    rows = [
        f"| {path.name} | {path.stat().st_size / 1000:,.0f} |" for path in sorted(out.iterdir())
    ]
    return "\n".join(["| file | kB |", "|---|--:|", *rows])


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", action="append", metavar="PYTHON", type=locate_cpython,
                        help="an interpreter or folder with Python.h; may be repeated")  # fmt: skip
    parser.add_argument("--arch", action="append", choices=PLATFORMS,
                        help="a processor; may be repeated; all of them unless given")  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=REPOSITORY_ROOT / "dist", help="the folder (dist)"
    )
    options = parser.parse_args(arguments)
    options.python = options.python or [locate_cpython(sys.executable)]
    options.arch = options.arch or list(PLATFORMS)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Build all files of a release; return the exit status."""
    options = parse_arguments(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    # Reproducible archives: a fixed timestamp instead of the build time.
    os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")  # 1980, the first year of zip files
    build_sdist(options.out)
    for arch in options.arch:
        for python in options.python:
            wheel = build_wheel(python, arch, options.out)
            audit_wheel(wheel)
            small = runtime_wheel(wheel, options.out)
            audit_wheel(small)
            if small.stat().st_size > MAX_RUNTIME_WHEEL_BYTES:
                raise SystemExit(f"{small.name}: at most {MAX_RUNTIME_WHEEL_BYTES} bytes, not"
                                 f" {small.stat().st_size}")  # fmt: skip
    print(format_sizes(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
