"""Engines that a test registers are known in that test alone."""

import pytest

from ekiden.byoc import backend


@pytest.fixture(autouse=True)
def known_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_BACKENDS", dict(backend._BACKENDS))
