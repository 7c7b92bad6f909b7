"""Passes over deeply nested scopes: their work is linear in the depth."""

import os
import subprocess
import sys
from collections.abc import Callable
from types import FrameType

import pytest
from pass_checks import main_of

from ekiden.ir.module import IRModule
from ekiden.ir.type import TensorType, TupleType
from ekiden.relay.analysis import detect_feature, last_uses
from ekiden.relay.expr import Call, Function, If, Let, RelayExpr, Tuple, TupleGetItem, Var
from ekiden.relay.op import add, exp, tanh
from ekiden.relay.transform import (
    DeadCodeElimination,
    InferType,
    ManifestAlloc,
    ToGraphNormalForm,
)
from ekiden.relay.visitor import free_vars

pytestmark = pytest.mark.quick

KIND = TensorType((2, 3), "float32")
CONDITION = Var("c", TensorType((), "bool"))
OPERAND = Var("x", KIND)


def two_results() -> Function:
    """A primitive function of two results."""
    parameter = Var("p", KIND)
    body = Tuple((tanh(parameter), exp(parameter)))
    return Function((parameter,), body, TupleType((KIND, KIND)), (), {"Primitive": 1})


def nested_branches(depth: int) -> RelayExpr:
    """Branches in branches; each level reads one result of a kernel of its own."""
    result: RelayExpr = OPERAND
    for _ in range(depth):
        pair, first, unused, chosen = Var("pair"), Var("first"), Var("unused"), Var("chosen")
        branch = Let(chosen, If(CONDITION, result, tanh(first)), chosen)
        bindings: RelayExpr = Let(unused, exp(first), branch)
        bindings = Let(first, TupleGetItem(pair, 0), bindings)
        result = Let(pair, Call(two_results(), (OPERAND,)), bindings)
    return result


def nested_functions(depth: int) -> RelayExpr:
    """Functions in functions; each level reads a variable of the one around it."""
    result: RelayExpr = OPERAND
    for _ in range(depth):
        parameter, function, captured = Var("y", KIND), Var("f"), Var("captured")
        unused = Let(Var("unused"), add(parameter, captured), result)
        value = Function((parameter,), unused, KIND)
        call = Let(function, value, Call(function, (captured,)))
        result = Let(captured, tanh(OPERAND), call)
    return result


def typed_module(body: RelayExpr) -> IRModule:
    return InferType()(IRModule.from_expr(Function((CONDITION, OPERAND), body, KIND)))


def count_steps(run: Callable[[], object]) -> int:
    """Return the number of calls of Python and C functions that a run makes."""
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal steps
        steps += event.endswith("call")

    outer = sys.getprofile()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(outer)
    return steps


PASSES: dict[str, tuple[Callable[[IRModule], object], Callable[[int], RelayExpr]]] = {
    "allocation": (ManifestAlloc(), nested_branches),
    "dead code": (DeadCodeElimination(), nested_branches),
    "single uses": (DeadCodeElimination(inline_once=True), nested_branches),
    "graph normal form": (ToGraphNormalForm(), nested_functions),
    "last uses": (lambda module: last_uses(main_of(module)), nested_branches),
    "features": (lambda module: detect_feature(main_of(module)), nested_functions),
}


def count_work(name: str) -> tuple[int, int]:
    """Return the steps of a pass at the depths 100 and 200."""
    transform, nested = PASSES[name]
    shallow, deep = (typed_module(nested(depth)) for depth in (100, 200))
    transform(typed_module(nested(2)))  # loads modules and fills caches
    return count_steps(lambda: transform(shallow)), count_steps(lambda: transform(deep))


@pytest.mark.slow
@pytest.mark.parametrize("name", PASSES)
def test_work_is_linear_in_the_depth_of_nesting(name: str) -> None:
    # In a process without the threads of other tests, which a profiled thread may wait for.
    code = f"from test_nested_scopes import count_work; print(*count_work({name!r}))"
    folders = os.pathsep.join(filter(None, sys.path))
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True,
        cwd=os.path.dirname(__file__), env={**os.environ, "PYTHONPATH": folders},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    shallow, deep = map(int, result.stdout.split())
    # Twice the work, and what does not depend on the depth; quadratic work would be four times.
    assert deep < 2.5 * shallow


def test_projected_tuple_stays_where_a_nested_scope_reads_it() -> None:
    pair, first, chosen = Var("pair"), Var("first"), Var("chosen")
    branch = If(CONDITION, TupleGetItem(pair, 1), TupleGetItem(pair, 0))
    body = Let(first, TupleGetItem(pair, 0), Let(chosen, branch, Tuple((first, chosen))))
    lowered = ManifestAlloc()(
        InferType()(
            IRModule.from_expr(
                Function((CONDITION, OPERAND), Let(pair, Call(two_results(), (OPERAND,)), body))
            )
        )
    )
    assert "let %pair" in lowered.astext()


def test_value_shared_with_a_branch_keeps_its_name() -> None:
    """Inlined, it would have no binding where the branch reads it."""
    value, shared = Var("value"), Var("shared")
    sum_ = add(value, OPERAND)
    body = Let(shared, If(CONDITION, sum_, OPERAND), add(sum_, shared))
    module = typed_module(Let(value, tanh(OPERAND), body))
    simplified = DeadCodeElimination(inline_once=True)(module)
    assert not free_vars(main_of(simplified))
