"""Names in generated code, and argument conversion of executors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ekiden import IRModule, relay
from ekiden.relay.backend import name_transforms as names
from ekiden.relay.backend.utils import mangle_module_name
from ekiden.runtime.errors import InputError
from ekiden.runtime.name_transforms import sanitize_name

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    "function, argument, expected",
    [
        (names.to_c_function_style, "TVM_woof_moo", "TVMWoofMoo"),
        (names.to_c_function_style, "TVMGen_woof", "TVMGenWoof"),
        (names.to_c_variable_style, "TVM_Woof_Moo", "tvm_woof_moo"),
        (names.to_c_constant_style, "TVM_woof", "TVM_WOOF"),
        (names.prefix_name, ["woof", "moo"], "TVM_woof_moo"),
        (names.prefix_generated_name, "model", "TVMGen_model"),
        (sanitize_name, "input+:1 ", "input__1_"),
        (mangle_module_name, "default", "tvmgen_default"),
        (mangle_module_name, None, "tvmgen"),
    ],
)
def test_generated_names_are_valid_identifiers(
    function: Callable[[object], str], argument: object, expected: str
) -> None:
    assert function(argument) == expected


@pytest.mark.parametrize(
    "function, argument, message",
    [
        (names.to_c_function_style, "Cake", "Function not TVM prefixed: Cake"),
        (names.to_c_variable_style, "", "Variable name is empty"),
        (names.prefix_name, [], "Name segments empty"),
        (names.prefix_name, ["a", ""], "Name segment is empty"),
        (names.prefix_generated_name, "", "Name is empty"),
        (sanitize_name, "", "sanitize_name: Name is empty"),
        (mangle_module_name, "\u018e", "module name: expected ASCII"),
    ],
)
def test_invalid_names_are_refused(
    function: Callable[[object], str], argument: object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        function(argument)


def _doubled() -> tuple[relay.Var, IRModule]:
    x = relay.var("x", shape=(3,), dtype="uint8")
    return x, IRModule.from_expr(relay.Function([x], x + x))


def test_only_graph_executor_converts_arrays() -> None:
    _, module = _doubled()
    run = relay.create_executor("graph", module).evaluate()
    assert run(np.array([1, 2, 3])).numpy().tolist() == [2, 4, 6]
    with pytest.raises(InputError, match="expected Tensor"):
        relay.create_executor("vm", module).evaluate()(np.array([1, 2, 3]))


def test_free_variables_are_bound_to_constants_and_arrays() -> None:
    x, _ = _doubled()
    executor = relay.create_executor("debug")
    for value in (relay.const([1, 2, 3], "uint8"), np.uint8([1, 2, 3])):
        assert executor.evaluate(x + x, {x: value}).numpy().tolist() == [2, 4, 6]
    assert relay.const(relay.const(2.0)).data == 2
    with pytest.raises(ValueError, match="const: expected numbers, got object"):
        relay.const(object())
