"""Data-driven rounding: GPTQ, learned rounding, and activation-aware scales."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ekiden
from ekiden.quantization.gram_matrix import input_rows
from ekiden.quantization.quantizable_layers import find_layers
from ekiden.quantization.sensitivity import signal_to_noise_db
from ekiden.quantization.weight_rounding import ROUNDING_METHODS, weighted_squared_error
from long_runs import alike
from onnx_runtime import session

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(0)
WIDE = np.exp(1.5 * RNG.standard_normal(64))
MIX = RNG.standard_normal((64, 64)) / 8


def samples(count: int) -> Array:
    """Inputs whose channels depend on each other and differ in size."""
    return np.asarray(RNG.standard_normal((count, 64)) @ MIX * WIDE, np.float32)


def layer(transposed: bool = False) -> onnx.ModelProto:
    weight = RNG.standard_normal((24, 64)).astype(np.float32) / 8
    result = [numpy_helper.from_array(weight if transposed else weight.T.copy(), "w")]
    kind = ("Gemm", {"transB": 1}) if transposed else ("MatMul", {})
    node = helper.make_node(kind[0], ["x", "w"], ["y"], "only", **kind[1])
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])]
    ends = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 24])]
    graph = helper.make_graph([node], "g", ports, ends, result)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


DATA, FRESH = samples(512), samples(128)


@pytest.mark.parametrize(
    ("recipe", "transposed"),
    [
        ({"kind": "weight", "bits": 4, "group": 32}, False),
        ({"kind": "weight", "bits": 4}, True),
        pytest.param({"kind": "weight", "bits": 4, "group": 32}, True, marks=pytest.mark.long),
        pytest.param({"kind": "weight", "bits": 8, "group": 16}, False, marks=pytest.mark.long),
        pytest.param({"kind": "static", "method": "mse"}, True, marks=pytest.mark.long),
    ],
)
def test_data_driven_rounding_reduces_the_output_error(
    recipe: dict[str, Any], transposed: bool
) -> None:
    """Also on data that were not calibrated on; ONNX Runtime gives the same."""
    model = layer(transposed)
    expected = ekiden.compile(model)(FRESH).numpy()

    def ratio(**more: object) -> float:
        actual = ekiden.quantize(model, DATA, **recipe, **more, least_snr=0.0)
        result = ekiden.compile(actual.model)(FRESH).numpy()
        (reference,) = session(actual.model).run(None, {"x": FRESH})
        assert signal_to_noise_db(reference, result) > 30.0
        return signal_to_noise_db(expected, result)

    nearest = ratio()
    gain = 0.0 if recipe["kind"] == "static" else 0.5
    assert ratio(rounding="gptq") > nearest + gain
    assert ratio(rounding="learned") > nearest + gain
    if recipe["kind"] == "weight":
        assert ratio(awq=True) > nearest + 0.5
        assert ratio(awq=True, rounding="gptq", method="mse") > nearest + gain


@alike(6)
@pytest.mark.parametrize("name", ["gptq", "learned"])
@pytest.mark.parametrize("columns", [1, 5, 200])
def test_rounded_columns_stay_in_range(name: str, columns: int) -> None:
    """A single draw may be worse than rounding each weight by itself: columns come in turn."""
    rng, before, after = np.random.default_rng(columns), 0.0, 0.0
    for _ in range(16):
        rows = rng.standard_normal((64, columns))
        weight = rng.standard_normal((3, columns)).astype(np.float32)
        scale = np.abs(weight).max(axis=1, keepdims=True).repeat(columns, 1) / 7
        gram = rows.T @ rows
        result = ROUNDING_METHODS[name].round_weight(weight, scale, (-7, 7), gram)
        assert np.array_equal(result, np.round(result)) and np.abs(result).max() <= 7
        plain = ROUNDING_METHODS["nearest"].round_weight(weight, scale, (-7, 7), None)
        before += weighted_squared_error(plain * scale - weight, gram)
        after += weighted_squared_error(result * scale - weight, gram)
    assert after <= before * (1 + 1e-6) + 1e-9  # of one column they are the same


def test_learned_rounding_is_near_the_best_of_all() -> None:
    """Of six weights all choices of up and down can be tried."""
    rng = np.random.default_rng(1)
    sums = dict.fromkeys(("best", "learned", "gptq", "nearest"), 0.0)
    for _ in range(30):
        rows = rng.standard_normal((40, 6)) @ rng.standard_normal((6, 6))
        gram, weight = rows.T @ rows, rng.standard_normal((1, 6)).astype(np.float32) * 3
        scale = np.ones((1, 6))
        for name in ("learned", "gptq", "nearest"):
            result = ROUNDING_METHODS[name].round_weight(weight, scale, (-7, 7), gram)
            sums[name] += weighted_squared_error(result - weight, gram)
        choices = (np.floor(weight) + np.asarray(item) for item in product((0, 1), repeat=6))
        sums["best"] += min(weighted_squared_error(item - weight, gram) for item in choices)
    assert sums["learned"] <= sums["gptq"] < sums["nearest"], sums
    assert sums["learned"] - sums["best"] < 0.25 * (sums["nearest"] - sums["best"]), sums


def test_channels_without_data_round_to_nearest() -> None:
    """Inputs that are always 0 make a singular matrix."""
    weight, scale = RNG.standard_normal((2, 4)).astype(np.float32), np.full((2, 4), 0.25)
    for name in ("gptq", "learned"):
        for gram in (np.zeros((4, 4)), np.diag([1.0, 0.0, 2.0, 0.0])):
            result = ROUNDING_METHODS[name].round_weight(weight, scale, (-7, 7), gram)
            np.testing.assert_array_equal(result, np.clip(np.round(weight / scale), -7, 7))


@pytest.mark.parametrize(
    "argument",
    [
        {},
        {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]},
        {"group": 3, "auto_pad": "VALID"},
    ],
)
def test_convolution_gram_matrices_use_im2col(argument: dict[str, Any]) -> None:
    """Rows times weights are what the convolution gives."""
    groups = argument.get("group", 1)
    weight = RNG.standard_normal((6, 3 // groups * 2, 3, 2)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], **argument)
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6, 7, 9])]
    if groups == 1:
        weight = RNG.standard_normal((6, 6, 3, 2)).astype(np.float32)
    ends = [onnx.ValueInfoProto(name="y")]
    result = [numpy_helper.from_array(weight, "w")]
    graph = helper.make_graph([node], "g", ports, ends, result)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = RNG.standard_normal((2, 6, 7, 9)).astype(np.float32)
    expected = ekiden.compile(model)(data).numpy()
    rows = input_rows(find_layers(model, "g")[0], data)
    parts = np.split(weight.reshape(6, -1), groups)
    actual = np.concatenate([r @ w.T for r, w in zip(rows, parts, strict=True)], axis=1)
    actual = actual.reshape(2, -1, 6).transpose(0, 2, 1).reshape(expected.shape)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"rounding": "best"}, "no rounding is named 'best'; there are 'nearest', 'gptq'"),
        ({"awq": True}, "awq is of the kind 'weight'"),
    ],
)
def test_invalid_rounding_recipes_are_refused(recipe: dict[str, Any], message: str) -> None:
    with pytest.raises(ekiden.InputError) as caught:
        ekiden.quantize(layer(), DATA, **recipe)
    assert message in str(caught.value)
    with pytest.raises(ekiden.InputError, match="needs calibration data"):
        ekiden.quantize(layer(), kind="weight", rounding="gptq")
