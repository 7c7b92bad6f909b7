"""The wheels of a release, built: twice the same bytes, and each runs where its name says."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import ekiden
from long_runs import LONG

ROOT = Path(__file__).parents[2]
NEEDED = ("ziglang", "auditwheel", "scikit_build_core", "Cython", "cmake", "ninja")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
KEPT = ROOT / "tests/compat" / ekiden.__version__.rpartition(".")[0]

pytestmark = [
    LONG,
    pytest.mark.skipif(bool(MISSING), reason=f"needs ekiden[release]: {', '.join(MISSING)}"),
]

RUN = """
import sys, numpy as np, ekiden
print(ekiden.load(sys.argv[1])(np.int32(4), np.float32([1, 2])).numpy().tolist())
"""


def build(root: Path, out: Path) -> dict[str, bytes]:
    """The files of a release for this CPython, from the sources in a folder."""
    script = root / "scripts" / "build_wheels.py"
    done = subprocess.run([sys.executable, str(script), "--out", str(out)],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both packages for both processors, and the sdist."""
    out = tmp_path_factory.mktemp("release") / "dist"
    build(ROOT, out)
    return out


def only(folder: Path, pattern: str) -> Path:
    (result,) = folder.glob(pattern)
    return result


def test_two_builds_are_equal_to_the_byte(release: Path, tmp_path: Path) -> None:
    """The second from a copy of the sources in another place."""
    copy = tmp_path / "elsewhere"
    tracked = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True,
                             text=True, check=True).stdout.split("\0")  # fmt: skip
    for name in filter(None, tracked):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    again = build(copy, tmp_path / "dist")
    assert {name for name in again if again[name] != (release / name).read_bytes()} == set()


def test_wheel_contains_the_whole_package(release: Path) -> None:
    names = set(zipfile.ZipFile(only(release, f"ekiden-*{platform.machine()}.whl")).namelist())
    tracked = subprocess.run(["git", "-C", str(ROOT), "ls-files", "src"], capture_output=True,
                             text=True, check=True).stdout.split()  # fmt: skip
    expected = {name.removeprefix("src/") for name in tracked}
    compiled = {name for name in expected if name.endswith((".pyx", ".pxi", ".pxd"))}
    assert expected - compiled - names == set()
    assert {name for name in names if name.startswith("tests") or "/tests/" in name} == set()


def test_small_wheel_runs_alone(release: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    wheel = only(release, f"ekiden_runtime-*{platform.machine()}.whl")
    install = ["-m", "pip", "install", "--quiet", "--only-binary", ":all:", str(wheel)]
    subprocess.run([python, *install], check=True)
    words = [python, "-I", "-c", RUN, str(KEPT / "loop.eki")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[81.0, 162.0]\n", "")
