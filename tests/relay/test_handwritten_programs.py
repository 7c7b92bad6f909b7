"""Programs of Relay that somebody wrote by hand, compiled: a function, what is not well formed,
functions that share variables, functions that are one kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.runtime.errors import CompileError, EkidenError, ImportModelError

pytestmark = pytest.mark.quick

X = relay.var("x", shape=(2, 3), dtype="float32")
Y = relay.var("y", shape=(2, 3), dtype="float32")
G, H = relay.GlobalVar("g"), relay.GlobalVar("h")
DATA = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("options", [{}, {"tier": "quick"}, {"executor": "aot"}])
def test_function_is_a_program(options: dict[str, str]) -> None:
    made = ekiden.compile(relay.Function([X], relay.multiply(X, X)), **options)  # type: ignore[arg-type]
    assert np.array_equal(made(DATA).numpy(), DATA * DATA)


def test_bare_expression_is_refused() -> None:
    with pytest.raises(ImportModelError) as caught:
        ekiden.compile(relay.multiply(X, X))
    assert str(caught.value) == (
        "import an object of class 'Call': it is an expression of Relay: make a function of it: "
        "relay.Function(parameters, it)"
    )


def free() -> relay.Function:
    return relay.Function([X], relay.add(X, Y))


def too_early() -> relay.Function:
    return relay.Function([X], relay.Let(Y, relay.add(Y, X), Y))


def too_late() -> relay.Function:
    return relay.Function([X], relay.add(relay.Let(Y, X, Y), Y))


def twice() -> relay.Function:
    return relay.Function([X, X], X)


def nowhere() -> relay.Function:
    return relay.Function([X], relay.Call(G, [X]))


def marked() -> relay.Function:
    return relay.Function([X], X).with_attr("Primitive", 1)


def for_others() -> relay.Function:
    return relay.Function([X], X).with_attr("Compiler", "openvino")


ILL_FORMED = [
    (free, "@main: %y is used where it is not bound"),
    (too_early, "@main: %y is used where it is not bound"),
    (too_late, "@main: %y is used where it is not bound"),
    (twice, "@main: %x is bound more than once"),
    (nowhere, "@main: @g is not a function of the module"),
    (marked, "@main is marked 'Primitive', which is only for functions that @main calls"),
    (for_others, "@main is marked 'Compiler', which is only for functions that @main calls"),
]


@pytest.mark.parametrize(("program", "said"), ILL_FORMED)
@pytest.mark.parametrize(
    "compiled", [ekiden.compile, lambda f: relay.build(IRModule({"main": f}), "llvm")]
)
def test_ill_formed_programs_are_refused(
    compiled: Callable[[relay.Function], object], program: Callable[[], relay.Function], said: str
) -> None:
    with pytest.raises(CompileError) as caught:
        compiled(program())
    assert str(caught.value) == f"compile: {said}"


MARKS = [
    {},
    {"Inline": 1},
    {"Primitive": 1},
    pytest.param({"Compiler": "ccompiler", "global_symbol": "g"}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("marks", MARKS)
def test_functions_may_share_variables_and_be_kernels(marks: dict[str, object]) -> None:
    square = relay.Function([X], relay.multiply(X, X))
    for name, value in marks.items():
        square = square.with_attr(name, value)
    main = relay.Function([X], relay.Call(G, [relay.Call(G, [X])]))
    made = ekiden.compile(IRModule({G: square, "main": main}))
    assert np.array_equal(made(DATA).numpy(), DATA**4)


def test_primitive_function_may_be_a_value() -> None:
    square = relay.Function([X], relay.multiply(X, X)).with_attr("Primitive", 1)
    more = relay.Function([X], relay.add(relay.Call(G, [X]), X)).with_attr("Primitive", 1)
    chosen = relay.If(relay.any(relay.greater(X, relay.const(4.0))), G, H)
    main = relay.Function([X], relay.Call(chosen, [X]))
    made = ekiden.compile(IRModule({G: square, H: more, "main": main}))
    assert np.array_equal(made(DATA).numpy(), DATA * DATA)
    assert np.array_equal(made(DATA / 2).numpy(), DATA * DATA / 4 + DATA / 2)


def test_invalid_primitive_marks_are_refused() -> None:
    body = relay.Let(Y, relay.exp(X), relay.add(Y, Y))
    marked = relay.Function([X], body).with_attr("Primitive", 1)
    with pytest.raises(EkidenError) as caught:
        ekiden.compile(IRModule({G: marked, "main": relay.Function([X], relay.Call(G, [X]))}))
    assert str(caught.value) == (
        "expected calls of operators and tuples in a function marked Primitive, got a Let"
    )


def test_module_without_main_is_refused() -> None:
    with pytest.raises(CompileError, match="no expression given, and the module has no 'main'"):
        relay.create_executor("debug", IRModule({G: relay.Function([X], X)})).evaluate()
