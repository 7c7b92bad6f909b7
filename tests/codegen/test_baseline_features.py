"""Code for processors without fused multiply-add, rounding or float16 instructions: what stands for
them, against NumPy on this machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from codegen_kernels import GENERATOR, build, map_kernel

from ekiden.codegen.llvm import emit_function
from ekiden.ir.intrinsic import INTRINSICS, call_intrin
from ekiden.ir.prim import PrimExpr, cast
from ekiden.target import Target
from long_runs import share
from rounding import ULP

Array = np.ndarray
LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3")
level = pytest.mark.parametrize("level", LEVELS)


def run(
    level: str, body: Callable[..., PrimExpr], arrays: list[Array], output: str, lanes: int
) -> Array:
    """An elementwise kernel compiled for a level of x86-64."""
    count = -(-len(arrays[0]) // lanes) * lanes
    padded = [np.resize(a, count) for a in arrays]
    out = np.zeros(count, output)
    func = map_kernel(body, [str(a.dtype) for a in arrays], output, lanes, count)
    build(func, Target.parse(f"llvm -mcpu={level}"))(*padded, out)
    return out[: len(arrays[0])]


@level
def test_every_float16_converts_exactly_to_float32(level: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    result = run(level, lambda v: cast(v, "float32x8"), [x], "float32", 8)
    np.testing.assert_array_equal(result, x.astype(np.float32))


@level
def test_float32_to_float16_at_every_boundary(level: str) -> None:
    """Each float16, the middles between two, and their float32 neighbours."""
    exact = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (exact[1:] + exact[:-1]) / 2
    x = np.concatenate([exact, middle, np.nextafter(middle, np.float32(0)),
                        np.nextafter(middle, np.float32(np.inf)),
                        np.array([65520, 1e38, np.inf, np.nan, 1e-45], "f")])  # fmt: skip
    x = np.concatenate([x, -x])
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    actual = run(level, lambda v: cast(v, "float16x8"), [x], "float16", 8)
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))


ROUNDINGS = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint}


@share(4)
@level
@pytest.mark.parametrize("name", ROUNDINGS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_emulated_rounding_matches_numpy(level: str, name: str, dtype: str) -> None:
    whole = 2.0 ** (23 if dtype == "float32" else 52)
    random = np.random.default_rng(3).normal(size=2000) * 10
    edges = [0.0, 0.25, 0.5, 0.75, 1.5, 2.5, 1e-30, whole - 0.5, whole, whole + 1, 1e30, np.inf]
    x = np.concatenate([random, edges, np.negative(edges), [np.nan]]).astype(dtype)
    for lanes in (1, 8):
        result = run(level, lambda v: call_intrin(name, v, dtype=v.dtype), [x], dtype, lanes)
        np.testing.assert_array_equal(result, ROUNDINGS[name](x))
        signs = ~np.isnan(x)
        np.testing.assert_array_equal(np.signbit(result)[signs], np.signbit(x)[signs])


@level
@pytest.mark.parametrize("name", ["log", "pow"])
def test_functions_that_need_exact_products(level: str, name: str) -> None:
    random = np.random.default_rng(4)
    x, y = random.uniform(0.5, 3, 4000), random.uniform(-40, 40, 4000)
    arrays = [x] if name == "log" else [x, y]
    want = np.log(x.astype("g")) if name == "log" else np.power(x.astype("g"), y.astype("g"))
    result = run(level, lambda *v: call_intrin(name, *v, dtype=v[0].dtype), arrays, "float64", 4)
    errors = np.abs(result - want) / np.spacing(np.abs(want).astype("float64"))
    assert errors.max() <= 2


@level
@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh", "erf"])
def test_accuracy_without_fused_products(level: str, name: str) -> None:
    most, _, low, high = ULP[name]
    x = np.random.default_rng(5).uniform(low, high, 20000).astype("float32")
    result = run(level, lambda v: call_intrin(name, v, dtype=v.dtype), [x], "float32", 8)
    if name == "erf":
        want = np.array([math.erf(v) for v in x.astype(float)])
    else:
        want = np.asarray(INTRINSICS[name].reference(x.astype("float64")))
    errors = np.abs(result - want) / np.spacing(np.abs(want).astype("float32"))
    assert errors.max() <= most


QUARTERS = np.concatenate(
    [np.arange(1, 2000), np.random.default_rng(6).integers(2000, 2**29, 2000)]
)


@share(4)
@level
@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_trigonometry_near_multiples_of_half_pi_is_accurate(
    level: str, name: str, dtype: str
) -> None:
    """Next to a multiple of pi / 2, where what is left of a product's last bits is the result."""
    if GENERATOR == "c" and dtype == "float64":  # all go through tables there, good to 2**-80
        return
    x = np.concatenate([QUARTERS * (math.pi / 2), np.random.default_rng(7).uniform(-9, 9, 2000)])
    x = x.astype(dtype)
    result = run(level, lambda v: call_intrin(name, v, dtype=v.dtype), [x], dtype, 8)
    want = np.array([getattr(math, name)(v) for v in x.astype(float)])  # glibc: within 0.55
    errors = np.abs(result - want) / np.spacing(np.abs(want).astype(dtype))
    assert errors.max() <= (0.6 if dtype == "float32" else 2)


@pytest.mark.parametrize("name", ["sin", "cos", "log"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_products_are_not_split(name: str, dtype: str) -> None:
    """One kept whole by other instructions takes 17: only what has no other way does."""
    func = map_kernel(lambda v: call_intrin(name, v, dtype=v.dtype), [dtype], dtype, 2, 2)
    text = emit_function(func, Target.parse("llvm -mcpu=x86-64")).partition("large")[0]
    splitter = "41A0000002000000"
    assert splitter not in text.upper()


@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh", "erf"])
def test_approximations_take_as_many_lanes_as_the_processor_has(name: str) -> None:
    """Without a fused instruction they round twice, and no product is kept whole in float64."""
    func = map_kernel(lambda v: call_intrin(name, v, dtype=v.dtype), ["float32"], "float32", 4, 4)
    assert "double" not in emit_function(func, Target.parse("llvm -mcpu=x86-64"))
