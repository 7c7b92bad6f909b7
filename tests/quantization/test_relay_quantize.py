"""relay.quantize: Relay programs with integer products."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.quantization.sensitivity import signal_to_noise_db
from ekiden.relay.expr import Call
from ekiden.relay.transform.graph.fold_scale_axis import op_name_of
from long_runs import alike

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(0)
SHAPE = (1, 8, 12, 12)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def module_of(body: Any) -> IRModule:  # noqa: ANN401 - an expression
    return IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body))


def network() -> IRModule:
    """Three convolutions with a residual, a pool, a classifier."""
    x = relay.var("x", shape=SHAPE)
    weights = [relay.const(normal(8, 8, 3, 3) / 9) for _ in range(3)]
    bias = relay.const(normal(8))

    def conv(data: Any, at: int) -> Any:  # noqa: ANN401
        return relay.nn.conv2d(data, weights[at], padding=(1, 1))

    first = relay.nn.relu(relay.nn.bias_add(conv(x, 0), bias))
    second = relay.nn.relu(relay.add(relay.nn.bias_add(conv(first, 1), bias), first))
    third = conv(relay.nn.max_pool2d(second, (2, 2), (2, 2)), 2)
    pooled = relay.nn.batch_flatten(relay.nn.global_avg_pool2d(third))
    return module_of(relay.nn.dense(pooled, relay.const(normal(10, 8))))


MODULE = network()
DATA = [{"x": normal(*SHAPE)} for _ in range(4)]


@cache
def wanted() -> np.ndarray:
    """What the network of floats gives."""
    result: np.ndarray = ekiden.compile(MODULE)(DATA[0]["x"]).numpy()
    return result


def quantised(module: IRModule, data: Any = None, **config: object) -> IRModule:  # noqa: ANN401
    with relay.quantize.qconfig(**config):
        return relay.quantize.quantize(module, None, data)


def dtypes(module: IRModule, name: str) -> list[str]:
    """The dtype of each result of an operator."""
    result: list[str] = []
    relay.analysis.post_order_visit(
        module["main"],
        lambda e: result.append(e.checked_type.dtype) if op_name_of(e) == name else None,
    )
    return result


@alike(4)
@pytest.mark.parametrize(
    ("config", "least"),
    [
        ({}, 25.0),
        pytest.param({"calibrate_mode": "kl_divergence"}, 25.0, marks=pytest.mark.long),
        pytest.param({"calibrate_mode": "percentile", "weight_scale": "max",
                      "rounding": "TONEAREST"}, 28.0, marks=pytest.mark.long),
        ({"calibrate_mode": "minmax", "weight_scale": "max", "skip_conv_layers": None,
          "skip_dense_layer": False, "calibrate_chunk_by": 2}, 28.0),
        ({"calibrate_mode": "mse", "do_simulation": True, "skip_conv_layers": [1]}, 25.0),
        ({"calibrate_mode": "mse", "weight_scale": "max", "nbit_weight": 4}, 9.0),
    ],
)  # fmt: skip
def test_result_is_near_the_floats(config: dict[str, Any], least: float) -> None:
    result = quantised(MODULE, DATA, **config)
    actual = ekiden.compile(result)(DATA[0]["x"]).numpy()
    assert signal_to_noise_db(wanted(), actual) > least
    assert ("qnn.conv2d" in str(result)) == (not config.get("do_simulation", False))


def test_skipped_layers_stay_float() -> None:
    for skipped, count in ((None, 3), ((0,), 2), ((0, 2), 1), ((0, 1, 2), 0)):
        result = quantised(MODULE, skip_conv_layers=skipped)
        assert len(dtypes(result, "qnn.conv2d")) == count
        assert len(dtypes(result, "nn.conv2d")) == 3 - count
    assert dtypes(result, "qnn.dense") == []
    assert dtypes(quantised(MODULE, skip_dense_layer=False), "qnn.dense") == ["int32"]
    alone = quantised(MODULE, debug_enabled_ops=["nn.dense"], skip_dense_layer=False)
    assert dtypes(alone, "qnn.conv2d") == [] and dtypes(alone, "qnn.dense") == ["int32"]


def test_data_movement_runs_in_int8() -> None:
    result = quantised(MODULE, skip_conv_layers=None)
    assert dtypes(result, "nn.max_pool2d") == ["int8"]
    text = str(result)
    assert text.count("qnn.quantize(%") == 1  # of the input: what lies between stays integers
    x = relay.var("x", shape=SHAPE)
    flat = relay.nn.batch_flatten(relay.nn.conv2d(x, relay.const(normal(8, 8, 3, 3))))
    assert dtypes(quantised(module_of(flat), skip_conv_layers=None), "nn.batch_flatten") == ["int8"]


def test_products_of_two_inputs() -> None:
    x, y = relay.var("x", shape=(2, 4, 8)), relay.var("y", shape=(2, 6, 8))
    module = module_of(relay.nn.batch_matmul(x, y))
    output = quantised(module, global_scale=4.0)
    assert dtypes(output, "qnn.batch_matmul") == ["int32"]
    a, b = normal(2, 4, 8), normal(2, 6, 8)
    result = ekiden.compile(output)(a, b).numpy()
    assert signal_to_noise_db(a @ b.transpose(0, 2, 1), result) > 30.0


def test_dtypes_of_integers_are_left_alone() -> None:
    module = relay.parse("""def @main(%x: Tensor[(2, 4), int8], %w: Tensor[(3, 4), int8]) {
      nn.dense(%x, %w, out_dtype="int32") }""")
    assert "qnn" not in str(quantised(module, skip_dense_layer=False))


@pytest.mark.parametrize("size", [0, 1, 3])
def test_symbolic_and_empty_sizes_are_quantized(size: int) -> None:
    module = relay.parse(
        """def @main(%x: Tensor[(n, 4), float32], %y: Tensor[(n, 3), float32]) {
      add(nn.dense(%x, meta[relay.Constant][0]), %y) }
    """.replace("meta[relay.Constant][0]", 'ones(shape=[3, 4], dtype="float32")')
    )
    result = quantised(module, skip_dense_layer=False, global_scale=4.0, weight_scale="max")
    x, y = normal(size, 4), normal(size, 3)
    wanted = x.sum(1, keepdims=True) + y
    np.testing.assert_allclose(ekiden.compile(result)(x, y).numpy(), wanted, atol=0.2)


def test_quantize_steps_are_module_passes() -> None:
    """As users put them together: annotated, calibrated, realised."""
    module = relay.quantize.prerequisite_optimize(MODULE)
    with relay.quantize.qconfig(skip_conv_layers=None):
        annotated = relay.quantize.annotate()(module)
        with pytest.raises(ekiden.CompileError, match="calibrate comes first"):
            relay.quantize.realize()(annotated)
        transformed = relay.quantize.realize()(relay.quantize.calibrate()(annotated, None))
    assert str(annotated).count("simulated_quantize") >= 6
    assert len(dtypes(transformed, "qnn.conv2d")) == 3


def test_partition_conversions_splits_the_module() -> None:
    x = relay.var("x", shape=SHAPE)
    inner = relay.nn.conv2d(x, relay.const(normal(8, 8, 3, 3)))
    config: dict[str, Any] = {"skip_conv_layers": None}
    plain = quantised(module_of(inner), **config)
    cut = quantised(module_of(inner), **config, partition_conversions="fully_integral")
    names = {item.name_hint for item in cut.functions}
    assert names == {"main", "quantize_inputs", "quantized_main", "dequantize_outputs"}
    assert cut["quantized_main"].checked_type.arg_types[0].dtype == "int8"
    actual, wanted = (ekiden.compile(item)(DATA[0]["x"]).numpy() for item in (cut, plain))
    np.testing.assert_array_equal(actual, wanted)
    last = relay.Tuple([inner, relay.exp(x)])
    both = quantised(module_of(last), **config, partition_conversions="enabled")
    assert len(ekiden.compile(both)(DATA[0]["x"])) == 2
    with pytest.raises(ekiden.CompileError, match="'%x' is of float32 between the integers"):
        quantised(module_of(last), **config, partition_conversions="fully_integral")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"skip_dense_layers": False}, "no field is named 'skip_dense_layers'; did you mean"),
        ({"zzz": 1}, "no field is named 'zzz'; there are nbit_input"),
        ({"calibrate_mode": "best"}, "'calibrate_mode' must be one of 'global_scale'"),
        ({"dtype_input": "uint8"}, "'dtype_input' must be one of 'int8', got 'uint8'"),
        ({"nbit_weight": 9}, "'nbit_weight' must be one of 2, 3, 4"),
        ({"round_for_shift": False}, "'round_for_shift' must be one of True"),
        ({"global_scale": 0.0}, "'global_scale' must be positive"),
        ({"calibrate_chunk_by": 0}, "'calibrate_chunk_by' must be positive or -1"),
    ],
)
def test_invalid_qconfigs_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ekiden.InputError) as caught:
        relay.quantize.qconfig(**config)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "'minmax' needs a dataset"),
        ([], "'minmax' needs a dataset"),
        ([{"z": DATA[0]["x"]}], "the data have no 'x'; they have 'z'"),
        ([{"x": np.full(SHAPE, np.nan, np.float32)}], "values that are not finite"),
    ],
)
def test_invalid_calibration_data_are_refused(data: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ekiden.InputError) as caught:
        quantised(MODULE, data, calibrate_mode="minmax")
    assert message in str(caught.value)


def test_qconfigs_nest() -> None:
    quantize = relay.quantize
    assert quantize.current_qconfig() == quantize.QConfig()
    with quantize.qconfig(global_scale=2.0), quantize.qconfig(nbit_input=4) as inner:
        assert quantize.current_qconfig() is inner and inner.global_scale == 8.0
        assert inner.get_nbit_by_kind(quantize.QAnnotateKind.INPUT) == 4
    assert quantize.current_qconfig().nbit_input == 8


def test_rounding_in_floats_is_an_operator() -> None:
    """Its kernel, its reference, and types that it refuses."""
    from ekiden.relay.op.annotation import simulated_quantize

    steps = [relay.const(np.float32(item)) for item in (0.5, -3.0, 3.0)]
    x = relay.var("x", shape=(5,))
    module = module_of(simulated_quantize(x, *steps))
    data = np.float32([0.2, 0.3, -0.8, 9.0, -9.0])
    assert ekiden.compile(module)(data).numpy().tolist() == [0.0, 0.5, -1.0, 1.5, -1.5]
    assert isinstance(module["main"].body, Call)
    wrong = simulated_quantize(relay.var("x", shape=(2,), dtype="float16"), *steps)
    with pytest.raises(ekiden.TypeInferenceError, match="'data' must be float32, got float16"):
        relay.transform.InferType()(module_of(wrong))


FRESH_PROCESS = """
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from ekiden import relay

weight = numpy_helper.from_array(np.ones((16, 8), np.float32), "w")
x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 16))
y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 8))
node = helper.make_node("MatMul", ["x", "w"], ["y"])
graph = helper.make_graph([node], "g", [x], [y], [weight])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
module, params = relay.frontend.from_onnx(model)
with relay.quantize.qconfig(skip_dense_layer=False):
    assert "qnn.dense" in str(relay.quantize.quantize(module, params))
"""


def test_program_without_qnn_is_quantised() -> None:
    """Rules load late: a program imported from ONNX stayed in floats without a word."""
    subprocess.run([sys.executable, "-c", FRESH_PROCESS], check=True)
