"""OpenCL C vectors: whole-vector stores, and results beside LLVM's code."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import ekiden
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import (
    FloorDiv,
    FloorMod,
    Not,
    PrimExpr,
    Select,
    Var,
    cast,
    const,
    logical_and,
    maximum,
)
from ekiden.kernels.gpu.launch import thread_loop
from ekiden.runtime import Device
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, ramp
from ekiden.tir.stmt import BufferStore, For, ForKind, IfThenElse, PrimFunc, Stmt

N = 64
RNG = np.random.default_rng(11)
Compute = Callable[..., PrimExpr]


def math(op: str, *args: PrimExpr) -> PrimExpr:
    return call_intrin(op, *args, dtype=args[0].dtype)


def at(buffer: Buffer, index: PrimExpr) -> PrimExpr:
    return BufferLoad(buffer, (index,), buffer.dtype)


# fmt: off
CASES: dict[str, tuple[Compute, tuple[str, ...], str]] = {
    "arithmetic": (lambda i, x, y, *_: x * y + x / y, ("float32", "float32"), "float32"),
    "bytes": (lambda i, x, y, *_: maximum(x, y) - x * y, ("int8", "int8"), "int8"),
    "exp": (lambda i, x, *_: math("exp", x) * 2.0, ("float32",), "float32"),
    "erf": (lambda i, x, *_: math("erf", x), ("float32",), "float32"),
    "a function of tables": (lambda i, x, *_: math("sin", x), ("float32",), "float32"),
    "double": (lambda i, x, *_: math("tanh", x), ("float64",), "float64"),
    "maximum of NaN": (lambda i, x, y, *_: maximum(x, y), ("float32", "float32"), "float32"),
    "division down": (lambda i, x, y, *_: FloorDiv(x, y, "int32") + FloorMod(x, y, "int32"),
                      ("int32", "int32"), "int32"),
    "choice": (lambda i, x, y, *_: Select(x < y, x, y), ("float64", "float64"), "float64"),
    "choice of bytes": (lambda i, x, y, *_: Select(logical_and(x < y, x > const(3, "uint8")), x, y),
                        ("uint8", "uint8"), "uint8"),
    "conversions": (lambda i, x, y, z, *_: cast(x, "float32") + cast(y, "float32")
                    + cast(z, "float32") * 3.0, ("int8", "float64", "bool"), "float32"),
    "to integers": (lambda i, x, *_: cast(x * 10.0, "int32"), ("float32",), "int32"),
    "half": (lambda i, x, y, *_: x * y + x, ("float16", "float16"), "float16"),
    "bfloat16": (lambda i, x, y, *_: x * y + x, ("bfloat16", "bfloat16"), "bfloat16"),
    "conditions": (lambda i, x, y, z, *_: logical_and(x, Not(logical_and(y, z < 0.0), "bool")),
                   ("bool", "bool", "float32"), "bool"),
    "borders": (lambda i, x, a: if_then_else(logical_and(i >= 5, i < 40), at(a, i - 5),
                                             const(0.0, "float32")), ("float32",), "float32"),
    "every second": (lambda i, x, a: if_then_else(i < 32, at(a, i * 2), x), ("float32",),
                     "float32"),
    "gather": (lambda i, x, y, a, b: at(b, cast(x & const(63, "int32"), "int64")) + y,
               ("int32", "float32"), "float32"),
    "strides": (lambda i, x, a: at(a, i * 3 % 64) + x, ("float32",), "float32"),
    "positions": (lambda i, x, *_: cast(i, "float32") * x, ("float32",), "float32"),
    "bits": (lambda i, x, *_: call_intrin("reinterpret", x, dtype="int32"), ("float32",), "int32"),
}
# fmt: on
WHOLE = frozenset(CASES) - {"a function of tables", "borders", "every second", "gather", "strides"}
"""Those without a loop over lanes."""


def given_for(dtype: str) -> np.ndarray:
    if dtype == "bool":
        return RNG.random(N) < 0.5
    if "int" in dtype:
        return RNG.integers(0 if dtype[0] == "u" else -50, 60, N).astype(dtype)
    result = RNG.standard_normal(N) * 3
    result[::7] = np.nan
    result[3] = -0.0
    return result.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def program(name: str, lanes: int, on_device: bool) -> PrimFunc:
    compute, dtypes, result = CASES[name]
    buffers = [Buffer(f"x{i}", (const(N),), d) for i, d in enumerate(dtypes)]
    out = Buffer("out", (const(N),), result)
    block, lane = Var("block"), Var("i")
    index = block * lanes + lane
    value = compute(index, *(at(b, index) for b in buffers), *buffers)
    store = BufferStore(out, value, (index,))
    kind = ForKind.VECTORIZED if on_device else ForKind.SERIAL
    body: Stmt = For(lane, const(0), const(lanes), kind, store)
    if on_device:
        threads = thread_loop(Var("thread"), 1, "threadIdx.x", body)
        body = thread_loop(block, N // lanes, "blockIdx.x", threads)
    else:
        body = For(block, const(0), const(N // lanes), ForKind.SERIAL, body)
    return PrimFunc((*buffers, out), body, {"global_symbol": "f"})


def text(func: PrimFunc) -> str:
    """Of its kernel, without the head and helper functions."""
    return str(ekiden.build(func, Target("opencl")).get_source("opencl")).partition("__kernel")[2]


@pytest.mark.parametrize("name", CASES)
def test_opencl_vectors_match_lanes(opencl: Device, name: str) -> None:
    _, dtypes, result = CASES[name]
    inputs = [given_for(d) for d in dtypes]
    kind = ml_dtypes.bfloat16 if result == "bfloat16" else result
    if name == "to integers":
        inputs = [np.nan_to_num(inputs[0])]
    nd = ekiden.runtime.nd
    expected = nd.array(np.zeros(N, kind))
    plain = ekiden.build(program(name, 4, False), "llvm")
    plain["f"](*map(nd.array, inputs), expected)
    for lanes in (4, 16):
        actual = nd.array(np.zeros(N, kind), opencl)
        module = ekiden.build(program(name, lanes, True), Target("opencl"))
        module["f"](*(nd.array(g, opencl) for g in inputs), actual)
        pair = (item.numpy().astype("float64") for item in (actual, expected))
        np.testing.assert_array_equal(*pair)


@pytest.mark.parametrize("name", CASES)
def test_contiguous_vectors_are_stored_whole(name: str) -> None:
    result = text(program(name, 16, True))
    assert ("lane < 16" not in result) is (name in WHOLE), result
    assert ("vstore16" in result) is True


def test_opencl_vector_source_text() -> None:
    result = text(program("arithmetic", 8, True))
    assert "const float8 t" in result and "vload8(0, &x1[" in result


def test_opencl_lane_reduction(opencl: Device) -> None:
    x, out = Buffer("x", (const(16),), "float32"), Buffer("out", (const(2),), "float32")
    load = BufferLoad(x, (ramp(const(0), 1, 16),), "float32x16")
    stores = [
        BufferStore(out, VectorReduce(load, kind, "float32"), (const(n),))
        for n, kind in enumerate(("sum", "max"))
    ]
    thread = Var("thread")
    body = IfThenElse(thread < 1, stores[0], stores[1])
    threads = thread_loop(thread, 2, "threadIdx.x", body)
    func = PrimFunc(
        (x, out), thread_loop(Var("b"), 1, "blockIdx.x", threads), {"global_symbol": "f"}
    )
    assert ".hi" in text(func) and "lane <" not in text(func)
    data, nd = RNG.standard_normal(16).astype("float32"), ekiden.runtime.nd
    result = nd.array(np.zeros(2, "float32"), opencl)
    ekiden.build(func, Target("opencl"))["f"](nd.array(data, opencl), result)
    halves = data
    while len(halves) > 1:
        halves = halves[: len(halves) // 2] + halves[len(halves) // 2 :]
    np.testing.assert_array_equal(result.numpy(), [halves[0], data.max()])


def test_predicated_vector_store(opencl: Device) -> None:
    x, out = Buffer("x", (const(N),), "float32"), Buffer("out", (const(N),), "float32")
    block, lane = Var("block"), Var("i")
    index = block * 16 + lane
    store = IfThenElse(index < 37, BufferStore(out, at(x, index) + 1.0, (index,)))
    body = For(lane, const(0), const(16), ForKind.VECTORIZED, store)
    threads = thread_loop(Var("thread"), 1, "threadIdx.x", body)
    func = PrimFunc((x, out), thread_loop(block, 4, "blockIdx.x", threads), {"global_symbol": "f"})
    assert "if (all(mask" in text(func)
    data, nd = RNG.standard_normal(N).astype("float32"), ekiden.runtime.nd
    result = nd.array(np.zeros(N, "float32"), opencl)
    ekiden.build(func, Target("opencl"))["f"](nd.array(data, opencl), result)
    np.testing.assert_array_equal(result.numpy(), np.where(np.arange(N) < 37, data + 1, 0))
