"""Floats of 8 and 4 bits and integers of 4 and 2: conversions and moves in kernels, against
ml_dtypes.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import ekiden
from ekiden import relay, te
from ekiden.relay import op
from ekiden.tir import interpreter
from ekiden.tir.transform import lower

Array = npt.NDArray[Any]
FLOATS = [
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn",
]  # fmt: skip
INTEGERS = ["int4", "uint4", "int2", "uint2"]


def codes(dtype: str) -> Array:
    """Every number of a type."""
    kind = np.dtype(getattr(ml_dtypes, dtype))
    if dtype in INTEGERS:
        low, high = int(ml_dtypes.iinfo(kind).min), int(ml_dtypes.iinfo(kind).max)
        return np.arange(low, high + 1).astype(kind)
    return np.arange(16 if dtype == "float4_e2m1fn" else 256, dtype=np.uint8).view(kind)


def compiled(build: Any, *arrays: Array) -> Array:  # noqa: ANN401
    params = [relay.var(f"x{n}", shape=a.shape, dtype=str(a.dtype)) for n, a in enumerate(arrays)]
    module = ekiden.IRModule.from_expr(relay.Function(params, build(*params)))
    result: Array = ekiden.compile(module)(*arrays).numpy()
    return result


def numbers(dtype: str) -> Array:
    """Numbers of all sizes, those of the type, and the halves between them."""
    rng = np.random.default_rng(0)
    own = codes(dtype).astype(np.float32)
    own = own[np.isfinite(own)]
    random = [rng.normal(size=200) * scale for scale in (1e-8, 1e-3, 1, 100, 1e4, 1e6)]
    special = [[0.0, -0.0, np.inf, -np.inf, np.nan, 464.0, 465.0, 1e-40, 2.0**-127]]
    with np.errstate(over="ignore"):
        halves = own[:-1] / 2 + own[1:] / 2
    return np.concatenate([*random, *special, own, halves]).astype(np.float32)


def same(actual: Array, expected: Array) -> None:
    """Equal in every bit but those of what is not a number."""
    np.testing.assert_array_equal(actual.astype(np.float32), expected.astype(np.float32))
    real = ~np.isnan(expected.astype(np.float32))
    bits = f"uint{8 * expected.dtype.itemsize}"
    np.testing.assert_array_equal(actual.view(bits)[real], expected.view(bits)[real])


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_every_number_is_read(dtype: str) -> None:
    argument = codes(dtype)
    same(compiled(lambda x: op.cast(x, "float32"), argument), argument.astype(np.float32))


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_are_rounded_to_the_nearest(dtype: str) -> None:
    data = numbers(dtype)
    with np.errstate(all="ignore"):
        expected = data.astype(getattr(ml_dtypes, dtype))
    same(compiled(lambda x: op.cast(x, dtype), data), expected)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_around(dtype: str) -> None:
    data = np.arange(-300, 300, dtype=np.int32)
    result = compiled(lambda x: op.cast(x, dtype), data)
    np.testing.assert_array_equal(result, data.astype(getattr(ml_dtypes, dtype)))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn", "int4"])
def test_numbers_on_the_way_of_a_kernel_are_rounded(dtype: str) -> None:
    """None of its buffers holds them."""
    data = np.abs(numbers(dtype)) if dtype in FLOATS else np.arange(-300, 300, dtype=np.float32)
    with np.errstate(all="ignore"):
        small = data.astype(np.int32) if dtype in INTEGERS else data
        expected = small.astype(getattr(ml_dtypes, dtype)).astype(np.float32)
    same(compiled(lambda x: op.cast(op.cast(x, dtype), "float32"), data), expected)


@pytest.mark.parametrize("dtype", ["float8_e5m2", "int4", "uint2"])
def test_elements_are_moved(dtype: str) -> None:
    data = np.resize(codes(dtype), (3, 5, 7))
    result = compiled(lambda x: op.transpose(x, axes=[2, 0, 1]), data)
    same(result, np.ascontiguousarray(data.transpose(2, 0, 1)))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "uint4", "int2"])
def test_large_tensors_run_in_parallel_where_they_may(dtype: str) -> None:
    data = np.resize(codes(dtype), 100_003)
    result = compiled(lambda x: op.cast(op.cast(x, "float32"), dtype), data)
    same(result, data)


@pytest.mark.parametrize("dtype", ["float8_e4m3fnuz", "float4_e2m1fn", "int4"])
def test_interpreter_sees_what_kernels_see(dtype: str) -> None:
    data = np.resize(codes(dtype), 33)
    x = te.placeholder(data.shape, dtype, "x")
    y = te.compute(data.shape, lambda i: x[32 - i], name="y")
    wide = te.compute(data.shape, lambda i: y[i].astype("float32"), name="wide")
    result, numbers_ = np.empty_like(data), np.empty(data.shape, np.float32)
    interpreter.run_prim_func(lower(te.create_prim_func([x, y, wide])), data, result, numbers_)
    same(result, data[::-1].copy())
    np.testing.assert_array_equal(numbers_, data[::-1].astype(np.float32))


def test_bits_are_reinterpreted() -> None:
    data = numbers("float8_e4m3fn")
    result = compiled(lambda x: op.reinterpret(x, "uint32"), data)
    np.testing.assert_array_equal(result, data.view(np.uint32))
    with pytest.raises(ekiden.CompileError, match="float32 and int64 have different sizes"):
        compiled(lambda x: op.reinterpret(x, "int64"), data)
