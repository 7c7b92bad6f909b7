"""Conversions between every two data types that code computes with; tests/tir/test_small_types.py
has those that become these first."""

from __future__ import annotations

import numpy as np
import pytest
from codegen_kernels import run_map, to_array

from ekiden.ir import dtype as dt
from ekiden.ir.prim import cast
from long_runs import share

DTYPES = [d for d in dt.SCALAR_BITS if d != "handle" and not dt.is_byte_stored(d)]


@share(4)
@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_cast_agrees_with_numpy(source: str, target: str) -> None:
    values = [0, 1, 2, 3, 100, 127] + ([-1, -3, -128] if source[0] not in "ub" else [])
    if dt.is_float(source):
        values = [v for v in values if v >= 0 or not dt.is_unsigned(target)] + [0.5, 1.5, 99.75]  # type: ignore[list-item]
    x = to_array(values, source)
    for lanes in (1, 16):
        result = run_map(
            lambda v, n=lanes: cast(v, dt.with_lanes(target, n)), [x], [source], target, lanes
        )
        assert np.array_equal(result, x.astype(result.dtype)), lanes


@share(4)
@pytest.mark.parametrize("source", ["float64", "float32"])
@pytest.mark.parametrize("target", ["float16", "bfloat16"])
def test_narrow_floats_round_once(source: str, target: str, lanes: int) -> None:
    random = np.random.default_rng(5)
    x = np.concatenate(
        [
            random.standard_normal(3000) * 2.0 ** random.integers(-30, 18, 3000),
            1 + 2.0**-11 + np.array([0, 2.0**-50, -(2.0**-50)]),
            1 + 2.0**-8 + np.array([0, 2.0**-50, -(2.0**-50)]),
            [np.inf, -np.inf, np.nan, 1e300, -1e300, 65519.999, 65520.0, 0.0, -0.0],
        ]
    )
    with np.errstate(over="ignore"):
        x = x.astype(source)
        want = x.astype("float16") if target == "float16" else to_array(x.astype("float32"), target)
    if target == "bfloat16" and source == "float64":
        x, want = x[:3000].astype("float32").astype("float64"), want[:3000]
    result = run_map(
        lambda v: cast(v, v.dtype.replace(source, target)), [x], [source], target, lanes
    )
    np.testing.assert_array_equal(
        result.view("uint16")[~np.isnan(want)], want.view("uint16")[~np.isnan(want)]
    )
    assert np.isnan(result[np.isnan(want)].astype("float32")).all()


def test_large_unsigned_casts_match_numpy() -> None:
    x = np.array([2.0**63, 2.0**63 + 2048, 1.0, 2.0**62], "float64")
    assert np.array_equal(
        run_map(lambda v: cast(v, "uint64"), [x], ["float64"], "uint64", 1), x.astype("uint64")
    )
