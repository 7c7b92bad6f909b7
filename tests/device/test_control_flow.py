"""Programs whose branches, loops and sizes come from data, on OpenCL: products run on the device,
as the profile shows, and results are those of the processor.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ekiden
from ekiden import IRModule, relay
from ekiden.cli import main
from ekiden.runtime import Device, cpu
from long_runs import LONG

RNG = np.random.default_rng(11)
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Arrays = Sequence[np.ndarray]


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


WEIGHT = numbers(64, 64) / 8
X = numbers(8, 64)


def value(name: str, dtype: int, shape: Sequence[int | str | None]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    **constants: object,
) -> onnx.ModelProto:
    arrays = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), arrays)
    imports = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def convergence() -> onnx.ModelProto:
    """x = tanh(x @ W) / 2 until no element is above 0.05, at most n times."""
    node = helper.make_node
    body = helper.make_graph(
        [
            node("MatMul", ["xi", "W"], ["product"]),
            node("Tanh", ["product"], ["t"]),
            node("Mul", ["t", "half"], ["xo"]),
            node("ReduceMax", ["xo"], ["most"], keepdims=0),
            node("Greater", ["most", "least"], ["goes_on"]),
        ],
        "body",
        [value("i", INT, []), value("ci", BOOL, []), value("xi", FLOAT, [8, 64])],
        [value("goes_on", BOOL, []), value("xo", FLOAT, [8, 64])],
    )
    return model(
        [node("Loop", ["n", "yes", "x"], ["y"], body=body)],
        [value("x", FLOAT, [8, 64]), value("n", INT, [])],
        [value("y", FLOAT, [8, 64])],
        W=WEIGHT, half=np.float32(0.5), least=np.float32(0.05), yes=np.bool_(True),
    )  # fmt: skip


def decoder() -> onnx.ModelProto:
    """Tokens by the greatest logit until the end token comes."""
    node = helper.make_node
    body = helper.make_graph(
        [
            node("Gather", ["table", "ti"], ["row"], axis=0),
            node("MatMul", ["row", "W"], ["product"]),
            node("Add", ["product", "si"], ["sum"]),
            node("Tanh", ["sum"], ["so"]),
            node("MatMul", ["so", "head"], ["logits"]),
            node("ArgMax", ["logits"], ["to"], axis=1, keepdims=0),
            node("Equal", ["to", "end"], ["is_end"]),
            node("Not", ["is_end"], ["goes_on"]),
            node("Squeeze", ["goes_on"], ["co"]),
            node("Identity", ["to"], ["token"]),
        ],
        "body",
        [
            value("i", INT, []),
            value("ci", BOOL, []),
            value("ti", INT, [1]),
            value("si", FLOAT, [1, 64]),
        ],
        [
            value("co", BOOL, []),
            value("to", INT, [1]),
            value("so", FLOAT, [1, 64]),
            value("token", INT, [1]),
        ],
    )
    return model(
        [node("Loop", ["n", "yes", "t", "s"], ["tf", "sf", "tokens"], body=body)],
        [value("t", INT, [1]), value("s", FLOAT, [1, 64]), value("n", INT, [])],
        [value("tokens", INT, [None, 1]), value("sf", FLOAT, [1, 64])],
        W=WEIGHT, table=numbers(50, 64), head=numbers(64, 50), end=[7], yes=np.bool_(True),
    )  # fmt: skip


def detector() -> onnx.ModelProto:
    """Two heads on a convolution, then the boxes that non-maximum suppression leaves."""
    node = helper.make_node
    return model(
        [
            node("Conv", ["image", "C"], ["c"], pads=[1, 1, 1, 1]),
            node("Relu", ["c"], ["features"]),
            node("Conv", ["features", "B"], ["b"]),
            node("Conv", ["features", "S"], ["s"]),
            node("Reshape", ["b", "four"], ["b1"]),
            node("Transpose", ["b1"], ["b2"], perm=[0, 2, 1]),
            node("Abs", ["b2"], ["boxes"]),
            node("Reshape", ["s", "two"], ["s1"]),
            node("Sigmoid", ["s1"], ["scores"]),
            node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["chosen"]),
            node("Slice", ["chosen", "two_", "three", "one"], ["column"]),
            node("Squeeze", ["column", "one"], ["index"]),
            node("Squeeze", ["boxes", "zero"], ["flat"]),
            node("Gather", ["flat", "index"], ["rows"], axis=0),
        ],
        [value("image", FLOAT, [1, 3, 10, 10])],
        [value("rows", FLOAT, [None, 4])],
        C=numbers(8, 3, 3, 3) / 3, B=numbers(4, 8, 1, 1), S=numbers(2, 8, 1, 1),
        four=[1, 4, 100], two=[1, 2, 100], most=[10], iou=np.array([0.5], "float32"),
        least=np.array([0.6], "float32"), two_=[2], three=[3], one=[1], zero=[0],
    )  # fmt: skip


def sequence() -> onnx.ModelProto:
    """A list of states, each computed from the last element."""
    node, elements = helper.make_node, helper.make_tensor_sequence_value_info
    body = helper.make_graph(
        [
            node("SequenceLength", ["si"], ["length"]),
            node("Sub", ["length", "one"], ["last"]),
            node("SequenceAt", ["si", "last"], ["before"]),
            node("MatMul", ["before", "W"], ["product"]),
            node("Tanh", ["product"], ["state"]),
            node("SequenceInsert", ["si", "state"], ["so"]),
            node("Identity", ["ci"], ["co"]),
        ],
        "body",
        [value("i", INT, []), value("ci", BOOL, []), elements("si", FLOAT, None)],
        [value("co", BOOL, []), elements("so", FLOAT, None)],
    )
    return model(
        [
            node("SequenceConstruct", ["x"], ["first"]),
            node("Loop", ["n", "", "first"], ["states"], body=body),
            node("SequenceErase", ["states", "zero"], ["rest"]),
            node("ConcatFromSequence", ["rest"], ["y"], axis=0),
        ],
        [value("x", FLOAT, [8, 64]), value("n", INT, [])],
        [value("y", FLOAT, [None, 64])],
        W=WEIGHT, one=1, zero=0,
    )  # fmt: skip


MODELS = {
    "a sequence of states": (sequence, (X, np.array(5)), "dense"),
    "a loop until convergence": (convergence, (X, np.array(9)), "dense"),
    "a decoder that ends by a token": (decoder, (np.array([3]), X[:1], np.array(12)), "dense"),
    "a detector with suppression": (
        detector,
        (RNG.random((1, 3, 10, 10), dtype="float32"),),
        "conv2d",
    ),
}


def results(exe: ekiden.Executable, args: Arrays) -> list[np.ndarray]:
    result = exe(*args)
    return [
        np.asarray(item.numpy()) for item in (result if isinstance(result, tuple) else (result,))
    ]


@pytest.mark.parametrize(
    "executor", ["vm", pytest.param("aot", marks=LONG), pytest.param("async", marks=LONG)]
)
@pytest.mark.parametrize("name", MODELS)
def test_data_dependent_programs_run_matmuls_on_device(
    opencl: Device, name: str, executor: str, tmp_path: Path
) -> None:
    build, args, product = MODELS[name]
    source = build()
    expected_value = results(ekiden.compile(source), args)
    exe = ekiden.compile(source, "opencl", executor=executor)
    exe.save(tmp_path / "model.eki")
    for item in (exe, ekiden.load(tmp_path / "model.eki")):
        for actual, expected in zip(results(item, args), expected_value, strict=True):
            np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)
    assert product not in exe.placement.partition("cpu(0)")[2]
    calls = exe.profile(*args, peak=False).calls
    assert any(product in call.title for call in calls)
    host = {c.title for c in calls if c.name.startswith("fused_")} & {"less", "add"}
    assert product not in host


def test_elements_of_a_sequence_stay_on_the_device(opencl: Device) -> None:
    """However long the loop, they are copied once, where they are put together."""
    exe = ekiden.compile(sequence(), "opencl")
    for rounds in (2, 6):
        calls = exe.profile(X, np.array(rounds), peak=False).calls
        assert [c.name for c in calls].count("device_copy opencl(0) -> cpu(0)") == 1


def test_placement_log_gives_devices_and_reasons(
    opencl: Device, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    x, i = relay.var("x", shape=(4, 4)), relay.var("i", shape=(), dtype="int32")
    branch = relay.If(relay.less(i, relay.const(3)), relay.exp(x), relay.tanh(x))
    module = IRModule.from_expr(relay.Function([x, i], branch))
    with caplog.at_level(logging.INFO, "ekiden"):
        exe = ekiden.compile(module, "opencl")
    line = (
        "opencl(0): 2 kernels; cpu(0): 1 kernel"
        " (less: decides what runs next or how large a tensor is)"
    )
    assert exe.placement == line
    assert f"compile: {line}" in caplog.messages
    exe.save(tmp_path / "branch.eki")
    assert main(["inspect", str(tmp_path / "branch.eki")]) == 0
    assert f"Devices: {line}" in capsys.readouterr().out


def test_program_of_one_device_has_no_placement() -> None:
    x = relay.var("x", shape=(4,))
    exe = ekiden.compile(IRModule.from_expr(relay.Function([x], relay.exp(x))))
    assert exe.placement == "" and exe.raw.devices == [cpu(0)]
