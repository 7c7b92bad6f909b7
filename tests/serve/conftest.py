"""A server of all programs for the tests that change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import PROGRAMS, Running, put, serving


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in PROGRAMS:
        put(folder, name)
    config = '[sequences]\nstate = { "h" = "output1" }\n'
    (folder / "step" / "model.toml").write_text(config)
    return folder


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[Running]:
    """One for each file: while it runs, its bound on memory holds in the whole process."""
    with serving(models) as running:
        yield running
