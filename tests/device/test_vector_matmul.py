"""Matrix products on devices with vector ALUs: every shape, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import kernels, relay, te, topi
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import KERNEL_DECISIONS_OPTION
from ekiden.ir.transform import PassContext
from ekiden.relay.expr import RelayExpr
from ekiden.runtime import Device
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from long_runs import alike

RNG = np.random.default_rng(21)
TARGET = Target("opencl -device=any -vector-bits=256 -cores=2")


def numbers(*shape: int) -> np.ndarray:
    """Whole numbers, of which sums are exact."""
    return RNG.integers(-8, 9, shape).astype("float32")


def run(build: object, given: list[np.ndarray], shapes: list[tuple[object, ...]]) -> np.ndarray:
    params = [
        relay.var(f"x{n}", shape=shape, dtype=str(g.dtype))
        for n, (g, shape) in enumerate(zip(given, shapes, strict=True))
    ]
    assert callable(build)
    body = build(*params)
    assert isinstance(body, RelayExpr)
    result = ekiden.compile(IRModule.from_expr(relay.Function(params, body)), TARGET)(*given)
    return np.asarray(result.numpy())


@alike(4)
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 9), (3, 5, 7), (17, 2, 1), (40, 100, 33)])
def test_vector_matmul_matches_numpy(
    opencl: Device, m: int, n: int, k: int, is_known: bool
) -> None:
    a, b = numbers(m, k), numbers(k, n)
    expected = a @ b
    cases = [(relay.nn.matmul, b, expected), (relay.nn.dense, b.T.copy(), expected)]
    for op, weight, right in cases:
        whole = [a.shape, weight.shape]
        shapes = whole if is_known else [(relay.Any(), relay.Any())] * 2
        np.testing.assert_array_equal(run(op, [a, weight], shapes), right)


@alike(4)
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    ("m", "n", "k", "asked"),
    [
        (50, 40, 70, ""),
        (50, 40, 70, "panel=16 band=4"),
        (37, 19, 3, "panel=16 band=1 rows=3 columns=1"),
        (5, 16, 0, "panel=32 band=8"),
    ],
)
def test_vector_panel_matmul_matches_numpy(
    opencl: Device, m: int, n: int, k: int, asked: str, is_known: bool
) -> None:
    """Of all of k and of parts of it, one band of rows and several, some beyond the last row."""
    a, b = numbers(m, k), numbers(k, n)
    first = m if is_known else relay.Any()
    argument = "along=columns vector=8 " + asked if asked else ""
    with PassContext(config={KERNEL_DECISIONS_OPTION: {"thread_product": argument}}):
        for op, weight in ((relay.nn.matmul, b), (relay.nn.dense, b.T.copy())):
            result = run(op, [a, weight], [(first, k), weight.shape])
            np.testing.assert_array_equal(result, a @ b)


def test_column_elements_are_loaded_once() -> None:
    """Where many rows need them: a condition of the border is asked for a panel, not for tiles."""
    many, few = (text((1, 8, 14, 14), (n, 8, 3, 3), padding=1) for n in (64, 4))
    assert many.count("select(") == 2 and "float8 panel[" in many
    assert many.index("panel[", many.index("panel[") + 1) < many.index("fma")
    assert "panel" not in few


@alike(4)
@pytest.mark.parametrize("dtype", ["int8", "int32", "float64", "float16"])
def test_vector_matmul_dtypes_match_numpy(opencl: Device, dtype: str) -> None:
    a, b = numbers(9, 21).astype(dtype), numbers(33, 21).astype(dtype)
    result = "int32" if dtype == "int8" else dtype

    def dense(x: RelayExpr, w: RelayExpr) -> RelayExpr:
        return relay.nn.dense(x, w, out_dtype=result)

    actual = run(dense, [a, b], [a.shape, b.shape])
    np.testing.assert_array_equal(actual, (a.astype("int64") @ b.T.astype("int64")).astype(result))


def text(data: tuple[int, ...], weight: tuple[int, ...], **options: int) -> str:
    """The kernel of a convolution."""
    x, w = te.placeholder(data, name="x"), te.placeholder(weight, name="w")
    y = topi.nn.conv2d(x, w, 1, options.get("padding", 0), 1)
    program = kernels.schedule([x, w], [y], TARGET, "f")
    return str(ekiden.build(program, TARGET).get_source("opencl")).partition("__kernel")[2]


def test_pixels_of_a_convolution_are_one_axis() -> None:
    """Of one image, with taps of 1: vectors cross the ends of rows."""
    alone, bordered = (
        text((1, 8, 14, 14), (16, 8, 1, 1)),
        text((1, 8, 14, 14), (16, 8, 3, 3), padding=1),
    )
    assert "vload8(0, &x[" in alone and "14)" not in alone and "lane <" not in alone
    assert ">= 0 && " in bordered and "select(" in bordered


def test_vector_matmul_honours_decisions() -> None:
    x, w = te.placeholder((9, 5), name="x"), te.placeholder((5, 3), name="w")
    y = topi.nn.matmul(x, w)
    asked = {"thread_product": {"vector": 8, "along": "columns"}}
    with pytest.raises(CompileError, match="8 columns of a thread, of which there are 3"):
        kernels.schedule([x, w], [y], TARGET, "f", asked)
    alone = {"thread_product": {"along": "depth", "panel": 16}}
    with pytest.raises(CompileError, match="'panel' goes with along=columns and a 'band' that is"):
        kernels.schedule([x, w], [y], TARGET, "f", alone)
    scalar = {"thread_product": {"vector": 1}}
    assert "T.vectorized" not in str(kernels.schedule([x, w], [y], TARGET, "f", scalar).script())
