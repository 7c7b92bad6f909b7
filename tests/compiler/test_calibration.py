"""What goes into functions of external compilers, and what comes out."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import relay
from ekiden.relay import Function, GlobalVar, IRModule, TupleGetItem
from ekiden.relay.analysis import get_calibration_data
from ekiden.runtime.errors import CompileError, InputError

A, B = np.random.default_rng(0).normal(size=(2, 3, 2)).astype("float32")


def module(again: bool = False) -> tuple[IRModule, GlobalVar, GlobalVar]:
    """main(x, y) = last(first(x, y)[0], x), both functions of a compiler."""
    made, first, last = IRModule(), GlobalVar("first"), GlobalVar("last")
    p, q = (relay.var(n, shape=(3, 2)) for n in "pq")
    made[first] = Function([p, q], relay.Tuple([p + q, p * q])).with_attr("Compiler", "none")
    r, s = (relay.var(n, shape=(3, 2)) for n in "rs")
    made[last] = Function([r, s], relay.exp(r) - s).with_attr("Compiler", "none")
    x, y = (relay.var(n, shape=(3, 2)) for n in "xy")
    body = last(TupleGetItem(first(x, y), 0), x)
    made["main"] = Function([x, y], last(body, x) if again else body)
    return made, first, last


def test_inputs_and_outputs_of_each_function() -> None:
    made, first, last = module()
    found = get_calibration_data(made, {"y": B, "x": A, "more": A})
    assert found.keys() == {first, last}
    wanted = {"inputs": [A, B], "outputs": [A + B, A * B]}, {
        "inputs": [A + B, A], "outputs": [np.exp(A + B) - A],
    }  # fmt: skip
    for name, values in zip((first, last), wanted, strict=True):
        for side, arrays in values.items():
            assert len(found[name][side]) == len(arrays)
            for got, expected in zip(found[name][side], arrays, strict=True):
                np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_invalid_calibration_is_refused() -> None:
    with pytest.raises(CompileError, match="expected each function to be called once in main"):
        get_calibration_data(module(again=True)[0], {"x": A, "y": B})
    with pytest.raises(InputError, match="expected 2 arguments"):
        get_calibration_data(module()[0], {"x": A})
    assert get_calibration_data(relay.parse("def @main() { 1f }"), {}) == {}
