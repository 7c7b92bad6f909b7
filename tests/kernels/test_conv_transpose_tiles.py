"""Transposed convolutions in register tiles against NumPy: windows that overlap, leave gaps or
meet, padding, dilation, groups, few and many channels, symbolic images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ekiden import te
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir.prim import PrimExpr, SizeVar, maximum
from ekiden.kernels import schedule
from ekiden.kernels.cpu import conv2d_transpose as rule
from ekiden.runtime import load_image
from ekiden.target import Target
from ekiden.tir.transform import lower
from ekiden.topi.nn import conv_transpose
from ekiden.topi.nn.weight_packing import pack_weight, unpack_conv_transpose_weight
from long_runs import share

TARGET = Target.host()
TILE = 4 * TARGET.lanes("float32")


Pair = tuple[int, int]
Kernel = Callable[..., object]


def scatter(
    x: np.ndarray, w: np.ndarray, strides: Pair, padding: tuple[int, ...], dilation: Pair,
    groups: int, extra: Pair,
) -> np.ndarray:  # fmt: skip
    """NHWC data, IOHW weights: every pixel adds its multiple of the weights to the result."""
    n, h, width, c = x.shape
    _, per_group, *kernel = w.shape
    reach = [(k - 1) * d + 1 + e for k, d, e in zip(kernel, dilation, extra, strict=True)]
    whole = ((h - 1) * strides[0] + reach[0], (width - 1) * strides[1] + reach[1])
    result = np.zeros((n, *whole, per_group * groups))
    many = c // groups
    for g, i, j in np.ndindex(groups, *kernel):
        y, at = i * dilation[0], j * dilation[1]
        product = x[..., g * many : (g + 1) * many] @ w[g * many : (g + 1) * many, :, i, j]
        result[
            :,
            y : y + h * strides[0] : strides[0],
            at : at + width * strides[1] : strides[1],
            g * per_group : (g + 1) * per_group,
        ][:, :h, :width] += product
    top, left, bottom, right = padding
    return result[:, top : whole[0] - bottom, left : whole[1] - right]


def build(result: te.Tensor, inputs: list[te.Tensor]) -> Kernel:
    """The kernel of relu(result + bias)."""
    bias = te.placeholder((1, 1, 1, result.shape[3]), name="bias")

    def relu(b: PrimExpr, y: PrimExpr, x: PrimExpr, o: PrimExpr) -> PrimExpr:
        return maximum(result[b, y, x, o] + bias[0, 0, 0, o], 0.0)

    out = te.compute(result.shape, relu, tag="injective")
    func = lower(schedule([*inputs, bias], [out], TARGET, "kernel"), TARGET)
    assert "tir.tiled" in (func.attrs or {})
    return load_image(link_image([compile_object([func], TARGET)], ["kernel"]))["kernel"]


def check(kernel: Kernel, x: np.ndarray, packed: np.ndarray, whole: np.ndarray) -> None:
    """The kernel gives relu(whole + bias)."""
    bias = np.random.default_rng(1).standard_normal((1, 1, 1, whole.shape[3]), np.float32)
    result = np.full(whole.shape, 77, np.float32)
    kernel(x, packed, bias, result)
    np.testing.assert_allclose(result, np.maximum(whole + bias, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("shape", "channels", "stride"),
    [((2, 3, 9, 24), 1, 2), ((1, 4, 20, 7), 3, 2), ((2, 3, 33, 8), 1, 1), ((1, 2, 5, 3), 5, 3)],
)
def test_disjoint_windows_into_few_channels(
    shape: tuple[int, int, int, int], channels: int, stride: int, symbolic: bool
) -> None:
    n, h, w, c = shape
    sizes = (SizeVar("h"), SizeVar("w")) if symbolic else (h, w)
    data = te.placeholder((n, *sizes, c), name="data")
    weight = te.placeholder((c, channels, stride, stride), name="weight")
    pair = (stride, stride)
    result = conv_transpose(data, weight, pair, (0, 0, 0, 0), (0, 0), (1, 1), 1, "NHWC", "IOHW")
    random = np.random.default_rng(0)
    x = random.standard_normal(shape, np.float32)
    k = random.standard_normal((c, channels, *pair), np.float32)
    whole = scatter(x, k, pair, (0, 0, 0, 0), (1, 1), 1, (0, 0))
    check(build(result, [data, weight]), x, k, whole)


# fmt: off
CASES = [
    # data           channels  kernel   strides  padding       dilation groups extra
    ((1, 5, 7, 24),    24,     (2, 2),  (2, 2),  (0, 0, 0, 0), (1, 1),  1,  (0, 0)),
    ((1, 4, 6, 5),     70,     (3, 3),  (3, 3),  (0, 0, 0, 0), (1, 1),  1,  (0, 0)),
    ((1, 7, 9, 5),     20,     (4, 4),  (2, 2),  (1, 1, 1, 1), (1, 1),  1,  (0, 0)),
    ((1, 7, 19, 5),    70,     (3, 3),  (2, 2),  (1, 1, 1, 1), (1, 1),  1,  (1, 1)),
    ((1, 3, 19, 5),     3,     (3, 3),  (2, 2),  (1, 1, 1, 1), (1, 1),  1,  (0, 0)),
    ((1, 1, 40, 20),   36,     (1, 16), (1, 8),  (0, 4, 0, 4), (1, 1),  1,  (0, 0)),
    ((1, 4, 4, 70),    65,     (4, 4),  (2, 2),  (1, 1, 1, 1), (1, 1),  1,  (0, 0)),
    ((1, 5, 14, 8),    16,     (2, 2),  (3, 4),  (0, 0, 0, 0), (1, 1),  1,  (1, 0)),
    ((1, 5, 14, 8),    16,     (3, 3),  (1, 1),  (1, 0, 1, 2), (2, 1),  1,  (0, 0)),
    ((1, 5, 14, 8),     3,     (3, 3),  (3, 2),  (1, 1, 1, 1), (2, 3),  1,  (2, 1)),
    ((1, 5, 14, 8),    16,     (3, 4),  (2, 4),  (0, 0, 0, 0), (2, 6),  2,  (1, 0)),
    ((2, 7, 14, 8),    12,     (5, 4),  (3, 2),  (1, 2, 0, 1), (1, 1),  4,  (1, 0)),
    ((1, 6, 6, 4),      4,     (2, 2),  (2, 2),  (5, 4, 3, 4), (1, 1),  1,  (0, 0)),
    ((2, 7, 14, 8),     8,     (5, 4),  (3, 2),  (1, 2, 0, 1), (1, 1),  8,  (1, 0)),
    ((1, 7, 21, 20),   20,     (4, 4),  (2, 2),  (1, 1, 1, 1), (1, 1), 20,  (0, 0)),
    ((1, 5, 9, 6),      6,     (3, 3),  (2, 2),  (1, 0, 1, 2), (2, 1),  6,  (1, 1)),
]
# fmt: on


@share(4)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_phase_decomposition_matches_numpy(case: tuple[Any, ...], symbolic: bool) -> None:
    shape, channels, kernel, strides, padding, dilation, groups, extra = case
    n, h, w, c = shape
    random = np.random.default_rng(0)
    x = random.standard_normal(shape, np.float32)
    k = random.standard_normal((c, channels // groups, *kernel), np.float32)
    whole = scatter(x, k, strides, padding, dilation, groups, extra)
    if groups == c == channels:
        packed, layout = np.ascontiguousarray(k.transpose(2, 3, 0, 1)), "HWIO"
    else:
        rows = np.concatenate([part.swapaxes(0, 1) for part in np.split(k, groups)])
        kind = "conv2d" if groups == 1 else "group_conv2d"
        packed = pack_weight(rows, kind, TILE, groups)
        layout = f"{'' if groups == 1 else 'G'}OHWI{TILE}o"
        plain = unpack_conv_transpose_weight(packed, layout, channels, groups)
        np.testing.assert_array_equal(plain, k)
    sizes = (SizeVar("h"), SizeVar("w")) if symbolic else (h, w)
    data = te.placeholder((n, *sizes, c), name="data")
    weight = te.placeholder(packed.shape, name="weight")
    result = conv_transpose(
        data, weight, strides, padding, extra, dilation, groups, "NHWC", layout, channels=channels
    )
    check(build(result, [data, weight]), x, packed, whole)


def test_cropped_pixels_match_numpy() -> None:
    test_phase_decomposition_matches_numpy(
        ((2, 7, 9, 5), 20, (3, 1), (3, 2), (0, 0, 1, 2), (1, 2), 1, (0, 0)), False
    )


def test_other_dtypes_are_left_to_the_default_rule() -> None:
    data = te.placeholder((1, 4, 4, 8), "float64", name="data")
    weight = te.placeholder((3, 3, 8, 1), "float64", name="weight")
    result = conv_transpose(data, weight, (2, 2), (1, 1, 1, 1), (1, 1), (1, 1), 8, "NHWC", "HWIO")
    assert result.op.tag == "depthwise_conv_transpose"
    assert not rule.is_supported(result, TARGET)
