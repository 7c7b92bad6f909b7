"""Recurrent layers whose states decay through subnormal numbers: those are 0 in them, and nowhere
else in the program.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.codegen.llvm import compile_object, emit, link
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Var, const
from ekiden.relay import op
from ekiden.runtime import load_image, num_threads
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import AssertStmt, BufferStore, For, ForKind, PrimFunc, seq
from ekiden.tir.transform import lower
from processor import processors

UNDERFLOW = 0x10
"""Of <fenv.h> on x86-64."""
TINY = np.float32(1e-38)
"""A number whose half is subnormal."""


def halves(kind: ForKind, flush: bool, holds: bool = True) -> PrimFunc:
    """out[i] = x[i] / 2 for 64 numbers, then a check that fails unless it `holds`."""
    x, out, i = Buffer("x", (const(64),)), Buffer("out", (const(64),)), Var("i")
    body = BufferStore(out, x[i] * 0.5, (i,))
    loop = For(i, const(0), const(64), kind, body, {"grain": 1})
    check = AssertStmt(const(holds, "bool"), "no such thing")
    attrs = {"global_symbol": "halves"} | ({"tir.flush_subnormals": 1} if flush else {})
    return PrimFunc((x, out), seq(loop, check), attrs)


def compiled(func: PrimFunc, text: str) -> Callable[..., object]:
    target = Target.parse(text)
    image = link([compile_object([lower(func, target)], target)], [func.name])
    kernel: Callable[..., object] = load_image(image)[func.name]
    return kernel


def is_kept() -> bool:
    """Whether subnormal numbers are numbers for this thread."""
    return bool((np.full(8, TINY) * np.float32(0.5) > 0).all())


@pytest.mark.parametrize("text", processors())
@pytest.mark.parametrize("kind", [ForKind.SERIAL, ForKind.PARALLEL])
def test_a_function_flushes_and_sets_back(kind: ForKind, text: str) -> None:
    """In the threads of the pool too: those that ran it keep subnormals in what they run next."""
    before = num_threads()
    num_threads(2)
    try:
        x, out = np.full(64, TINY), np.ones(64, np.float32)
        compiled(halves(kind, flush=True), text)(x, out)
        np.testing.assert_array_equal(out, 0)
        assert is_kept()
        compiled(halves(kind, flush=False), text)(x, out)
        np.testing.assert_array_equal(out, x * np.float32(0.5))
    finally:
        num_threads(before)


def test_a_function_that_fails_sets_back() -> None:
    kernel = compiled(halves(ForKind.SERIAL, flush=True, holds=False), "llvm")
    with pytest.raises(Exception, match="no such thing"):
        kernel(np.full(64, TINY), np.ones(64, np.float32))
    assert is_kept()


def test_the_code_for_other_architectures() -> None:
    func = halves(ForKind.SERIAL, flush=True)
    arm = Target("llvm -mtriple=aarch64-linux-gnu")
    text = emit(lower(func, arm), arm)
    assert text.count("@llvm.aarch64.set.fpcr(i64 %") == text.count("ret i32") + 1
    riscv = Target("llvm -mtriple=riscv64-linux-gnu")
    assert "fpcr" not in (other := emit(lower(func, riscv), riscv)) and "mxcsr" not in other


@pytest.mark.parametrize("text", processors())
@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh"])
def test_no_results_are_lost_on_the_way(name: str, text: str) -> None:
    """The processor notes each result that is too small for a normal number, and takes 100 cycles
    and more for it: where a softmax is masked, exp had as many."""
    libm = ctypes.CDLL("libm.so.6")
    x, out, i = Buffer("x", (const(64),)), Buffer("out", (const(64),)), Var("i")
    body = BufferStore(out, call_intrin(name, x[i]), (i,))
    loop = For(i, const(0), const(64), ForKind.VECTORIZED, body)
    run = compiled(PrimFunc((x, out), loop, {"global_symbol": "kernel"}), text)
    sizes = np.array([np.inf, 1e9, 200.0, 110.0, 44.3, 1.0, 1e-5, 1e-15, 1e-25, 0.0] * 3, "f")
    data, got = np.concatenate([-sizes, sizes, [0, 0, 0, 0]]).astype("f"), np.zeros(64, "f")
    libm.feclearexcept(UNDERFLOW)
    run(data, got)
    assert not libm.fetestexcept(UNDERFLOW)
    if name == "exp":
        np.testing.assert_array_equal(got[:4], 0)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_saturated_gates(kind: str) -> None:
    """Gates that stay shut: states decay by 1e-13 a step, and faster."""
    hidden, steps = 24, 12
    gates = {"lstm": 4, "gru": 3}[kind]
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(gates * hidden, hidden)).astype("f") / 8
    x = relay.var("x", relay.tensor_type((steps, 2, gates * hidden)))
    layer = op.nn.recurrent(x, relay.const(weight), kind)
    module = relay.IRModule.from_expr(relay.Function((x,), layer))
    data = rng.normal(size=(steps, 2, gates * hidden)).astype("f")
    data[2:] = np.where(rng.random(data[2:].shape) < 0.5, -30, -80).astype("f")
    wanted = relay.create_executor("debug", module).evaluate()(data)
    found = ekiden.compile(module, "llvm")(data)
    assert is_kept()
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-5, atol=1e-13)
