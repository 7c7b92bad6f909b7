"""Gradients of pooling and convolution as operators: the references, and compiled code."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from ekiden import relay
from ekiden.ir.dtype import to_numpy
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.relay.expr import Expr
from ekiden.runtime.errors import TypeInferenceError
from long_runs import alike

rng = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return rng.normal(size=shape).astype("float32")


def run(body: Callable[..., Expr], *data: Array) -> Array:
    """What the interpreter and compiled code agree on."""
    params = [relay.var(f"x{i}", shape=d.shape) for i, d in enumerate(data)]
    module = IRModule.from_expr(relay.Function(params, body(*params)))
    result = [relay.create_executor(k, module).evaluate()(*data).numpy() for k in ("debug", "vm")]
    np.testing.assert_allclose(*result, rtol=1e-4, atol=1e-4)
    return np.asarray(result[0])


def gradients(forward: Callable[..., Expr], grad: Array, *data: Array) -> list[Array]:
    """Those of the inputs, by the transform."""
    params = [relay.var(f"x{i}", shape=d.shape) for i, d in enumerate(data)]
    body = relay.multiply(forward(*params), relay.const(grad))
    function = relay.testing.run_infer_type(relay.Function(params, body))
    output = relay.transform.gradient(function)
    _, result = relay.create_executor("debug").evaluate(output)(*data)
    return [f.numpy() for f in result]


POOLS = [((2, 2), (2, 2), 0), ((3, 2), (1, 2), (1, 0)), ((3, 3), (2, 1), (1, 1, 0, 1))]


@alike(4)
@pytest.mark.parametrize(("size", "strides", "padding"), POOLS)
@pytest.mark.parametrize("kind", ["max", "avg", "avg of all"])
def test_pooling_gradients_match_transform(
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
    actual = run(lambda g, x: backward(g, x, size, strides, padding, **options), grad, data)
    (expected,) = gradients(forward, grad, data)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("groups", "strides", "dilation", "padding"),
    [(1, (1, 1), (1, 1), 1), (2, (2, 1), (1, 2), 2), (1, (2, 2), (1, 1), (0, 1, 1, 0))],
)
def test_convolution_weight_gradients_match_transform(
    groups: int, strides: tuple[int, int], dilation: tuple[int, int], padding: int | tuple[int, ...]
) -> None:
    data, weight = normal(2, 4, 8, 7), normal(6, 4 // groups, 3, 3)

    def forward(x: Expr, w: Expr) -> Expr:
        return relay.nn.conv2d(x, w, strides, padding, dilation, groups)

    params = [relay.var("x", shape=data.shape), relay.var("w", shape=weight.shape)]
    grad = normal(*relay.testing.run_infer_type(forward(*params)).checked_type.concrete_shape)
    result = run(
        lambda g, x: relay.nn.conv2d_backward_weight(
            g, x, strides, padding, dilation, groups, 6, (3, 3)
        ),
        grad,
        data,
    )
    np.testing.assert_allclose(
        result, gradients(forward, grad, data, weight)[1], rtol=1e-3, atol=1e-3
    )


def test_unsupported_backward_attributes_are_refused() -> None:
    g, x = relay.var("g", shape=(1, 2, 4, 4)), relay.var("x", shape=(1, 2, 4, 4))
    with pytest.raises(TypeInferenceError, match="'kernel_size' must be given"):
        relay.testing.run_infer_type(relay.nn.conv2d_backward_weight(g, x))
    with pytest.raises(TypeInferenceError, match="layouts must be NCHW, NCHW and OIHW, got NHWC"):
        relay.testing.run_infer_type(
            relay.nn.conv2d_backward_weight(g, x, kernel_size=1, grad_layout="NHWC")
        )


IMAGE = (1, 4, 6, 6)
MISFITS = {
    "max_pool2d_grad: axis 2 of the gradient and of the result must agree, got 2 and 3": (
        lambda g, x: relay.nn.max_pool2d_grad(g, x, (2, 2), (2, 2)), (1, 4, 2, 3),
    ),
    "avg_pool2d_grad: axis 1 of the gradient and of the result must agree, got 1 and 4": (
        lambda g, x: relay.nn.avg_pool2d_grad(g, x, (2, 2), (2, 2)), (1, 1, 3, 3),
    ),
    "avg_pool2d_grad: 'out_grad' must have 4 dimensions, got 3": (
        lambda g, x: relay.nn.avg_pool2d_grad(g, x, (2, 2), (2, 2)), (4, 3, 3),
    ),
    "max_pool2d_grad: layout NHWC, ceil_mode False: only NCHW floor is": (
        lambda g, x: relay.nn.max_pool2d_grad(g, x, (2, 2), (2, 2), layout="NHWC"), (1, 3, 3, 6),
    ),
    "conv2d_backward_weight: axis 3 of the gradient and of the result must agree, got 3 and 4": (
        lambda g, x: relay.nn.conv2d_backward_weight(g, x, kernel_size=(3, 3)), (1, 8, 4, 3),
    ),
    "conv2d_backward_weight: axis 0 of the gradient and of the result must agree, got 2 and 1": (
        lambda g, x: relay.nn.conv2d_backward_weight(g, x, kernel_size=(3, 3)), (2, 8, 4, 4),
    ),
    "conv2d_backward_weight: channels must be multiples of groups, got 8 and 3": (
        lambda g, x: relay.nn.conv2d_backward_weight(g, x, groups=3, kernel_size=(3, 3)),
        (1, 8, 4, 4),
    ),
    "conv2d_backward_weight: axis 2 of the result has no elements": (
        lambda g, x: relay.nn.conv2d_backward_weight(g, x, kernel_size=(7, 3)), (1, 8, 0, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", MISFITS)
def test_gradients_have_the_type_of_the_result(message: str) -> None:
    build, shape = MISFITS[message]
    params = [relay.var("g", shape=shape), relay.var("x", shape=IMAGE)]
    module = IRModule.from_expr(relay.Function(params, build(*params)))
    with pytest.raises(TypeInferenceError, match=re.escape(f"nn.{message}")):
        relay.transform.InferType()(module)


@pytest.mark.parametrize("empty", [0, 1])
def test_no_images_and_no_channels_have_no_gradient(empty: int) -> None:
    shape = [0 if n == empty else d for n, d in enumerate(IMAGE)]
    for build in (relay.nn.max_pool2d_grad, relay.nn.avg_pool2d_grad):
        g, x = relay.var("g", shape=(*shape[:2], 3, 3)), relay.var("x", shape=shape)
        with pytest.raises(TypeInferenceError, match=f"axis {empty} of the result has no elements"):
            relay.testing.run_infer_type(build(g, x, (2, 2), (2, 2)))


def test_bfloat16_gradients_match() -> None:
    dtype = to_numpy("bfloat16")
    grad, data = normal(1, 2, 2, 2).astype(dtype), normal(1, 2, 3, 3).astype(dtype)
    params = [
        relay.var(n, shape=a.shape, dtype="bfloat16")
        for n, a in zip("gx", (grad, data), strict=True)
    ]
    body = relay.nn.conv2d_backward_weight(*params, kernel_size=(2, 2))
    module = IRModule.from_expr(relay.Function(params, body))
    result = [relay.create_executor(k, module).evaluate()(grad, data) for k in ("debug", "vm")]
    np.testing.assert_allclose(
        *(f.numpy().astype("float32") for f in result), rtol=2**-6, atol=2**-6
    )
