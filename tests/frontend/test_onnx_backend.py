"""ONNX's own backend interface, and ONNX's tests run through it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ekiden.driver import onnx_backend
from ekiden.runtime.errors import UnsupportedError


def _reduce_model() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)],
        "sum",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("axes", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def test_run_node_runs_one_operator() -> None:
    node = helper.make_node("Add", ["a", "b"], ["c"])
    a, b = np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32)
    (found,) = onnx_backend.run_node(node, [a, b])
    np.testing.assert_array_equal(found, a + b)


def test_outputs_go_by_name() -> None:
    node = helper.make_node("Split", ["x"], ["left", "right"], axis=0, num_outputs=2)
    found = onnx_backend.run_node(node, {"x": np.arange(4, dtype=np.float32)})
    np.testing.assert_array_equal(found.right, [2, 3])


def test_an_input_that_decides_the_rank_is_fixed_by_value() -> None:
    rep = onnx_backend.prepare(_reduce_model())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for axis in (0, 1, 0):
        (found,) = rep.run([x, np.array([axis])])
        np.testing.assert_array_equal(found, x.sum(axis))
    assert rep.fixed == ("axes",)


def test_devices() -> None:
    assert onnx_backend.supports_device("CPU") and onnx_backend.supports_device("CPU:0")
    assert not onnx_backend.supports_device("CUDA")
    with pytest.raises(UnsupportedError, match="CUDA"):
        onnx_backend.prepare(_reduce_model(), "CUDA")
