"""Tests at two sizes: the usual one, and the whole one of `pytest -m long`."""

from __future__ import annotations

import pytest

HOURS = 3600
LONG = (pytest.mark.long, pytest.mark.timeout(2 * HOURS))
"""The marks of what takes long; tests/conftest.py leaves it out where nobody asks for it."""


def sizes(name: str, usual: int, whole: int) -> pytest.MarkDecorator:
    """The argument `name` of a test, at its usual size and under the marker `long` at its whole."""
    return pytest.mark.parametrize(name, [usual, pytest.param(whole, marks=LONG)])
