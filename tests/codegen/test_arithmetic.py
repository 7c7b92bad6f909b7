"""Two-operand nodes on every data type, against NumPy; integer division never traps."""

from __future__ import annotations

import numpy as np
import pytest
from codegen_kernels import run_map, to_array

from ekiden.ir import dtype as dt
from ekiden.ir import prim
from ekiden.ir.prim import BinaryExpr, PrimExpr
from ekiden.tir.expr import VectorReduce, broadcast
from long_runs import share

NUMPY = {
    prim.Add: np.add,
    prim.Sub: np.subtract,
    prim.Mul: np.multiply,
    prim.Min: np.minimum,
    prim.Max: np.maximum,
    prim.FloorDiv: np.floor_divide,
    prim.FloorMod: np.mod,
    prim.EQ: np.equal,
    prim.NE: np.not_equal,
    prim.LT: np.less,
    prim.LE: np.less_equal,
    prim.GT: np.greater,
    prim.GE: np.greater_equal,
}
NUMBERS = [d for d in dt.SCALAR_BITS if d not in ("handle", "bool") and not dt.is_byte_stored(d)]


def operands(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of some edge values."""
    if dt.is_float(dtype):
        values = to_array([0.0, 1.0, -1.0, 2.5, -7.25, 100.0, 0.375], dtype)
    else:
        limits = np.iinfo(dtype)
        values = np.array([limits.min, limits.max, 1, 2, 3, 7, 100, limits.max // 2], dtype)
        if limits.min < 0:
            values = np.concatenate([values, np.array([-1, -3, -100], dtype)])
        values = np.concatenate([values, np.zeros(1, dtype)])
    x, y = np.meshgrid(values, values)
    return x.ravel(), y.ravel()


@share(4)
@pytest.mark.parametrize("kind", NUMPY, ids=lambda k: k.__name__)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_binary_operators_match_numpy(kind: type[BinaryExpr], dtype: str) -> None:
    x, y = operands(dtype)
    division = kind in (prim.FloorDiv, prim.FloorMod)
    if division and dt.is_float(dtype):
        x, y = x[y != 0], y[y != 0]
    output = "bool" if kind in prim.COMPARISON_OPS else dtype
    with np.errstate(all="ignore"):
        want = NUMPY[kind](x, y)
    for lanes in (1, 16):
        result = dt.with_lanes(output, lanes)
        actual = run_map(
            lambda a, b, r=result: kind(a, b, r), [x, y], [dtype, dtype], output, lanes
        )
        np.testing.assert_array_equal(actual, want)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "float32"])
def test_truncating_division_matches_c(dtype: str, lanes: int) -> None:
    x, y = operands(dtype)
    x, y = x[y != 0], y[y != 0]
    result = dt.with_lanes(dtype, lanes)
    actual = run_map(lambda a, b: prim.Div(a, b, result), [x, y], [dtype, dtype], dtype, lanes)
    if dtype == "float32":
        want = x / y
    else:
        with np.errstate(over="ignore"):
            want = np.array([_c_div(int(a), int(b)) for a, b in zip(x, y, strict=True)]).astype(
                dtype
            )
    np.testing.assert_array_equal(actual, want)


def _c_div(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    signed = quotient if (a < 0) == (b < 0) else -quotient
    return (signed + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize("kind", [prim.Max, prim.Min], ids=lambda k: k.__name__)
def test_nan_propagates_in_min_and_max(kind: type[BinaryExpr], lanes: int) -> None:
    x = np.array([np.nan, 1.0, np.nan, 0.0], "float32")
    y = np.array([1.0, np.nan, np.nan, 2.0], "float32")
    result = run_map(lambda a, b: kind(a, b, a.dtype), [x, y], ["float32"] * 2, "float32", lanes)
    np.testing.assert_array_equal(result, NUMPY[kind](x, y))
    constant = dt.with_lanes("float32", lanes)
    zero = prim.FloatImm(0.0, constant)
    result = run_map(lambda a: kind(zero, a, constant), [x], ["float32"], "float32", lanes)
    np.testing.assert_array_equal(result, NUMPY[kind](np.float32(0), x))


@pytest.mark.parametrize("dtype", ["bool"])
def test_bool_operators_match_numpy(dtype: str, lanes: int) -> None:
    x, y = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for kind, want in (
        (prim.And, x & y),
        (prim.Or, x | y),
        (prim.EQ, x == y),
        (prim.NE, x != y),
        (prim.LT, x < y),
    ):
        result = run_map(lambda a, b, k=kind: k(a, b, a.dtype), [x, y], [dtype] * 2, dtype, lanes)
        np.testing.assert_array_equal(result, want)
    result = run_map(lambda a: prim.Not(a, a.dtype), [x], [dtype], dtype, lanes)
    np.testing.assert_array_equal(result, ~x)


@share(3)
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "float16", "bfloat16"])
def test_lane_reductions_match_numpy(kind: str, dtype: str) -> None:
    for lanes in (2, 3, 6, 8, 16, 64):
        x = to_array(np.random.default_rng(0).integers(1, 3, lanes), dtype)
        x[5:] = 1

        def body(v: PrimExpr, n: int = lanes) -> PrimExpr:
            return broadcast(VectorReduce(v, kind, dtype), n)

        result = run_map(body, [x], [dtype], dtype, lanes)
        want = getattr(np, kind)(x.astype("float64"))
        assert float(result[0]) == want, lanes
