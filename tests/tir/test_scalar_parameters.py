"""Scalar parameters of loop programs: text, code generators, Relay, devices."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import relay, tir
from ekiden.codegen.device import split_host_and_device
from ekiden.ir.structural import structural_equal
from ekiden.runtime.errors import CompileError
from ekiden.script import tir as T
from ekiden.target import Target
from ekiden.tir import interpreter
from ekiden.tir.transform import numbers_as_tensors
from long_runs import share


@T.prim_func
def scale(
    n: T.int32, a: T.float32, A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")
) -> None:
    for i in range(n):
        with T.block("b"):
            v = T.axis.spatial(n, i)
            B[v] = A[v] * a


@T.prim_func
def add_size(a: T.handle, n: T.int64, b: T.handle) -> None:
    T.func_attr({"num_outputs": 1})
    m = T.int32()
    A = T.match_buffer(a, (n,), "int64")
    B = T.match_buffer(b, (m,), "int64")
    for i in T.serial(m):
        B[i] = A[i % n] + n


@pytest.mark.parametrize("func", [scale, add_size])
def test_scalar_parameters_round_trip_as_text(func: tir.PrimFunc) -> None:
    tir.verify(func, lowered=False)
    again = tir.parse(func.script())
    assert isinstance(again, tir.PrimFunc) and structural_equal(func, again)
    assert [v.dtype for v in again.scalars] == [v.dtype for v in func.scalars]
    assert structural_equal(ekiden.ir.load_json(ekiden.ir.save_json(func)), func)


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_numbers_are_passed(target: str) -> None:
    f, a = ekiden.build(scale, target=target), np.arange(8, dtype="float32")
    for n, factor in ((5, 2.5), (8, 3), (True, 1.5), (0, 1)):
        b = np.zeros(8, "float32")
        f(n, factor, a, b)
        expected = np.where(np.arange(8) < int(n), a * np.float32(factor), 0)
        np.testing.assert_array_equal(b, expected)
        held = np.zeros(8, "float32")
        interpreter.run_prim_func(ekiden.lower(scale), n, factor, a, held)  # type: ignore[arg-type]
        np.testing.assert_array_equal(held, expected)


@share(2)
@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize(
    ("dtype", "argument", "error"),
    [
        ("int8", 127, None),
        ("int8", 128, "ValueError"),
        ("uint8", 255, None),
        ("uint8", -1, "ValueError"),
        ("uint64", -1, "ValueError"),
        ("bool", 1, None),
        ("int64", 2.0, "TypeError"),
        ("float16", 1.5, None),
        ("bfloat16", 3, None),
        ("float64", 0.1, None),
        ("float32", "1", "TypeError"),
    ],
)
def test_scalar_parameters_of_every_dtype(
    target: str, dtype: str, argument: object, error: str | None
) -> None:
    @T.prim_func
    def f(x: T.handle, y: T.Buffer((1,), "float64")) -> None:
        y[0] = 0.0

    number = tir.Var("x", dtype)
    out = f.buffers[0]
    body = tir.BufferStore(out, tir.Cast(number, "float64"), (tir.const(0),))
    compiled = ekiden.build(f.with_fields(params=(number, out), body=body), target=target)
    y = np.zeros(1)
    if error is None:
        compiled(argument, y)
        assert y[0] == float(argument)  # type: ignore[arg-type]
        return
    with pytest.raises(Exception, match=r"f: argument 0 \(x\) must") as caught:
        compiled(argument, y)
    assert type(caught.value).__name__ == error


def test_address_is_no_argument_of_compiled_code() -> None:
    @T.prim_func
    def f(p: T.handle, A: T.Buffer((1,), "int64")) -> None:
        A[0] = 1

    assert f.scalars[0].dtype == "handle" and "p: T.handle" in f.script()
    for target in ("llvm", "c"):
        with pytest.raises(CompileError, match="parameter 'p' is an address"):
            ekiden.build(f, target=target)


@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize("dtype", ["int4", "float8_e4m3fn", "float32x4"])
def test_small_types_and_vectors_are_no_arguments(target: str, dtype: str) -> None:
    number, out = tir.Var("x", dtype), tir.decl_buffer((1,), "float32", "out")
    body = tir.BufferStore(out, tir.const(1.0, "float32"), (tir.const(0),))
    func = tir.PrimFunc((number, out), body, {"global_symbol": "f"})
    with pytest.raises(CompileError, match=f"f: parameter 'x' is {dtype}; numbers that are passed"):
        ekiden.build(func, target=target)


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_number_may_be_a_size(target: str) -> None:
    f, a, b = ekiden.build(add_size, target=target), np.arange(4), np.zeros(6, "int64")
    f(a, 4, b)
    np.testing.assert_array_equal(b, np.arange(6) % 4 + 4)
    with pytest.raises(ValueError, match="argument 0: dimension 0 must be n"):
        f(a, 5, b)


@T.prim_func
def affine(
    A: T.Buffer((4,), "float32"), a: T.float32, n: T.int64, B: T.Buffer((4,), "float32")
) -> None:
    T.func_attr({"num_outputs": 1})
    for i in range(4):
        with T.block("b"):
            v = T.axis.spatial(4, i)
            B[v] = A[v] * a + T.cast(n, "float32")


@pytest.mark.parametrize("executor", ["vm", "aot", "graph", "debug"])
def test_relay_gives_tensors_of_no_dimension(executor: str) -> None:
    module = ekiden.IRModule({"affine": affine})
    x = relay.var("x", shape=(4,))
    a, n = relay.var("a", shape=()), relay.var("n", shape=(), dtype="int64")
    module["main"] = relay.Function([x, a, n], module.get_global_var("affine")(x, a, n))
    run = relay.create_executor(executor, module, target="llvm").evaluate()
    result = run(np.arange(4, dtype="float32"), np.float32(2), np.int64(10))
    np.testing.assert_array_equal(result.numpy(), [10, 12, 14, 16])


def test_size_given_twice_must_agree() -> None:
    @T.prim_func
    def f(n: T.int64, a: T.handle, b: T.handle) -> None:
        T.func_attr({"num_outputs": 1})
        A = T.match_buffer(a, (n,), "int64")
        B = T.match_buffer(b, (n,), "int64")
        for i in range(n):
            B[i] = A[i] + n

    assert not numbers_as_tensors(f).scalars
    module = ekiden.IRModule({"f": f})
    n, x = relay.var("n", shape=(), dtype="int64"), relay.var("x", shape=(4,), dtype="int64")
    module["main"] = relay.Function([n, x], module.get_global_var("f")(n, x))
    run = relay.create_executor("vm", module, target="llvm").evaluate()
    np.testing.assert_array_equal(run(np.int64(4), np.arange(4)).numpy(), np.arange(4) + 4)
    with pytest.raises(ValueError, match="n is 3, and the dimension of that name 4"):
        run(np.int64(3), np.arange(4))


@pytest.mark.parametrize("kind", ["opencl", "cuda"])
def test_device_gets_numbers(kind: str) -> None:
    @T.prim_func
    def f(a: T.float32, n: T.int32, A: T.Buffer((8,), "float32")) -> None:
        for i in T.thread_binding(8, thread="threadIdx.x"):
            A[i] = a + T.cast(n, "float32")

    (kernel,) = split_host_and_device(f, Target(kind)).kernels
    text = kernel.code.decode()
    assert "a_bits" in text and "n" in text and kernel.args == "bll"
