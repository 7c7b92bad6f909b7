"""Operators on sparse matrices and tensors, and the passes that make weights sparse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.relay.data_dep_optimization import bsr_conv2d, bsr_dense, simplify_fc_transpose
from ekiden.relay.transform.graph.sparse_weights import dense_to_bsr
from ekiden.runtime import tensor
from ekiden.runtime.errors import IndexRangeError

EXECUTORS = ("debug", "vm")
RNG = np.random.default_rng(5)


def _run(kind: str, function: relay.Function, *arguments: object) -> Any:  # noqa: ANN401
    module = ekiden.IRModule.from_expr(function)
    return relay.create_executor(kind, module, target="llvm").evaluate()(*arguments)


def _weight(rows: int, columns: int, block: tuple[int, int]) -> Any:  # noqa: ANN401
    """A matrix of which a third of the blocks holds something."""
    high, wide = block
    used = np.arange(rows // high * columns // wide).reshape(rows // high, -1) % 3 == 0
    return np.kron(used, np.ones(block)).astype("float32") * RNG.standard_normal((rows, columns))


def _constants(matrix: Any, block: tuple[int, int]) -> tuple[relay.Expr, ...]:  # noqa: ANN401
    data, indices, indptr = dense_to_bsr(matrix.astype("float32"), block)
    data = data.reshape(-1) if block == (1, 1) else data
    return relay.const(data), relay.const(indices), relay.const(indptr)


def _vars(*arrays: Any) -> list[relay.Var]:  # noqa: ANN401
    return [relay.var(f"x{n}", shape=a.shape, dtype=str(a.dtype)) for n, a in enumerate(arrays)]


@pytest.mark.parametrize("kind", EXECUTORS)
@pytest.mark.parametrize("block", [(1, 1), (4, 2)])
def test_sparse_dense(kind: str, block: tuple[int, int]) -> None:
    weight, x = _weight(12, 8, block), RNG.standard_normal((3, 8)).astype("float32")
    (data,) = _vars(x)
    output = relay.nn.sparse_dense(data, _constants(weight, block))
    result = _run(kind, relay.Function([data], output), x).numpy()
    np.testing.assert_allclose(result, x @ weight.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", EXECUTORS)
def test_sparse_transpose_and_add(kind: str) -> None:
    weight = _weight(6, 6, (1, 1)).astype("float32")
    parts = _constants(weight, (1, 1))
    turned = relay.nn.sparse_transpose(parts)
    x = RNG.standard_normal((6, 6)).astype("float32")
    (data,) = _vars(x)
    output = relay.nn.sparse_add(data, (turned[0], turned[1], turned[2]))
    result = _run(kind, relay.Function([data], output), x).numpy()
    np.testing.assert_allclose(result, x + weight.T, rtol=1e-6)


def test_rows_that_are_not_there_are_refused() -> None:
    """Starts of fewer rows than the dense matrix has were read behind their end."""
    dense, parts = relay.var("x", shape=(8, 8)), _constants(_weight(6, 8, (1, 1)), (1, 1))
    function = relay.Function([dense], relay.nn.sparse_add(dense, parts))
    with pytest.raises(Exception, match=r"'sparse_indptr' must have shape \(9\), got \(7"):
        _run("vm", function, np.ones((8, 8), "float32"))


def test_column_out_of_range_is_refused() -> None:
    x = np.ones((2, 3), "float32")
    (data,) = _vars(x)
    parts = (relay.const(a) for a in (np.ones(1, "float32"), np.int32([9]), np.int32([0, 1])))
    result = relay.nn.sparse_dense(data, tuple(parts))
    with pytest.raises(IndexRangeError, match="column 9"):
        _run("vm", relay.Function([data], result), x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_empty_rows_are_filled(dynamic: bool) -> None:
    places = np.array([[0, 1], [0, 3], [2, 0], [3, 1]])
    inputs = (places, np.array([1, 2, 3, 4]), np.array([5, 6]), np.array([10]))
    params = _vars(*inputs)
    if dynamic:
        params = [relay.var(f"x{n}", shape=(relay.Any(),) * a.ndim, dtype="int64")
                  for n, a in enumerate(inputs)]  # fmt: skip
    output = relay.sparse_fill_empty_rows(*params).astuple()
    result = [f.numpy().tolist() for f in _run("vm", relay.Function(params, output), *inputs)]
    assert result[0] == [[0, 1], [0, 3], [1, 0], [2, 0], [3, 1], [4, 0]]
    assert result[1:] == [[1, 2, 10, 3, 4, 10], [False, True, False, False, True]]


@pytest.mark.parametrize("kind", EXECUTORS)
def test_sparse_to_dense_of_a_shape_that_is_data(kind: str) -> None:
    inputs = np.array([[0, 0], [1, 2]]), np.array([1, 2]), np.array([3, 4])
    places, values, shape = _vars(*inputs)
    function = relay.Function([places, values, shape], relay.sparse_to_dense(places, shape, values))
    assert _run(kind, function, *inputs).numpy().tolist() == [
        [1, 0, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0]
    ]  # fmt: skip
    with pytest.raises(IndexRangeError, match="sparse_to_dense: index 2"):
        _run(kind, function, *inputs[:2], np.array([3, 2]))
    known = relay.bind(function, {shape: relay.const(inputs[2])})
    module = relay.transform.DynamicToStatic()(ekiden.IRModule.from_expr(known))
    assert "dyn." not in module.astext() and module["main"].ret_type.concrete_shape == (3, 4)


def _results(function: relay.Function, params: Any, x: Any) -> Any:  # noqa: ANN401
    return relay.build(function, "llvm", params=params)(x).numpy()


def _compare(function: relay.Function, params: Any, x: Any, name: str, convert: Any) -> None:  # noqa: ANN401
    expected = _results(function, dict(params), x)
    changed, params = convert(function, params)
    assert name in relay.transform.InferType()(ekiden.IRModule.from_expr(changed)).astext()
    np.testing.assert_allclose(_results(changed, params, x), expected, rtol=1e-4, atol=1e-4)


def test_dense_weights_become_sparse() -> None:
    x, w = RNG.standard_normal((2, 16)).astype("float32"), _weight(24, 16, (8, 1))
    data, weight = relay.var("data", shape=x.shape), relay.var("weight", shape=w.shape)
    function = relay.Function([data, weight], relay.nn.relu(relay.nn.dense(data, weight)))
    params = {"weight": tensor(w.astype("float32"))}
    _compare(function, params, x, "sparse_dense", lambda f, p: bsr_dense.convert(f, p, (8, 1), 0.2))
    assert sorted(params) == ["weight.data", "weight.indices", "weight.indptr"]


def _conv(layout: str, size: int) -> tuple[relay.Function, Any, Any]:
    matrix = _weight(16, 4 * size * size, (8, 1)).astype("float32")
    is_last = layout == "NHWC"
    shape: Sequence[int] = (size, size, 4, 16) if is_last else (16, 4, size, size)
    w = np.ascontiguousarray((matrix.T if is_last else matrix).reshape(shape))
    x = RNG.standard_normal((1, 5, 6, 4) if is_last else (1, 4, 5, 6)).astype("float32")
    data, weight = relay.var("data", shape=x.shape), relay.var("weight", shape=w.shape)
    output = relay.nn.conv2d(
        data, weight, padding=size // 2, data_layout=layout,
        kernel_layout="HWIO" if is_last else "OIHW",
    )  # fmt: skip
    return relay.Function([data, weight], output), {"weight": tensor(w)}, x


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_convolution_weights_become_sparse(layout: str, size: int) -> None:
    function, params, x = _conv(layout, size)
    bound = relay.build_module.bind_params_by_name(function, params)
    _compare(bound, {}, x, "sparse_conv2d",
             lambda f, p: bsr_conv2d.convert2(f, p, (8, 1), 0.2, layout, size))  # fmt: skip
    _compare(function, params, x, "sparse_conv2d",
             lambda f, p: bsr_conv2d.convert(f, p, (8, 1), 0.2, layout, size))  # fmt: skip


def test_transposed_weights_are_transposed_beforehand() -> None:
    x, w = (RNG.standard_normal(s).astype("float32") for s in ((1, 8), (8, 3)))
    data, weight = relay.var("data", shape=x.shape), relay.var("w", shape=w.shape)
    output = relay.nn.dense(data, relay.transpose(weight, (1, 0)))
    params = {"w": tensor(w)}
    _compare(relay.Function([data, weight], output), params, x, "nn.dense",
             simplify_fc_transpose.convert)  # fmt: skip
    assert list(params) == ["w.T"]
