"""Gradients compared with finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Function
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.transform.differentiation.differentiate import gradient
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
    target_devices: Sequence[tuple[object, object]] | None = None,
    executor_kind: str = "debug",
) -> None:
    """Raise AssertionError unless the gradient of the sum of `func` is what two-sided differences
    of `eps` say, at each of `test_inputs`: at all inputs, unless given. Without `inputs` they are
    random. The gradient is computed by an executor of a kind, for each target and device given.
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
    create: Callable[..., Any] = relay.create_executor  # type: ignore[attr-defined]  # of a floor above
    results = [
        create(executor_kind, device=device, target=target).evaluate(backward)(*inputs)
        for target, device in target_devices or [("llvm", None)]
    ]
    for place, each in enumerate(inputs):
        if test_inputs is not None and not any(each is t for t in test_inputs):
            continue
        expected = _differences(machine, forward, inputs, place, eps)
        for result in results:
            found = np.asarray(result[1][place].numpy(), "float64")
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
