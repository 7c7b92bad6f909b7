"""Whole pipelines: random programs keep their meaning, and long ones are no trouble."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_checks import evaluate, program

from ekiden.backend.vm.pipeline import pipeline
from ekiden.ir.module import IRModule
from ekiden.ir.prim import SizeVar
from ekiden.ir.transform import PassContext, PassInfo, PassInstrument
from ekiden.ir.type import tensor_type
from ekiden.relay import op
from ekiden.relay.analysis import verify
from ekiden.relay.expr import Call, Expr, Function, If, Let, Tuple, TupleGetItem, Var, const, var
from ekiden.relay.transform import InferType, ManifestAlloc, MemoryPlan
from ekiden.target import Target
from long_runs import sizes

TARGET = Target.parse("llvm -mcpu=x86-64-v4")
PASSES = pipeline(TARGET).passes
BEFORE_MEMORY = PASSES[: [p.name for p in PASSES].index(ManifestAlloc().name)]
N = SizeVar("n")
UNARY: list[Callable[[Expr], Expr]] = [op.tanh, op.nn.relu, op.negative, op.sigmoid]
BINARY: list[Callable[[Expr, Expr], Expr]] = [op.add, op.multiply, op.subtract, op.maximum]


class _Programs:
    """Builds random programs on tensors of shape (n, 3), with lets, branches and closures."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.count = 0

    def pick(self, known: Sequence[Expr]) -> Expr:
        return self.draw(st.sampled_from(known))

    def step(self, known: list[Expr], depth: int) -> Expr:
        kind = self.draw(st.integers(0, 9 if depth else 6))
        match kind:
            case 0 | 1:
                return self.draw(st.sampled_from(UNARY))(self.pick(known))
            case 2 | 3:
                return self.draw(st.sampled_from(BINARY))(self.pick(known), self.pick(known))
            case 4:
                scale = np.linspace(0.5, 1.5, 3, dtype=np.float32)
                binary = self.draw(st.sampled_from(BINARY))
                return binary(self.pick(known), const(self.draw(st.sampled_from([scale, 2.0]))))
            case 5:
                pair = Tuple((self.pick(known), op.nn.softmax(self.pick(known))))
                return TupleGetItem(pair, self.draw(st.integers(0, 1)))
            case 6:
                weight = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)
                return op.nn.dense(self.pick(known), const(weight))
            case 7:
                condition = op.less(op.sum(self.pick(known)), const(0.5))
                return If(condition, self.block(known, depth - 1), self.block(known, depth - 1))
            case 8:
                return self.block(known, depth - 1)
            case _:
                self.count += 1
                inner = var(f"p{self.count}", tensor_type((N, 3)))
                function = Function((inner,), self.block([*known, inner], depth - 1), None)
                name = Var(f"f{self.count}")
                return Let(name, function, op.add(*(Call(name, (self.pick(known),)) for _ in "ab")))

    def block(self, outer: Sequence[Expr], depth: int) -> Expr:
        known = list(outer)
        bindings: list[tuple[Var, Expr]] = []
        for _ in range(self.draw(st.integers(1, 4))):
            made = self.step(known, depth)
            if self.draw(st.booleans()):
                self.count += 1
                name = Var(f"v{self.count}")
                bindings.append((name, made))
                made = name
            known.append(made)
        body = known[-1]
        for name, value in reversed(bindings):
            body = Let(name, value, body)
        return body


@st.composite
def programs(draw: st.DrawFn) -> IRModule:
    params = tuple(var(name, tensor_type((N, 3))) for name in "xy")
    body = _Programs(draw).block(params, 2)
    return InferType()(IRModule({"main": Function(params, body, None)}))


@pytest.mark.quick
@settings(max_examples=80, deadline=None)
@given(programs(), st.sampled_from([0, 1, 4]))
def test_random_programs_keep_their_meaning_after_every_pass(module: IRModule, n: int) -> None:
    rng = np.random.default_rng(n)
    args = [rng.standard_normal((n, 3)).astype(np.float32) for _ in "xy"]
    (expected,) = evaluate(module, args)
    for each in BEFORE_MEMORY:
        module = each(module)
        verify(module)
        (got,) = evaluate(module, args)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=each.name)


class _VerifyAll(PassInstrument):
    def __init__(self) -> None:
        self.names: list[str] = []

    def run_after_pass(self, module: IRModule, info: PassInfo) -> None:
        self.names.append(info.name)
        verify(module)


@pytest.mark.quick
@settings(max_examples=40, deadline=None)
@given(programs())
def test_programs_with_explicit_memory_are_well_formed(module: IRModule) -> None:
    instrument = _VerifyAll()
    with PassContext(instruments=(instrument,)):
        MemoryPlan()(pipeline(TARGET)(module))
    assert instrument.names[-2:] == ["vm", "MemoryPlan"]


def graph(length: int) -> Expr:
    """A chain of calls, alternately reductions, which end groups, and additions."""
    x: Expr = var("x", tensor_type((2,)))
    at = x
    for i in range(length // 2):
        at = op.add(op.sum(at, axis=(0,), keepdims=True), x if i % 1000 == 0 else const(1.0))
    return Function((x,), at, None)


def lets(length: int) -> Expr:
    """A chain of lets, which all use the parameter."""
    x = var("x", tensor_type((2,)))
    names = [Var(f"v{i}") for i in range(length)]
    body: Expr = names[-1]
    for i in reversed(range(length)):
        body = Let(names[i], op.add(names[i - 1] if i else x, x), body)
    return Function((x,), body, None)


@pytest.mark.parametrize("make", [graph, lets])
@sizes("length", 5_000, 100_000)
def test_long_programs_pass(make: Callable[[int], Expr], length: int) -> None:
    """Deeper than Python recurses."""
    module = InferType()(IRModule({"main": make(length)}))
    for each in PASSES:
        module = each(module)
    instruction = module["main"].body
    assert isinstance(instruction, Let)


@pytest.mark.quick
def test_a_disabled_pass_does_not_run() -> None:
    instrument = _VerifyAll()
    module = program("def @main(%x: float32) { tanh(exp(%x)) }")
    context = PassContext(instruments=(instrument,), disabled_pass=frozenset(["FoldConstant"]))
    with context:
        pipeline(TARGET)(module)
    assert "FoldConstant" not in instrument.names and "FuseOps" in instrument.names
