"""The WebAssembly runtimes, compiled once per run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ekiden.compiler.export.web import RUNTIME_FILE, THREADED_RUNTIME_FILE, build_runtime
from shared_files import made_once


def build_all(message: Path) -> None:
    """Compile them into the cache, where tests find them; the file says that they are there."""
    for name in (RUNTIME_FILE, THREADED_RUNTIME_FILE):
        build_runtime(name=name)
    message.touch()


@pytest.fixture(scope="session")
def web_runtime(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For `usefixtures`: the second worker waits for the first, instead of compiling them too."""
    made_once(tmp_path_factory, "web", build_all)
