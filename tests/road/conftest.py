"""End-to-end tests compile into a cache of their own, so that they measure and change nobody's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for this run, unless the caller chose one."""
    if "EKIDEN_CACHE_DIR" in os.environ:
        yield
        return
    os.environ["EKIDEN_CACHE_DIR"] = str(tmp_path_factory.mktemp("kernels"))
    yield
    del os.environ["EKIDEN_CACHE_DIR"]
