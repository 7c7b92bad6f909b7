"""The error function saturates at 1."""

from __future__ import annotations

import platform

import numpy as np
import pytest

import ekiden
from ekiden import relay

pytestmark = pytest.mark.quick


WITHOUT_FUSED = ["llvm -mcpu=x86-64-v2"] if platform.machine() == "x86_64" else []


@pytest.mark.parametrize("target", ["llvm", *WITHOUT_FUSED])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_erf_saturates_at_one(dtype: str, target: str) -> None:
    ends = [6.5, 10, 6e4, np.inf]
    x = np.array([*ends, *(-e for e in ends), np.nan, 0.0, -0.0], dtype)
    module = relay.parse(f"def @main(%x: Tensor[({x.size},), {dtype}]) {{ erf(%x) }}")
    result = np.asarray(ekiden.compile(module, target=target)(x))
    np.testing.assert_array_equal(result, np.array([1] * 4 + [-1] * 4 + [np.nan, 0, 0], dtype))
