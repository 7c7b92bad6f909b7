"""Files that are made once for all workers of a test run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from hang_reports import timeout

BUILD_SECONDS = 1800
"""Time for one build, its queue included: a compiler with an empty cache on a machine in use."""


def folder_of_run(factory: pytest.TempPathFactory) -> Path:
    """The temporary folder that the workers of a run share."""
    mine = factory.getbasetemp()
    return mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The file of a name in a folder of its own, where the first worker that wants it makes it.

    `make` gets the path to write; what it raises is raised, and the next one tries again.
    """
    folder = folder_of_run(factory) / f"made-{name}"
    folder.mkdir(exist_ok=True)
    with timeout(BUILD_SECONDS), FileLock(folder / "lock"):
        if not (folder / "whole").exists():
            make(folder / name)
            (folder / "whole").touch()
    return folder / name
