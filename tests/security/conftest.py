"""What the tests of this folder build once: the attacks, and the server in C."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from walls import compile_attacks

from ekiden.compiler.export.rpc_server import build_server
from shared_files import made_once


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "attacks.so", compile_attacks)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The server in C, where any user may start it: folders of tests are their user's alone."""
    built = made_once(tmp_path_factory, "ekiden-rpc", build_server)
    with tempfile.TemporaryDirectory(prefix="ekiden-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(shutil.copy(built, folder))
