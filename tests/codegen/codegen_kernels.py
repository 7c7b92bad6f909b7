"""Helpers of the code generator's tests: kernels from expressions, compiled and called."""

from __future__ import annotations

import os
from collections.abc import Callable

import ml_dtypes
import numpy as np

from ekiden.codegen import c
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.runtime import load_image
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad, ramp
from ekiden.tir.stmt import BufferStore, For, ForKind, PrimFunc

Kernel = Callable[..., object]
Body = Callable[..., PrimExpr]


GENERATOR = os.environ.get("EKIDEN_TEST_GENERATOR", "llvm")
"""Which generator these tests are about; `c` runs them all through C, in some two minutes."""
TARGET = Target.host()


def build(func: PrimFunc, target: Target = TARGET) -> Kernel:
    """Compile a lowered function for a processor that this machine can stand for, and load it."""
    if GENERATOR == "c":
        code = c.compile_c(c.emit(func, target), target)
    else:
        code = compile_object([func], target)
    image = link_image([code], [func.name])
    kernel: Kernel = load_image(image)[func.name]
    return kernel


def to_array(values: object, dtype: str) -> np.ndarray:
    """An array of one of our data types."""
    return np.asarray(values).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def map_kernel(body: Body, inputs: list[str], output: str, lanes: int, count: int) -> PrimFunc:
    """`out[i] = body(in0[i], in1[i], ...)` over vectors of `lanes`."""
    params = [Buffer(f"x{i}", (const(count),), d) for i, d in enumerate(inputs)]
    out = Buffer("out", (const(count),), output)
    i = Var("i")
    index = ramp(i * lanes, 1, lanes)
    loads = [BufferLoad(p, (index,), dt.with_lanes(p.dtype, lanes)) for p in params]
    store = BufferStore(out, body(*loads), (index,))
    loop = For(i, const(0), const(count // lanes), ForKind.SERIAL, store)
    return PrimFunc((*params, out), loop, {"global_symbol": "map"})


def run_map(
    body: Body, arrays: list[np.ndarray], dtypes: list[str], output: str, lanes: int
) -> np.ndarray:
    """Compile and run an elementwise kernel; arrays are padded to whole vectors by repeating."""
    count = -(-len(arrays[0]) // lanes) * lanes
    padded = [np.resize(a, count) for a in arrays]
    out = to_array(np.zeros(count), output)
    build(map_kernel(body, dtypes, output, lanes, count))(*padded, out)
    return out[: len(arrays[0])]
