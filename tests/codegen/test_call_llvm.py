"""call_llvm_intrin: LLVM intrinsics by name, for targets compiled by LLVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

import ekiden
from ekiden import IRModule, relay, runtime, te, tir
from ekiden.ir.json import load_json, save_json
from ekiden.ir.structural import structural_equal
from ekiden.relay.backend.executors import create_executor
from ekiden.relay.op.prim_func_call import call_lowered
from ekiden.runtime.errors import CompileError, ExpressionError, RunError
from ekiden.script import from_source
from ekiden.script import tir as T
from ekiden.target import Target
from ekiden.target.codegen import llvm_get_intrinsic_name, llvm_lookup_intrinsic_id
from ekiden.target.features import X86

X = np.float32([0, 0.25, 2, 9])
ONE, TWO, THREE = (tir.const(n, "uint32") for n in (1, 2, 3))
FALSE = tir.const(0, "bool")
PURE = tir.call_llvm_pure_intrin
Call = Callable[[tir.PrimExpr], tir.PrimExpr]


def elementwise(call: Call, dtype: str = "float32") -> tir.PrimFunc:
    """y = call(x) of four elements."""
    x = te.placeholder((4,), name="x", dtype=dtype)
    return te.create_prim_func([x, te.compute((4,), lambda i: call(x[i]))])


def calling(func: tir.PrimFunc) -> IRModule:
    """A program of one call, of twice its argument."""
    x = relay.var("x", shape=(4,))
    return IRModule.from_expr(relay.Function((x,), call_lowered(func, [relay.op.add(x, x)])))


def square_root(x: tir.PrimExpr) -> tir.PrimExpr:
    return tir.call_llvm_pure_intrin(x.dtype, "llvm.sqrt", ONE, x)


def run(func: tir.PrimFunc, *inputs: np.ndarray, target: str = "llvm") -> np.ndarray:
    """What a function writes into an array like its first input."""
    out = runtime.tensor(np.zeros_like(inputs[0]))
    ekiden.build(func, target)["main"](*map(runtime.tensor, inputs), out)
    return cast("np.ndarray", out.numpy())


@pytest.mark.parametrize("op", [tir.call_llvm_intrin, tir.call_llvm_pure_intrin])
@pytest.mark.parametrize("name", ["llvm.sqrt", "llvm.sqrt.f32"])
def test_intrinsic_is_called_with_and_without_its_overload(
    op: Callable[..., tir.PrimExpr], name: str
) -> None:
    func = elementwise(lambda x: op("float32", name, ONE, x))
    np.testing.assert_array_equal(run(func, X), np.sqrt(X))


CALLS: list[tuple[str, Call, Callable[[np.ndarray], np.ndarray]]] = [
    ("int32", lambda x: PURE("int32", "llvm.ctlz", ONE, x, FALSE),
     lambda x: np.array([32 - int(v).bit_length() for v in x], "int32")),
    ("int16", lambda x: PURE("int16", "llvm.sadd.sat", ONE, x, x * x),
     lambda x: np.clip(x + x.astype("int32") ** 2, -(2**15), 2**15 - 1).astype("int16")),
    ("uint8", lambda x: PURE("uint8", "llvm.ctpop.i8", ONE, x),
     lambda x: np.array([int(v).bit_count() for v in x], "uint8")),
    ("float64", lambda x: PURE("float64", "llvm.fma", THREE, x, x, x),
     lambda x: x * x + x),
    ("float16", lambda x: PURE("float16", "llvm.fabs", ONE, -x), abs),
    ("bfloat16", lambda x: PURE("bfloat16", "llvm.fabs", ONE, -x), abs),
]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "call", "reference"), CALLS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_operands_have_the_types_of_llvm(
    dtype: str, call: Call, reference: Callable[[np.ndarray], np.ndarray]
) -> None:
    x = np.array([1, 3, 90, 120]).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    np.testing.assert_array_equal(run(elementwise(call, dtype), x), reference(x))


def test_vectors_are_operands() -> None:
    @T.prim_func
    def main(x: T.Buffer((8,), "int16"), y: T.Buffer((4,), "int32")) -> None:  # type: ignore[valid-type]
        y[0:4] = T.call_llvm_pure_intrin(
            "int32x4", "llvm.vector.partial.reduce.add", TWO, y[0:4], T.Cast("int32x8", x[0:8])
        )

    x, y = np.arange(8, dtype="int16"), np.zeros(4, "int32")
    out = runtime.tensor(y)
    ekiden.build(main, "llvm")["main"](runtime.tensor(x), out)
    assert out.numpy().sum() == x.sum()


@pytest.mark.skipif(Target.host().architecture != X86, reason="an instruction of x86-64")
def test_instructions_of_a_processor_are_called() -> None:
    @T.prim_func
    def main(
        a: T.Buffer((8,), "int16"), b: T.Buffer((8,), "int16"), c: T.Buffer((4,), "int32")
    ) -> None:  # type: ignore[valid-type]
        c[0:4] = T.call_llvm_pure_intrin(
            "int32x4",
            T.llvm_lookup_intrinsic_id("llvm.x86.sse2.pmadd.wd"),
            T.uint32(0),
            a[0:8],
            b[0:8],
        )

    a, b = np.arange(8, dtype="int16"), np.arange(-4, 4, dtype="int16")
    out = runtime.tensor(np.zeros(4, "int32"))
    ekiden.build(main, "llvm")["main"](runtime.tensor(a), runtime.tensor(b), out)
    products = a.astype("int32") * b.astype("int32")
    np.testing.assert_array_equal(out.numpy(), products.reshape(4, 2).sum(1))


def test_intrinsic_without_a_value_takes_addresses() -> None:
    @T.prim_func
    def main(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")) -> None:  # type: ignore[valid-type]
        T.evaluate(T.call_llvm_intrin("", "llvm.prefetch", T.uint32(4), x, 0, 3, 1))
        for i in range(4):
            y[i] = x[i]

    np.testing.assert_array_equal(run(main, X), X)


def test_vectorized_loops_keep_the_call() -> None:
    """A loop over lanes that calls an intrinsic of one number runs one by one."""
    schedule = tir.Schedule(elementwise(square_root))
    (loop,) = schedule.get_loops(schedule.get_block("compute"))
    schedule.vectorize(loop)
    np.testing.assert_array_equal(run(schedule.mod["main"], X), np.sqrt(X))


@pytest.mark.parametrize("executor", ["vm", "graph", "aot"])
def test_relay_calls_programs_with_intrinsics(executor: str) -> None:
    module = calling(elementwise(square_root))
    main = cast(Any, create_executor(executor, module, target="llvm").evaluate())
    np.testing.assert_array_equal(main(X).numpy(), np.sqrt(X + X))


def test_text_and_json_read_back() -> None:
    func = elementwise(square_root)
    assert 'T.call_llvm_pure_intrin("float32", "llvm.sqrt", T.uint32(1), x[' in func.script()
    assert structural_equal(from_source(func.script()), func)
    assert structural_equal(load_json(save_json(func)), func)


def test_numbers_of_intrinsics_are_those_of_names() -> None:
    number = llvm_lookup_intrinsic_id("llvm.x86.sse2.pmadd.wd")
    assert number > 0 and llvm_get_intrinsic_name(number) == "llvm.x86.sse2.pmadd.wd"
    assert llvm_lookup_intrinsic_id("llvm.dummy") == llvm_lookup_intrinsic_id("sqrt") == 0
    assert llvm_get_intrinsic_name(0) == llvm_get_intrinsic_name(10**6) == ""


@pytest.mark.parametrize("op", [tir.call_llvm_intrin, tir.call_llvm_pure_intrin])
def test_unknown_names_are_refused_where_they_are_written(op: Callable[..., Any]) -> None:
    for name in ("llvm.dummy", "sqrt", 10**6, "llvm.sqrt(float)"):
        with pytest.raises(ValueError, match="Unknown llvm intrinsic function"):
            op("int32x4", name, 0)
    with pytest.raises(ExpressionError, match=r"llvm\.sqrt: expected the number of operands"):
        op("float32", "llvm.sqrt", tir.Var("x", "float32"))
    with pytest.raises(ExpressionError, match=r"llvm\.ctpop: LLVM has no type for int4"):
        op("int32", "llvm.ctpop", 1, tir.Var("x", "int4"))


REFUSED: list[tuple[str, Call, str]] = [
    ("float32", lambda x: PURE("int32", "llvm.ctpop", ONE, x),
     r"^llvm: call of llvm\.ctpop: invalid intrinsic signature: .*call i32 @llvm\.ctpop\(float"),
    ("int32", lambda x: PURE("int32", "llvm.ctlz", ONE, x, x > 2),
     r"^llvm: call of llvm\.ctlz: immarg operand has non-immediate parameter"),
    ("float32", lambda x: PURE("float32", "llvm.fabs", ONE, "x"),
     r"^llvm: llvm\.fabs: expected numbers and buffers"),
    # LLVM ends the process that does these
    ("int32", lambda x: PURE("int32", "llvm.amdgcn.sdot4", THREE, x, x, x, FALSE),
     r"^llvm: call of llvm\.amdgcn\.sdot4: LLVM gave up: .*Cannot select"),
    ("float32", lambda x: PURE("float32", "llvm.arm.mve.vctp64", ONE, x),
     r"^llvm: call of llvm\.arm\.mve\.vctp64: LLVM gave up: "),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "call", "message"), REFUSED)
def test_unknown_llvm_intrinsic_is_refused_by_name(dtype: str, call: Call, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        ekiden.build(elementwise(call, dtype), "llvm -mcpu=x86-64-v3")


def bound_to_threads(name: str) -> tir.PrimFunc:
    schedule = tir.Schedule(elementwise(lambda x: tir.call_llvm_pure_intrin("float32", name, 0, x)))
    (loop,) = schedule.get_loops(schedule.get_block("compute"))
    schedule.bind(loop, "threadIdx.x")
    return schedule.mod["main"]


def test_kernels_for_ptx_call_intrinsics_of_nvidia() -> None:
    func = bound_to_threads("llvm.nvvm.ex2.approx.ftz.f")
    module = ekiden.build(func, "nvptx -arch=sm_80")
    assert "ex2.approx.ftz.f32" in module.imported_modules[0].get_source()
    with pytest.raises(CompileError, match=r"llvm\.x86\.sse\.sqrt\.ss: "):
        ekiden.build(bound_to_threads("llvm.x86.sse.sqrt.ss"), "nvptx -arch=sm_80")


@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "opencl", "metal", "webgpu"])
def test_kernels_that_are_texts_refuse_intrinsics_by_name(target: str) -> None:
    with pytest.raises(CompileError, match=r'call_llvm_pure_intrin "llvm\.sqrt": C has no intrin'):
        ekiden.build(bound_to_threads("llvm.sqrt"), target)


def test_other_targets_refuse_intrinsics_by_name() -> None:
    with pytest.raises(CompileError, match=r'call_llvm_pure_intrin "llvm\.sqrt": C has no intrin'):
        ekiden.build(elementwise(square_root), "c")
    with pytest.raises(RunError, match=r"call_llvm_pure_intrin 'llvm\.sqrt': NumPy has no intrin"):
        create_executor("debug", calling(elementwise(square_root))).evaluate()(X)
