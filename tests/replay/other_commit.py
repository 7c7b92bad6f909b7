"""Check out another commit of this repository as an importable folder."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD_INPUTS = ("CMakeLists.txt", "runtime", ":(glob)src/ekiden/runtime/**/*.p[yx][xi]")
"""What the compiled part of the package is made of."""


@dataclass(frozen=True)
class Checkout:
    """The files of a commit, and how a program is run with its package."""

    folder: Path
    python: tuple[str, ...]
    """The interpreter and its options."""
    environment: Mapping[str, str]


def git(*args: str) -> str:
    """Return what a command of git prints, stripped. Exits with its message where it fails."""
    ran = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"git {' '.join(args)}: {ran.stderr.strip()}")
    return ran.stdout.strip()


def merge_base(name: str) -> str:
    """Return the commit of that name, or of another branch that at which this one left it."""
    return git("merge-base", "HEAD", name)


def check_out(commit: str, folder: Path) -> Checkout:
    """Write the files of a commit to a new folder, with a compiled runtime: the one of the running
    package where it is made of the same sources, else its own, built."""
    archive = ["git", "-C", str(ROOT), "archive", commit]
    files = subprocess.run(archive, capture_output=True, check=True).stdout
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=files, check=True)
    compared = ["git", "-C", str(ROOT), "diff", "--quiet", commit, "--", *BUILD_INPUTS]
    package = folder / "src"
    if subprocess.run(compared).returncode == 0:
        _link_runtime(package)
    else:
        package = folder / "installed"
        _build(folder, package)
    # without `site`, no .pth file of an editable installation brings this tree in
    others = [path for path in sys.path if path and not _is_source_folder(Path(path))]
    paths = [str(package), *others]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return Checkout(folder, (sys.executable, "-S"), environment)


def _is_source_folder(path: Path) -> bool:
    """Whether a folder of `sys.path` is one of this repository's own."""
    return path.is_relative_to(ROOT) and "site-packages" not in path.parts


def _link_runtime(package: Path) -> None:
    """Link the installed compiled files of the package into the sources of another tree, each where
    it stands in the package."""
    core = importlib.import_module("ekiden.runtime.binding._core").__file__
    assert core is not None, "an extension has a file"
    installed = Path(core).parents[3]  # of ekiden/runtime/binding/_parse_core
    for path in sorted((installed / "ekiden").rglob("*")):  # a folder comes before its files
        link = package / path.relative_to(installed)
        if not link.exists():
            link.symlink_to(path)


def _build(folder: Path, site: Path) -> None:
    """Install the package of a tree into a folder, with the build tools of this environment."""
    print("building the runtime of that commit", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(site), str(folder)], check=True)
