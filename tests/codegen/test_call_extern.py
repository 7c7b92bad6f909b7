"""call_extern: C functions by symbol, in this process and in exported programs."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import ekiden
from ekiden import IRModule, relay, runtime, te, tir
from ekiden.relay.backend.executors import create_executor
from ekiden.runtime.errors import CompileError, ExportError, LoadError, RunError
from ekiden.runtime.paths import include_dir, static_library_path
from long_runs import share

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

MICRO = r"""
#include <stdint.h>
#include <stdbool.h>
/* c[0..15] += a * b[0..15] */
int32_t %(name)s(float *c, const float *b, float a, int32_t n) {
  for (int i = 0; i < n; i++) c[i] += a * b[i];
  return 0;
}
float %(name)s_types(bool b, int8_t i, uint8_t u, int16_t h, int64_t l, double d, const char *s) {
  return b ? (float)(i + u + h) + (float)l + (float)d + (float)s[1] : -1.0f;
}
"""
X = np.float32([0.5, 1, 2, 3])
SIXTEEN = tir.const(16, "int64")


def micro_object(folder: Path, name: str) -> Path:
    """An object with the C functions of a vendor."""
    (folder / f"{name}.c").write_text(MICRO % {"name": name})
    result = folder / f"{name}.o"
    command = ["cc", "-O1", "-fPIC", "-c", str(folder / f"{name}.c"), "-o", str(result)]
    subprocess.run(command, check=True, timeout=60)
    return result


def loaded(folder: Path, name: str) -> None:
    """Load these functions into this process, for all."""
    library = folder / f"{name}.so"
    subprocess.run(["cc", "-shared", micro_object(folder, name), "-o", library], check=True)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def elementwise(function: str, op: Callable[..., Any] = tir.call_pure_extern) -> tir.PrimFunc:
    """y = function(x) of four floats."""
    x = te.placeholder((4,), name="x")
    return te.create_prim_func([x, te.compute((4,), lambda i: op("float32", function, x[i]))])


def called(module: runtime.Module, *inputs: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """What `main` of a module writes."""
    out = runtime.tensor(np.zeros(shape, np.float32))
    module["main"](*map(runtime.tensor, inputs), out)
    return cast("np.ndarray", out.numpy())


@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize("op", [tir.call_pure_extern, tir.call_extern])
def test_functions_of_the_process_are_called(target: str, op: Callable[..., Any]) -> None:
    module = ekiden.build(elementwise("cosf", op), target)
    np.testing.assert_allclose(called(module, X, shape=(4,)), np.cos(X), rtol=1e-6)


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_arguments_have_the_types_of_c(target: str, tmp_path: Path) -> None:
    name = f"ek_test_types_{target}"
    loaded(tmp_path, name)
    inputs = [tir.const(1, "bool"), tir.const(-3, "int8"), tir.const(200, "uint8"),
             tir.const(-300, "int16"), tir.const(1 << 20, "int64"), tir.const(0.5, "float64"),
             "hi"]  # fmt: skip
    x = te.placeholder((4,), name="x")
    y = te.compute((4,), lambda i: tir.call_extern("float32", f"{name}_types", *inputs) + x[i])
    module = ekiden.build(te.create_prim_func([x, y]), target)
    expected = np.float32(-3 + 200 - 300 + (1 << 20) + 0.5 + ord("i"))
    np.testing.assert_array_equal(called(module, X, shape=(4,)), expected + X)


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_vectorized_call_extern_is_scalarized(target: str) -> None:
    x = te.placeholder((4,), name="x")
    y = te.compute((30,), lambda i: tir.call_pure_extern("float32", "cosf", x[i % 4]) + 1.0)
    schedule = te.create_schedule(y.op)
    schedule[y].vectorize(schedule[y].split(y.op.axis[0], 8)[1])
    result = called(ekiden.build(ekiden.lower(schedule, [x, y]), target), X, shape=(30,))
    np.testing.assert_allclose(result, np.cos(X[np.arange(30) % 4]) + 1, rtol=1e-6)


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_missing_extern_function_is_an_error_at_the_call(target: str) -> None:
    module = ekiden.build(elementwise("ek_test_no_such_function"), target)
    with pytest.raises(LoadError, match="no C function .ek_test_no_such_function. is loaded"):
        called(module, X, shape=(4,))
    with pytest.raises(CompileError, match="expected the name of a C function first, got 'a b'"):
        ekiden.build(elementwise("a b"), target)


def of_relay(func: tir.PrimFunc, argument: relay.Expr | None = None) -> IRModule:
    """A Relay program that calls a loop program."""
    x = relay.var("x", shape=(4,))
    name = ekiden.ir.GlobalVar("opaque")
    call = relay.Call(name, (x if argument is None else argument,))
    module = IRModule({name: func})
    module["main"] = relay.Function((x,), relay.nn.relu(call))
    return module


def memcpy() -> tir.PrimFunc:
    """y = x by C's memcpy."""
    x = te.placeholder((4,), name="x")
    y = te.extern(
        (4,), [x],
        lambda ins, outs: tir.call_extern(
            "handle", "memcpy", outs[0].access_ptr("w"), ins[0].access_ptr("r"), SIXTEEN
        ),
        dtype="float32",
    )  # fmt: skip
    return te.create_prim_func([x, y])


def packed() -> tir.PrimFunc:
    """y = x + 1 by a Python function, which is handed both tensors and no word of what it does."""

    def add_one(x: runtime.Tensor, y: runtime.Tensor) -> None:
        y.copyfrom(x.numpy() + 1)

    runtime.register_func("test.call_extern.add_one", add_one, override=True)
    x = te.placeholder((4,), name="x")
    y = te.extern(
        (4,), [x],
        lambda ins, outs: tir.call_packed("test.call_extern.add_one", ins[0], outs[0]),
        dtype="float32",
    )  # fmt: skip
    return te.create_prim_func([x, y])


@share(4)
@pytest.mark.parametrize("kind", ["debug", "vm", "aot", "graph"])
@pytest.mark.parametrize(
    ("func", "expected"),
    [(memcpy, X), (packed, X + 1), (lambda: elementwise("sqrtf"), np.sqrt(X))],
)
@pytest.mark.parametrize("is_constant", [False, True])
def test_relay_calls_programs_that_call_out(
    kind: str, func: Callable[[], tir.PrimFunc], expected: np.ndarray, is_constant: bool
) -> None:
    module = of_relay(func(), relay.const(X) if is_constant else None)
    run = cast("Callable[..., Any]", create_executor(kind, module).evaluate())
    np.testing.assert_allclose(run(X).numpy(), expected, rtol=1e-6)


def test_interpreter_names_missing_extern_function() -> None:
    module = of_relay(elementwise("ek_test_no_such_function"))
    run = cast("Callable[..., Any]", create_executor("debug", module).evaluate())
    with pytest.raises(RunError, match="no C function .ek_test_no_such_function. is loaded"):
        run(X)


def axpy_program(name: str) -> IRModule:
    """relu(y) of y = 2 * x by a vendor's micro-kernel, a Relay program."""
    x = te.placeholder((4,), name="x")

    def body(ins: Any, outs: Any) -> Any:  # noqa: ANN401
        zero = tir.call_extern("handle", "memset", outs[0].access_ptr("w"), 0, SIXTEEN)
        inputs = outs[0].access_ptr("rw"), ins[0].access_ptr("r"), tir.const(2, "float32"), 4
        axpy = tir.call_extern("int32", name, *inputs)
        return tir.SeqStmt((tir.Evaluate(zero), tir.Evaluate(axpy)))

    return of_relay(te.create_prim_func([x, te.extern((4,), [x], body, dtype="float32")]))


@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_exported_program_is_linked_with_a_micro_kernel(
    target: str, executor: str, tmp_path: Path
) -> None:
    """The process that compiles it has no such function."""
    name = f"ek_test_linked_{target}_{executor}"
    exe = ekiden.compile(axpy_program(name), target, executor=executor)
    with pytest.raises(ExportError, match=name):
        exe.export_library(tmp_path / "without.so")
    exe.export_library(tmp_path / "with.so", options=[str(micro_object(tmp_path, name))])
    again = ekiden.load(tmp_path / "with.so")
    np.testing.assert_array_equal(again(X).numpy(), 2 * X)
    exe.save(tmp_path / "alone.eki")
    with pytest.raises(LoadError, match=name):
        ekiden.load(tmp_path / "alone.eki")(X)
    loaded(tmp_path, name)
    np.testing.assert_array_equal(ekiden.load(tmp_path / "alone.eki")(X).numpy(), 2 * X)


def test_kernels_are_linked_with_a_micro_kernel(tmp_path: Path) -> None:
    name = "ek_test_linked_kernel"
    module = ekiden.build(axpy_program(name)["opaque"], "llvm", name="main")
    module.export_library(tmp_path / "kernel.so", options=[str(micro_object(tmp_path, name))])
    again = runtime.load_module(tmp_path / "kernel.so")
    np.testing.assert_array_equal(called(again, X, shape=(4,)), 2 * X)


PROGRAM = r"""
#include <stdio.h>
#include "ekiden/runtime.h"
int __tvm_ffi_one_main(void *, const ek_value *, int32_t, ek_value *);
int __tvm_ffi_two_main(void *, const ek_value *, int32_t, ek_value *);
static void run(ek_packed main_of) {
  float data[4] = {0.5f, 1, 2, 3};
  int64_t shape[1] = {4};
  ek_dltensor x = {data, {EK_CPU, 0}, 1, {EK_DTYPE_FLOAT, 32, 1}, shape, NULL, 0};
  ek_value arg = {EK_DLTENSOR_PTR, 0, {.ptr = &x}}, out = ek_value_none();
  if (main_of(NULL, &arg, 1, &out) != 0) return;
  const float *y = ((const ek_tensor *)(const void *)out.v.obj)->dl.data;
  printf("%g %g %g %g\n", y[0], y[1], y[2], y[3]);
  ek_value_release(&out);
}
int main(void) { run(__tvm_ffi_one_main); run(__tvm_ffi_two_main); run(__tvm_ffi_one_main); }
"""


@pytest.mark.parametrize("suffix", [".o", ".c"])
def test_two_models_are_linked_into_one_program(suffix: str, tmp_path: Path) -> None:
    """Each with a micro-kernel of its own."""
    files = []
    for name, op in (("one", relay.nn.relu), ("two", relay.negative)):
        micro = f"ek_test_{name}{suffix[1:]}"
        program = axpy_program(micro)
        main = program["main"]
        assert isinstance(main, relay.Function)
        program["main"] = relay.Function(main.params, op(main.body))
        exe = ekiden.compile(program)
        exe.export_library(tmp_path / f"{name}{suffix}", name=name)
        files += [tmp_path / f"{name}{suffix}", micro_object(tmp_path, micro)]
    (tmp_path / "program.c").write_text(PROGRAM)
    linked = [*files, static_library_path().resolve(), "-pthread", "-ldl", "-lm"]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    command = ["cc", *warnings, "-DEK_STATIC", f"-I{include_dir()}", "program.c"]
    command += [*map(str, linked), "-o", "program"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1 2 4 6", "-1 -2 -4 -6", "1 2 4 6"]
    with pytest.raises(ExportError, match="a C identifier expected as name"):
        exe.export_library(tmp_path / "m.o", name="two words")


def test_library_of_the_process_is_found_in_a_fresh_program(tmp_path: Path) -> None:
    """What a library is linked with needs nobody who loaded it."""
    name = "ek_test_fresh"
    exe = ekiden.compile(axpy_program(name))
    exe.export_library(tmp_path / "model.so", options=[str(micro_object(tmp_path, name))])
    program = (
        "import sys, numpy as np; from ekiden import runtime;"
        "print(runtime.load_module(sys.argv[1])['main'](np.float32([1, 2, 3, 4])).numpy().tolist())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "model.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == "[2.0, 4.0, 6.0, 8.0]", done.stderr
