"""Winograd's method against the direct sum: tiles of both sizes, ragged images, batches, floats
and bytes."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import te
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir.prim import PrimExpr, SizeVar, maximum
from ekiden.kernels import schedule
from ekiden.kernels.cpu import winograd
from ekiden.kernels.micro_kernels.epilogue import find_anchor
from ekiden.kernels.spaces.winograd import choose_tile_size
from ekiden.runtime import load_image
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.tir.transform import lower
from ekiden.topi.nn import pool2d, winograd_conv2d
from ekiden.topi.nn.winograd import (
    do_sums_fit_int32,
    reference_conv2d,
    transform_matrices,
    transform_weight,
)
from long_runs import share
from processor import processors

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
    a, b, g = transform_matrices(m)
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
    result = reference_conv2d(x, transform_weight(w, m, 4), m, 7, padding)
    np.testing.assert_allclose(result, direct(x, w, padding), rtol=1e-4, atol=1e-4)


def bytes_of(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """All bytes, and runs of the extreme ones."""
    info = np.iinfo(dtype)
    values = np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)
    flat = values.reshape(-1)
    flat[: flat.size // 4], flat[-(flat.size // 4) :] = info.min, info.max
    return values


def integers(x: np.ndarray, w: np.ndarray, padding: Pads) -> np.ndarray:
    """The direct sum of bytes: float64 holds it."""
    return direct(x.astype("float64"), w.astype("float64"), padding).astype("int32")


@pytest.mark.parametrize("m", [2, 4])
def test_transformed_bytes_fit_int16(m: int) -> None:
    _, b, g = transform_matrices(m, is_integer=True)
    least, most = np.zeros(1), np.full(1, 255.0)
    for _ in range(2):
        above, below = np.maximum(b, 0).sum(1), np.minimum(b, 0).sum(1)
        least, most = (
            above * least.min() + below * most.max(),
            above * most.max() + below * least.min(),
        )
        # whatever the order in which a combination is added up
        assert np.abs(b).sum(1).max() * max(-least.min(), most.max()) < 1 << 31
    assert least.min() >= -(1 << 15)
    assert most.max() < 1 << 15
    assert 128 * np.abs(g).sum(1).max() ** 2 < 1 << 15


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1), (2, 0, 1, 0)])
def test_reference_of_bytes_is_exact(m: int, padding: Pads) -> None:
    x, w = bytes_of((2, 9, 11, 5), "uint8"), bytes_of((7, 5, 3, 3), "int8")
    assert do_sums_fit_int32(w, m)
    result = reference_conv2d(x, transform_weight(w, m, 4), m, 7, padding)
    np.testing.assert_array_equal(result, integers(x, w, padding))


def test_sums_fit_up_to_their_bound() -> None:
    weight = np.full((2, 115, 3, 3), 127, np.int8)
    weight[1] = 0
    assert 255 * 127 * 115 * 9 < 1 << 25 < 255 * 127 * 116 * 9
    assert do_sums_fit_int32(weight, 4)
    assert do_sums_fit_int32(-weight, 4)
    more = np.full((1, 116, 3, 3), 127, np.int8)
    assert not do_sums_fit_int32(more, 4)
    assert do_sums_fit_int32(more, 2)
    x = np.full((1, 6, 6, 115), 255, np.uint8)
    result = reference_conv2d(x, transform_weight(weight, 4, 4), 4, 2, (0, 0, 0, 0))
    np.testing.assert_array_equal(result, integers(x, weight, (0, 0, 0, 0)))


@share(4)
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("text", processors())
@pytest.mark.parametrize(
    ("shape", "depth", "out", "padding", "symbolic"),
    [
        ((1, 8, 8), 64, 64, (1, 1, 1, 1), False),
        ((2, 9, 11), 33, 20, (1, 0, 1, 2), False),
        ((1, 30, 27), 16, 37, (0, 1, 2, 0), True),
        ((3, 3, 3), 48, 16, (1, 1, 1, 1), False),
    ],
)
def test_kernel_of_bytes_is_exact(
    m: int, text: str, shape: tuple[int, int, int], depth: int, out: int, padding: Pads,
    symbolic: bool,
) -> None:  # fmt: skip
    target = Target.parse(text)
    lanes = target.lanes("float32")
    x, w = bytes_of((*shape, depth), "uint8"), bytes_of((out, depth, 3, 3), "int8")
    packed = transform_weight(w, m, min(4 * lanes, -(-out // lanes) * lanes))
    sizes = tuple(SizeVar(name) for name in "nhw") if symbolic else shape
    data = te.placeholder((*sizes, depth), "uint8", "data")
    weight = te.placeholder(packed.shape, "int16", "weight")
    output = winograd_conv2d(data, weight, m, out, padding)
    assert winograd.is_supported(find_anchor([output], winograd.WINOGRAD_CONV_TAG), target)
    func = lower(schedule([data, weight], [output], target, "kernel"), target)
    kernel = load_image(link_image([compile_object([func], target)], ["kernel"], target))["kernel"]
    expected = integers(x, w, padding)
    result = np.full(expected.shape, 77, np.int32)
    kernel(x, packed, result)
    np.testing.assert_array_equal(result, expected)


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
    assert winograd.is_supported(result, TARGET)

    def relu(n: PrimExpr, i: PrimExpr, j: PrimExpr, o: PrimExpr) -> PrimExpr:
        return maximum(result[n, i, j, o] + bias[0, 0, 0, o], 0.0)

    output = te.compute(result.shape, relu, tag="injective")
    func = lower(schedule([data, weight, bias], [output], TARGET, "kernel"), TARGET)
    kernel = load_image(link_image([compile_object([func], TARGET)], ["kernel"]))["kernel"]
    expected = np.maximum(direct(x, w, padding) + b, 0)
    actual = np.full(expected.shape, 77, np.float32)
    kernel(x, made, b, actual)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=3e-5)


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
def test_two_by_two_pooling_is_fused_into_the_output_transform(
    m: int, shape: tuple[int, int, int], channels: int, padding: Pads
) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((*shape, LANES), np.float32)
    w = random.standard_normal((channels, LANES, 3, 3), np.float32) / np.float32(17)
    output = transform_weight(w, m, min(4 * LANES, -(-channels // LANES) * LANES))
    expected = np.maximum(direct(x, w, padding), -0.1)
    n, height, width, _ = expected.shape
    residual = random.standard_normal(expected.shape, np.float32)
    data, weight = te.placeholder(x.shape, name="data"), te.placeholder(output.shape, name="weight")
    other = te.placeholder(residual.shape, name="residual")
    result = winograd_conv2d(data, weight, m, channels, padding)
    both = te.compute(result.shape, lambda *i: maximum(result[i], -0.1) + other[i], tag="injective")
    pooled = pool2d(both, (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), "max", False, "NHWC", True)
    assert winograd.producer_of_fused_pool([pooled]) == [both]
    func = schedule([data, weight, other], [pooled], TARGET, "kernel")
    assert "tir.in_place" not in (func.attrs or {})
    image = link_image([compile_object([lower(func, TARGET)], TARGET)], ["kernel"])
    actual = np.full((n, height // 2, width // 2, channels), 77, np.float32)
    load_image(image)["kernel"](x, output, residual, actual)
    windows = (expected + residual).reshape(n, height // 2, 2, width // 2, 2, channels)
    np.testing.assert_allclose(actual, windows.max((2, 4)), rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize(
    ("size", "stride", "padding", "kind"),
    [(3, 2, (0, 0, 1, 1), "max"), (2, 1, (0, 0, 0, 0), "max"), (2, 2, (0, 0, 0, 0), "avg"),
     (2, 2, (1, 1, 1, 1), "max")],
)  # fmt: skip
def test_other_pool_windows_are_not_fused(
    size: int, stride: int, padding: tuple[int, int, int, int], kind: str
) -> None:
    data = te.placeholder((1, 8, 8, LANES), name="data")
    pooled = pool2d(data, (size,) * 2, (stride,) * 2, (1, 1), padding, kind, False, "NHWC", True)
    assert winograd.producer_of_fused_pool([pooled]) == [pooled]


def test_rounding_up_changes_nothing_where_windows_fill_the_data() -> None:
    """Relay fuses these too; a kernel of no family takes a second for what takes 100 us."""
    data = te.placeholder((1, 8, 8, LANES), name="data")
    pooled = pool2d(data, (2, 2), (2, 2), (1, 1), (0,) * 4, "max", True, "NHWC", True)
    assert winograd.producer_of_fused_pool([pooled]) == [data]


def test_ragged_two_by_two_pooling_is_not_fused() -> None:
    data = te.placeholder((1, 9, 8, LANES), name="data")
    pooled = pool2d(data, (2, 2), (2, 2), (1, 1), (0,) * 4, "max", False, "NHWC", True)
    assert winograd.producer_of_fused_pool([pooled]) == [pooled]


def side(cpu: str, image: tuple[int, int, int], channels: int, **fixed: int) -> int:
    target = Target(f"llvm -mcpu={cpu} -cores=1")
    return choose_tile_size(image, (channels, channels), target, fixed)


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


def test_winograd_does_not_grow_weights_in_slow_cache() -> None:
    """Skylake-SP, 7x7x512: 2.38 ms by Winograd's method, 1.79 by the direct sum."""
    assert side("skylake-avx512", (1, 7, 7), 512) == 0
    assert side("skylake-avx512", (1, 14, 14), 256) == 4


def test_winograd_tile_size_can_be_overridden() -> None:
    assert side("znver5", (1, 56, 56), 64, m=2) == 2
    with pytest.raises(CompileError) as caught:
        side("znver5", (1, 56, 56), 64, m=3)
    assert str(caught.value) == "decisions: 'winograd_conv2d': 'm' is one of 0, 2, 4, got 3"
