"""Fixtures of the driver's tests: kernels are cached in a folder of the test run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx_files import model

import ekiden


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of compiled kernels, for this folder's tests."""
    before = os.environ.get("EKIDEN_CACHE_DIR")
    folder = tmp_path_factory.mktemp("kernels")
    os.environ["EKIDEN_CACHE_DIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["EKIDEN_CACHE_DIR"]
    else:
        os.environ["EKIDEN_CACHE_DIR"] = before


@pytest.fixture(scope="session")
def artifact(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled file of the small model."""
    path = tmp_path_factory.mktemp("artifact") / "small.eki"
    ekiden.compile(model()).save(path)
    return path
