"""Transposed convolutions in register tiles against NumPy: few and many channels."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import te
from ekiden.codegen.llvm import compile_object, link
from ekiden.ir.prim import PrimExpr, SizeVar, maximum
from ekiden.runtime import load_image
from ekiden.target import Target
from ekiden.tir.transform import lower
from ekiden.topi.nn import conv_transpose
from ekiden.topi.rule import conv2d_transpose as rule
from ekiden.topi.rule import schedule

pytestmark = pytest.mark.quick
TARGET = Target.host()


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("shape", "channels", "stride"),
    [
        ((1, 5, 7, 24), 24, 2),
        ((2, 3, 9, 24), 1, 2),
        ((1, 4, 20, 7), 3, 2),
        ((1, 4, 6, 5), 70, 3),
        ((2, 3, 33, 8), 1, 1),
        ((1, 2, 5, 3), 5, 3),
    ],
)
def test_windows_that_do_not_overlap(
    shape: tuple[int, int, int, int], channels: int, stride: int, symbolic: bool
) -> None:
    n, h, w, c = shape
    sizes = (SizeVar("h"), SizeVar("w")) if symbolic else (h, w)
    data = te.placeholder((n, *sizes, c), name="data")
    weight = te.placeholder((c, channels, stride, stride), name="weight")
    bias = te.placeholder((1, 1, 1, channels), name="bias")
    pair = (stride, stride)
    result = conv_transpose(data, weight, pair, (0, 0, 0, 0), (0, 0), (1, 1), 1, "NHWC", "IOHW")
    assert rule.accepts(result)

    def relu(b: PrimExpr, y: PrimExpr, x: PrimExpr, o: PrimExpr) -> PrimExpr:
        return maximum(result[b, y, x, o] + bias[0, 0, 0, o], 0.0)

    out = te.compute(result.shape, relu, tag="injective")
    func = lower(schedule([data, weight, bias], [out], TARGET, "kernel"), TARGET)
    kernel = load_image(link([compile_object([func], TARGET)], ["kernel"]))["kernel"]
    random = np.random.default_rng(0)
    x = random.standard_normal(shape, np.float32)
    k = random.standard_normal((c, channels, *pair), np.float32)
    b = random.standard_normal((1, 1, 1, channels), np.float32)
    got = np.full((n, h * stride, w * stride, channels), 77, np.float32)
    kernel(x, k, b, got)
    expected = np.einsum("nhwc,coij->nhiwjo", x, k).reshape(got.shape) + b
    np.testing.assert_allclose(got, np.maximum(expected, 0), rtol=1e-4, atol=1e-4)


def test_overlapping_windows_are_left_to_the_default_rule() -> None:
    data = te.placeholder((1, 4, 4, 8), name="data")
    weight = te.placeholder((8, 8, 3, 3), name="weight")
    result = conv_transpose(data, weight, (2, 2), (1, 1, 1, 1), (1, 1), (1, 1), 1, "NHWC", "IOHW")
    assert not rule.accepts(result)
