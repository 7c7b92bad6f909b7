"""Data of float32 with weights of int8, as a conversion without data to calibrate by makes them:
beside LiteRT's kernels without delegates, and beside what they are said to compute.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tflite_models import Array, Op, Spec, litert, model

import ekiden
from ekiden.runtime.errors import UnsupportedError
from long_runs import share

RNG = np.random.default_rng(5)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def weights(*shape: int, axis: int = 0, many: bool = True) -> Spec:
    data = RNG.integers(-127, 128, shape).astype(np.int8)
    count = shape[axis] if many else 1
    scales = RNG.uniform(0.001, 0.01, count).astype(np.float32)
    return Spec(data=data, scale=[float(s) for s in scales], point=[0] * count, axis=axis)


def graph(code: str, ins: list[Spec], shape: tuple[int, ...], table: tuple[str, Any]) -> bytes:
    ops = [Op(code, range(len(ins)), [len(ins)], table)]
    return model([*ins, Spec(shape)], ops, [0], [len(ins)])


def check(data: bytes, x: Array) -> None:
    (wanted,) = litert(data, x)
    found = ekiden.compile(data)(x).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def quantized(x: Array, asymmetric: bool) -> Array:
    """What the numbers of one row become, again as numbers."""
    if not asymmetric:
        scale = np.abs(x).max() / np.float32(127) or np.float32(1)
        return np.rint(x / scale) * scale
    low, high = min(x.min(), 0.0), max(x.max(), 0.0)
    scale = (high - low) / 255 or 1.0
    point = np.rint(-128 - low / scale)
    return (np.clip(np.rint(x / scale + point), -128, 127) - point) * scale


@pytest.mark.parametrize("asymmetric", [False, True])
def test_a_product_is_that_of_its_rows_levels(asymmetric: bool) -> None:
    weight, bias = weights(6, 33), Spec(data=floats(6))
    table = ("FullyConnectedOptions", {"AsymmetricQuantizeInputs": asymmetric})
    x = floats(4, 33) * np.float32([[1], [100], [0], [1e-3]])
    x[1] = np.abs(x[1])
    data = graph("FULLY_CONNECTED", [Spec((4, 33)), weight, bias], (4, 6), table)
    assert weight.data is not None and bias.data is not None
    real = weight.data * np.array(weight.scale)[:, None]
    wanted = np.stack([quantized(row, asymmetric) for row in x]) @ real.T + bias.data
    found = ekiden.compile(data)(x).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@share(4)
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("activation", [0, 1, 3])
@pytest.mark.parametrize("rows", [1, 5])
def test_fully_connected(rows: int, activation: int, many: bool, asymmetric: bool) -> None:
    table = ("FullyConnectedOptions", {
        "AsymmetricQuantizeInputs": asymmetric, "FusedActivationFunction": activation,
    })  # fmt: skip
    ins = [Spec((rows, 37)), weights(9, 37, many=many), Spec(data=floats(9))]
    check(graph("FULLY_CONNECTED", ins, (rows, 9), table), floats(rows, 37))


@share(4)
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_convolution(batch: int, many: bool, padding: int) -> None:
    table = ("Conv2DOptions", {"Padding": padding, "StrideW": 2, "StrideH": 1,
                               "FusedActivationFunction": 1})  # fmt: skip
    ins = [Spec((batch, 7, 9, 3)), weights(8, 3, 3, 3, many=many), Spec(data=floats(8))]
    shape = (batch, 7, 5, 8) if padding == 0 else (batch, 5, 4, 8)
    check(graph("CONV_2D", ins, shape, table), floats(batch, 7, 9, 3) + np.float32(0.5))


@pytest.mark.parametrize("code", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_a_convolution_is_that_of_its_images_levels(code: str) -> None:
    """The convolution of floats of what the levels stand for, the second image far smaller."""
    axis, shape = (0, (5, 3, 3, 5)) if code == "CONV_2D" else (3, (1, 3, 3, 5))
    weight = weights(*shape, axis=axis)
    kind = "Conv2DOptions" if code == "CONV_2D" else "DepthwiseConv2DOptions"
    more = {} if code == "CONV_2D" else {"DepthMultiplier": 1}
    table = (kind, {"Padding": 0, "StrideW": 1, "StrideH": 1, **more})
    assert weight.data is not None
    scales = np.array(weight.scale).reshape([-1 if a == axis else 1 for a in range(4)])
    real = Spec(data=(weight.data * scales).astype(np.float32))
    x = (floats(2, 6, 7, 5) + 0.5) * np.float32([1, 1e-2]).reshape(2, 1, 1, 1)
    levels = np.stack([quantized(image, True) for image in x]).astype(np.float32)
    bias = Spec(data=floats(5))
    found, wanted = (
        ekiden.compile(graph(code, [Spec(x.shape), w, bias], x.shape, table))(given).numpy()
        for w, given in ((weight, x), (real, levels))
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise_convolution(multiplier: int, padding: int) -> None:
    table = ("DepthwiseConv2DOptions", {
        "Padding": padding, "StrideW": 1, "StrideH": 1, "DepthMultiplier": multiplier,
    })  # fmt: skip
    out = 5 * multiplier
    ins = [Spec((2, 7, 9, 5)), weights(1, 3, 3, out, axis=3), Spec(data=floats(out))]
    shape = (2, 7, 9, out) if padding == 0 else (2, 5, 7, out)
    check(graph("DEPTHWISE_CONV_2D", ins, shape, table), floats(2, 7, 9, 5))


def test_weights_with_a_zero_point_are_refused() -> None:
    weight = weights(4, 8, many=False)
    weight.point = [3]
    table = ("FullyConnectedOptions", {})
    with pytest.raises(UnsupportedError, match="has a zero point: hybrid kernels take none"):
        ekiden.compile(graph("FULLY_CONNECTED", [Spec((1, 8)), weight], (1, 4), table))
