"""Artifacts of earlier releases run with this runtime (docs/releasing.md)."""

from __future__ import annotations

import platform
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from artifact_programs import LIBRARY, PROGRAMS

import ekiden
from ekiden.runtime.errors import LoadError

pytestmark = pytest.mark.quick

HERE = Path(__file__).parent
RELEASES = sorted(path.name for path in HERE.iterdir() if (path / "dense.eki").is_file())
MINOR = ekiden.__version__.rpartition(".")[0]


def check(exe: ekiden.Executable, name: str) -> None:
    program = PROGRAMS[name]
    result = exe(*program.args)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    assert len(results) == len(program.results)
    for actual, expected in zip(results, program.results, strict=True):
        np.testing.assert_array_equal(actual.numpy(), expected)


def test_current_version_has_release_artifacts() -> None:
    """`scripts/write_compatibility_artifacts.py` writes those of a new minor version or row."""
    kept = {path.stem for path in (HERE / MINOR).glob("*.eki")}
    assert kept == set(PROGRAMS)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_artifacts_of_earlier_releases_run(release: str, name: str) -> None:
    path = HERE / release / f"{name}.eki"
    if not path.exists() and release != MINOR:
        pytest.skip(f"{release} was released before the program {name!r} was kept")
    check(ekiden.load(path), name)


@pytest.mark.parametrize("release", RELEASES)
def test_libraries_of_earlier_releases_run(release: str) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the kept libraries are for x86-64")
    check(ekiden.load(HERE / release / f"{LIBRARY}.so"), LIBRARY)


def test_artifact_of_later_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "later.eki"
    shutil.copy(HERE / MINOR / "dense.eki", path)
    data = bytearray(path.read_bytes())
    data[8:12] = struct.pack("<I", 2)
    path.write_bytes(data)
    with pytest.raises(LoadError, match="format version 1 expected, got 2"):
        ekiden.load(path)
