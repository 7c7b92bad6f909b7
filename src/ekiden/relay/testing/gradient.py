"""Numerical gradient checking by finite differences."""

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
    """Raise AssertionError unless the gradient of sum(func) matches central differences.

    Args:
        func: The function.
        inputs: Its inputs, random by default.
        test_inputs: The inputs at which the gradient is checked; all by default.
        eps: The step of the differences.
        atol: The absolute tolerance.
        rtol: The relative tolerance.
        scale: The spread of random inputs.
        mean: The mean of random inputs.
        mode: The mode of `gradient`.
        target_devices: The targets and devices on which the gradient is computed.
        executor_kind: The kind of executor.
    """
    module = infer_type(IRModule.from_expr(func))
    forward = module["main"]
    assert isinstance(forward, Function)
    backward = gradient(forward, mode=mode)
    if inputs is None:
        kinds = [p.checked_type for p in forward.params]
        spread = 10 * eps if scale is None else scale
        inputs = [_random_input(k, spread, mean) for k in kinds if isinstance(k, TensorType)]
    machine = Interpreter()
    create: Callable[..., Any] = relay.create_executor  # type: ignore[attr-defined]  # of a floor above
    results = [
        create(executor_kind, device=device, target=target).evaluate(backward)(*inputs)
        for target, device in target_devices or [("llvm", None)]
    ]
    for position, tested in enumerate(inputs):
        if test_inputs is not None and not any(tested is t for t in test_inputs):
            continue
        expected = _numerical_gradient(machine, forward, inputs, position, eps)
        for result in results:
            computed = np.asarray(result[1][position].numpy(), "float64")
            np.testing.assert_allclose(computed, expected, rtol=rtol, atol=atol)


def _random_input(kind: TensorType, scale: float, mean: float) -> Array:
    drawn = mean + scale * np.random.randn(*kind.concrete_shape)
    return np.asarray(drawn).astype(kind.dtype)


def _numerical_gradient(
    machine: Interpreter, function: Function, inputs: Sequence[Array], position: int, eps: float
) -> Array:
    """Return the central-difference gradient of the results' sum with respect to one input."""
    slopes = np.zeros(inputs[position].shape)
    for index in np.ndindex(*slopes.shape):
        sums = []
        for step in (eps, -eps):
            moved = [np.array(a) for a in inputs]
            moved[position][index] += step
            sums.append(np.sum(np.asarray(machine.evaluate(function, *moved), "float64")))
        slopes[index] = (sums[0] - sums[1]) / (2 * eps)
    return slopes


__all__ = ["check_grad"]
