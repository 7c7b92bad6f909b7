#!/usr/bin/env python3
"""Build the language binding packages into dist/bindings, and with --docs their API references.

    scripts/build_bindings.py [NAME ...] [--to FOLDER] [--docs]

A name is a row of PACKAGES; without one all whose tools are there are built, and the others named.
The runtime's library of this machine goes into the jar and into Node's package, which then need
nothing else. References are made by each language's own tool, whose warnings are errors.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from generated_files import REPOSITORY_ROOT

import ekiden
from ekiden import runtime
from ekiden.compiler.export.web import (
    RUNTIME_FILE,
    THREADED_RUNTIME_FILE,
    build_runtime,
    package_files,
)
from ekiden.runtime.paths import web_source_dir

BINDINGS_FOLDER = REPOSITORY_ROOT / "bindings"
RUNTIME_LIBRARY = runtime.library_path().resolve()
NATIVE_PLATFORM = f"linux-{platform.machine()}"


class MissingToolError(Exception):
    """Error raised when a tool that a package needs is not installed."""


def find_tool(name: str) -> str:
    """Return the path of a program, from Python's scripts folder or the search path. Raises
    MissingToolError.
    """
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which(name, path=search_path)
    if program is None:
        raise MissingToolError(name)
    return program


def find_jdk_tool(name: str) -> str:
    """Return a program of a JDK from version 22 on, from JAVA_HOME or /usr/lib/jvm. Raises
    MissingToolError.
    """
    homes = [Path(os.environ.get("JAVA_HOME", "/nowhere")), *sorted(Path("/usr/lib/jvm").glob("*"))]
    for home in homes:
        release = home / "release"
        version_match = (
            re.search(r'JAVA_VERSION="(\d+)', release.read_text()) if release.exists() else None
        )
        if version_match and int(version_match[1]) >= 22 and (home / "bin" / name).exists():
            return str(home / "bin" / name)
    raise MissingToolError(f"{name} of a JDK of 22 or later, of JAVA_HOME or /usr/lib/jvm")


FAST_JVM_FLAGS = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC")
"""Options of a tool of the JDK, which ends soon: to optimise what runs once took half its time."""


def run_command(words: Sequence[object], folder: Path, **more: str) -> str:
    """Run a program and return its output. Raises SystemExit with its messages if it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={**os.environ, "EKIDEN_LIB_DIR": str(RUNTIME_LIBRARY.parent), **more},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(f"build_bindings: {words[0]}: {done.stdout}{done.stderr}")
    return done.stdout


def build_java_jar(to: Path) -> Path:
    """Build a jar with the classes and the native library."""
    sources = sorted((BINDINGS_FOLDER / "java/src").rglob("*.java"))
    jar_file = to / f"ekiden-{ekiden.__version__}.jar"
    with tempfile.TemporaryDirectory() as scratch:
        build_dir = Path(scratch)
        words = [
            "--release",
            "22",
            "-Xlint:all,-restricted",
            "-Werror",
            "-d",
            build_dir / "classes",
        ]
        run_command([find_jdk_tool("javac"), *FAST_JVM_FLAGS, *words, *sources], build_dir)
        native = build_dir / "classes/native" / NATIVE_PLATFORM
        native.mkdir(parents=True)
        shutil.copyfile(RUNTIME_LIBRARY, native / RUNTIME_LIBRARY.name)
        (build_dir / "manifest").write_text(
            "Automatic-Module-Name: dev.ekiden\nEnable-Native-Access: ALL-UNNAMED\n"
        )
        manifest = build_dir / "manifest"
        run_command(
            [
                find_jdk_tool("jar"),
                *FAST_JVM_FLAGS,
                "--create",
                "--file",
                jar_file,
                "--manifest",
                manifest,
                "-C",
                build_dir / "classes",
                ".",
            ],
            build_dir,
        )
    return jar_file


def write_javadoc(to: Path) -> None:
    """Write the reference with javadoc."""
    sources = sorted((BINDINGS_FOLDER / "java/src").rglob("*.java"))
    run_command(
        [
            find_jdk_tool("javadoc"),
            *FAST_JVM_FLAGS,
            "-quiet",
            "-Xdoclint:all,-missing",
            "-Werror",
            "-d",
            to,
            *sources,
        ],
        REPOSITORY_ROOT,
    )


def build_node_package(to: Path) -> Path:
    """Build an npm package with the addon and this machine's library."""
    name = run_command(
        [find_tool("node"), "-p", "`${process.platform}-${process.arch}`"], REPOSITORY_ROOT
    ).strip()
    with tempfile.TemporaryDirectory() as scratch:
        package_dir = Path(scratch) / "package"
        shutil.copytree(
            BINDINGS_FOLDER / "node", package_dir, ignore=shutil.ignore_patterns("*.node")
        )
        prebuilt = package_dir / "prebuilt" / name
        prebuilt.mkdir(parents=True)
        shutil.copyfile(RUNTIME_LIBRARY, prebuilt / RUNTIME_LIBRARY.name)
        include = {"EKIDEN_INCLUDE_DIR": str(runtime.include_dir()), "EKIDEN_RPATH": "$ORIGIN"}
        run_command(
            [find_tool("node"), "build.js", prebuilt / "ekiden.node"], package_dir, **include
        )
        return npm_pack(package_dir, to)


def build_web_package(to: Path) -> Path:
    """Build the browser package with both runtimes."""
    if find_spec("ziglang") is None:
        raise MissingToolError("ziglang of PyPI, a C compiler for WebAssembly")
    with tempfile.TemporaryDirectory() as scratch:
        package_dir = Path(scratch)
        for name in package_files():
            shutil.copyfile(web_source_dir() / name, package_dir / name)
        for name in (RUNTIME_FILE, THREADED_RUNTIME_FILE):
            (package_dir / name).write_bytes(build_runtime(name=name))
        return npm_pack(package_dir, to)


def npm_pack(folder: Path, to: Path) -> Path:
    """Pack a folder into the tarball that npm publishes."""
    words = [find_tool("npm"), "pack", "--ignore-scripts", "--pack-destination", to]
    return to / run_command(words, folder).split()[-1]


def make_typedoc_writer(name: str) -> Callable[[Path], None]:
    """Return a function that writes a package's API reference with TypeDoc."""

    def write(to: Path) -> None:
        words = ["--treatWarningsAsErrors", "--skipErrorChecking", "--readme", "none", "--out", to]
        run_command([find_tool("typedoc"), *words, "index.d.ts"], BINDINGS_FOLDER / name)

    return write


def build_rust_crate(to: Path) -> Path:
    """Build a crate."""
    with tempfile.TemporaryDirectory() as scratch:
        words = ["package", "--no-verify", "--offline", "--allow-dirty", "--quiet"]
        run_command([find_tool("cargo"), *words, "--target-dir", scratch], BINDINGS_FOLDER / "rust")
        crate = next((Path(scratch) / "package").glob("*.crate"))
        return Path(shutil.copy(crate, to))


def write_rustdoc(to: Path) -> None:
    """Write the reference with rustdoc."""
    words = ["doc", "--no-deps", "--offline", "--quiet", "--target-dir", to]
    run_command([find_tool("cargo"), *words], BINDINGS_FOLDER / "rust", RUSTDOCFLAGS="-D warnings")


def archive_go_module(to: Path) -> Path:
    """Archive the files of the Go module, which need no build."""
    archive_base = to / f"ekiden-go-{ekiden.__version__}"
    names = [path for path in (BINDINGS_FOLDER / "go").iterdir() if path.is_file()]
    with tempfile.TemporaryDirectory() as scratch:
        for path in names:
            if not path.name.endswith("_test.go"):
                shutil.copyfile(path, Path(scratch) / path.name)
        return Path(shutil.make_archive(str(archive_base), "zip", scratch))


def write_go_doc(to: Path) -> None:
    """Write the reference with go doc, as text."""
    to.mkdir(parents=True, exist_ok=True)
    flags = {"GOTOOLCHAIN": "local", "GOPROXY": "off"}
    (to / "ekiden.txt").write_text(
        run_command([find_tool("go"), "doc", "-all", "."], BINDINGS_FOLDER / "go", **flags)
    )


@dataclass(frozen=True, slots=True)
class BindingPackage:
    """Language binding: the builders of its package and of its API reference."""

    build_package: Callable[[Path], Path]
    write_docs: Callable[[Path], None]


BINDING_PACKAGES = {
    "rust": BindingPackage(build_rust_crate, write_rustdoc),
    "go": BindingPackage(archive_go_module, write_go_doc),
    "java": BindingPackage(build_java_jar, write_javadoc),
    "node": BindingPackage(build_node_package, make_typedoc_writer("node")),
    "web": BindingPackage(build_web_package, make_typedoc_writer("web")),
}


def main() -> int:
    """Build the requested packages; return 1 if a tool for an explicitly requested one is
    missing.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BINDING_PACKAGES)}")
    parser.add_argument("--to", type=Path, default=REPOSITORY_ROOT / "dist/bindings")
    parser.add_argument("--docs", action="store_true", help="write the references too")
    options = parser.parse_args()
    to, missing = options.to.resolve(), False
    to.mkdir(parents=True, exist_ok=True)
    for name in options.names or BINDING_PACKAGES:
        try:
            package_file = BINDING_PACKAGES[name].build_package(to)
            print(f"{name}: {package_file.name}, {package_file.stat().st_size / 1e3:.0f} kB")
            if options.docs:
                BINDING_PACKAGES[name].write_docs(to / "docs" / name)
        except MissingToolError as error:
            print(f"{name}: left out, needs {error}")
            missing = missing or name in options.names
    return int(missing)


if __name__ == "__main__":
    raise SystemExit(main())
