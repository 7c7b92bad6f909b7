"""Depthwise convolutions over images of run-time width."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import ekiden
from ekiden import relay
from long_runs import share
from processor import processors

pytestmark = [pytest.mark.quick, pytest.mark.slow]

SIZES = [(1, 1), (2, 3), (5, 4), (7, 9), (16, 13), (28, 30)]
GEOMETRIES = [
    # window, strides, padding (top, left, bottom, right), dilation
    ((3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    ((3, 3), (2, 2), (0, 0, 1, 1), (1, 1)),
    ((5, 3), (1, 2), (2, 4, 1, 3), (1, 1)),
    ((3, 5), (3, 1), (4, 8, 4, 8), (2, 4)),
    ((1, 7), (1, 1), (0, 6, 0, 0), (1, 1)),
]


def convolved(
    data: np.ndarray,
    weight: np.ndarray,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> np.ndarray:
    """Return the depthwise convolution, in float64."""
    top, left, bottom, right = padding
    wide = np.pad(data.astype(np.float64), [(0, 0), (0, 0), (top, bottom), (left, right)])
    kh, kw = weight.shape[2:]
    height, width = (
        (wide.shape[2 + n] - (k - 1) * dilation[n] - 1) // strides[n] + 1
        for n, k in enumerate((kh, kw))
    )
    total = np.zeros((*data.shape[:2], height, width))
    for i in range(kh):
        for j in range(kw):
            y, x = i * dilation[0], j * dilation[1]
            taps = wide[:, :, y : y + (height - 1) * strides[0] + 1 : strides[0],
                        x : x + (width - 1) * strides[1] + 1 : strides[1]]  # fmt: skip
            total += taps * weight[:, 0, i, j][None, :, None, None]
    return total


@share(4)
@pytest.mark.parametrize("text", processors())
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("channels", [16, 23])
def test_depthwise_rows_of_symbolic_length_match_numpy(
    channels: int, geometry: tuple[tuple[int, ...], ...], text: str
) -> None:
    window, strides, padding, dilation = geometry
    rng = np.random.default_rng(0)
    h, w = relay.SizeVar("h", "int64"), relay.SizeVar("w", "int64")
    x = relay.var("x", shape=(2, channels, h, w))
    weight = rng.integers(-8, 8, (channels, 1, *window)).astype("float32")
    body = relay.nn.relu(
        relay.nn.conv2d(
            x, relay.const(weight), strides=strides, padding=padding, dilation=dilation,
            groups=channels,
        )
    )  # fmt: skip
    run = ekiden.compile(ekiden.IRModule.from_expr(relay.Function([x], body)), text)
    reaches = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
    for size in SIZES:
        sums = (size[n] + padding[n] + padding[n + 2] >= reaches[n] for n in range(2))
        if not all(sums):
            continue
        data = rng.integers(-8, 8, (2, channels, *size)).astype("float32")
        expected = np.maximum(convolved(data, weight, strides, padding, dilation), 0)
        np.testing.assert_array_equal(run(data).numpy(), expected)  # type: ignore[union-attr]


@pytest.mark.parametrize("zero_point", [0, 7])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_quantised_images_of_any_size_have_a_border_of_the_zero_point(
    dtype: str, zero_point: int
) -> None:
    rng = np.random.default_rng(0)
    h, w = relay.SizeVar("h", "int64"), relay.SizeVar("w", "int64")
    x = relay.var("x", shape=(1, 24, h, w), dtype=dtype)
    weight = rng.integers(-128, 128, (24, 1, 3, 3)).astype("int8")
    body = relay.qnn.op.conv2d(
        x, relay.const(weight), relay.const(zero_point), relay.const(0), relay.const(np.float32(1)),
        relay.const(np.float32(1)), kernel_size=(3, 3), channels=24, strides=(2, 2),
        padding=(1, 1), groups=24,
    )  # fmt: skip
    run = ekiden.compile(ekiden.IRModule.from_expr(relay.Function([x], body)))
    for size in SIZES:
        data = rng.integers(*((0, 256) if dtype == "uint8" else (-128, 128)), (1, 24, *size))
        shifted = data - zero_point
        expected = convolved(shifted, weight, (2, 2), (1, 1, 1, 1), (1, 1)).astype(np.int32)
        result = run(data.astype(dtype)).numpy()  # type: ignore[union-attr]
        np.testing.assert_array_equal(result, expected)
