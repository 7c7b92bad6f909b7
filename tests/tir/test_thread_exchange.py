"""Programs whose threads exchange values through shared memory, built for processors."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import tir
from ekiden.runtime.errors import CompileError
from ekiden.tir.script.parser import from_source


def program(store: str, load: str) -> tir.PrimFunc:
    """Parse a block of 16 x 16 threads that store to shared memory, then load from it."""
    text = f"""
@T.prim_func
def main(a: T.handle, b: T.handle):
    A = T.match_buffer(a, (4, 256))
    B = T.match_buffer(b, (4, 256))
    for i in T.thread_binding(4, thread="blockIdx.x"):
        s = T.alloc_buffer((256,), scope="shared")
        m = T.alloc_buffer((16, 16), scope="shared")
        for ty in T.thread_binding(16, thread="threadIdx.y"):
            for tx in T.thread_binding(16, thread="threadIdx.x"):
                {store}
                B[i, ty * 16 + tx] = {load}
"""
    parsed = from_source(text)
    assert isinstance(parsed, tir.PrimFunc)
    return parsed


EXCHANGES = {
    "reversed": ("s[ty * 16 + tx] = A[i, ty * 16 + tx]", "s[ty * 16 + (15 - tx)]"),
    "neighbour": ("s[ty * 16 + tx] = A[i, tx]", "s[(ty * 16 + tx + 1) % 256]"),
    "transposed": ("m[ty, tx] = A[i, ty * 16 + tx]", "m[tx, ty]"),
    "one": ("s[ty * 16 + tx] = A[i, tx]", "s[0]"),
    "looked up": ("s[ty * 16 + tx] = A[i, tx]", "s[T.Cast('int32', A[0, tx])]"),
}
PRIVATE = {
    "same": ("s[ty * 16 + tx] = A[i, ty * 16 + tx]", "s[ty * 16 + tx] * T.float32(2)"),
    "axes": ("m[ty, tx] = A[i, ty * 16 + tx]", "m[ty, tx] * T.float32(2)"),
    "scalar": ("s[0] = A[i, ty * 16 + tx]", "s[0] * T.float32(2)"),
}


@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize("name", EXCHANGES)
def test_threads_that_exchange_values_are_refused_on_processors(name: str, target: str) -> None:
    with pytest.raises(
        CompileError, match=r"threads of loop 't[xy]' exchange values through '[sm]'"
    ):
        ekiden.build(program(*EXCHANGES[name]), target)


@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize("name", PRIVATE)
def test_threads_that_load_what_they_stored_run_on_processors(name: str, target: str) -> None:
    x = np.random.default_rng(0).normal(size=(4, 256)).astype("float32")
    out = ekiden.nd.array(np.zeros_like(x))
    ekiden.build(program(*PRIVATE[name]), target)["main"](ekiden.nd.array(x), out)
    np.testing.assert_array_equal(out.numpy(), 2 * x)


def test_rows_of_threads_may_exchange_in_loops_of_their_own() -> None:
    text = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    A = T.match_buffer(a, (16, 16))
    B = T.match_buffer(b, (16, 16))
    s = T.alloc_buffer((256,), scope="shared")
    for ty in T.thread_binding(16, thread="threadIdx.y"):
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            s[ty * 16 + tx] = A[ty, tx]
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            B[ty, tx] = s[ty * 16 + (15 - tx)]
"""
    x = np.random.default_rng(0).normal(size=(16, 16)).astype("float32")
    out = ekiden.nd.array(np.zeros_like(x))
    ekiden.build(from_source(text), "llvm")["main"](ekiden.nd.array(x), out)
    np.testing.assert_array_equal(out.numpy(), x[:, ::-1])
