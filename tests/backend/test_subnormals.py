"""Recurrent layers whose states decay through subnormal numbers: those are 0 in them, and nowhere
else in the program.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.codegen.llvm import compile_object, emit_function, link_image
from ekiden.contrib.graph_executor import GraphModule
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Var, const
from ekiden.relay import op
from ekiden.runtime import load_image, num_threads
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import AssertStmt, BufferStore, For, ForKind, PrimFunc, seq
from ekiden.tir.transform import lower
from long_runs import share
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
    image = link_image([compile_object([lower(func, target)], target)], [func.name])
    kernel: Callable[..., object] = load_image(image)[func.name]
    return kernel


def is_kept() -> bool:
    """Whether subnormal numbers are numbers for this thread."""
    return bool((np.full(8, TINY) * np.float32(0.5) > 0).all())


@pytest.mark.parametrize("text", processors())
@pytest.mark.parametrize("kind", [ForKind.SERIAL, ForKind.PARALLEL])
def test_function_restores_flush_mode(kind: ForKind, text: str) -> None:
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


def test_failing_function_restores_flush_mode() -> None:
    kernel = compiled(halves(ForKind.SERIAL, flush=True, holds=False), "llvm")
    with pytest.raises(Exception, match="no such thing"):
        kernel(np.full(64, TINY), np.ones(64, np.float32))
    assert is_kept()


def test_flush_code_of_other_architectures() -> None:
    func = halves(ForKind.SERIAL, flush=True)
    arm = Target("llvm -mtriple=aarch64-linux-gnu")
    text = emit_function(lower(func, arm), arm)
    assert text.count("@llvm.aarch64.set.fpcr(i64 %") == text.count("ret i32") + 1
    riscv = Target("llvm -mtriple=riscv64-linux-gnu")
    assert (
        "fpcr" not in (other := emit_function(lower(func, riscv), riscv)) and "mxcsr" not in other
    )


@pytest.mark.parametrize("text", processors())
@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh"])
def test_flushing_subnormals_preserves_results(name: str, text: str) -> None:
    """The processor notes each result that is too small for a normal number, and takes 100 cycles
    and more for it: where a softmax is masked, exp had as many."""
    libm = ctypes.CDLL("libm.so.6")
    x, out, i = Buffer("x", (const(64),)), Buffer("out", (const(64),)), Var("i")
    body = BufferStore(out, call_intrin(name, x[i]), (i,))
    loop = For(i, const(0), const(64), ForKind.VECTORIZED, body)
    run = compiled(PrimFunc((x, out), loop, {"global_symbol": "kernel"}), text)
    sizes = np.array([np.inf, 1e9, 200.0, 110.0, 44.3, 1.0, 1e-5, 1e-15, 1e-25, 0.0] * 3, "f")
    data, result = np.concatenate([-sizes, sizes, [0, 0, 0, 0]]).astype("f"), np.zeros(64, "f")
    libm.feclearexcept(UNDERFLOW)
    run(data, result)
    assert not libm.fetestexcept(UNDERFLOW)
    if name == "exp":
        np.testing.assert_array_equal(result[:4], 0)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_saturated_gates_flush_subnormal_states(kind: str) -> None:
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
    expected = relay.create_executor("debug", module).evaluate()(data)
    actual = ekiden.compile(module, "llvm")(data)
    assert is_kept()
    for one, other in zip(expected, actual, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-5, atol=1e-13)


WORD, FLUSHES, SEEN = (7, 0x8040, 0x3F) if platform.machine() == "x86_64" else (0, 1 << 24, 0)
"""Of glibc's fenv_t: the word with the mode of vector arithmetic, the bits that flush, those that
say what has happened."""


def mode() -> int:
    """The mode of this thread's arithmetic."""
    state = (ctypes.c_uint32 * 8)()
    assert ctypes.CDLL("libm.so.6").fegetenv(state) == 0
    return int(state[WORD]) & ~SEEN


def halving() -> ekiden.IRModule:
    """x / 2 in two kernels, of which one shares its loop."""
    x = relay.var("x", relay.tensor_type((1 << 18,)))
    half = op.multiply(x, relay.const(np.float32(0.5)))
    body = relay.Tuple([half, op.sum(op.multiply(half, relay.const(np.float32(2.0**20))))])
    return relay.IRModule.from_expr(relay.Function((x,), body))


def check_flushed(run: Callable[..., object], flushed: bool = True) -> None:
    before, x = mode(), np.full(1 << 18, TINY)
    half, total = (np.asarray(t) for t in run(x))  # type: ignore[attr-defined]
    np.testing.assert_array_equal(half, 0 if flushed else x * np.float32(0.5))
    assert (total == 0) is np.bool_(flushed)
    assert mode() == before
    assert is_kept()


@share(2)
@pytest.mark.parametrize("text", processors())
@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_models_flush_subnormals_on_request(executor: str, text: str) -> None:
    before = num_threads()
    num_threads(2)
    try:
        module = halving()
        check_flushed(ekiden.compile(module, text, executor=executor, denormals="flush"))
        check_flushed(ekiden.compile(module, text, executor=executor), flushed=False)
    finally:
        num_threads(before)


def test_generated_c_flushes_subnormals(tmp_path: Path) -> None:
    made = ekiden.compile(halving(), "c", denormals="flush")
    check_flushed(made)
    made.save(tmp_path / "model.eki")
    result = ekiden.load(tmp_path / "model.eki")
    assert result.raw.metadata["denormals"] == "flush"
    check_flushed(result)
    assert "denormals" not in ekiden.compile(halving(), "c").raw.metadata


def test_exported_library_flushes_subnormals(tmp_path: Path) -> None:
    ekiden.export(halving(), tmp_path / "model.so", denormals="flush")
    run = ekiden.runtime.load_module(str(tmp_path / "model.so"))["main"]
    check_flushed(lambda x: run(ekiden.runtime.tensor(x)))


def test_graph_executor_flushes() -> None:
    with ekiden.transform.PassContext(config={"kernels.denormals": "flush"}):
        built = relay.build(halving(), "llvm")
    graph = GraphModule(built["default"](ekiden.cpu(0)))

    def run(x: np.ndarray) -> list[np.ndarray]:
        graph.run(x=x)
        return [graph.get_output(n).numpy() for n in range(2)]

    check_flushed(run)


def test_caller_flush_mode_is_restored(tmp_path: Path) -> None:
    """One that flushes itself finds its own mode after kernels that do and that do not."""
    libm = ctypes.CDLL("libm.so.6")
    kept, own = (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()
    runs = [ekiden.compile(halving(), denormals=item) for item in ("flush", "keep")]
    x = np.full(1 << 18, TINY)
    libm.fegetenv(kept)
    libm.fegetenv(own)
    own[WORD] |= FLUSHES
    for run in runs:
        libm.fesetenv(own)
        try:
            run(x)
            result = mode()
        finally:
            libm.fesetenv(kept)
        assert result & FLUSHES == FLUSHES


def test_flushing_is_refused_where_unsupported() -> None:
    with pytest.raises(CompileError, match="denormals 'keep' or 'flush' expected, got 'drop'"):
        ekiden.compile(halving(), denormals="drop")
    with (
        ekiden.transform.PassContext(config={"kernels.denormals": "drop"}),
        pytest.raises(CompileError, match="denormals 'keep' or 'flush' expected, got 'drop'"),
    ):
        ekiden.compile(halving())
    riscv = "llvm -mtriple=riscv64-linux-gnu"
    with pytest.raises(CompileError, match="'flush': a processor of riscv64 has no mode for it"):
        ekiden.export(halving(), "/dev/null", riscv, denormals="flush")
