"""Derivatives in models (ai.onnx.preview.training), and what is computed of slices by data."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import graph_model, ints, normal

import ekiden
from ekiden.runtime.errors import UnsupportedError


def gradient_model(xs: list[str], y: str) -> onnx.ModelProto:
    """z = tanh(a * b), s = sum(z) and the derivatives of y."""
    result = [f"d{x}" for x in xs]
    nodes = [
        helper.make_node("Mul", ["a", "b"], ["p"]),
        helper.make_node("Tanh", ["p"], ["z"]),
        helper.make_node("ReduceSum", ["z"], ["s"], keepdims=0),
        helper.make_node("Gradient", xs, result, domain="ai.onnx.preview.training", xs=xs, y=y),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3]) for n in "ab"]
    outputs = [helper.make_empty_tensor_value_info(n) for n in ("s", *result)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.preview.training", 1)]
    graph = helper.make_graph(nodes, "g", infos, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_gradient_operator_matches_derivatives() -> None:
    a, b = normal(4, 3), normal(4, 3, seed=1)
    total, da, db = ekiden.compile(gradient_model(["a", "b"], "s"))(a, b)
    slope = 1 - np.tanh(a * b) ** 2
    np.testing.assert_allclose(total.numpy(), np.tanh(a * b).sum(), rtol=1e-4)
    np.testing.assert_allclose(da.numpy(), slope * b, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(db.numpy(), slope * a, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("xs", "y", "message"),
    [(["p"], "s", "'p' in 'xs' or 'zs' must be an input"), (["a"], "q", "no tensor 'q' yet")],
)
def test_unsupported_gradients_are_refused(xs: list[str], y: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        ekiden.compile(gradient_model(xs, y))


@pytest.mark.parametrize("length", [1, 4])
def test_runtime_slice_broadcasts_and_sums(length: int) -> None:
    """Its extent is no longer an extent of what it is computed into."""
    nodes = [
        helper.make_node("Slice", ["x", "start", "end"], ["part"]),
        helper.make_node("Add", ["part", "y"], ["wide"]),
        helper.make_node("ReduceSum", ["wide"], ["total"], keepdims=0),
    ]
    x, y = normal(6), normal(length, seed=1)
    feed = {"x": x, "start": ints(1), "end": ints(5), "y": y}
    model = graph_model(nodes, feed, ["wide", "total"], symbolic=True)
    del model.graph.value_info[:]
    for position in (1, 2):
        model.graph.input[position].type.tensor_type.shape.dim[0].dim_value = 1
    wide, total = ekiden.compile(model)(*feed.values())
    np.testing.assert_allclose(wide.numpy(), x[1:5] + y, rtol=1e-5)
    np.testing.assert_allclose(total.numpy(), (x[1:5] + y).sum(), rtol=1e-5)
    summed = [nodes[0], helper.make_node("ReduceSum", ["part"], ["total"], keepdims=0)]
    alone = ekiden.compile(graph_model(summed, feed, ["total"]))(*feed.values())
    np.testing.assert_allclose(alone.numpy(), x[1:5].sum(), rtol=1e-5)
