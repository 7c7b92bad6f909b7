"""Well-formedness and operator counts."""

from __future__ import annotations

import pytest
from relay_programs import PROGRAMS

from ekiden.relay import (
    Call,
    Clause,
    Expr,
    Function,
    GlobalVar,
    If,
    IRModule,
    Let,
    Match,
    Op,
    PatternTuple,
    PatternVar,
    Var,
    op,
    parse,
    var,
)
from ekiden.relay.analysis import find_errors, list_op_freqs, verify, well_formed
from ekiden.runtime.errors import InternalError

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("name", PROGRAMS)
def test_parsed_programs_are_well_formed(name: str) -> None:
    assert find_errors(parse(PROGRAMS[name])) == []


def _module(body: Expr, *params: Var) -> IRModule:
    return IRModule.from_expr(Function(tuple(params), body, None))


x, y, z, c = var("x"), var("y"), var("z"), var("c")
inner = op.negative(y)
BROKEN = [
    (_module(z, x), "@main: %z is used where it is not bound"),
    (_module(op.add(x, z), x), "@main: %z is used where it is not bound"),
    (_module(op.add(Let(y, x, inner), inner), x), "@main: %y is used where it is not bound"),
    (_module(Let(y, inner, y)), "@main: %y is used where it is not bound"),
    (_module(Let(y, x, Let(y, x, y)), x), "@main: %y is bound more than once"),
    (_module(If(c, Let(y, x, y), op.exp(y)), c, x), "@main: %y is used where it is not bound"),
    (_module(op.add(x, y), x, y, y), "@main: %y is bound more than once"),
    (
        _module(Match(x, (Clause(PatternVar(y), y), Clause(PatternVar(y), y)), False), x),
        "@main: %y is bound more than once",
    ),
    (
        _module(Match(x, (Clause(PatternTuple((PatternVar(y), PatternVar(y))), y),), False), x),
        "@main: %y is bound more than once",
    ),
    (
        IRModule({"f": Function((x,), x, None), "main": Function((x,), x, None)}),
        "@main: %x is bound in two functions",
    ),
    (_module(Call(GlobalVar("g"), ())), "@main: @g is not a function of the module"),
    (_module(Call(Op("nope"), ())), "@main: nope: no such operator"),
    (_module(Call(Op("add"), (x,)), x), "@main: add: expected 2 arguments, got 1"),
]


@pytest.mark.parametrize(("module", "message"), BROKEN, ids=[m for _, m in BROKEN])
def test_broken_program_is_found(module: IRModule, message: str) -> None:
    assert find_errors(module) == [message]
    assert not well_formed(module)
    with pytest.raises(InternalError, match="^the module is not well formed: "):
        verify(module)


def test_bare_expression_may_have_free_variables() -> None:
    assert well_formed(op.add(x, y))
    assert not well_formed(Let(y, x, Let(y, x, y)))


def test_function_bound_by_let_sees_itself_but_no_other_value_does() -> None:
    assert well_formed(parse(PROGRAMS["a local function that calls itself"]))


def test_operators_are_counted() -> None:
    assert list_op_freqs(parse(PROGRAMS["graph with a shared value"])) == {
        "nn.relu": 1,
        "multiply": 1,
        "add": 1,
    }
