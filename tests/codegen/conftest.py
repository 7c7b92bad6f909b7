"""Fixtures of the code generator's tests."""

import pytest


@pytest.fixture(params=[1, 3, 16])
def lanes(request: pytest.FixtureRequest) -> int:
    """A scalar, an odd vector and a full one."""
    return int(request.param)
