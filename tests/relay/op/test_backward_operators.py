"""Gradients of pooling and convolution as operators: the references, and compiled code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.relay.expr import Expr
from ekiden.runtime.errors import TypeInferenceError

rng = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return rng.normal(size=shape).astype("float32")


def run(body: Callable[..., Expr], *data: Array) -> Array:
    """What the interpreter and compiled code agree on."""
    params = [relay.var(f"x{i}", shape=d.shape) for i, d in enumerate(data)]
    module = IRModule.from_expr(relay.Function(params, body(*params)))
    found = [relay.create_executor(k, module).evaluate()(*data).numpy() for k in ("debug", "vm")]
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)
    return np.asarray(found[0])


def gradients(forward: Callable[..., Expr], grad: Array, *data: Array) -> list[Array]:
    """Those of the inputs, by the transform."""
    params = [relay.var(f"x{i}", shape=d.shape) for i, d in enumerate(data)]
    body = relay.multiply(forward(*params), relay.const(grad))
    function = relay.testing.run_infer_type(relay.Function(params, body))
    made = relay.transform.gradient(function)
    _, found = relay.create_executor("debug").evaluate(made)(*data)
    return [f.numpy() for f in found]


POOLS = [((2, 2), (2, 2), 0), ((3, 2), (1, 2), (1, 0)), ((3, 3), (2, 1), (1, 1, 0, 1))]


@pytest.mark.parametrize(("size", "strides", "padding"), POOLS)
@pytest.mark.parametrize("kind", ["max", "avg", "avg of all"])
def test_pools(
    kind: str, size: tuple[int, int], strides: tuple[int, int], padding: int | tuple[int, ...]
) -> None:
    data = normal(2, 3, 6, 7)
    options = {"count_include_pad": kind == "avg of all"} if kind != "max" else {}
    name = f"{kind.split()[0]}_pool2d"

    def forward(x: Expr) -> Expr:
        return getattr(relay.nn, name)(x, size, strides=strides, padding=padding, **options)

    kind_of = relay.testing.run_infer_type(forward(relay.var("x", shape=data.shape))).checked_type
    grad = normal(*kind_of.concrete_shape)
    backward = getattr(relay.nn, f"{name}_grad")
    found = run(lambda g, x: backward(g, x, size, strides, padding, **options), grad, data)
    (expected,) = gradients(forward, grad, data)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("groups", "strides", "dilation", "padding"),
    [(1, (1, 1), (1, 1), 1), (2, (2, 1), (1, 2), 2), (1, (2, 2), (1, 1), (0, 1, 1, 0))],
)
def test_weights(
    groups: int, strides: tuple[int, int], dilation: tuple[int, int], padding: int | tuple[int, ...]
) -> None:
    data, weight = normal(2, 4, 8, 7), normal(6, 4 // groups, 3, 3)

    def forward(x: Expr, w: Expr) -> Expr:
        return relay.nn.conv2d(x, w, strides, padding, dilation, groups)

    params = [relay.var("x", shape=data.shape), relay.var("w", shape=weight.shape)]
    grad = normal(*relay.testing.run_infer_type(forward(*params)).checked_type.concrete_shape)
    found = run(
        lambda g, x: relay.nn.conv2d_backward_weight(
            g, x, strides, padding, dilation, groups, 6, (3, 3)
        ),
        grad,
        data,
    )
    np.testing.assert_allclose(
        found, gradients(forward, grad, data, weight)[1], rtol=1e-3, atol=1e-3
    )


def test_what_is_not_known_is_told() -> None:
    g, x = relay.var("g", shape=(1, 2, 4, 4)), relay.var("x", shape=(1, 2, 4, 4))
    with pytest.raises(TypeInferenceError, match="'kernel_size' must be given"):
        relay.testing.run_infer_type(relay.nn.conv2d_backward_weight(g, x))
    with pytest.raises(TypeInferenceError, match="layouts must be NCHW, NCHW and OIHW, got NHWC"):
        relay.testing.run_infer_type(
            relay.nn.conv2d_backward_weight(g, x, kernel_size=1, grad_layout="NHWC")
        )
