"""Fixtures of the driver's tests."""

from pathlib import Path

import pytest
from onnx_files import model

import ekiden


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled file of the small model."""
    path = tmp_path_factory.mktemp("artifact") / "small.eki"
    ekiden.compile(model()).save(path)
    return path
