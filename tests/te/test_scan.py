"""Recurrences over time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from te_programs import evaluate

from ekiden import te
from ekiden.te import Tensor

pytestmark = pytest.mark.quick


def normal(*shape: int) -> np.ndarray:
    """Random values of order one."""
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")


@pytest.mark.parametrize("shape", [(5, 3), (1, 4), (9, 1), (4, 0)])
def test_running_sums(shape: tuple[int, int]) -> None:
    m, n = te.size_var("m"), te.size_var("n")
    x, state = te.placeholder((m, n), name="x"), te.placeholder((m, n), name="state")
    first = te.compute((1, n), lambda _, i: x[0, i], name="first")
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + x[t, i], name="update")
    sums = te.scan(first, update, state, inputs=[x])
    assert isinstance(sums, Tensor)
    array = normal(*shape)
    (found,) = evaluate([x], [sums], [array])
    np.testing.assert_allclose(found, np.cumsum(array, 0), rtol=1e-5, atol=1e-6)


def test_several_first_rows() -> None:
    """Fibonacci: a row needs the two before."""
    x, state = te.placeholder((2, 3), "int32", "x"), te.placeholder((10, 3), "int32", "state")
    first = te.compute((2, 3), lambda t, i: x[t, i], name="first")
    update = te.compute((10, 3), lambda t, i: state[t - 1, i] + state[t - 2, i], name="update")
    (found,) = evaluate([x], [te.scan(first, update, state)], [np.ones((2, 3), "int32")])
    np.testing.assert_array_equal(found[:, 0], [1, 1, 2, 3, 5, 8, 13, 21, 34, 55])


def test_several_states() -> None:
    """A running sum, and the running maximum of the sums before."""
    x = te.placeholder((6, 4), name="x")
    total, top = te.placeholder((6, 4), name="total"), te.placeholder((6, 4), name="top")
    first = te.compute((1, 4), lambda _, i: x[0, i], name="first")
    low = te.compute((1, 4), lambda _, i: x[0, i] * 0.0, name="low")
    sums = te.compute((6, 4), lambda t, i: total[t - 1, i] + x[t, i], name="sums")
    tops = te.compute((6, 4), lambda t, i: te.max(top[t - 1, i], total[t - 1, i]), name="tops")
    found = te.scan([first, low], [sums, tops], [total, top])
    assert isinstance(found, list)
    array = normal(6, 4)
    one, two = evaluate([x], found, [array])
    expected = np.cumsum(array, 0)
    np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-6)
    highest = np.maximum.accumulate(np.maximum(expected, 0), 0)[:-1]
    np.testing.assert_allclose(two[1:], highest, rtol=1e-5, atol=1e-6)


def test_a_recurrent_network() -> None:
    """A matrix product between state and update, and a projection of the input before all."""
    steps, units = te.size_var("steps"), 8
    x, w, u = (
        te.placeholder(s, name=n)
        for s, n in (((steps, 5), "x"), ((5, units), "w"), ((units, units), "u"))
    )
    j, k = te.reduce_axis((0, 5), "j"), te.reduce_axis((0, units), "k")
    projected = te.compute((steps, units), lambda t, i: te.sum(x[t, j] * w[j, i], j), name="wx")
    state = te.placeholder((steps, units), name="state")
    first = te.compute((1, units), lambda _, i: te.tanh(projected[0, i]), name="first")
    product = te.compute(
        (steps, units), lambda t, i: te.sum(state[t - 1, k] * u[k, i], k), name="us"
    )
    update = te.compute((steps, units), lambda t, i: te.tanh(projected[t, i] + product[t, i]))
    arrays = [normal(7, 5), normal(5, units), normal(units, units)]
    (found,) = evaluate([x, w, u], [te.scan(first, update, state)], arrays)
    hidden = np.zeros(units)
    for t in range(7):
        hidden = np.tanh(arrays[0][t] @ arrays[1] + (hidden @ arrays[2] if t else 0))
        np.testing.assert_allclose(found[t], hidden, rtol=1e-4, atol=1e-5)


def test_what_follows_a_scan() -> None:
    x, state = te.placeholder((4, 3), name="x"), te.placeholder((4, 3), name="state")
    doubled = te.compute((4, 3), lambda t, i: x[t, i] * 2.0, name="doubled")
    first = te.compute((1, 3), lambda _, i: doubled[0, i], name="first")
    update = te.compute((4, 3), lambda t, i: state[t - 1, i] + doubled[t, i], name="update")
    sums = te.scan(first, update, state)
    last = te.compute((3,), lambda i: sums[3, i] + 1.0, name="last")
    array = normal(4, 3)
    (found,) = evaluate([x], [last], [array])
    np.testing.assert_allclose(found, array.sum(0) * 2 + 1, rtol=1e-5)


X, S = te.placeholder((4, 3), name="x"), te.placeholder((4, 3), name="s")
FIRST = te.compute((1, 3), lambda _, i: X[0, i], name="first")


def update(body: Callable[..., object], shape: tuple[int, ...] = (4, 3)) -> Tensor:
    """An update of the state S."""
    return te.compute(shape, body, name="update")  # type: ignore[return-value, call-overload]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: te.scan([FIRST, FIRST], update(lambda t, i: S[t - 1, i]), S),
            "scan 'scan': init, update and state_placeholder must be equally many, got 2, 1 and 1",
        ),
        (
            lambda: te.scan(FIRST, update(lambda t, i: S[t, i]), S),
            "scan 'scan': 'update' must read the state 's' at a time before 't'",
        ),
        (
            lambda: te.scan(FIRST, update(lambda t, i: S[t - 1, i], (5, 3)), S),
            r"scan 'scan': init \(1, 3\) and update \(5, 3\) must have the shape of the state"
            r" \(4, 3\), but for the first axis of init",
        ),
        (
            lambda: te.scan(FIRST, update(lambda t, i: S[t - 1, i].astype("int32")), S),
            "must have one dtype, got float32, int32 and float32",
        ),
        (
            lambda: te.scan(FIRST, update(lambda t, i: X[t, i]), FIRST),
            "the state 'first' must be a placeholder",
        ),
    ],
)
def test_misuse(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
