"""Calibration: inputs and outputs of functions for external compilers."""

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
    result, first, last = IRModule(), GlobalVar("first"), GlobalVar("last")
    p, q = (relay.var(n, shape=(3, 2)) for n in "pq")
    result[first] = Function([p, q], relay.Tuple([p + q, p * q])).with_attr("Compiler", "none")
    r, s = (relay.var(n, shape=(3, 2)) for n in "rs")
    result[last] = Function([r, s], relay.exp(r) - s).with_attr("Compiler", "none")
    x, y = (relay.var(n, shape=(3, 2)) for n in "xy")
    body = last(TupleGetItem(first(x, y), 0), x)
    result["main"] = Function([x, y], last(body, x) if again else body)
    return result, first, last


def test_inputs_and_outputs_of_each_function() -> None:
    output, first, last = module()
    actual = get_calibration_data(output, {"y": B, "x": A, "more": A})
    assert actual.keys() == {first, last}
    expected_value = {"inputs": [A, B], "outputs": [A + B, A * B]}, {
        "inputs": [A + B, A], "outputs": [np.exp(A + B) - A],
    }  # fmt: skip
    for name, values in zip((first, last), expected_value, strict=True):
        for side, arrays in values.items():
            assert len(actual[name][side]) == len(arrays)
            for result, expected in zip(actual[name][side], arrays, strict=True):
                np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_invalid_calibration_is_refused() -> None:
    with pytest.raises(CompileError, match="expected each function to be called once in main"):
        get_calibration_data(module(again=True)[0], {"x": A, "y": B})
    with pytest.raises(InputError, match="expected 2 arguments"):
        get_calibration_data(module()[0], {"x": A})
    assert get_calibration_data(relay.parse("def @main() { 1f }"), {}) == {}
