"""quantize(): each recipe on small networks, beside float and ONNX Runtime."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ekiden
from ekiden.cli import main
from ekiden.quantization import LayerPlan, QuantPlan, Recipe
from ekiden.quantization.sensitivity import signal_to_noise_db
from long_runs import alike
from onnx_runtime import session

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def network(opset: int = 17, batch: int | str = "n") -> onnx.ModelProto:
    """Two convolutions, of which one has groups, a pool, a Gemm and a MatMul."""
    weights = {
        "w0": normal(8, 3, 3, 3) / 5, "b0": normal(8) / 4, "w1": normal(16, 4, 3, 3) / 6,
        "w2": normal(32, 64) / 8, "b2": normal(32) / 4, "w3": normal(32, 10) / 6,
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], "grouped", pads=[1, 1, 1, 1], group=2),
        helper.make_node("MaxPool", ["c1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p1"], ["f1"]),
        helper.make_node("Gemm", ["f1", "w2", "b2"], ["g2"], "wide", transB=1),
        helper.make_node("Relu", ["g2"], ["r2"]),
        helper.make_node("MatMul", ["r2", "w3"], ["y"], "last"),
    ]
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 4, 4]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 10]),
    ]
    result = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "network", ports[:1], ports[1:], result)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


FLOATS = network()
DATA = normal(256, 3, 4, 4)
FRESH = normal(20, 3, 4, 4)


@cache
def wanted() -> np.ndarray:
    """What the network of floats gives."""
    result: np.ndarray = ekiden.compile(FLOATS)(FRESH).numpy()
    return result


LONG: list[tuple[dict[str, Any], float]] = [
    ({"method": "percentile"}, 22.0),
    ({"method": "mse"}, 22.0),
    ({"per_channel": False}, 22.0),
    ({"bias_correction": True}, 22.0),
    ({"kind": "weight"}, 35.0),
    ({"kind": "weight", "bits": 4}, 9.0),
    ({"kind": "weight", "bits": 4, "group": 16, "method": "mse"}, 13.0),
]


@alike(4)
@pytest.mark.parametrize(
    ("recipe", "least"),
    [
        ({}, 22.0),
        ({"method": "entropy"}, 25.0),
        ({"method": "mse", "bias_correction": True}, 22.0),
        ({"smooth": 0.5, "per_channel": False}, 22.0),
        ({"kind": "dynamic"}, 30.0),
        ({"kind": "weight", "group": 32}, 35.0),
        ({"kind": "weight", "bits": 4, "group": 32}, 13.0),
        *(pytest.param(*case, marks=pytest.mark.long) for case in LONG),
    ],
)
def test_recipes_quantize_small_networks(recipe: dict[str, Any], least: float) -> None:
    """Each is near the floats, on data that were not calibrated on; both engines agree."""
    actual = ekiden.quantize(FLOATS, DATA, **recipe)
    assert actual.plan and len(actual.model.SerializeToString()) < FLOATS.ByteSize()
    result = ekiden.compile(actual.model)(FRESH).numpy()
    assert signal_to_noise_db(wanted(), result) > least
    (reference,) = session(actual.model).run(None, {"x": FRESH})
    assert signal_to_noise_db(reference, result) > 30.0


def test_weights_and_biases_behind_identities_are_those_of_layers() -> None:
    weight, bias = normal(3, 3, 3, 3) / 5, normal(3) / 4
    nodes = [
        helper.make_node("Identity", ["w"], ["tied"]),
        helper.make_node("Identity", ["b"], ["same"]),
        helper.make_node("Identity", ["same"], ["again"]),
        helper.make_node("Conv", ["x", "w", "same"], ["c"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c", "tied", "again"], ["y"], "second", pads=[1, 1, 1, 1]),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, 4, 4]) for name in "xy"
    ]
    held = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")]
    graph = helper.make_graph(nodes, "tied", ports[:1], ports[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    small = ekiden.quantize(model, {"x": DATA})
    assert [item.layer for item in small.plan.layers] == ["first", "second"]
    floats = [item.name for item in small.model.graph.initializer if item.name in "wb"]
    assert not floats, "nothing reads them any more"
    wanted, result = (session(item).run(None, {"x": FRESH})[0] for item in (model, small.model))
    assert signal_to_noise_db(wanted, result) > 20


def test_quantization_plan_gives_reasons() -> None:
    result = ekiden.quantize(FLOATS, DATA, kind="weight", group=64, skip=("last",), least_snr=0.0)
    rows = {row.layer: (row.kind, row.reason) for row in result.plan.layers}
    assert rows == {
        "first": ("float", "no groups in a Conv"),
        "grouped": ("float", "no groups in a Conv"),
        "wide": ("weight", ""),
        "last": ("float", "asked for"),
    }
    assert result.plan["wide"].snr is not None and "1 of 4 layers quantised" in str(result)
    odd = ekiden.quantize(FLOATS, kind="weight", group=128)
    assert odd.plan["last"].reason == "128 does not divide 32"
    broken = network()
    weight = next(item for item in broken.graph.initializer if item.name == "w3")
    values = numpy_helper.to_array(weight).copy()
    values.flat[0] = np.nan
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    row = ekiden.quantize(broken, DATA).plan["last"]
    assert (row.kind, row.reason) == ("float", "its weight has values that are not finite")
    assert "<table" in result._repr_html_()


def test_inaccurate_layer_stays_float() -> None:
    actual = ekiden.quantize(FLOATS, DATA, kind="weight", bits=4, least_snr=200.0)
    assert not actual.plan and {row.reason for row in actual.plan.layers} == {"below 200 dB"}
    assert np.array_equal(ekiden.compile(actual.model)(FRESH).numpy(), wanted())


def test_layer_without_speedup_stays_float() -> None:
    result = ekiden.quantize(FLOATS, DATA, faster=True, gain=1e-9)
    for row in result.plan.layers:
        assert row.float_us is not None and row.quantised_us is not None
        assert (row.kind == "float") == (row.quantised_us >= row.float_us)
    assert QuantPlan.from_json(result.plan.json()) == result.plan


def test_model_without_speedup_stays_float() -> None:
    plan = QuantPlan(Recipe(faster=True, gain=1.2), (LayerPlan("a", "Conv", "static"),))
    assert plan.with_model_times(13.0, 10.0)["a"].kind == "static"
    slow = plan.with_model_times(11.0, 10.0)
    assert not slow and slow["a"].reason == "the model is 1.10 times as fast, 1.2 is required"
    assert str(slow).endswith(
        "0 of 1 layers quantised; the whole 11.0 us as floats, 10.0 quantised"
    )
    actual = ekiden.quantize(FLOATS, DATA, faster=True, gain=1e9)
    assert not actual.plan
    assert np.array_equal(ekiden.compile(actual.model)(FRESH).numpy(), wanted())


def test_explicit_plan_is_followed() -> None:
    output = ekiden.quantize(FLOATS, DATA)
    changed = output.plan.exclude_layer("wide", "by hand")
    again = QuantPlan.from_json(changed.json())
    assert again == changed
    result = ekiden.quantize(FLOATS, DATA, plan=again)
    count = sum(node.op_type == "QuantizeLinear" for node in result.model.graph.node)
    assert count == 3 and "w2" in {item.name for item in result.model.graph.initializer}
    with pytest.raises(ekiden.InputError, match="no layer is named 'other'"):
        again["other"]
    foreign = QuantPlan(Recipe(), (LayerPlan("other", "Conv", "static"),))
    with pytest.raises(ekiden.InputError, match="the plan has a layer 'other', the model has not"):
        ekiden.quantize(FLOATS, DATA, plan=foreign)


def test_layers_are_excluded_until_accuracy_budget_holds() -> None:
    """Layers are left alone, the worst first, until the user's own function is content."""

    def accuracy(run: Any) -> float:  # noqa: ANN401  # a function
        return -float(np.abs(run({"x": FRESH})[0] - wanted()).max())

    recipe: dict[str, Any] = {"kind": "weight", "bits": 4}
    rough = ekiden.quantize(FLOATS, DATA, **recipe)
    loss = -accuracy(lambda feed: [ekiden.compile(rough.model)(**feed).numpy()])
    actual = ekiden.quantize(FLOATS, DATA, **recipe, accuracy=accuracy, budget=loss / 2)
    left = [row for row in actual.plan.layers if row.kind == "float"]
    assert left and all(row.reason.startswith("accuracy -") for row in left)
    result = ekiden.compile(actual.model)(FRESH).numpy()
    assert np.abs(result - wanted()).max() <= loss / 2 + 1e-5


def test_bias_correction_removes_mean_error() -> None:
    """One scale for a weight with one large channel shifts the others; biases undo it."""
    weight, data = normal(4, 16), np.abs(normal(256, 16)) + 1.0
    weight[0] *= 40.0
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], "only", transB=1)
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])]
    ends = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])]
    output = [numpy_helper.from_array(v, n) for n, v in (("w", weight), ("b", normal(4)))]
    graph = helper.make_graph([node], "g", ports, ends, output)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    wanted = ekiden.compile(model)(data).numpy()
    shifts = []
    for corrected in (False, True):
        actual = ekiden.quantize(
            model, data, per_channel=False, bias_correction=corrected, least_snr=0.0
        )
        result = ekiden.compile(actual.model)(data).numpy()
        shifts.append(np.abs((result - wanted).mean(axis=0))[1:].max())
    assert shifts[1] < shifts[0] / 3


@pytest.mark.parametrize(
    ("data", "recipe", "message"),
    [
        (None, {}, "'static' as asked for needs calibration data"),
        (DATA, {"kind": "other"}, "no kind is named 'other'; there are 'static'"),
        (DATA, {"method": "best"}, "no method is named 'best'"),
        (DATA, {"bits": 4}, "'static' is of 8 bits, not 4"),
        (DATA, {"group": 32}, "groups are of the kind 'weight'"),
        (DATA, {"kind": "weight", "group": 24}, "a group has 16, 32, 64"),
        (DATA, {"smooth": 1.5}, "smooth is from 0 to 1, not 1.5"),
        (DATA, {"gain": 0.0, "faster": True}, "gain is above 0, not 0"),
        (DATA, {"gain": 2.0}, "gain is for what has to be faster"),
        (DATA, {"skip": ("none",)}, "no layer is named 'none'; there are 'first', 'grouped'"),
        ({"z": DATA}, {}, "the model's inputs are 'x', the data have 'z'"),
        (DATA[0], {}, "'x' has 4 dimensions, the data 3"),
        (DATA[:0], {}, "'x' has no elements"),
        ([], {}, "there are no data"),
        (DATA * np.float32(np.inf), {}, "calibrate: 'x' has values that are not finite"),
    ],
)
def test_invalid_recipes_are_refused(data: object, recipe: dict[str, Any], message: str) -> None:
    with pytest.raises(ekiden.InputError) as result:
        ekiden.quantize(FLOATS, data, **recipe)
    assert message in str(result.value)


def test_samples_are_cut_into_runs_of_the_models_size() -> None:
    fixed = network(batch=1)
    result = ekiden.quantize(fixed, DATA[:3])
    assert ekiden.compile(result.model)(FRESH[:1]).numpy().shape == (1, 10)
    with pytest.raises(ekiden.InputError, match="takes 2 samples a run, there are 3"):
        ekiden.quantize(network(batch=2), DATA[:3])


def test_batch_dimension_minus_one_is_dynamic() -> None:
    """As PaddlePaddle's exporter writes it."""
    model = network()
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.shape.dim[0].dim_value = -1
    result = ekiden.quantize(model, DATA[:32])
    assert all(layer.snr for layer in result.plan.layers)
    assert all(layer.kind == "static" for layer in result.plan.layers)


def test_old_opset_is_upgraded() -> None:
    result = ekiden.quantize(network(11), DATA)
    assert result.model.opset_import[0].version == 13 and len(result.plan.layers) == 4


def test_quantize_command_writes_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(FLOATS, tmp_path / "float.onnx")
    np.savez(tmp_path / "data.npz", x=DATA)
    output, plan = tmp_path / "small.onnx", tmp_path / "plan.json"
    inputs = [str(tmp_path / "float.onnx"), "--calibrate", str(tmp_path / "data.npz")]
    assert main(["quantize", *inputs, "-o", str(output), "--plan-out", str(plan)]) == 0
    assert "4 of 4 layers quantised" in capsys.readouterr().out
    again = tmp_path / "small.eki"
    assert main(["quantize", *inputs, "-o", str(again), "--plan", str(plan)]) == 0
    actual = ekiden.load(again)(FRESH).numpy()
    assert np.array_equal(actual, ekiden.compile(output)(FRESH).numpy())
    capsys.readouterr()
    layers = ["--layers", "--dim", "n=8"]
    against = ["--against", str(tmp_path / "float.onnx")]
    assert main(["verify", str(output), *against, *layers]) == 0
    printed = capsys.readouterr().out
    assert "dB" in printed and "c1" in printed
    assert main(["verify", str(output), *against, "--snr", "200", "--json"]) == 3
    result = json.loads(capsys.readouterr().out)
    assert not result["agrees"] and 20.0 < result["tensors"][0]["snr"] < 200.0
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    bad = ["quantize", inputs[0], "--calibrate", str(tmp_path / "bad.npz"), "-o", str(output)]
    assert main(bad) == 1 and "--calibrate: cannot read" in capsys.readouterr().err
    np.save(tmp_path / "one.npy", np.zeros(3, np.float32))
    bad[3] = str(tmp_path / "one.npy")
    assert main(bad) == 1 and "one.npy' is one array: an .npz of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "small.eki", "--cc", "gcc"], "no C compiler makes .eki, got cc='gcc'"),
        (["-o", "small.onnx", "--cc", "gcc"], "--cc: an .onnx file needs no C compiler"),
        (["-o", "small.eki", "--gain", "2"], "--gain needs --faster"),
        (["-o", "small.eki", "--plan", "p", "--bits", "4"], "--bits: --plan already sets the"),
        (["-o", "small.eki", "--plan", "p", "--per-tensor"], "--per-tensor: --plan already sets"),
    ],
)
def test_ignored_options_are_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words[1] = str(tmp_path / words[1])
    assert main(["quantize", "float.onnx", *words]) == 1
    assert message in capsys.readouterr().err


def test_suffix_decides_what_is_written(tmp_path: Path) -> None:
    onnx.save(FLOATS, tmp_path / "float.onnx")
    np.savez(tmp_path / "data.npz", x=DATA[:16])
    inputs = [str(tmp_path / "float.onnx"), "--calibrate", str(tmp_path / "data.npz")]
    assert main(["quantize", *inputs, "-o", str(tmp_path / "small.c")]) == 0
    assert b"__tvm_ffi_main" in (tmp_path / "small.c").read_bytes()
