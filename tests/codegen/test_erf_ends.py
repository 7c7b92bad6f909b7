"""The error function is 1 where it rounds to 1."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import relay

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_erf_ends_at_one(dtype: str) -> None:
    ends = [6.5, 10, 6e4, np.inf]
    x = np.array([*ends, *(-e for e in ends), np.nan, 0.0, -0.0], dtype)
    module = relay.parse(f"def @main(%x: Tensor[({x.size},), {dtype}]) {{ erf(%x) }}")
    found = np.asarray(ekiden.compile(module)(x))
    np.testing.assert_array_equal(found, np.array([1] * 4 + [-1] * 4 + [np.nan, 0, 0], dtype))
