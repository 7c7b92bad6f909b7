"""Programs made by Hypothesis: text, JSON, hash and interpreter agree about all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden.ir.json import load_json, save_json
from ekiden.ir.structural import structural_digest, structural_equal
from ekiden.relay import (
    Call,
    Expr,
    Function,
    If,
    Interpreter,
    IRModule,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    const,
    infer_type,
    op,
    parse,
    tensor_type,
    var,
)
from ekiden.relay.analysis import find_errors

pytestmark = pytest.mark.quick
FLOAT = tensor_type((), "float32")


@st.composite
def modules(draw: st.DrawFn) -> IRModule:
    """A program on two scalars: a graph with sharing, choices, lets, tuples and local functions."""
    x, y = Var("x", FLOAT), Var("y", FLOAT)
    return IRModule.from_expr(Function((x, y), _block(draw, [x, y], 3), None))


def _block(draw: st.DrawFn, known: list[Expr], depth: int) -> Expr:
    """A value made from `known`; the values made on the way may be used again, inside and after."""
    known = list(known)
    lets: list[tuple[Var, Expr]] = []
    for _ in range(draw(st.integers(1, 5))):
        made = _value(draw, known, depth)
        if draw(st.booleans()):
            name = Var(draw(st.sampled_from(["a", "a", "b.c", "0", "%"])), None)
            lets.append((name, made))
            made = name
        known.append(made)
    result = draw(st.sampled_from(known[-3:]))
    for name, value in reversed(lets):
        result = Let(name, value, result)
    return result


def _value(draw: st.DrawFn, known: list[Expr], depth: int) -> Expr:
    a, b = draw(st.sampled_from(known)), draw(st.sampled_from(known))
    kind = draw(st.integers(0, 6 if depth else 3))
    match kind:
        case 0:
            return op.add(a, b)
        case 1:
            return op.maximum(a, const(draw(st.floats(-4, 4, width=32))))
        case 2:
            return TupleGetItem(Tuple((a, op.negative(b))), draw(st.integers(0, 1)))
        case 3:
            return op.multiply(const(0.5), a)
        case 4:
            return If(op.less(a, b), _block(draw, known, depth - 1), _block(draw, known, depth - 1))
        case 5:
            p = var("p", FLOAT)
            return Call(Function((p,), _block(draw, [*known, p], depth - 1), None), (a,))
        case _:
            return _block(draw, known, depth - 1)


@given(modules())
@settings(max_examples=150, deadline=None)
def test_every_form_of_a_program_means_the_same(module: IRModule) -> None:
    infer_type(module)
    assert find_errors(module) == []
    text = module.astext()
    parsed, loaded = parse(text), load_json(save_json(module))
    assert isinstance(loaded, IRModule)
    assert structural_equal(parsed, module), text
    assert structural_equal(loaded, module)
    assert structural_digest(parsed) == structural_digest(module) == structural_digest(loaded)
    args = np.float32(1.25), np.float32(-0.5)
    expected = Interpreter(module).evaluate("main", *args)
    assert Interpreter(parsed).evaluate("main", *args) == expected


@given(modules(), modules())
@settings(max_examples=60, deadline=None)
def test_programs_that_differ_print_differently(a: IRModule, b: IRModule) -> None:
    if structural_equal(a, b):
        assert structural_digest(a) == structural_digest(b)
    else:
        assert structural_digest(a) != structural_digest(b)
