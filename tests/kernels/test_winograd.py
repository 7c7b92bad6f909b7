"""Winograd's method against the direct sum: tiles of both sizes, ragged images, batches."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import te
from ekiden.codegen.llvm import compile_object, link
from ekiden.ir.prim import PrimExpr, SizeVar, maximum
from ekiden.kernels import schedule
from ekiden.kernels.cpu import winograd
from ekiden.kernels.spaces.winograd import tile_side
from ekiden.runtime import load_image
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.tir.transform import lower
from ekiden.topi.nn import pool2d, winograd_conv2d
from ekiden.topi.nn.winograd import convolve, matrices, transform_weight
from long_runs import share

TARGET = Target.host()
LANES = TARGET.lanes("float32")
Pads = tuple[int, int, int, int]


def direct(x: np.ndarray, w: np.ndarray, padding: Pads) -> np.ndarray:
    """NHWC data, OIHW weights, in float64."""
    top, left, bottom, right = padding
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0))).astype("float64")
    rows, columns = x.shape[1] - 2, x.shape[2] - 2
    result = np.zeros((x.shape[0], rows, columns, w.shape[0]))
    for i in range(3):
        for j in range(3):
            result += x[:, i : i + rows, j : j + columns] @ w[:, :, i, j].T
    return result


@pytest.mark.parametrize("m", [2, 4])
def test_transforms_give_sliding_sums(m: int) -> None:
    a, b, g = matrices(m)
    random = np.random.default_rng(0)
    data, taps = random.standard_normal(m + 2), random.standard_normal(3)
    expected = [data[i : i + 3] @ taps for i in range(m)]
    np.testing.assert_allclose(a @ ((g @ taps) * (b @ data)), expected, atol=1e-12)


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1), (2, 0, 1, 0)])
def test_reference_is_the_convolution(m: int, padding: Pads) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 9, 11, 5), np.float32)
    w = random.standard_normal((7, 5, 3, 3), np.float32)
    found = convolve(x, transform_weight(w, m, 4), m, 7, padding)
    np.testing.assert_allclose(found, direct(x, w, padding), rtol=1e-4, atol=1e-4)


@share(4)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(
    ("shape", "depth", "out", "padding"),
    [
        ((1, 8, 8), 3 * LANES, 4 * LANES, (1, 1, 1, 1)),
        ((2, 9, 11), 3 * LANES, 5 * LANES, (1, 1, 1, 1)),
        ((1, 13, 13), 3 * LANES, LANES, (0, 0, 0, 0)),
        ((1, 30, 27), 3 * LANES, LANES + 5, (0, 1, 2, 0)),
        ((3, 3, 3), 3 * LANES, LANES, (1, 1, 1, 1)),
        ((2, 9, 11), 2 * LANES + 3, 2 * LANES + 3, (1, 1, 1, 1)),
        ((1, 17, 8), LANES + 1, LANES, (0, 2, 1, 1)),
    ],
)
def test_kernel_is_the_convolution(
    m: int, shape: tuple[int, int, int], depth: int, out: int, padding: Pads, symbolic: bool
) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((*shape, depth), np.float32)
    w = random.standard_normal((out, depth, 3, 3), np.float32) / np.float32(17)
    b = random.standard_normal((1, 1, 1, out), np.float32)
    made = transform_weight(w, m, min(4 * LANES, -(-out // LANES) * LANES))
    sizes = tuple(SizeVar(name) for name in "nhw") if symbolic else shape
    data, bias = te.placeholder((*sizes, depth), name="data"), te.placeholder(b.shape, name="bias")
    weight = te.placeholder(made.shape, name="weight")
    result = winograd_conv2d(data, weight, m, out, padding)
    assert winograd.accepts(result, TARGET)

    def relu(n: PrimExpr, i: PrimExpr, j: PrimExpr, o: PrimExpr) -> PrimExpr:
        return maximum(result[n, i, j, o] + bias[0, 0, 0, o], 0.0)

    output = te.compute(result.shape, relu, tag="injective")
    func = lower(schedule([data, weight, bias], [output], TARGET, "kernel"), TARGET)
    kernel = load_image(link([compile_object([func], TARGET)], ["kernel"]))["kernel"]
    expected = np.maximum(direct(x, w, padding) + b, 0)
    got = np.full(expected.shape, 77, np.float32)
    kernel(x, made, b, got)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=3e-5)


@share(4)
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(
    ("shape", "channels", "padding"),
    [
        ((1, 8, 8), 2 * LANES, (1, 1, 1, 1)),
        ((2, 10, 14), LANES + 5, (1, 1, 1, 1)),
        ((1, 30, 28), 5 * LANES, (0, 0, 0, 0)),
        ((1, 9, 12), LANES, (2, 1, 1, 1)),
    ],
)
def test_windows_of_two_are_taken_on_the_way_out(
    m: int, shape: tuple[int, int, int], channels: int, padding: Pads
) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((*shape, LANES), np.float32)
    w = random.standard_normal((channels, LANES, 3, 3), np.float32) / np.float32(17)
    made = transform_weight(w, m, min(4 * LANES, -(-channels // LANES) * LANES))
    expected = np.maximum(direct(x, w, padding), -0.1)
    n, height, width, _ = expected.shape
    residual = random.standard_normal(expected.shape, np.float32)
    data, weight = te.placeholder(x.shape, name="data"), te.placeholder(made.shape, name="weight")
    other = te.placeholder(residual.shape, name="residual")
    result = winograd_conv2d(data, weight, m, channels, padding)
    both = te.compute(result.shape, lambda *i: maximum(result[i], -0.1) + other[i], tag="injective")
    pooled = pool2d(both, (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), "max", False, "NHWC", True)
    assert winograd.before_pool([pooled]) == [both]
    func = schedule([data, weight, other], [pooled], TARGET, "kernel")
    assert "tir.in_place" not in (func.attrs or {})
    image = link([compile_object([lower(func, TARGET)], TARGET)], ["kernel"])
    got = np.full((n, height // 2, width // 2, channels), 77, np.float32)
    load_image(image)["kernel"](x, made, residual, got)
    windows = (expected + residual).reshape(n, height // 2, 2, width // 2, 2, channels)
    np.testing.assert_allclose(got, windows.max((2, 4)), rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize(
    ("size", "stride", "padding", "kind"),
    [(3, 2, (0, 0, 1, 1), "max"), (2, 1, (0, 0, 0, 0), "max"), (2, 2, (0, 0, 0, 0), "avg"),
     (2, 2, (1, 1, 1, 1), "max")],
)  # fmt: skip
def test_other_windows_are_not(
    size: int, stride: int, padding: tuple[int, int, int, int], kind: str
) -> None:
    data = te.placeholder((1, 8, 8, LANES), name="data")
    pooled = pool2d(data, (size,) * 2, (stride,) * 2, (1, 1), padding, kind, False, "NHWC", True)
    assert winograd.before_pool([pooled]) == [pooled]


def test_rounding_up_changes_nothing_where_windows_fill_the_data() -> None:
    """Relay fuses these too; a kernel of no family takes a second for what takes 100 us."""
    data = te.placeholder((1, 8, 8, LANES), name="data")
    pooled = pool2d(data, (2, 2), (2, 2), (1, 1), (0,) * 4, "max", True, "NHWC", True)
    assert winograd.before_pool([pooled]) == [data]


def test_windows_of_two_that_leave_a_line_over_are_not() -> None:
    data = te.placeholder((1, 9, 8, LANES), name="data")
    pooled = pool2d(data, (2, 2), (2, 2), (1, 1), (0,) * 4, "max", False, "NHWC", True)
    assert winograd.before_pool([pooled]) == [pooled]


def side(cpu: str, image: tuple[int, int, int], channels: int, **fixed: int) -> int:
    target = Target(f"llvm -mcpu={cpu} -cores=1")
    return tile_side(image, (channels, channels), target, fixed)


@pytest.mark.parametrize(
    ("image", "channels", "expected"),
    [
        ((1, 56, 56), 64, 4),
        ((1, 28, 28), 128, 4),
        ((1, 14, 14), 256, 4),
        ((1, 7, 7), 512, 2),
        ((8, 7, 7), 512, 4),
        ((1, 2, 2), 512, 0),
    ],
)
def test_small_images_get_small_tiles(
    image: tuple[int, int, int], channels: int, expected: int
) -> None:
    """Zen 5: 3.15, 3.3, 2.4 and 1.4 times as fast as the direct sum."""
    assert side("znver5", image, channels) == expected


def test_weights_from_a_slow_cache_are_not_made_more() -> None:
    """Skylake-SP, 7x7x512: 2.38 ms by Winograd's method, 1.79 by the direct sum."""
    assert side("skylake-avx512", (1, 7, 7), 512) == 0
    assert side("skylake-avx512", (1, 14, 14), 256) == 4


def test_the_side_of_tiles_can_be_said() -> None:
    assert side("znver5", (1, 56, 56), 64, m=2) == 2
    with pytest.raises(CompileError) as caught:
        side("znver5", (1, 56, 56), 64, m=3)
    assert str(caught.value) == "decisions: 'winograd_conv2d': 'm' is one of 0, 2, 4, got 3"
