"""User reducers over one value and tuples; ranges; misuse."""

from __future__ import annotations

import numpy as np
import pytest
from te_programs import evaluate

from ekiden import te
from ekiden.ir.prim import PrimExpr, Select, const

pytestmark = pytest.mark.quick


def argmax_pair(
    x: tuple[PrimExpr, PrimExpr], y: tuple[PrimExpr, PrimExpr]
) -> tuple[PrimExpr, PrimExpr]:
    """The (position, value) of the larger value."""
    first = x[1] >= y[1]
    return Select(first, x[0], y[0], x[0].dtype), Select(first, x[1], y[1], x[1].dtype)


argmax = te.comm_reducer(
    argmax_pair, lambda t0, t1: (const(-1, t0), te.min_value(t1)), name="argmax"
)


@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (3, 0), (0, 3), (64, 129)])
def test_tuple_reducer_finds_position_and_value(shape: tuple[int, int]) -> None:
    m, n = te.size_var("m"), te.size_var("n")
    x = te.placeholder((m, n), name="x")
    k = te.reduce_axis((0, n), "k")
    at, value = te.compute((m,), lambda i: argmax((k.astype("int32"), x[i, k]), axis=k))
    array = np.random.default_rng(0).normal(size=shape).astype("float32")
    found_at, result = evaluate([x], [at, value], [array])
    if shape[1]:
        np.testing.assert_array_equal(found_at, array.argmax(1))
        np.testing.assert_array_equal(result, array.max(1))
    else:
        assert (found_at == -1).all()


def test_one_output_of_a_tuple_reduction_may_be_left_unread() -> None:
    x = te.placeholder((4, 9), name="x")
    k = te.reduce_axis((0, 9), "k")
    at, _ = te.compute((4,), lambda i: argmax((k, x[i, k]), axis=k), name="search")
    twice = te.compute((4,), lambda i: at[i] * 2, name="twice")
    array = np.random.default_rng(1).normal(size=(4, 9)).astype("float32")
    (result,) = evaluate([x], [twice], [array])
    np.testing.assert_array_equal(result, array.argmax(1) * 2)


def test_reducer_of_single_values() -> None:
    product = te.comm_reducer(lambda a, b: a * b, lambda t: const(1, t), name="mul")
    x = te.placeholder((3, 5), "int32", "x")
    k = te.reduce_axis((0, 5), "k")
    y = te.compute((3,), lambda i: product(x[i, k], axis=k), name="y")
    array = np.arange(1, 16, dtype="int32").reshape(3, 5)
    np.testing.assert_array_equal(evaluate([x], [y], [array])[0], array.prod(1))
    assert isinstance(product(const(2), const(3)), PrimExpr)


def test_own_reducer_may_have_the_name_of_a_built_in() -> None:
    """Rules must not take it for the built-in one."""
    strange = te.comm_reducer(lambda a, b: te.max(a, b), lambda t: te.min_value(t), name="sum")
    x = te.placeholder((3, 5), name="x")
    k = te.reduce_axis((0, 5), "k")
    y = te.compute((3,), lambda i: strange(x[i, k], axis=k), name="y")
    array = np.random.default_rng(2).normal(size=(3, 5)).astype("float32")
    np.testing.assert_array_equal(evaluate([x], [y], [array])[0], array.max(1))


def test_ranges_may_begin_anywhere() -> None:
    x = te.placeholder((3, 9), name="x")
    k = te.reduce_axis((2, 7), "k")
    y = te.compute((3,), lambda i: te.sum(x[i, k], axis=k), name="y")
    array = np.random.default_rng(3).normal(size=(3, 9)).astype("float32")
    np.testing.assert_allclose(evaluate([x], [y], [array])[0], array[:, 2:7].sum(1), rtol=1e-6)


def test_condition_leaves_elements_out() -> None:
    x = te.placeholder((4, 6), name="x")
    k = te.reduce_axis((0, 6), "k")
    y = te.compute((4,), lambda i: te.sum(x[i, k], axis=k, where=k <= i), name="y")
    array = np.random.default_rng(4).normal(size=(4, 6)).astype("float32")
    expected = [array[i, : i + 1].sum() for i in range(4)]
    np.testing.assert_allclose(evaluate([x], [y], [array])[0], expected, rtol=1e-6)


def test_two_values_combine_directly() -> None:
    x = te.placeholder((4,), name="x")
    y = te.compute((4,), lambda i: te.max(te.min(x[i], 1.0), -1.0), name="y")
    array = np.array([-3, -0.5, 0.5, 3], "float32")
    np.testing.assert_array_equal(evaluate([x], [y], [array])[0], np.clip(array, -1, 1))


X = te.placeholder((3, 4), name="x")
K = te.reduce_axis((0, 4), "k")


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda: te.comm_reducer(lambda a, b: (a, b), lambda t: const(0, t), "r")(X[0, K], K),
            ValueError,
            "comm_reducer 'r': fcombine must give 1 values, got 2",
        ),
        (
            lambda: te.comm_reducer(lambda a, b: a + b, lambda t: (0, 0), "r")(X[0, K], K),
            ValueError,
            "comm_reducer 'r': fidentity must give 1 values, got 2",
        ),
        (
            lambda: te.comm_reducer(lambda a, b: a < b, lambda t: const(0, t), "r")(X[0, K], K),
            TypeError,
            "comm_reducer 'r': fcombine must give float32, got bool",
        ),
        (
            lambda: te.comm_reducer(lambda a: a, lambda t: const(0, t), "r"),
            ValueError,
            "comm_reducer 'r': fcombine must take two arguments",
        ),
        (
            lambda: te.sum(te.sum(X[0, K], K), K),
            ValueError,
            "sum: a reduction must be a computation of its own",
        ),
        (
            lambda: te.sum(X[0, K], [1]),
            TypeError,
            r"sum: expected axes made by te.reduce_axis, got \[1\]",
        ),
        (
            lambda: te.reduce_axis((0, 4), "k", "threadIdx.x"),
            ValueError,
            "reduce_axis 'k': bind it to 'threadIdx.x' by a schedule",
        ),
        (
            lambda: te.compute((3,), lambda i: (te.sum(X[i, K], K), X[i, 0])),
            ValueError,
            "compute 'compute': the outputs of one reduction must reduce over the same axes",
        ),
    ],
)
def test_invalid_reducers_are_refused(make: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()  # type: ignore[operator]
