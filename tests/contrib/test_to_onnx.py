"""`contrib.target.onnx.to_onnx`: Relay graphs as ONNX models, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ekiden
from ekiden import relay
from ekiden.contrib.target.onnx import to_onnx
from ekiden.relay import testing
from ekiden.relay.interpreter import Interpreter
from ekiden.runtime.errors import CompileError, UnsupportedError
from onnx_runtime import run_onnx_runtime

X = relay.var("x", shape=(2, 4, 6, 6))
V = relay.var("v", shape=(4,))
M = relay.var("m", shape=(3, 5))
nn = relay.nn
CASES: dict[str, Callable[[], Any]] = {
    "add": lambda: relay.add(X, relay.const(2.0)),
    "arithmetic": lambda: relay.exp(relay.tanh(X)) * relay.sigmoid(X) / relay.sqrt(relay.abs(X)),
    "comparison": lambda: relay.where(relay.greater(X, relay.const(0.0)), X, relay.negative(X)),
    "conv2d": lambda: nn.conv2d(
        X, relay.var("w", shape=(8, 2, 3, 3)), groups=2, padding=(1, 0, 2, 1), strides=(2, 1)
    ),
    "conv2d_transpose": lambda: nn.conv2d_transpose(
        X, relay.var("w", shape=(4, 3, 3, 3)), strides=(2, 2), output_padding=(1, 1)
    ),
    "max_pool2d": lambda: nn.max_pool2d(X, (3, 3), (2, 2), padding=(1, 1), ceil_mode=True),
    "avg_pool2d": lambda: nn.avg_pool2d(X, (3, 3), (2, 2), padding=(1, 1)),
    "avg_pool2d with padding": lambda: nn.avg_pool2d(
        X, (2, 2), padding=(1, 1), count_include_pad=True
    ),
    "global_avg_pool2d": lambda: nn.global_avg_pool2d(X),
    "batch_norm": lambda: nn.batch_norm(X, V, V, V, relay.abs(V), scale=False)[0],
    "layer_norm": lambda: nn.layer_norm(X, V, V, axis=1),
    "bias_add": lambda: nn.bias_add(X, V, axis=1),
    "dense": lambda: nn.dense(M, relay.var("w", shape=(7, 5))),
    "dense of rank 3": lambda: nn.dense(
        relay.var("a", shape=(2, 3, 5)), relay.var("w", shape=(7, 5))
    ),
    "batch_matmul": lambda: nn.batch_matmul(
        relay.var("a", shape=(2, 5, 3)),
        relay.var("b", shape=(2, 5, 4)),
        transpose_a=True,
        transpose_b=False,
    ),
    "softmax": lambda: nn.softmax(X, axis=1),
    "log_softmax": lambda: nn.log_softmax(M),
    "pad": lambda: nn.pad(X, ((0, 0), (1, 0), (0, 2), (1, 1)), 1.5),
    "reflected pad": lambda: nn.pad(X, ((0, 0), (0, 0), (2, 1), (1, 1)), pad_mode="reflect"),
    "clip": lambda: relay.clip(X, -0.5, 0.75),
    "leaky_relu": lambda: nn.leaky_relu(X, 0.1),
    "prelu": lambda: nn.prelu(X, V),
    "dropout": lambda: nn.dropout(X),
    "reshape": lambda: relay.reshape(X, (0, -1, 3)),
    "transpose": lambda: relay.transpose(X),
    "transpose of axes": lambda: relay.transpose(X, (0, 2, -1, 1)),
    "expand_dims": lambda: relay.expand_dims(relay.expand_dims(M, -1), 1, num_newaxis=2),
    "squeeze": lambda: relay.squeeze(relay.reshape(M, (1, 3, 1, 5))),
    "squeeze of an axis": lambda: relay.squeeze(relay.reshape(M, (1, 3, 1, 5)), axis=[-2]),
    "concatenate": lambda: relay.concatenate([X, X], axis=-1),
    "stack": lambda: relay.stack([M, M], axis=-1),
    "split": lambda: relay.split(X, (1, 3), axis=1).astuple(),
    "split in half": lambda: relay.subtract(*relay.split(X, 2, axis=-1)),
    "strided_slice": lambda: relay.strided_slice(X, [0, 3], [2, 0], [1, -2]),
    "strided_slice of axes": lambda: relay.strided_slice(X, [1], [-1], axes=[2]),
    "take": lambda: relay.take(M, relay.const(np.array([[0, 9], [-3, 1]])), axis=1),
    "take of all": lambda: relay.take(M, relay.const(np.array([7, 100]))),
    "broadcast_to": lambda: relay.broadcast_to(V, (3, 4)),
    "tile": lambda: relay.tile(M, (2, 1, 3)),
    "cast": lambda: relay.cast(relay.multiply(X, relay.const(10.0)), "int32"),
    "sum": lambda: relay.sum(X, axis=[1, -1], keepdims=True),
    "sum of the others": lambda: relay.sum(X, axis=[1], exclude=True),
    "mean": lambda: relay.mean(X, axis=2),
    "max": lambda: relay.max(X),
    "prod": lambda: relay.prod(M, axis=0),
    "argmax": lambda: relay.argmax(X, axis=1),
    "argmin": lambda: relay.argmin(X, axis=-1, keepdims=True),
    "an input itself": lambda: relay.Tuple([M, M]),
    "a constant": lambda: relay.const(np.arange(3.0)),
}


def module_of(body: relay.Expr) -> ekiden.IRModule:
    return ekiden.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body))


def feed_of(module: ekiden.IRModule) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {
        param.name_hint: rng.standard_normal(param.type_annotation.concrete_shape, np.float32)
        for param in module["main"].params
    }


def check_same(module: ekiden.IRModule, model: onnx.ModelProto, feed: dict[str, Any]) -> None:
    inputs = {value.name for value in model.graph.input}
    actual = run_onnx_runtime(model, {k: v for k, v in feed.items() if k in inputs})
    run = relay.create_executor("debug", module).evaluate()
    result = run(**feed)
    expected = (
        [*result] if isinstance(result, (list, tuple)) or not hasattr(result, "numpy") else [result]
    )
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        b = b.numpy()
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_graph_computes_the_same_in_onnx_runtime(name: str) -> None:
    body = CASES[name]()
    module = module_of(getattr(body, "tuple_value", body) if name == "split" else body)
    check_same(module, to_onnx(module, None, "graph"), feed_of(module))


@pytest.mark.parametrize("opset", [13, 17])
def test_network_is_written_with_its_parameters(opset: int, tmp_path: Path) -> None:
    module, params = testing.resnet.get_workload(1, 10, 8, (3, 16, 16))
    path = tmp_path / "resnet.onnx"
    model = to_onnx(module, params, "resnet", opset, path)
    assert [value.name for value in model.graph.input] == ["data"]
    assert onnx.load(path) == model
    data = np.random.default_rng(1).standard_normal((1, 3, 16, 16), np.float32)
    feed = {name: param.numpy() for name, param in params.items()}
    check_same(module, model, {**feed, "data": data})
    again, _ = relay.frontend.from_onnx(model)
    (expected,) = run_onnx_runtime(model, {"data": data})
    np.testing.assert_allclose(
        np.asarray(Interpreter(again).evaluate(again["main"], data)), expected, rtol=1e-4
    )


def test_to_onnx_supports_symbolic_sizes() -> None:
    x = relay.var("x", shape=(relay.SizeVar("n"), 4))
    module = module_of(nn.relu(relay.reshape(x, (-1, 2, 2))))
    model = to_onnx(module, {}, "graph")
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert (dims[0].dim_param, dims[1].dim_value) == ("n", 4)
    for rows in (1, 5):
        value = np.random.default_rng(2).standard_normal((rows, 4), np.float32)
        (result,) = run_onnx_runtime(model, {"x": value})
        np.testing.assert_array_equal(result, np.maximum(value, 0).reshape(-1, 2, 2))


def test_to_onnx_lists_unsupported_operators() -> None:
    image = relay.var("x", shape=(1, 8, 8, 3))
    body = nn.conv2d(
        image, relay.var("w", shape=(3, 3, 3, 4)), data_layout="NHWC", kernel_layout="HWIO"
    )
    with pytest.raises(UnsupportedError, match=r"no ONNX form of topk; nn\.conv2d with layouts"):
        to_onnx(module_of(relay.Tuple([relay.topk(M, 2)[0], body])), None, "graph")
    with pytest.raises(UnsupportedError, match="no ONNX form of If"):
        condition = relay.var("c", shape=(), dtype="bool")
        to_onnx(module_of(relay.If(condition, M, M)), None, "graph")


def test_to_onnx_refuses_wrong_arguments() -> None:
    module = module_of(nn.relu(M))
    with pytest.raises(CompileError, match="opset_version: expected 13 to 17, got 11"):
        to_onnx(module, None, "graph", 11)
    with pytest.raises(CompileError, match="params: no parameter 'w'; there are 'm'"):
        to_onnx(module, {"w": np.zeros(3)}, "graph")
