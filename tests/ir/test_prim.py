"""Scalar expressions: what a user of shapes relies on."""

from __future__ import annotations

import pytest

from ekiden import relay
from ekiden.ir.prim import IntImm, SizeVar, const

pytestmark = pytest.mark.quick


def test_constants_compare_as_numbers() -> None:
    shape = relay.var("x", shape=(1, 2)).type_annotation.shape  # type: ignore[union-attr]
    assert shape[0] == 1 and shape[1] != 1 and shape[1] == 2
    assert tuple(shape) == (1, 2)
    assert const(3) == IntImm("int32", 3) and const(3) != const(4)
    assert const(1) != "1" and const(1) != SizeVar("n")


def test_names_compare_by_identity() -> None:
    n = SizeVar("n")
    assert n == n and n != SizeVar("n")
