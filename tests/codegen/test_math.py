"""Mathematical functions against NumPy in higher precision: accuracy in ulp, and what happens at
the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from codegen_kernels import GENERATOR, run_map, to_array

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import INTRINSICS, call_intrin
from ekiden.ir.prim import PrimExpr, const, minimum
from ekiden.tir.expr import broadcast
from long_runs import share
from rounding import ULP

EDGES = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-45,
    1e-38,
    88.8,
    104.0,
    -88.0,
    -95.0,
    -103.9,
    -110.0,
    3e38,
    -3e38,
    1.0,
    -1.0,
]


def expected(name: str, x: np.ndarray) -> np.ndarray:
    """The function in the widest precision there is."""
    wide = x.astype(np.longdouble)
    if name == "erf":
        return np.array([math.erf(float(v)) for v in x], np.longdouble)
    if name == "sigmoid":
        return 1 / (1 + np.exp(-wide))
    result: np.ndarray = INTRINSICS[name].reference(wide)  # type: ignore[assignment]
    return result


def ulps(result: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance in units of the last place of the result's type."""
    spacing = np.spacing(np.abs(want).astype(result.dtype)).astype(np.longdouble)
    return np.abs(result.astype(np.longdouble) - want) / spacing


def call(name: str, dtype: str) -> object:
    return lambda *x: call_intrin(name, *x, dtype=x[0].dtype)


@share(4)
@pytest.mark.parametrize("name", ULP)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_math_functions_are_accurate_in_ulp(name: str, dtype: str, lanes: int) -> None:
    single, double, low, high = ULP[name]
    random = np.random.default_rng(7)
    if name in ("log", "rsqrt"):
        x = np.exp(random.uniform(math.log(low), math.log(high), 20000))
        x[:5000] = random.uniform(0.5, 2.0, 5000)
    else:
        x = random.uniform(low, high, 20000)
        x[:5000] = random.uniform(max(low, -2.0), 2.0, 5000)
    x = x.astype(dtype)
    actual = run_map(call(name, dtype), [x], [dtype], dtype, lanes)
    error = ulps(actual, expected(name, x))
    worst = int(error.argmax())
    assert error[worst] <= (single if dtype == "float32" else double), (x[worst], actual[worst])


@share(4)
@pytest.mark.parametrize("name", ULP)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_math_functions_handle_special_values(name: str, dtype: str, lanes: int) -> None:
    periodic = name in ("sin", "cos") and dtype == "float64"
    edges = [v for v in EDGES if not (periodic and abs(v) > 1e9 and np.isfinite(v))]
    with np.errstate(all="ignore"):
        x = to_array(edges, dtype)
        actual = run_map(call(name, dtype), [x], [dtype], dtype, lanes)
        want = to_array(expected(name, x.astype("float64")).astype("float64"), dtype)
    tiny = 3e-45 if dtype == "float32" else 0.0
    if name == "sigmoid" and dtype in ("float32", "bfloat16"):
        tiny = 1.2e-38  # no subnormal results
    tolerance = {"float16": 2e-3, "bfloat16": 1e-2}.get(
        dtype, 2e-6 if dtype == "float32" else 1e-14
    )
    np.testing.assert_allclose(
        actual.astype("float64"), want.astype("float64"), rtol=tolerance, atol=tiny
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_argument_in_a_vector_of_small_ones(dtype: str, lanes: int) -> None:
    x = np.array([0.5, -3.0, 2.0**30, 1e4, -(2.0**29), 7.0, 1e15, np.inf] * 3, dtype)
    for name in ("sin", "cos"):
        actual = run_map(call(name, dtype), [x], [dtype], dtype, lanes)
        with np.errstate(invalid="ignore"):
            want = expected(name, x)
        finite = np.isfinite(x)
        assert np.isnan(actual[~finite]).all()
        assert ulps(actual[finite], want[finite]).max() <= 2.0


def test_sine_of_any_float32(lanes: int) -> None:
    random = np.random.default_rng(2)
    x = (random.uniform(1, 2, 2000) * 2.0 ** random.integers(-20, 128, 2000)).astype("float32")
    x[::2] *= -1
    for name in ("sin", "cos"):
        result = run_map(call(name, "float32"), [x], ["float32"], "float32", lanes)
        want = INTRINSICS[name].reference(x.astype("float64"))  # glibc reduces exactly
        np.testing.assert_allclose(result, want, rtol=1e-6, atol=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sigmoid_has_no_subnormal_results(dtype: str, lanes: int) -> None:
    """They would make what is computed with them take many times as long."""
    low, least = math.log(np.finfo(dtype).tiny), np.finfo(dtype).tiny
    x = np.array([*np.linspace(low - 20, low + 1, 500), -np.inf], dtype)
    actual = run_map(call("sigmoid", dtype), [x], [dtype], dtype, lanes)
    assert np.all((actual == 0) | (actual >= least))
    np.testing.assert_allclose(actual, expected("sigmoid", x).astype("float64"), 0, 1.02 * least)
    assert actual[-1] == 0 and actual[-2] > 2 * least


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tanh_of_small_numbers(dtype: str, lanes: int) -> None:
    """The number itself, down to the least there is, or the next to it where its square still
    counts."""
    x = np.float_power(10.0, -np.arange(5, 45)).astype(dtype)
    x = np.concatenate([x, -x, [0.0, -0.0]]).astype(dtype)
    result = run_map(call("tanh", dtype), [x], [dtype], dtype, lanes)
    want = np.tanh(x.astype(np.longdouble)).astype(dtype)
    np.testing.assert_array_max_ulp(result, want, 1)
    is_same = np.abs(x) < np.finfo(dtype).eps / 16
    np.testing.assert_array_equal(result[is_same], x[is_same])
    np.testing.assert_array_equal(np.signbit(result), np.signbit(x))


def test_tanh_is_at_most_one(lanes: int) -> None:
    x = np.linspace(5, 12, 4000, dtype="float32")
    result = run_map(
        call("tanh", "float32"), [np.concatenate([x, -x])], ["float32"], "float32", lanes
    )
    assert (
        np.all(np.abs(result) <= 1)
        and np.all(result[:4000] > 0.9999)
        and np.all(result[4000:] < -0.9999)
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pow_of_at_most_one(dtype: str, lanes: int) -> None:
    """What exp of the lesser of x and 0 is made of: accurate down to normal numbers; behind, at
    most half a power of two's subnormal numbers are left, rounded once, then 0."""
    tiny = float(np.finfo(dtype).tiny)
    low = math.log(tiny)
    x = np.array([*np.linspace(low - 3, 0, 3000), 0.0, -0.0, 5.0, np.inf, -np.inf, np.nan], dtype)
    zero = const(0.0, dtype)
    result = run_map(
        lambda x: call_intrin("exp", minimum(x, broadcast(zero, dt.lanes(x.dtype))), dtype=x.dtype),
        [x], [dtype], dtype, lanes,
    )  # fmt: skip
    want = np.exp(np.minimum(x, 0).astype(np.longdouble))
    finite = ~np.isnan(x)
    single, double, *_ = ULP["exp"]
    is_normal = finite & ~(want < 1.01 * tiny)
    error = ulps(result[is_normal], want[is_normal])
    assert error.max() <= (single if dtype == "float32" else double)
    lost = result[finite & ~is_normal]
    error = np.abs(lost - want[finite & ~is_normal])
    assert lost.size > 5 and ((lost == 0) | (error <= 2 * tiny * np.finfo(dtype).eps)).all()
    if GENERATOR == "llvm":  # C has one exp, which rounds them
        assert (lost[want[finite & ~is_normal] < 0.7 * tiny] == 0).all()
    assert result[-2] == 0 and np.isnan(result[-1]) and result[-3] == result[-4] == 1


def test_exp_rounds_subnormal_results() -> None:
    x = np.linspace(-103, -87.4, 2000, dtype="float32")
    result = run_map(call("exp", "float32"), [x], ["float32"], "float32", 16)
    assert ulps(result, np.exp(x.astype(np.longdouble))).max() <= 1.0


def test_exp_overflows_and_underflows_exactly(lanes: int) -> None:
    """NaN of any bits stays; the largest finite result and the first beyond it; lost ones are 0."""
    nans = np.array([0x7FC00155, 0xFFFFFFFF, 0x7FC001FE], "uint32").view("float32")
    x = np.concatenate([nans, np.array([88.72283, 88.72284, 1e38, -104.0, -np.inf], "float32")])
    result = run_map(call("exp", "float32"), [x], ["float32"], "float32", lanes)
    assert np.isnan(result[:3]).all() and np.isfinite(result[3])
    assert result[4:].tolist() == [np.inf, np.inf, 0, 0]
    assert ulps(result[3:4], np.exp(x[3:4].astype(np.longdouble))).max() <= 1.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pow_matches_numpy(dtype: str, lanes: int) -> None:
    random = np.random.default_rng(1)
    x = np.exp(random.uniform(-20, 20, 4000)).astype(dtype)
    y = random.uniform(-4, 4, 4000).astype(dtype)
    x[:1000], y[:1000] = random.uniform(0.9, 1.1, 1000), random.uniform(-300, 300, 1000)
    if dtype == "float64":  # a logarithm whose lesser part counts
        x[1000:2000] = np.exp(random.uniform(-170, 170, 1000))
    result = run_map(call("pow", dtype), [x, y], [dtype, dtype], dtype, lanes)
    error = ulps(result, np.power(x.astype(np.longdouble), y.astype(np.longdouble))).max()
    assert error <= (0.51 if dtype == "float32" else 2.5)  # float32 goes through float64


def test_pow_special_cases_match_c(lanes: int) -> None:
    values = np.array(
        [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -3.0, 3.0, np.inf, -np.inf, np.nan, 1e38], "float32"
    )
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    result = run_map(call("pow", "float32"), [x, y], ["float32", "float32"], "float32", lanes)
    with np.errstate(all="ignore"):
        want = np.power(x.astype("float64"), y.astype("float64")).astype("float32")
    np.testing.assert_allclose(result, want, rtol=3e-7)
    assert (np.signbit(result) == np.signbit(want))[~np.isnan(want)].all()


@share(4)
@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc", "abs"])
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "int32", "uint8", "int64"]
)
def test_rounding_functions_match_numpy(name: str, dtype: str, lanes: int) -> None:
    x = to_array(
        [0, 0.5, 1.5, 2.5, 2.4, 7, 100, 3.7] + ([-0.5, -1.5, -2.6, -7] if dtype[0] != "u" else []),
        dtype,
    )
    result = run_map(call(name, dtype), [x], [dtype], dtype, lanes)
    want = INTRINSICS[name].reference(x.astype("float64"))
    assert np.array_equal(result.astype("float64"), want)  # type: ignore[arg-type]


def test_isnan_and_isinf_match_numpy(lanes: int) -> None:
    x = np.array([0.0, np.nan, np.inf, -np.inf, 1.0], "float32")
    for name in ("isnan", "isinf"):
        result = run_map(
            lambda v, n=name: call_intrin(n, v, dtype=_bool(v)), [x], ["float32"], "bool", lanes
        )
        assert np.array_equal(result, INTRINSICS[name].reference(x))  # type: ignore[arg-type]


def _bool(v: PrimExpr) -> str:
    return v.dtype.replace("float32", "bool")


@share(2)
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "uint32", "int8"])
def test_bitwise_functions_match_numpy(dtype: str, lanes: int) -> None:
    random = np.random.default_rng(3)
    x = random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, 64, dtype=dtype)
    y = random.integers(0, np.iinfo(dtype).bits + 3, 64).astype(dtype)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"):
        result = run_map(call(name, dtype), [x, y], [dtype, dtype], dtype, lanes)
        assert np.array_equal(result, INTRINSICS[name].reference(x, y)), name  # type: ignore[arg-type]


def test_integer_pow_matches_numpy(lanes: int) -> None:
    x, y = np.array([2, 3, -2, 7, 0, 10], "int64"), np.array([10, 5, 3, 0, 0, 18], "int64")
    result = run_map(call("pow", "int64"), [x, y], ["int64", "int64"], "int64", lanes)
    assert np.array_equal(result, np.power(x, y))
