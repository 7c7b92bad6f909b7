"""Gradients of whole programs: control flow, functions, networks against PyTorch, training."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

import ekiden
from ekiden.relay import (
    Expr,
    Function,
    If,
    Interpreter,
    IRModule,
    SizeVar,
    Tuple,
    const,
    op,
    parse,
    tensor_type,
    var,
)
from ekiden.relay.gradient import register_gradient
from ekiden.relay.transform import FirstOrderGradient, gradient
from ekiden.runtime.errors import DifferentiationError

Array = np.ndarray


def run(function: Function, *args: Array) -> tuple[Array, list[Array]]:
    result, grads = Interpreter(IRModule({"main": function})).evaluate("main", *args)
    return result, list(grads)


def text_gradient(text: str, *args: Array) -> list[Array]:
    module = parse(text)
    result = gradient(module.get_global_var("main"), module)
    return run(result, *args)[1]


# The language.


def test_gradient_through_lets_and_functions() -> None:
    (grad,) = text_gradient(
        """def @square(%x: float32) -> float32 { multiply(%x, %x) }
           def @main(%x: float32) {
             let %f = fn (%y: float32) { let %z = @square(%y); add(%z, %x) };
             %f(multiply(%x, 3f)) }""",
        np.float32(2),
    )
    assert grad == 2 * 9 * 2 + 1


@pytest.mark.parametrize("x, expected", [(2.0, 12.0), (-2.0, -3.0)])
def test_gradient_follows_the_taken_branch(x: float, expected: float) -> None:
    text = """def @main(%x: float32) {
      if (greater(%x, 0f)) { multiply(%x, multiply(%x, %x)) } else { multiply(%x, -3f) } }"""
    assert text_gradient(text, np.float32(x)) == [expected]


@pytest.mark.parametrize("x", [-3.0, -0.5, 0.5, 3.0])
def test_nested_branches_over_shared_values(x: float) -> None:
    text = """def @main(%x: float32, %y: float32) {
      %0 = exp(%x);
      %1 = if (greater(%x, 0f)) {
        %2 = multiply(%0, %y);
        if (greater(%x, 1f)) { (multiply(%2, %2), %y) } else { (%2, multiply(%0, %x)) }
      } else { (%y, %0) };
      multiply(add(%1.0, %1.1), %0) }"""
    args = np.float32(x), np.float32(1.5)
    a, b = (torch.tensor(v, requires_grad=True) for v in args)
    e = torch.exp(a)
    if a > 0:
        t = e * b
        pair = (t * t, b) if a > 1 else (t, e * a)
    else:
        pair = (b, e)
    ((pair[0] + pair[1]) * e).backward()
    assert a.grad is not None and b.grad is not None
    np.testing.assert_allclose(text_gradient(text, *args), [a.grad, b.grad], rtol=1e-5)


def test_gradient_is_of_the_first_result() -> None:
    x = var("x", shape=(2,))
    both = Function([x], Tuple([Tuple([op.exp(x), x]), op.negative(x)]))
    assert run(gradient(both), np.zeros(2, "f"))[1][0].tolist() == [1, 1]


def test_independent_inputs_get_zero_gradients() -> None:
    x, n = var("x", shape=(2,)), var("n", shape=(3,), dtype="int32")
    result = gradient(Function([x, n], op.exp(op.zeros_like(x))))
    _, grads = run(result, np.ones(2, np.float32), np.ones(3, np.int32))
    assert [g.tolist() for g in grads] == [[0, 0], [0, 0, 0]]
    assert grads[1].dtype == np.int32


def test_second_derivative_is_supported() -> None:
    x = var("x", shape=())
    cube = Function([x], op.multiply(x, op.multiply(x, x)))
    first = gradient(cube)
    assert isinstance(first.body, Tuple)
    slope = Function(first.params, first.body[1][0])
    result, (second,) = run(gradient(slope), np.float32(2))
    assert (result, second) == (12, 12)


def test_gradient_of_symbolic_sizes() -> None:
    n = SizeVar("n")
    x, w = var("x", tensor_type((n, 3))), var("w", shape=(2, 3))
    loss = op.mean(op.nn.log_softmax(op.nn.dense(x, w)))
    result = gradient(Function([x, w], loss))
    for size in (1, 4):
        args = [np.random.default_rng(size).normal(size=s).astype("f") for s in ((size, 3), (2, 3))]
        tensors = [torch.tensor(a, requires_grad=True) for a in args]
        torch.log_softmax(tensors[0] @ tensors[1].T, -1).mean().backward()
        for actual, expected in zip(run(result, *args)[1], tensors, strict=True):
            np.testing.assert_allclose(actual, expected.grad, rtol=1e-4, atol=1e-6)


def test_gradient_of_a_long_chain() -> None:
    x = var("x", shape=())
    body: Expr = x
    for _ in range(5_000):
        body = op.add(body, x)
    assert run(gradient(Function([x], body)), np.float32(0))[1] == [5_001]


def test_pass_differentiates_every_function() -> None:
    module = parse("def @main(%x: float32) { exp(%x) } def @f(%y: float32) { multiply(%y, 2f) }")
    transformed = FirstOrderGradient()(module)
    result, (grad,) = Interpreter(transformed).evaluate("f", np.float32(3))
    assert (result, grad) == (6, 2)


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "def @main(%x: Tensor[(3, 4), float32]) { nn.lrn(reshape(%x, newshape=[1, 3, 4, 1])) }",
            "gradient: operator 'nn.lrn' has no gradient (text:1:42); give it one with "
            "relay.op.register_gradient",
        ),
        (
            "def @main(%x: Tensor[(2, 3), float32]) "
            '{ nn.pad(%x, 0f, pad_width=((1, 0), (0, 0)), pad_mode="edge") }',
            "gradient: operator 'nn.pad' (text:1:42): not known for pad_mode 'edge'",
        ),
        (
            "def @main(%x: float32) { fn (%y: float32) { %y } }",
            "gradient: the result must be a tensor, got fn (float32) -> float32",
        ),
    ],
)
def test_non_differentiable_operators_are_named(text: str, message: str) -> None:
    module = parse(text)
    with pytest.raises(DifferentiationError) as caught:
        gradient(module.get_global_var("main"), module)
    assert str(caught.value) == message


def test_operator_has_one_gradient() -> None:
    with pytest.raises(ValueError, match="operator 'exp' has one already"):
        register_gradient("exp", lambda call, grad: [grad])
    with pytest.raises(KeyError, match="no operator 'nothing'"):
        register_gradient("nothing", lambda call, grad: [grad])
    with pytest.raises(DifferentiationError, match="mode must be one of higher_order, first_order"):
        gradient(Function([], const(1.0)), mode="forward")


# Networks, against PyTorch.


def _against_torch(
    function: Function, args: Sequence[Array], loss: torch.Tensor, tensors: Sequence[torch.Tensor]
) -> None:
    """Compiled: the loss and the gradient of every parameter to 1e-4."""
    loss.backward()
    output = gradient(function)
    exe = ekiden.compile(IRModule({"main": output}))
    actual, *grads = _flat(exe(*args))
    np.testing.assert_allclose(actual, loss.item(), rtol=1e-4)
    assert len(grads) == len(tensors)
    for result, tensor in zip(grads, tensors, strict=True):
        assert tensor.grad is not None
        expected = tensor.grad.numpy()
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def _flat(value: object) -> list[Array]:
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in _flat(part)]
    return [value.numpy()]  # type: ignore[attr-defined]


def _network() -> tuple[Function, list[tuple[int, ...]]]:
    shapes = [(4, 3, 12, 12), (8, 3, 3, 3), (8,), (8, 8, 3, 3), (8,), (8,), (5, 72), (5,), (4, 5)]
    names = "x w1 b1 w2 gamma beta w3 b3 target".split()
    p = [var(name, shape=shape) for name, shape in zip(names, shapes, strict=True)]
    x, w1, b1, w2, gamma, beta, w3, b3, target = p
    h = op.nn.max_pool2d(op.nn.relu(op.nn.bias_add(op.nn.conv2d(x, w1, padding=1), b1)), 2, 2)
    h = op.nn.conv2d(h, w2, strides=2, padding=1)
    h = op.tanh(op.nn.group_norm(h, gamma, beta, 4))
    logits = op.nn.bias_add(op.nn.dense(op.nn.batch_flatten(h), w3), b3)
    scores = op.nn.log_softmax(logits)
    loss = op.negative(op.mean(op.sum(op.multiply(scores, target), axis=1)))
    return Function(p, loss), shapes


def _random(shapes: Sequence[tuple[int, ...]], seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 0.3, s).astype(np.float32) for s in shapes]


def test_gradient_of_convolutional_network_matches_torch() -> None:
    function, shapes = _network()
    args = _random(shapes)
    args[-1] = np.eye(5, dtype=np.float32)[[0, 2, 4, 1]]
    x, w1, b1, w2, gamma, beta, w3, b3, target = t = [
        torch.tensor(a, requires_grad=True) for a in args
    ]
    f = torch.nn.functional
    h = f.max_pool2d(torch.relu(f.conv2d(x, w1, b1, padding=1)), 2, 2)
    h = torch.tanh(f.group_norm(f.conv2d(h, w2, stride=2, padding=1), 4, gamma, beta))
    scores = f.log_softmax(h.flatten(1) @ w3.T + b3, -1)
    _against_torch(function, args, -(scores * target).sum(1).mean(), t)


def test_gradient_of_unrolled_lstm_matches_torch() -> None:
    batch, inputs, hidden, steps = 3, 5, 7, 4
    shapes = [(steps, batch, inputs), (batch, hidden), (batch, hidden),
              (4 * hidden, inputs), (4 * hidden, hidden), (4 * hidden,)]  # fmt: skip
    params = [var(f"p{i}", shape=s) for i, s in enumerate(shapes)]
    x, h, c, wi, wh, b = params
    state: Expr = h
    cell: Expr = c
    for step in range(steps):
        row = op.squeeze(op.strided_slice(x, [step], [step + 1], axes=[0]), axis=[0])
        gates = op.nn.bias_add(op.add(op.nn.dense(row, wi), op.nn.dense(state, wh)), b)
        parts = op.split(gates, 4, axis=1)
        i, f, g, o = (parts[k] for k in range(4))
        kept = op.multiply(op.sigmoid(f), cell)
        cell = op.add(kept, op.multiply(op.sigmoid(i), op.tanh(g)))
        state = op.multiply(op.sigmoid(o), op.tanh(cell))
    function = Function(params, op.sum(op.multiply(state, state)))
    args = _random(shapes)
    tensors = [torch.tensor(a, requires_grad=True) for a in args]
    tx, th, tc, twi, twh, tb = tensors
    for step in range(steps):
        i, f, g, o = (tx[step] @ twi.T + th @ twh.T + tb).chunk(4, 1)
        tc = torch.sigmoid(f) * tc + torch.sigmoid(i) * torch.tanh(g)
        th = torch.sigmoid(o) * torch.tanh(tc)
    _against_torch(function, args, (th * th).sum(), tensors)


@pytest.mark.parametrize("sizes", [(2, 0, 3, 4), (2, 3, 0, 4), (0, 3, 2, 4), (2, 3, 4, 0)])
def test_gradient_of_empty_tensors(sizes: tuple[int, int, int, int]) -> None:
    """A 0 in a shape is a size: gradients have the shapes of what they are of."""
    batch, rows, depth, units = sizes
    x, w = var("x", shape=(batch, rows, depth)), var("w", shape=(units, depth))
    inputs = [np.ones((batch, rows, depth), "f"), np.ones((units, depth), "f")]
    layer = Function((x, w), op.tile(op.nn.dense(x, w), (2, 1, 1)))
    _, result = run(gradient(layer), *inputs)
    assert [g.shape for g in result] == [g.shape for g in inputs]
    image = var("x", shape=(1, depth, 5, 5))
    weight = var("w", shape=(units, depth, 3, 3))
    inputs = [np.ones((1, depth, 5, 5), "f"), np.ones((units, depth, 3, 3), "f")]
    product = Function((image, weight), op.nn.conv2d(image, weight))
    _, result = run(gradient(product), *inputs)
    assert [g.shape for g in result] == [g.shape for g in inputs]


def test_training_step_reduces_the_loss() -> None:
    """One compiled function computes the loss and the next weights."""
    function, shapes = _network()
    result = gradient(function)
    assert isinstance(result.body, Tuple)
    rate = const(0.2)
    grads = result.body[1]
    learned = range(1, len(shapes) - 1)
    stepped = [op.subtract(result.params[k], op.multiply(rate, grads[k])) for k in learned]
    step = ekiden.compile(
        IRModule({"main": Function(result.params, Tuple([result.body[0], *stepped]))})
    )
    x, *weights, target = _random(shapes, 1)
    target = np.eye(5, dtype=np.float32)[[3, 0, 1, 1]]
    losses = []
    for _ in range(30):
        loss, *weights = _flat(step(x, *weights, target))
        losses.append(float(loss))
    assert losses[-1] < 0.2 * losses[0]
    assert all(later < now for now, later in itertools.pairwise(losses[:6]))


def test_compiled_gradient_of_an_if() -> None:
    x = var("x", shape=(3,))
    cond = op.greater(op.sum(x), const(0.0))
    body = op.sum(If(cond, op.exp(x), op.multiply(x, x)))
    exe = ekiden.compile(IRModule({"main": gradient(Function([x], body))}))
    for value in (np.ones(3, "f"), -np.ones(3, "f")):
        _, grad = _flat(exe(value))
        np.testing.assert_allclose(grad, np.exp(value) if value.sum() > 0 else 2 * value, rtol=1e-5)
