"""Helpers of pass tests: programs from text, and semantic equality of two programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.structural import structural_equal
from ekiden.relay import Interpreter
from ekiden.relay.analysis import verify
from ekiden.relay.expr import Call, Constant, Function, Let
from ekiden.relay.parser import parse
from ekiden.relay.transform import InferType
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.relay.visitor import bind, post_order

Array = np.ndarray


def program(text: str, **constants: Array) -> IRModule:
    """A typed module; parameters of `main` named in `constants` become constants."""
    module = parse('#[version = "0.0.5"]\n' + text)
    main = module["main"]
    assert isinstance(main, Function)
    values = {p: Constant(constants[p.name_hint]) for p in main.params if p.name_hint in constants}
    return InferType()(module.with_function("main", bind(main, values)) if values else module)


def check(transform: Callable[[IRModule], IRModule], before: str, after: str) -> None:
    """`transform` makes the program `after` from the program `before`, types filled in."""
    transformed = transform(program(before))
    verify(transformed)
    transformed, expected = InferType()(transformed), InferType()(program(after))
    assert structural_equal(transformed, expected), f"got:\n{transformed}\nexpected:\n{expected}"


def evaluate(module: IRModule, args: Sequence[Array]) -> list[Array]:
    """What the interpreter computes, as a flat list."""
    result = Interpreter(InferType()(module)).evaluate("main", *args)
    return list(result) if isinstance(result, tuple) else [result]


def assert_same_meaning(
    before: IRModule, after: IRModule, args: Sequence[Array], rtol: float = 1e-5
) -> None:
    """Both programs give the same on these arguments, up to rounding."""
    for expected, actual in zip(evaluate(before, args), evaluate(after, args), strict=True):
        assert expected.dtype == actual.dtype
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=1e-5)


def main_of(module: IRModule) -> Function:
    main = module["main"]
    assert isinstance(main, Function)
    return main


def calls(module: IRModule) -> list[str]:
    """The operators that `main` calls, in order of evaluation, those inside functions included."""
    result = post_order(main_of(module), into_functions=True)
    return [e.op.name for e in result if isinstance(e, Call) and isinstance(e.op, Op)]


def groups(module: IRModule) -> list[list[str]]:
    """The operators of each primitive function that `main` calls, in order of evaluation."""
    result = evaluation_order(main_of(module).body)
    fused = [e.op for e in result if isinstance(e, Call) and isinstance(e.op, Function)]
    return [
        [e.op.name for e in post_order(f) if isinstance(e, Call) and isinstance(e.op, Op)]
        for f in fused
        if f.attr("Primitive")
    ]


def lets(module: IRModule) -> list[tuple[str, str]]:
    """(variable, operator or kind of value) of each binding of `main`."""
    result = []
    at = main_of(module).body
    while isinstance(at, Let):
        is_call = isinstance(at.value, Call) and isinstance(at.value.op, Op)
        result.append((at.var.name_hint, at.value.op.name if is_call else type(at.value).__name__))
        at = at.body
    return result
