"""Operators that take shapes from other tensors, windows, and sums and coordinates of sparse
tensors."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.relay.expr import Expr
from ekiden.runtime.errors import TypeInferenceError

Shape = tuple[int, ...]
Bounds = tuple[int, int | None, int, int | None]
X = relay.var("x", shape=(2, 3, 4))
DATA = np.arange(24, dtype="float32").reshape(2, 3, 4)


def run(body: Expr, *data: Array) -> Array:
    """What the interpreter and compiled code agree on; data in the order of the names."""
    params = sorted(relay.analysis.free_vars(body), key=lambda v: v.name_hint)
    module = IRModule.from_expr(relay.Function(params, body))
    result = [relay.create_executor(k, module).evaluate()(*data).numpy() for k in ("debug", "vm")]
    np.testing.assert_array_equal(*result)
    return result[1]


@pytest.mark.parametrize(
    ("shape", "bounds", "expected"),
    [
        ((6, 4), (0, None, 0, None), (6, 4)),
        ((5, 12), (1, None, -1, None), (2, 12)),
        ((6, 2, 2, 9), (-2, -1, 2, 3), (2, 2, 4)),
        ((9, 6), (0, 2, 1, 2), (6, 4)),
    ],
)
def test_reshape_like(shape: Shape, bounds: Bounds, expected: Shape) -> None:
    body = relay.reshape_like(X, relay.var("y", shape=shape), *bounds)
    if np.prod(expected) != 24:
        with pytest.raises(TypeInferenceError):
            run(body, DATA, np.zeros(shape, "float32"))
        return
    actual = run(body, DATA, np.zeros(shape, "float32"))
    np.testing.assert_array_equal(actual, DATA.reshape(expected))


def test_invalid_window_bounds_are_refused() -> None:
    with pytest.raises(TypeInferenceError, match="reshape_like: lhs dimensions from 2 to 1 of 3"):
        relay.testing.run_infer_type(relay.reshape_like(X, relay.var("y", shape=(3,)), 2, 1))


@pytest.mark.parametrize(
    ("newshape", "expected"),
    [((4, 0, 2), (4, 3, 2)), ((-1, 0), (6, 4)), ((0, -3), (2, 12)), ((-1,), (24,))],
)
def test_reverse_reshape(newshape: Shape, expected: Shape) -> None:
    body = relay.reverse_reshape(X, newshape)
    np.testing.assert_array_equal(run(body, DATA), DATA.reshape(expected))


@pytest.mark.parametrize(
    ("axis", "window", "strides"),
    [(1, (2, 3), (1, 1)), (-1, (2,), (2,)), (0, (1, 2, 4), (1, 2, 3))],
)
def test_sliding_window(axis: int, window: tuple[int, ...], strides: tuple[int, ...]) -> None:
    result = run(relay.sliding_window(X, axis, window, strides), DATA)
    axes = tuple(range(axis % 3, 3))
    view = np.lib.stride_tricks.sliding_window_view(DATA, window, axes)
    steps = (slice(None),) * (axis % 3) + tuple(slice(None, None, s) for s in strides)
    np.testing.assert_array_equal(result, view[steps])


def test_cast_like() -> None:
    result = run(relay.cast_like(X, relay.var("y", shape=(), dtype="int8")), DATA, np.int8(0))
    assert result.dtype == np.int8 and result[1, 2, 3] == 23


@pytest.mark.parametrize("count", [None, 4])
def test_segment_sum(count: int | None) -> None:
    ids = relay.var("i", shape=(2,), dtype="int32")
    actual = run(relay.segment_sum(X, ids, count), np.array([1, 1], "int32"), DATA)
    expected = np.zeros((count or 2, 3, 4), "float32")
    np.add.at(expected, [1, 1], DATA)
    np.testing.assert_array_equal(actual, expected)


def test_sparse_reshape() -> None:
    places = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 2, 3]], "int32")
    actual = relay.sparse_reshape(
        relay.const(places), relay.const([2, 3, 6]), relay.var("s", shape=(2,), dtype="int32")
    )
    expected_value = np.array([9, -1], "int32")
    flat = np.ravel_multi_index(tuple(places.T), (2, 3, 6))
    expected = np.stack(np.unravel_index(flat, (9, 4)), 1)
    np.testing.assert_array_equal(run(actual[0], expected_value), expected)
    np.testing.assert_array_equal(run(actual[1], expected_value), [9, 4])


def test_upsampling_by_factors_that_are_data() -> None:
    image = relay.var("d", shape=(1, 2, 3, 4))
    body = relay.nn.upsampling(image, relay.var("h", shape=()), relay.var("w", shape=()))
    data = DATA.reshape(1, 2, 3, 4)
    result = run(body, data, np.float32(2), np.float32(3))
    np.testing.assert_array_equal(result, data.repeat(2, 2).repeat(3, 3))
