"""Whole pipelines: random programs keep their meaning; long programs pass."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_checks import evaluate, program

from ekiden.backend.vm.pipeline import vm_pipeline
from ekiden.ir.module import IRModule
from ekiden.ir.prim import AnyDim, SizeVar
from ekiden.ir.transform import PassContext, PassInfo, PassInstrument
from ekiden.ir.type import tensor_type
from ekiden.relay import create_executor, op, qnn
from ekiden.relay.analysis import verify
from ekiden.relay.expr import Call, Expr, Function, If, Let, Tuple, TupleGetItem, Var, const, var
from ekiden.relay.transform import InferType, ManifestAlloc
from ekiden.relay.visitor import free_vars
from ekiden.runtime.errors import PassError
from ekiden.target import Target
from long_runs import share, sizes

pytestmark = pytest.mark.early

TARGET = Target.parse("llvm -mcpu=x86-64-v4")
PASSES = vm_pipeline(TARGET).passes
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
            result = self.step(known, depth)
            if self.draw(st.booleans()):
                self.count += 1
                name = Var(f"v{self.count}")
                bindings.append((name, result))
                result = name
            known.append(result)
        body = known[-1]
        for name, value in reversed(bindings):
            body = Let(name, value, body)
        return body


@st.composite
def programs(draw: st.DrawFn) -> IRModule:
    params = tuple(var(name, tensor_type((N, 3))) for name in "xy")
    body = _Programs(draw).block(params, 2)
    return InferType()(IRModule({"main": Function(params, body, None)}))


@pytest.mark.slow
@pytest.mark.quick
@sizes("count", 30, 1000)
def test_random_programs_keep_their_meaning_after_every_pass(count: int) -> None:
    @settings(max_examples=count, deadline=None)
    @given(programs(), st.sampled_from([0, 1, 4]))
    def check(module: IRModule, n: int) -> None:
        rng = np.random.default_rng(n)
        args = [rng.standard_normal((n, 3)).astype(np.float32) for _ in "xy"]
        (expected,) = evaluate(module, args)
        for item in BEFORE_MEMORY:
            module = item(module)
            verify(module)
            (actual,) = evaluate(module, args)
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5, err_msg=item.name)

    check()


class _VerifyAll(PassInstrument):
    def __init__(self) -> None:
        self.names: list[str] = []

    def run_after_pass(self, module: IRModule, info: PassInfo) -> None:
        self.names.append(info.name)
        verify(module)


@pytest.mark.slow
@pytest.mark.quick
@sizes("count", 20, 1000)
def test_programs_with_explicit_memory_are_well_formed(count: int) -> None:
    @settings(max_examples=count, deadline=None)
    @given(programs())
    def check(module: IRModule) -> None:
        instrument = _VerifyAll()
        with PassContext(instruments=(instrument,)):
            vm_pipeline(TARGET)(module)
        assert instrument.names[-3:] == ["UpdateInPlace", "OwnResults", "vm"]

    check()


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
@sizes("length", 2_000, 100_000)
def test_long_programs_pass(make: Callable[[int], Expr], length: int) -> None:
    """Deeper than Python recurses."""
    module = InferType()(IRModule({"main": make(length)}))
    for pass_ in PASSES:
        module = pass_(module)
    instruction = module["main"].body
    assert isinstance(instruction, Let)


def _samples() -> dict[str, tuple[IRModule, list[np.ndarray]]]:
    """Programs that need, one or another, every pass: control, data types, closures, polymorphism,
    dimensions that are data, quantised numbers, weights, statistics.
    """
    rng = np.random.default_rng(0)
    x = var("x", shape=(1, 3, 6, 6))
    weight = const(rng.normal(size=(4, 3, 3, 3)).astype("float32"))
    statistics = [const(rng.random(4, np.float32)) for _ in range(4)]
    image = op.nn.batch_norm(op.nn.conv2d(x, weight, padding=1), *statistics)[0]
    image = op.nn.dropout(op.nn.max_pool2d(op.nn.relu(op.add(image, const(0.0))), (2, 2), (2, 2)))
    table = var("x", shape=(AnyDim(), 4))
    rows = op.take(op.argwhere(op.greater(table, const(0.0))), const(0), axis=1)
    data = op.exp(op.take(table, rows, axis=0))
    bytes_ = var("x", shape=(2, 4), dtype="int8")
    pair = var("x", shape=(2, 3))
    tables: dict[str, tuple[Expr, np.ndarray]] = {
        "image": (image, rng.normal(size=(1, 3, 6, 6)).astype("float32")),
        "data": (data, rng.normal(size=(3, 4)).astype("float32")),
        "bytes": (qnn.op.dequantize(bytes_, const(0.5), const(3)),
                  np.arange(8, dtype="int8").reshape(2, 4)),
        "einsum": (op.einsum((pair, pair), "ij,kj->ik"), rng.random((2, 3), np.float32)),
    }  # fmt: skip
    result = {
        name: (IRModule.from_expr(Function(free_vars(body), body)), [value])
        for name, (body, value) in tables.items()
    }
    result["lists"] = (
        program("""type List[A] { Cons(A, List[A]), Nil }
type Box[A] { Full(A), Empty }
def @map[A, B](%f: fn (A) -> B, %l: List[A]) -> List[B] {
  match (%l) { Cons(%h, %t) => Cons(%f(%h), @map(%f, %t)), Nil => Nil } }
def @sum(%l: List[Box[float32]], %s: float32) -> float32 {
  match (%l) { Cons(Full(%h), %t) => @sum(%t, add(%h, %s)), _ => %s } }
def @main(%x: float32) -> float32 {
  let %g = fn (%y: float32) -> float32 { if (greater(%y, %x)) { %x } else { multiply(%y, %x) } };
  @sum(@map(Full, @map(%g, Cons(1f, Cons(%x, Nil)))), 0f) }"""),
        [np.array(3, "float32")],
    )
    return result


SAMPLES = _samples()
NAMES = list(dict.fromkeys(p.name for p in PASSES))


def _right_or_named(context: PassContext, executor: str, name: str) -> PassError | None:
    """Compile and run a sample; the error, if a pass that is disabled is needed."""
    module, args = SAMPLES[name]
    try:
        with context:
            actual = create_executor(executor, module).evaluate()(*args)
    except PassError as error:
        return error
    for result, expected in zip([actual.numpy()], evaluate(module, args), strict=True):
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    return None


@pytest.mark.slow
@pytest.mark.quick
@share(4)
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("level", range(5))
def test_every_opt_level_gives_a_right_program(level: int, name: str) -> None:
    assert _right_or_named(PassContext(opt_level=level), "vm", name) is None


@pytest.mark.quick
@share(6)
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("disabled", NAMES)
def test_disabling_a_pass_keeps_results_or_names_it(disabled: str, name: str) -> None:
    (reason,) = {p.reason for p in PASSES if p.name == disabled}
    message = f"pass {disabled!r} is disabled, and the sequence 'vm' needs it {reason}"
    error = _right_or_named(PassContext(disabled_pass=[disabled]), "vm", name)
    assert str(error) == message if reason else error is None


@pytest.mark.slow
@pytest.mark.quick
def test_graphs_need_the_same_passes() -> None:
    assert _right_or_named(PassContext(opt_level=0), "graph", "image") is None
    context = PassContext(disabled_pass=["FuseOps", "FoldConstant"])
    assert "pass 'FuseOps' is disabled" in str(_right_or_named(context, "graph", "image"))


@pytest.mark.quick
def test_disabled_pass_does_not_run() -> None:
    instrument = _VerifyAll()
    module = program("def @main(%x: float32) { tanh(exp(%x)) }")
    context = PassContext(instruments=(instrument,), disabled_pass=frozenset(["FoldConstant"]))
    with context:
        vm_pipeline(TARGET)(module)
    assert "FoldConstant" not in instrument.names and "FuseOps" in instrument.names
