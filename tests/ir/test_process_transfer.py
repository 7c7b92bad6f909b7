"""Serialization of compiler values for worker processes."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest

from ekiden import relay
from ekiden.backend.kernels.size_ranges import SizeRange
from ekiden.ir import IRModule
from ekiden.ir.process_transfer import NotTransferableError, decode, encode
from ekiden.ir.structural import structural_equal
from ekiden.relay.expr import Call, Function, Let
from ekiden.target import Target

pytestmark = pytest.mark.quick


def copied(value: object) -> object:
    return decode(encode(value))


def typed(function: Function) -> Function:
    main = relay.transform.InferType()(IRModule.from_expr(function))["main"]
    assert isinstance(main, Function)
    return main


def test_function_keeps_its_meaning_types_and_spans() -> None:
    x = relay.var("x", shape=(relay.Any(), 4))
    function = typed(relay.Function([x], relay.nn.softmax(relay.add(x, relay.const(1.5)))))
    copy = copied(function)
    assert isinstance(copy, Function) and structural_equal(copy, function)
    assert structural_equal(copy.checked_type, function.checked_type)
    assert isinstance(copy.body, Call) and copy.body.op is relay.op.get("nn.softmax")
    assert copy.body.checked_type_or_none() is not None
    assert copy.body.span == function.body.span


def test_object_that_occurs_twice_is_one_object() -> None:
    x = relay.var("x", shape=(2,))
    left, right = copied((x, relay.add(x, x)))  # type: ignore[misc]
    assert right.args[0] is left and right.args[1] is left


def test_targets_options_and_arrays_are_equal() -> None:
    value = {
        "target": Target("llvm -mcpu=x86-64-v3"),
        "ranges": (
            SizeRange(8, {"dense_pack": {"rows": 2}}),
            SizeRange(None, MappingProxyType({})),
        ),
        "array": np.arange(6, dtype="int8").reshape(2, 3),
        "flags": frozenset({"a", "b"}),
    }
    copy = copied(value)
    assert isinstance(copy, dict)
    array = copy.pop("array")
    assert array.dtype == np.int8 and np.array_equal(array, value.pop("array"))  # type: ignore[arg-type]
    assert copy == value


@pytest.mark.slow
def test_deep_values_need_no_recursion() -> None:
    x = y = relay.var("x", shape=(2,))
    for _ in range(2_000):
        y = relay.nn.relu(y)
    body = y
    for _ in range(2_000):
        variable = relay.var("v", shape=(2,))
        body = Let(variable, relay.nn.relu(x), body)
    copy = copied(relay.Function([x], body))
    depth, at = 0, copy.body  # type: ignore[attr-defined]
    while isinstance(at, Let):
        depth, at = depth + 1, at.body
    while isinstance(at, Call):
        depth, at = depth + 1, at.args[0]
    assert depth == 4_000


class OfThisProgram:
    """A class that another process does not have."""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((lambda: b"",), "is not part of Ekiden"),
        ((OfThisProgram,), "OfThisProgram is not part of Ekiden"),
        ({"a": [OfThisProgram()]}, "OfThisProgram is not part of Ekiden"),
        ((typed,), "typed is not part of Ekiden"),
    ],
)
def test_process_local_classes_are_refused(value: object, message: str) -> None:
    with pytest.raises(NotTransferableError, match=message):
        encode(value)


def test_container_of_itself_is_refused() -> None:
    values: list[object] = []
    values.append(values)
    with pytest.raises(NotTransferableError, match="a list contains itself"):
        encode(values)
