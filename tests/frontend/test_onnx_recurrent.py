"""Recurrent operators against ONNX Runtime, beyond ONNX's own tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ekiden
from long_runs import alike, share
from onnx_runtime import run_onnx_runtime

Array = np.ndarray
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def layer_model(
    op_type: str, tensors: dict[str, Array], data: Array, domain: str = "", **attributes: object
) -> onnx.ModelProto:
    """A model of one node whose first input alone is not constant; a name of "" is left out."""
    outputs = [f"out{i}" for i in range(3 if "LSTM" in op_type else 2)]
    names = [n if not n.startswith("none") else "" for n in tensors]
    node = helper.make_node(op_type, ["x", *names], outputs, domain=domain, **attributes)
    dims = ["a", "b", data.shape[2]]
    dtype = helper.np_dtype_to_tensor_dtype(data.dtype)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", dtype, dims)],
        [helper.make_tensor_value_info(n, dtype, None) for n in outputs],
        [numpy_helper.from_array(v, n) for n, v in tensors.items() if not n.startswith("none")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def run_both(
    op_type: str, tensors: dict[str, Array], data: Array, domain: str = "", **attributes: object
) -> None:
    """The results of a layer are ONNX Runtime's."""
    model = layer_model(op_type, tensors, data, domain, **attributes)
    check_results(ekiden.compile(model)(data), run_onnx_runtime(model, {"x": data}))


def check_results(actual: object, expected: Sequence[Array]) -> None:
    assert isinstance(actual, tuple)
    for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
        np.testing.assert_allclose(one.numpy(), other, rtol=2e-3, atol=2e-5, err_msg=str(number))


def weights(op_type: str, directions: int, inputs: int, hidden: int) -> dict[str, Array]:
    rng = np.random.default_rng(hidden)
    rows = GATES[op_type] * hidden
    shapes = {"w": (directions, rows, inputs), "r": (directions, rows, hidden),
              "b": (directions, 2 * rows)}  # fmt: skip
    return {n: rng.normal(size=s).astype("f") * 0.4 for n, s in shapes.items()}


@share(4)
@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_sequence_lengths_and_initial_states_match_onnxruntime(
    op_type: str, direction: str
) -> None:
    steps, batch, inputs, hidden = 5, 3, 4, 7
    directions = 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(1)
    tensors = weights(op_type, directions, inputs, hidden)
    tensors["lengths"] = np.array([5, 2, 3], np.int32)
    for name in ("h0", "c0")[: 2 if op_type == "LSTM" else 1]:
        tensors[name] = rng.normal(size=(directions, batch, hidden)).astype("f")
    data = rng.normal(size=(steps, batch, inputs)).astype("f")
    run_both(op_type, tensors, data, hidden_size=hidden, direction=direction)


@pytest.mark.parametrize("op_type", GATES)
def test_float64_layers_match_those_of_float32(op_type: str) -> None:
    """ONNX Runtime has kernels of float32 alone."""
    tensors = weights(op_type, 1, 4, 7)
    data = np.random.default_rng(3).normal(size=(5, 3, 4)).astype("f")
    attributes = {"hidden_size": 7} | ({"linear_before_reset": 1} if op_type == "GRU" else {})
    expected = run_onnx_runtime(layer_model(op_type, tensors, data, **attributes), {"x": data})
    wide = {name: array.astype(np.float64) for name, array in tensors.items()}
    model = layer_model(op_type, wide, data.astype(np.float64), **attributes)
    check_results(ekiden.compile(model)(data.astype(np.float64)), expected)


FUNCTIONS = {
    "RNN": [("Relu",), ("LeakyRelu",), ("HardSigmoid",), ("Softsign",)],
    "GRU": [("HardSigmoid", "Softplus"), ("Sigmoid", "Elu")],
    "LSTM": [("HardSigmoid", "Relu", "Tanh"), ("Sigmoid", "ScaledTanh", "Affine")],
}


@alike(4)
@pytest.mark.parametrize(
    ("op_type", "names"), [(k, names) for k, rows in FUNCTIONS.items() for names in rows]
)
def test_recurrent_activations_match_onnxruntime(op_type: str, names: tuple[str, ...]) -> None:
    data = np.random.default_rng(2).normal(size=(3, 2, 4)).astype("f")
    needs = {"LeakyRelu": (0.1,), "HardSigmoid": (0.3, 0.4), "Elu": (0.7,),
             "ScaledTanh": (0.8, 0.6), "Affine": (0.5, 0.1)}  # fmt: skip
    alphas = [needs[n][0] for n in names if n in needs]
    betas = [needs[n][1] for n in names if len(needs.get(n, ())) > 1]
    numbers = {"activation_alpha": alphas, "activation_beta": betas}
    run_both(op_type, weights(op_type, 1, 4, 5), data, hidden_size=5, activations=list(names),
             **{k: v for k, v in numbers.items() if v})  # fmt: skip


REFUSED = [
    ({"activations": ["Swish"]}, "activation 'swish'; there are sigmoid, tanh"),
    ({"direction": "sideways"}, "direction must be one of forward, reverse, bidirectional"),
    ({"activations": ["Tanh", "Tanh"]}, "expected 1 activations per direction"),
]


@pytest.mark.parametrize(("attributes", "message"), REFUSED)
def test_unsupported_recurrent_options_are_refused(
    attributes: dict[str, object], message: str
) -> None:
    node = helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=5, **attributes)
    arrays = dict(itertools.islice(weights("RNN", 1, 4, 5).items(), 2))
    graph = helper.make_graph(
        [node], "one", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, n) for n, v in arrays.items()],
    )  # fmt: skip
    model: onnx.ModelProto = helper.make_model(graph)
    with pytest.raises(ekiden.CompileError, match=message):
        ekiden.compile(model)
