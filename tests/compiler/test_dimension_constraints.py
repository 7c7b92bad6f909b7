"""Constraints on named dimensions are checked before any kernel runs."""

from __future__ import annotations

import re

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.expr_text import format_prim_expr
from ekiden.relay.analysis import shape_conditions
from ekiden.relay.expr import Function
from ekiden.relay.transform import InferType
from ekiden.runtime.errors import InputError

pytestmark = pytest.mark.quick


def conditions(text: str) -> list[str]:
    main = InferType()(relay.parse(text))["main"]
    assert isinstance(main, Function)
    return [format_prim_expr(condition) for condition, _ in shape_conditions(main)]


@pytest.mark.parametrize(
    "params, body, expected",
    [
        ("%x: Tensor[(n, 3), float32]", "exp(%x)", []),
        ("%x: Tensor[(n,), float32], %y: Tensor[(n,), float32]", "add(%x, %y)", []),
        (
            "%x: Tensor[(1, n), float32], %w: Tensor[(5, 10), float32]",
            "nn.dense(%x, %w)",
            ["n == 10"],
        ),
        (
            "%x: Tensor[(n,), float32], %y: Tensor[(m,), float32]",
            "(add(%x, %y), subtract(%y, %x))",
            ["n == m or n == 1 or m == 1", "m == n or m == 1 or n == 1"],
        ),
        ("%x: Tensor[(n,), float32]", "add(%x, ones(shape=[4], dtype=\"float32\"))",
         ["n == 4 or n == 1"]),
        ("%x: Tensor[(n, 4), float32]", "reshape(%x, newshape=[2, 2])", ["n * 4 == 4"]),
        ("%x: Tensor[(n, 4), float32]", "reshape(%x, newshape=[-1, 2])", []),
        ("%x: Tensor[(n, 2), float32], %c: bool", "if (%c) { reshape(%x, newshape=[4]) } else "
         "{ zeros(shape=[4], dtype=\"float32\") }", []),
    ],
)  # fmt: skip
def test_program_constraints_are_recorded(params: str, body: str, expected: list[str]) -> None:
    assert conditions(f"def @main({params}) {{ {body} }}") == expected


def test_mismatched_dimension_is_refused() -> None:
    exe = ekiden.compile(
        relay.parse(
            "def @main(%x: Tensor[(1, n), float32], %w: Tensor[(5, 10), float32]) "
            "{ nn.dense(%x, %w) }"
        )
    )
    weight = np.ones((5, 10), np.float32)
    assert exe(np.ones((1, 10), np.float32), weight).numpy().tolist() == [[10.0] * 5]
    for size in (0, 7, 11):
        with pytest.raises(InputError) as caught:
            exe(np.ones((1, size), np.float32), weight)
        expected = f"run: nn.dense (text:1:72) needs n == 10; n is {size}"
        assert str(caught.value) == expected


@pytest.mark.parametrize("sizes, fits", [((3, 3), True), ((3, 1), True), ((1, 3), True),
                                         ((3, 2), False), ((0, 3), False)])  # fmt: skip
def test_dimensions_of_two_names_broadcast_or_are_refused(
    sizes: tuple[int, int], fits: bool
) -> None:
    exe = ekiden.compile(
        relay.parse("def @main(%x: Tensor[(n,), float32], %y: Tensor[(m,), float32]) { %x + %y }")
    )
    args = [np.arange(s, dtype=np.float32) for s in sizes]
    if fits:
        np.testing.assert_array_equal(exe(*args).numpy(), args[0] + args[1])
    else:
        with pytest.raises(InputError, match=f"or m == 1; n is {sizes[0]}, m is {sizes[1]}$"):
            exe(*args)


def test_functions_that_are_called_are_checked_too() -> None:
    exe = ekiden.compile(
        relay.parse(
            """def @f(%a: Tensor[(1, k), float32], %w: Tensor[(5, 10), float32]) {
                 nn.dense(%a, %w) }
               def @main(%x: Tensor[(1, n), float32], %w: Tensor[(5, 10), float32]) {
                 @f(%x, %w) }"""
        )
    )
    weight = np.ones((5, 10), np.float32)
    assert exe(np.ones((1, 10), np.float32), weight).shape == (1, 5)
    with pytest.raises(InputError, match="nn.dense .* needs k == 10; k is 7"):
        exe(np.ones((1, 7), np.float32), weight)


@pytest.mark.slow
def test_size_that_is_no_multiple_is_refused() -> None:
    """A dimension that is an expression of a symbol which no other shows."""
    text = "%x: Tensor[(n * 2, 3), float32], %y: Tensor[(m * 3 + n,), float32]"
    module = relay.parse(f'#[version = "0.0.5"]\ndef @main({text}) {{ (exp(%x), exp(%y)) }}')
    exe = ekiden.compile(module)
    result = exe(np.zeros((4, 3), "float32"), np.zeros(8, "float32"))
    assert isinstance(result, tuple) and [t.shape for t in result] == [(4, 3), (8,)]
    for rows, columns, wrong in ((5, 8, "0 of 'x' to be n * 2; it is 5"), (4, 9, "0 of 'y' to be")):
        with pytest.raises(InputError, match=re.escape(wrong)):
            exe(np.zeros((rows, 3), "float32"), np.zeros(columns, "float32"))
