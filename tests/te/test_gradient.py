"""te.gradient against finite differences, Relay's gradients, and closed forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from te_programs import evaluate

import ekiden
from ekiden import relay, te, topi
from ekiden.runtime.errors import DifferentiationError
from ekiden.te import Tensor
from long_runs import alike

RNG = np.random.default_rng(3)


def check(out: Tensor, inputs: Sequence[Tensor], low: float = -2.0, high: float = 2.0) -> None:
    """The gradient of sum(out * weights) against central differences, in float64."""
    arrays = [RNG.uniform(low, high, [int(d) for d in t.shape]) for t in inputs]
    weights = RNG.normal(size=[int(d) for d in out.shape])
    head = te.placeholder(out.shape, "float64", "head")
    grads = te.gradient(out, inputs, head)
    result = evaluate([*inputs, head], grads, [*arrays, weights])

    def loss() -> float:
        return float((evaluate(list(inputs), [out], arrays)[0] * weights).sum())

    for array, grad in zip(arrays, result, strict=True):
        assert grad.shape == array.shape
        for at in list(np.ndindex(array.shape))[:6]:
            kept, step = array[at], 1e-5
            array[at] = kept + step
            above = loss()
            array[at] = kept - step
            below = loss()
            array[at] = kept
            np.testing.assert_allclose(grad[at], (above - below) / (2 * step), rtol=1e-4, atol=1e-6)


def placed(*shape: int, name: str = "x") -> Tensor:
    return te.placeholder(shape, "float64", name)


FUNCTIONS: dict[str, Callable[[te.ProducerLoad], object]] = {
    "exp": te.exp, "tanh": te.tanh, "sigmoid": te.sigmoid, "sin": te.sin, "cos": te.cos,
    "erf": te.erf, "sqrt": lambda v: te.sqrt(v * v + 1.0), "abs": te.abs,
    "log": lambda v: te.log(te.abs(v) + 0.5), "power": lambda v: te.power(te.abs(v) + 0.1, v),
    "rsqrt": lambda v: te.rsqrt(v * v + 0.3), "atan": te.atan, "asinh": te.asinh,
    "select": lambda v: te.if_then_else(v > 0.0, v * v, v * 3.0),
    "clip": lambda v: te.max(te.min(v, 1.0), -1.0), "quotient": lambda v: v / (v * v + 1.0),
}  # fmt: skip


@alike(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementwise_gradients_match_differences(name: str) -> None:
    x = placed(4, 3)
    check(te.compute((4, 3), lambda i, j: FUNCTIONS[name](x[i, j])), [x])  # type: ignore[arg-type, return-value]


def test_step_function_gradients_are_zero() -> None:
    x = placed(4)
    (grad,) = te.gradient(te.compute((4,), lambda i: te.floor(x[i]) + te.ceil(x[i])), x)
    np.testing.assert_array_equal(evaluate([x], [grad], [RNG.normal(size=4)])[0], 0)


def test_shifted_read_gradients_match_differences() -> None:
    x = placed(5, 5)
    check(te.compute((5, 5), lambda i, j: x[i, j] * x[j, i]), [x])
    check(te.compute((5,), lambda i: x[4 - i, i] * x[i, 0]), [x])
    check(te.compute((2, 2), lambda i, j: x[i * 2 + 1, j + 2] + x[i, i]), [x])
    check(te.compute((5, 5), lambda i, j: x[te.min(i + j, 4), j]), [x])
    check(te.compute((10,), lambda i: x[i // 2, i % 5]), [x])


@pytest.mark.parametrize("reduction", [te.sum, te.max, te.min, te.prod])
def test_reduction_gradients_match_differences(reduction: Callable[..., te.PrimExpr]) -> None:
    x = placed(4, 3)
    k = te.reduce_axis((0, 3), "k")
    check(te.compute((4,), lambda i: reduction(x[i, k] * x[i, 2 - k] + x[i, k], k)), [x])


def test_product_with_a_zero() -> None:
    x = placed(3)
    k = te.reduce_axis((0, 3), "k")
    product = te.comm_reducer(lambda a, b: a * b, lambda t: te.const(1, t), "own")
    (grad,) = te.gradient(te.compute((1,), lambda _: product(x[k], k)), x)
    result = evaluate([x], [grad], [np.array([2.0, 0.0, 5.0])])[0]
    np.testing.assert_array_equal(result, [[0, 10, 0]])


def test_products_of_matrices_and_convolutions() -> None:
    a, b = placed(4, 5, name="a"), placed(5, 3, name="b")
    check(topi.matmul(a, b), [a, b])
    x, w = placed(1, 2, 5, 5, name="x"), placed(2, 2, 3, 3, name="w")
    rc, ry, rx = (te.reduce_axis((0, n)) for n in (2, 3, 3))
    check(
        te.compute(
            (1, 2, 2, 2),
            lambda n, o, y, z: te.sum(
                x[n, rc, y * 2 + ry, z * 2 + rx] * w[o, rc, ry, rx], (rc, ry, rx)
            ),
        ),
        [x, w],
    )


def test_gradient_sums_over_free_indices() -> None:
    """The gradient of a matrix product has one loop of reduction, not one per equation."""
    a, b = placed(4, 5, name="a"), placed(5, 3, name="b")
    for grad in te.gradient(topi.matmul(a, b), [a, b], placed(4, 3, name="head")):
        assert len(grad.op.reduce_axis) == 1  # type: ignore[attr-defined]


def test_chain_gradient_matches_relay() -> None:
    """Softmax of a dense layer: as Relay's gradient of the same program."""
    x, w = relay.var("x", shape=(2, 4)), relay.var("w", shape=(3, 4))
    f = relay.Function([x, w], relay.nn.softmax(relay.nn.dense(x, w)))
    typed = relay.testing.run_infer_type(f)
    back = relay.testing.run_infer_type(relay.transform.gradient(typed, mode="first_order"))
    arrays = [RNG.normal(size=s).astype("float32") for s in ((2, 4), (3, 4))]
    _, expected = relay.create_executor("debug").evaluate(back)(*arrays)
    p, q = te.placeholder((2, 4), name="p"), te.placeholder((3, 4), name="q")
    k, n = te.reduce_axis((0, 4), "k"), te.reduce_axis((0, 3), "n")
    dense = te.compute((2, 3), lambda i, j: te.sum(p[i, k] * q[j, k], k), name="dense")
    power = te.compute((2, 3), lambda i, j: te.exp(dense[i, j]), name="power")
    total = te.compute((2,), lambda i: te.sum(power[i, n], n), name="total")
    out = te.compute((2, 3), lambda i, j: power[i, j] / total[i], name="out")
    ones = te.placeholder((2, 3), name="ones")
    grads = te.gradient(out, [p, q], ones)
    actual = evaluate([p, q, ones], grads, [*arrays, np.ones((2, 3), "float32")])
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-4, atol=1e-6)


def test_jacobian_of_unread_elements_is_zero() -> None:
    x, y = placed(3), placed(2, name="y")
    out = te.compute((2,), lambda i: x[i] * x[i + 1])
    jacobian, nothing = te.gradient(out, [x, y])
    at = np.array([2.0, 3.0, 5.0])
    result = evaluate([x, y], [jacobian, nothing], [at, np.ones(2)])
    np.testing.assert_array_equal(result[0], [[3, 2, 0], [0, 5, 3]])
    np.testing.assert_array_equal(result[1], np.zeros((2, 2)))


def test_gradients_are_scheduled_and_differentiated_again() -> None:
    x = placed(6)
    cube = te.compute((6,), lambda i: x[i] * x[i] * x[i])
    ones = te.compute((6,), lambda _: te.const(1.0, "float64"))
    (first,) = te.gradient(cube, x, ones)
    (second,) = te.gradient(first, x, ones)
    s = te.create_schedule(second.op)
    module = ekiden.build(s, [x, second], "llvm", name="f")
    out, at = ekiden.nd.array(np.zeros(6)), RNG.normal(size=6)
    module["f"](ekiden.nd.array(at), out)
    np.testing.assert_allclose(out.numpy(), 6 * at)


def test_unsupported_te_gradients_are_refused() -> None:
    whole = te.placeholder((3,), "int32")
    with pytest.raises(DifferentiationError, match="it is of int32"):
        te.gradient(te.compute((3,), lambda i: whole[i]), whole)
    x = placed(3)
    out = te.compute((3,), lambda i: te.hypot(x[i], x[i]))
    with pytest.raises(DifferentiationError, match="'hypot' has no rule"):
        te.gradient(out, x)
    with pytest.raises(DifferentiationError, match="must end in"):
        te.gradient(out, x, placed(2))
