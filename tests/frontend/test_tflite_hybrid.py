"""Data of float32 with weights of int8, as a conversion without data to calibrate by makes them:
beside LiteRT's kernels without delegates, and beside what they are said to compute.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tflite_models import Array, Op, Spec, litert, litert_runs, model

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
    (expected,) = litert(data, x)
    actual = ekiden.compile(data)(x).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


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
def test_hybrid_product_quantizes_each_row(asymmetric: bool) -> None:
    weight, bias = weights(6, 33), Spec(data=floats(6))
    table = ("FullyConnectedOptions", {"AsymmetricQuantizeInputs": asymmetric})
    x = floats(4, 33) * np.float32([[1], [100], [0], [1e-3]])
    x[1] = np.abs(x[1])
    data = graph("FULLY_CONNECTED", [Spec((4, 33)), weight, bias], (4, 6), table)
    assert weight.data is not None and bias.data is not None
    real = weight.data * np.array(weight.scale)[:, None]
    expected = np.stack([quantized(row, asymmetric) for row in x]) @ real.T + bias.data
    actual = ekiden.compile(data)(x).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@share(4)
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("activation", [0, 1, 3])
@pytest.mark.parametrize("rows", [1, 5])
def test_hybrid_fully_connected_matches_litert(
    rows: int, activation: int, many: bool, asymmetric: bool
) -> None:
    table = ("FullyConnectedOptions", {
        "AsymmetricQuantizeInputs": asymmetric, "FusedActivationFunction": activation,
    })  # fmt: skip
    ins = [Spec((rows, 37)), weights(9, 37, many=many), Spec(data=floats(9))]
    check(graph("FULLY_CONNECTED", ins, (rows, 9), table), floats(rows, 37))


@share(4)
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_hybrid_convolution_matches_litert(batch: int, many: bool, padding: int) -> None:
    table = ("Conv2DOptions", {"Padding": padding, "StrideW": 2, "StrideH": 1,
                               "FusedActivationFunction": 1})  # fmt: skip
    ins = [Spec((batch, 7, 9, 3)), weights(8, 3, 3, 3, many=many), Spec(data=floats(8))]
    shape = (batch, 7, 5, 8) if padding == 0 else (batch, 5, 4, 8)
    check(graph("CONV_2D", ins, shape, table), floats(batch, 7, 9, 3) + np.float32(0.5))


@pytest.mark.parametrize("code", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_hybrid_convolution_quantizes_each_image(code: str) -> None:
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
    actual, expected = (
        ekiden.compile(graph(code, [Spec(x.shape), w, bias], x.shape, table))(argument).numpy()
        for w, argument in ((weight, x), (real, levels))
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("multiplier", [1, 2])
def test_hybrid_depthwise_convolution_matches_litert(multiplier: int, padding: int) -> None:
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


# Layers that keep a state, and products of matrices.

UNITS, INPUTS, BATCH, STEPS = 24, 16, 2, 5


def runs_agree(
    code: str, args: dict[int, Spec], states: dict[int, tuple[int, ...]], count: int,
    table: tuple[str, Any], outs: list[Spec], shape: tuple[int, ...],
) -> None:  # fmt: skip
    """Two runs of a layer, the second of which begins with what the first one kept. A state nearly
    between two levels may become the other one: a level is a hundredth of what is here."""
    specs, places = [Spec(shape)], [0] + [-1] * (count - 1)
    for at, item in (args | {k: Spec(v, is_variable=True) for k, v in states.items()}).items():
        places[at] = len(specs)
        specs.append(item)
    results = list(range(len(specs), len(specs) + len(outs)))
    data = model([*specs, *outs], [Op(code, places, results, table)], [0], results)
    exe, arguments = ekiden.compile(data), [[floats(*shape)] for _ in range(2)]
    for inputs, expected in zip(arguments, litert_runs(data, arguments), strict=True):
        result = exe(*inputs)
        actual = [result] if len(outs) == 1 else list(result)
        for ekiden_result, reference in zip(actual, expected, strict=True):
            apart = np.abs(ekiden_result.numpy() - reference)
            assert np.median(apart) < 1e-5 and apart.max() < 0.02


def cell(base: int, recurrent: int, bias: int, outputs: int = UNITS) -> dict[int, Spec]:
    result = {base + g: weights(UNITS, INPUTS, many=False) for g in range(4)}
    result |= {recurrent + g: weights(UNITS, outputs, many=False) for g in range(4)}
    return result | {bias + g: Spec(data=floats(UNITS)) for g in range(4)}


@share(2)
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("code", ["RNN", "UNIDIRECTIONAL_SEQUENCE_RNN"])
def test_hybrid_rnn_matches_litert(code: str, asymmetric: bool) -> None:
    is_one = code == "RNN"
    args = {1: weights(UNITS, INPUTS, many=False), 2: weights(UNITS, UNITS, many=False),
            3: Spec(data=floats(UNITS))}  # fmt: skip
    lead = (BATCH,) if is_one else (BATCH, STEPS)
    table = ("RNNOptions" if is_one else "SequenceRNNOptions",
             {"FusedActivationFunction": 4, "AsymmetricQuantizeInputs": asymmetric})  # fmt: skip
    states = {4: (BATCH, UNITS)}
    runs_agree(code, args, states, 5, table, [Spec((*lead, UNITS))], (*lead, INPUTS))


@share(4)
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("more", ["", "peepholes", "projection", "norms"])
def test_hybrid_lstm_matches_litert(more: str, asymmetric: bool) -> None:
    outputs = 12 if more == "projection" else UNITS
    args = cell(1, 5, 12, outputs)
    if more == "peepholes":
        args |= {9 + p: weights(UNITS, many=False) for p in range(3)}
    if more == "projection":
        args |= {16: weights(outputs, UNITS, many=False), 17: Spec(data=floats(outputs))}
    if more == "norms":
        args |= {20 + g: Spec(data=floats(UNITS)) for g in range(4)}
    table = ("UnidirectionalSequenceLSTMOptions", {
        "FusedActivationFunction": 4, "AsymmetricQuantizeInputs": asymmetric,
    })  # fmt: skip
    states = {18: (BATCH, outputs), 19: (BATCH, UNITS)}
    runs_agree("UNIDIRECTIONAL_SEQUENCE_LSTM", args, states, 24, table,
               [Spec((BATCH, STEPS, outputs))], (BATCH, STEPS, INPUTS))  # fmt: skip


def test_lstm_of_both_directions() -> None:
    args = cell(1, 5, 12) | cell(18, 22, 29)
    states = dict.fromkeys(range(35, 39), (BATCH, UNITS))
    table = ("BidirectionalSequenceLSTMOptions", {
        "FusedActivationFunction": 4, "MergeOutputs": True, "TimeMajor": True,
    })  # fmt: skip
    runs_agree("BIDIRECTIONAL_SEQUENCE_LSTM", args, states, 48, table,
               [Spec((STEPS, BATCH, 2 * UNITS))], (STEPS, BATCH, INPUTS))  # fmt: skip


@pytest.mark.parametrize("asymmetric", [False, True])
def test_hybrid_svdf_matches_litert(asymmetric: bool) -> None:
    args = {1: weights(8, INPUTS, many=False), 2: weights(8, 6, many=False),
            3: Spec(data=floats(4))}  # fmt: skip
    table = ("SVDFOptions", {"Rank": 2, "FusedActivationFunction": 1,
                             "AsymmetricQuantizeInputs": asymmetric})  # fmt: skip
    states = {4: (BATCH, 8 * 6)}
    runs_agree("SVDF", args, states, 5, table, [Spec((BATCH, 4))], (BATCH, INPUTS))


@share(4)
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("sides", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("lead", [(), (3,)])
def test_hybrid_batch_matmul_matches_litert(
    lead: tuple[int, ...], sides: tuple[bool, bool], asymmetric: bool
) -> None:
    left, right = sides
    table = ("BatchMatMulOptions", {"AdjX": left, "AdjY": right,
                                    "AsymmetricQuantizeInputs": asymmetric})  # fmt: skip
    shape = (3, 11, 7) if left else (3, 7, 11)
    weight = weights(*lead, *((5, 11) if right else (11, 5)), many=False)
    data = graph("BATCH_MATMUL", [Spec(shape), weight], (3, 7, 5), table)
    check(data, floats(*shape))


def test_layers_of_integers_that_have_no_kernel_say_so() -> None:
    numbers = Spec((BATCH, INPUTS), "int8", scale=[0.1], point=[0])
    ins = [numbers, weights(8, INPUTS, many=False), weights(8, 8, many=False),
           Spec(data=floats(8)), Spec((BATCH, 8), "int8", is_variable=True)]  # fmt: skip
    ops = [Op("RNN", range(5), [5], ("RNNOptions", {}))]
    data = model([*ins, Spec((BATCH, 8), "int8", scale=[0.1], point=[0])], ops, [0], [5])
    with pytest.raises(UnsupportedError, match="RNN.*is int8: layers of float32 are here"):
        ekiden.compile(data)
