"""Gradients compared with finite differences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Function
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.transform.gradient import gradient
from ekiden.relay.type_infer import infer_type


def check_grad(
    func: Function,
    inputs: Sequence[Array] | None = None,
    test_inputs: Sequence[Array] | None = None,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    scale: float | None = None,
    mean: float = 0,
    mode: str = "higher_order",
) -> None:
    """Raise AssertionError unless the gradient of the sum of `func` is what two-sided differences
    of `eps` say, at each of `test_inputs`: at all inputs, unless given. Without `inputs` they are
    random.
    """
    module = infer_type(IRModule.from_expr(func))
    forward = module["main"]
    assert isinstance(forward, Function)
    backward = gradient(forward, mode=mode)
    if inputs is None:
        kinds = [p.checked_type for p in forward.params]
        spread = 10 * eps if scale is None else scale
        inputs = [_random(k, spread, mean) for k in kinds if isinstance(k, TensorType)]
    machine = Interpreter()
    result = machine.evaluate(backward, *inputs)
    assert isinstance(result, tuple) and isinstance(result[1], tuple), "a value and its gradients"
    for place, each in enumerate(inputs):
        if test_inputs is not None and not any(each is t for t in test_inputs):
            continue
        expected = _differences(machine, forward, inputs, place, eps)
        found = np.asarray(result[1][place], "float64")
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def _random(kind: TensorType, scale: float, mean: float) -> Array:
    drawn = mean + scale * np.random.randn(*kind.concrete_shape)
    return np.asarray(drawn).astype(kind.dtype)


def _differences(
    machine: Interpreter, function: Function, inputs: Sequence[Array], place: int, eps: float
) -> Array:
    """The derivative of the sum of the results by each element of one input."""
    found = np.zeros(inputs[place].shape)
    for index in np.ndindex(*found.shape):
        sums = []
        for step in (eps, -eps):
            moved = [np.array(a) for a in inputs]
            moved[place][index] += step
            sums.append(np.sum(np.asarray(machine.evaluate(function, *moved), "float64")))
        found[index] = (sums[0] - sums[1]) / (2 * eps)
    return found


__all__ = ["check_grad"]
