"""Short representations of a user's values in messages."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden.runtime.debug.short_repr import short_repr
from ekiden.runtime.errors import CompileError


class Module:
    def __repr__(self) -> str:
        raise AssertionError("a message must not print it")


BIG = np.zeros((300, 400), np.float32)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ("name", "'name'"),
        (None, "None"),
        ("x" * 1000, "'" + "x" * 120 + "'..."),
        (BIG, "ndarray of float32(300, 400)"),
        (Module(), "an object of class 'Module'"),
        (Module, "the class Module"),
        ([BIG, 1], "[ndarray of float32(300, 400), 1]"),
        (list(range(9)), "[0, 1, 2, 3, ...]"),
        ({"a": Module()}, "{'a': an object of class 'Module'}"),
        ([list(range(9))], "[list of 9 elements]"),
    ],
)
def test_short_repr_is_one_short_line(value: object, text: str) -> None:
    assert short_repr(value) == text


@pytest.mark.parametrize("option", ["tier", "executor", "size", "denormals", "byoc", "devices"])
@pytest.mark.parametrize("value", [BIG, Module()], ids=["array", "module"])
def test_option_that_is_no_text_is_shown_by_its_class(option: str, value: object) -> None:
    x = ekiden.relay.var("x", ekiden.relay.TensorType((2,), "float32"))
    function = ekiden.relay.Function([x], x)
    with pytest.raises(CompileError, match=f"compile: {option}: a text expected, got ") as result:
        ekiden.compile(function, **{option: value})  # type: ignore[arg-type]
    assert len(str(result.value)) < 120
    with pytest.raises(CompileError, match="a target or a device expected, got ") as result:
        ekiden.compile(function, target=value)  # type: ignore[arg-type]
    assert len(str(result.value)) < 120
