"""Options of a PassContext that change how loop programs are lowered: passes of one's own among the
others, and checks of accesses."""

import numpy as np
import pytest

import ekiden
from ekiden import relay, te, tir
from ekiden.codegen.cache import KernelCache
from ekiden.ir.transform import Pass
from ekiden.runtime.errors import BoundsError, CompileError, PassError
from ekiden.script import tir as T
from ekiden.tir.stmt import BufferStore, PrimFunc, Stmt
from ekiden.transform import PassContext


def adding(number: float) -> Pass:
    """A pass that adds a number to what is stored."""

    @tir.transform.prim_func_pass(opt_level=0)
    def add(func: PrimFunc, module: ekiden.IRModule, context: PassContext) -> PrimFunc:
        def change(node: Stmt) -> Stmt | None:
            if isinstance(node, BufferStore):
                more = node.value + tir.const(number, node.value.dtype)
                return tir.BufferStore(node.buffer, more, node.indices)
            return None

        body = tir.stmt_functor.ir_transform(func.body, None, change, ["tir.BufferStore"])
        return func.with_body(body)

    return add


def negating() -> Pass:
    """A pass that stores the opposite."""

    def change(node: Stmt) -> Stmt | None:
        if isinstance(node, BufferStore):
            return tir.BufferStore(node.buffer, tir.const(0, "float32") - node.value, node.indices)
        return None

    return tir.transform.Apply(
        lambda f: f.with_body(tir.stmt_functor.ir_transform(f.body, None, change))
    )


def twice() -> tuple[te.Schedule, list[te.Tensor]]:
    a = te.placeholder((16,), name="a")
    b = te.compute((16,), lambda i: a[i] * 2.0, name="b")
    schedule = te.create_schedule(b.op)
    schedule[b].vectorize(b.op.axis[0])
    return schedule, [a, b]


def run(cache: KernelCache, *added: tuple[int, Pass]) -> float:
    schedule, args = twice()
    with PassContext(config={"tir.add_lower_pass": list(added)}):
        module = ekiden.build(schedule, args, "llvm", cache=cache)
    out = ekiden.nd.empty((16,))
    module(ekiden.nd.array(np.ones(16, "float32")), out)
    assert (out.numpy() == out.numpy()[0]).all()
    return float(out.numpy()[0])


@pytest.mark.parametrize("phase", range(5))
def test_pass_of_ones_own_runs_at_its_phase(phase: int) -> None:
    assert run(KernelCache.default(), (phase, adding(1.0))) == 3.0


def test_kernels_of_such_passes_are_not_taken_for_others() -> None:
    cache = KernelCache.default()
    result = [run(cache), run(cache, (1, adding(1.0))), run(cache, (1, adding(5.0))), run(cache)]
    assert result == [2.0, 3.0, 7.0, 2.0]


def test_passes_of_one_phase_run_in_their_order() -> None:
    cache, one, sign = KernelCache.default(), adding(1.0), negating()
    assert run(cache, (1, one), (1, sign)) == -3.0
    assert run(cache, (1, sign), (1, one)) == -1.0
    assert run(cache, (3, sign), (0, one)) == -3.0
    assert run(cache, (1, one), (2, one)) == 4.0


def test_non_pass_values_are_refused() -> None:
    for wrong in ([adding(1.0)], [(0, str)], [(-1, adding(1.0))]):
        with pytest.raises(PassError, match="'tir.add_lower_pass' has"):
            PassContext(config={"tir.add_lower_pass": wrong})


def test_relays_kernels_are_lowered_by_them_too() -> None:
    x = relay.var("x", shape=(4,))
    module = ekiden.IRModule.from_expr(relay.Function([x], relay.exp(x)))
    seen: list[str] = []

    def note(func: PrimFunc) -> PrimFunc:
        seen.append(func.name)
        return func

    option = {"tir.add_lower_pass": [(0, tir.transform.Apply(note))]}
    with PassContext(config=option):
        assert relay.build(module, "llvm")(np.zeros(4, "float32")).numpy().tolist() == [1] * 4
    assert len(seen) >= 1


@T.prim_func
def shifted(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32"), n: T.int32) -> None:  # type: ignore[valid-type]
    for i in range(n):
        B[i] = A[i + 1]


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=nehalem", "c"])
def test_accesses_are_checked_where_it_is_asked(target: str) -> None:
    with PassContext(config={"tir.instrument_bound_checkers": True}):
        module = ekiden.build(shifted, target)
    a, b = (ekiden.nd.array(np.arange(8, dtype="float32")) for _ in "ab")
    module(a, b, 7)
    assert b.numpy()[0] == 1.0
    with pytest.raises(BoundsError, match="'A'"):
        module(a, b, 8)


def test_relays_kernels_are_checked_too() -> None:
    x = relay.var("x", shape=(4,))
    module = ekiden.IRModule.from_expr(relay.Function([x], relay.exp(x)))
    with PassContext(config={"tir.instrument_bound_checkers": True}):
        lib, exe = relay.build(module, "llvm"), ekiden.compile(module)
        with pytest.raises(CompileError, match="target kind 'cuda' has no bounds='check'"):
            ekiden.build(shifted, "cuda")
    assert "-bounds=check" in exe.target and "-bounds=check" not in ekiden.compile(module).target
    assert lib(np.zeros(4, "float32")).numpy().tolist() == [1] * 4
