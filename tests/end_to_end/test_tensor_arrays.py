"""The prelude's tensor arrays, compiled: lists of tensors of different shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.relay.prelude import Prelude, StaticTensorArrayOps
from long_runs import alike


def vector(*values: float) -> np.ndarray:
    """float32"""
    return np.array(values, np.float32)


def run(module: ekiden.IRModule, body: relay.Expr, params: list[relay.Var], *args: object) -> list:
    """The tensors of the result, from the virtual machine; the interpreter's are the same."""
    module = module.with_function("main", relay.Function(params, body))
    results = [
        leaves(relay.create_executor(kind, mod=module).evaluate()(*args))
        for kind in ("vm", "debug")
    ]
    for compiled, interpreted in zip(*results, strict=True):
        np.testing.assert_allclose(compiled, interpreted)
    return results[0]


def leaves(value: object) -> list[np.ndarray]:
    """The tensors in lists and constructed values, in order."""
    fields = value if isinstance(value, tuple) else getattr(value, "fields", None)
    if fields is None:
        return [value.numpy()]  # type: ignore[attr-defined]
    return [leaf for field in fields for leaf in leaves(field)]


Build = Callable[[Callable[[str], relay.Expr], Callable[[int], relay.Expr], relay.Expr], relay.Expr]


def _written(get: Callable, tensor: Callable, x: relay.Expr) -> relay.Expr:
    array = get("tensor_array")(relay.const(3))
    for n in range(3):
        value = relay.op.multiply(x, relay.const(float(n)))
        array = get("tensor_array_write")(array, relay.const(n), tensor(1)(value))
    return array


@alike(4)
@pytest.mark.parametrize(
    "build, wanted",
    [
        (lambda get, tensor, x: get("tensor_expand_dims")(tensor(1)(x)), [[[1, 2]]]),
        (
            lambda get, tensor, x: get("tensor_concatenate")(tensor(1)(x), tensor(1)(x)),
            [[1, 2, 1, 2]],
        ),
        (
            lambda get, tensor, x: get("tensor_take")(
                tensor(1)(x), relay.const(1), relay.const(2)
            ),
            [[2]],
        ),
        (lambda get, tensor, x: get("tensor_array_stack")(_written(get, tensor, x)),
         [[[0, 0], [1, 2], [2, 4]]]),
        (lambda get, tensor, x: get("tensor_array_concat")(_written(get, tensor, x)),
         [[0, 0, 1, 2, 2, 4]]),
        (
            lambda get, tensor, x: get("tensor_array_read")(
                _written(get, tensor, x), relay.const(2)
            ),
            [[2, 4]],
        ),
        (lambda get, tensor, x: get("tensor_array_unstack_tensor1")(x), [1, 2]),
        (
            lambda get, tensor, x: get("tensor_array_split")(
                get("tensor_array")(relay.const(2)),
                tensor(1)(x),
                relay.const(np.array([1, 1], np.int32)),
            ),
            [[1], [2]],
        ),
        (
            lambda get, tensor, x: get("tensor_array_scatter")(
                get("tensor_array")(relay.const(2)),
                relay.const(np.array([1, 0], np.int32)),
                get("tensor_array_unstack_tensor1")(x),
            ),
            [2, 1],
        ),
    ],
)  # fmt: skip
def test_tensor_arrays_run_compiled(build: Build, wanted: list) -> None:
    module = ekiden.IRModule()
    prelude = Prelude(module)
    x = relay.var("x", shape=(relay.Any(),))
    body = build(
        lambda name: prelude.get_global_var(name, "float32"),
        lambda rank: prelude.get_tensor_ctor(f"tensor{rank}", "float32"),
        x,
    )
    actual = run(module, body, [x], vector(1, 2))
    for result, want in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(result, np.array(want, np.float32))


def test_static_tensor_array_is_stacked() -> None:
    module = ekiden.IRModule()
    prelude = Prelude(module)
    StaticTensorArrayOps(prelude, "float32", (2,)).register()

    def get(name: str) -> relay.Expr:
        return prelude.get_global_var_static(name, "float32", (2,))

    tensor = prelude.get_tensor_ctor_static("tensor_constructor", "float32", (2,))
    x = relay.var("x", shape=(2,))
    array = get("tensor_array")(relay.const(2))
    for n in range(2):
        array = get("tensor_array_write")(array, relay.const(n), tensor(relay.op.exp(x)))
    (result,) = run(module, get("tensor_array_stack")(array), [x], vector(1, 2))
    np.testing.assert_allclose(result, np.exp([[1, 2], [1, 2]]), rtol=1e-6)
