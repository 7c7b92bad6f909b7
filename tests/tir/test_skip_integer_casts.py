"""Values rounded and clipped to int8 and read as floats stay floats, with equal bits."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import tir
from ekiden.codegen.build import build
from ekiden.target import Target
from ekiden.tir import PrimFunc
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.transform import skip_integer_casts
from processor import processors

pytestmark = pytest.mark.quick

HEAD = """from ekiden.script import tir as T
@T.prim_func
def f(a: T.Buffer((16,), "float32"), p: T.Buffer((1,), "uint8"), b: T.Buffer((16,), "float32")):
    for i in range(16):
        b[i] = """
LEVELS = 'T.Cast("float32", T.Cast("{0}", T.min(T.max({1}, {2}), {3})))'
SUM = 'T.round(a[i] / T.float32(0.05)) + T.Cast("float32", p[0])'
DATA = np.asarray(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.025, 0.075, -0.025, 6.3, 12.7, 13.0, -6.4, -7.0, 1e30,
     -1e30, 3.14], np.float32
)  # fmt: skip


def program(value: str) -> PrimFunc:
    func = tir.parse(HEAD + value + "\n")
    assert isinstance(func, PrimFunc)
    return func


@pytest.mark.parametrize("point", [0, 3, 128, 255])
@pytest.mark.parametrize("text", processors())
def test_quantised_floats_have_the_bits_of_their_bytes(text: str, point: int) -> None:
    func = program(LEVELS.format("uint8", SUM, "T.float32(0)", "T.float32(255)"))
    changed = skip_integer_casts(func)
    assert changed.script().count("T.Cast") == func.script().count("T.Cast") - 1  # the sum twice
    points = np.asarray([point], np.uint8)
    wide = np.round(DATA / np.float32(0.05)) + np.float32(point)
    expected = np.where(np.isnan(DATA), 0, np.clip(wide, 0, 255)).astype(np.float32)
    kernel = build(func, Target.parse(text))["f"]
    result = np.zeros(16, np.float32)
    kernel(DATA, points, result)
    np.testing.assert_array_equal(result.view(np.int32), (expected + 0.0).view(np.int32))
    result = np.zeros(16, np.float32)
    run_prim_func(changed, DATA, points, result)
    np.testing.assert_array_equal(result.view(np.int32), (expected + 0.0).view(np.int32))


@pytest.mark.parametrize(
    "value",
    [
        # NaN is the byte 0, which lies within the range
        LEVELS.format("int8", SUM, "T.float32(-128)", "T.float32(127)"),
        # numbers that are cut off, or wrap around
        LEVELS.format("uint8", "a[i]", "T.float32(0)", "T.float32(255)"),
        LEVELS.format("uint8", SUM, "T.float32(0)", "T.float32(256)"),
        LEVELS.format("uint8", SUM, "T.float32(0)", "T.float32(5.5)"),
    ],
)
def test_casts_that_change_numbers_stay(value: str) -> None:
    func = program(value)
    assert skip_integer_casts(func).script() == func.script()
