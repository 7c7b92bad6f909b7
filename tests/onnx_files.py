"""A small ONNX model, what it computes, and a compiled file of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ekiden

WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def model(op_type: str = "Relu") -> onnx.ModelProto:
    """y = op(x @ w + b) with x: float32[n, 3], b: float32[n, 1]"""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="product"),
        helper.make_node("Add", ["product", "b"], ["sum"], name="sum"),
        helper.make_node(op_type, ["sum"], ["y"], name="last"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
        helper.make_tensor_value_info("b", TensorProto.FLOAT, ["n", 1]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])]
    weight = numpy_helper.from_array(WEIGHT, "w")
    graph = helper.make_graph(nodes, "small", inputs, outputs, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def arguments(n: int) -> dict[str, np.ndarray]:
    """Return arguments for `model` with n rows."""
    rng = np.random.default_rng(n)
    return {"x": rng.random((n, 3), np.float32), "b": rng.random((n, 1), np.float32)}


def expected(x: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the result of `model`."""
    return np.maximum(x @ WEIGHT + b, 0)


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the compiled model."""
    path = tmp_path_factory.mktemp("artifact") / "small.eki"
    ekiden.compile(model()).save(path)
    return path
