"""Kernels that call packed functions by name: numbers, strings and tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ekiden import runtime, tir
from ekiden.codegen.build import build
from ekiden.codegen.cache import KernelCache
from ekiden.tir import PrimFunc
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.transform import lower

HEAD = "from ekiden.script import tir as T\n@T.prim_func\n"
BACKENDS = ("llvm", "c", "interpreter")
NAME = "test.packed_call"


def parse(text: str) -> PrimFunc:
    func = tir.parse(HEAD + text)
    assert isinstance(func, PrimFunc)
    return func


def kernel(func: PrimFunc, backend: str) -> Callable[..., object]:
    if backend == "interpreter":
        return lambda *arrays: run_prim_func(lower(func), *arrays)
    return build(func, backend, cache=KernelCache(None))[func.name]


@pytest.fixture
def seen() -> Iterator[list[tuple[object, ...]]]:
    """What the function has been called with; arrays are copied."""
    calls: list[tuple[object, ...]] = []

    def record(*args: object) -> int:
        calls.append(tuple(np.array(a) if hasattr(a, "shape") else a for a in args))
        return len(calls)

    runtime.register_func(NAME, record, override=True)
    yield calls
    runtime.remove_global_func(NAME)


@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_call_passes_arguments(backend: str, seen: list[tuple[object, ...]]) -> None:
    func = parse(
        f"""def f(a: T.Buffer((2, 3), "float32"), b: T.Buffer((2,), "int32")):
    for i in range(2):
        b[i] = T.call_packed("{NAME}", a, i, a[i, 1], "text")
"""
    )
    a, b = np.arange(6, dtype="float32").reshape(2, 3), np.zeros(2, "int32")
    kernel(func, backend)(a, b)
    assert b.tolist() == [1, 2]
    assert [c[1:] for c in seen] == [(0, 1.0, "text"), (1, 4.0, "text")]
    for call in seen:
        np.testing.assert_array_equal(np.asarray(call[0]), a)


@pytest.mark.parametrize("backend", BACKENDS)
def test_callee_writes_to_a_buffer_and_the_kernel_reads_it(backend: str) -> None:
    def fill(tensor: runtime.Tensor, value: float) -> None:
        np.asarray(np.from_dlpack(tensor) if hasattr(tensor, "__dlpack__") else tensor)[:] = value

    runtime.register_func(NAME, fill, override=True)
    func = parse(
        f"""def f(b: T.Buffer((4,), "float32")):
    t = T.alloc_buffer((4,), "float32")
    for i in range(4):
        t[i] = 1.0
    T.evaluate(T.call_packed("{NAME}", t, 7.5))
    for i in range(4):
        b[i] = t[i]
"""
    )
    b = np.zeros(4, "float32")
    kernel(func, backend)(b)
    runtime.remove_global_func(NAME)
    assert b.tolist() == [7.5] * 4


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_callee_error_propagates_from_kernel(backend: str) -> None:
    def refuse(*args: object) -> None:
        raise ValueError("no, thanks")

    runtime.register_func(NAME, refuse, override=True)
    func = parse(
        f"""def f(b: T.Buffer((4,), "float32")):
    t = T.alloc_buffer((4,), "float32")
    T.evaluate(T.call_packed("{NAME}", t))
    for i in range(4):
        b[i] = 1.0
"""
    )
    b = np.zeros(4, "float32")
    with pytest.raises(ValueError, match="no, thanks"):
        kernel(func, backend)(b)
    runtime.remove_global_func(NAME)
    assert not b.any()


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_function_nobody_registered_is_an_error(backend: str) -> None:
    func = parse(
        """def f(b: T.Buffer((4,), "float32")):
    T.evaluate(T.call_packed("test.nobody_has_this"))
"""
    )
    with pytest.raises(Exception, match="test.nobody_has_this"):
        kernel(func, backend)(np.zeros(4, "float32"))


@pytest.mark.parametrize("backend", ("llvm", "interpreter"))
def test_name_may_have_quotes_and_backslashes(backend: str) -> None:
    name = 'test.a"b\\41é'
    func = parse(
        f"""def f(b: T.Buffer((4,), "int32")):
    b[0] = T.call_packed({json.dumps(name, ensure_ascii=False)})
"""
    )
    runtime.register_func(name, lambda: 7, override=True)
    try:
        out = np.zeros(4, "int32")
        kernel(func, backend)(out)
        assert out[0] == 7
    finally:
        runtime.remove_global_func(name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_in_a_parallel_loop(backend: str, seen: list[tuple[object, ...]]) -> None:
    func = parse(
        f"""def f(b: T.Buffer((8,), "int32")):
    for i in T.parallel(8):
        T.evaluate(T.call_packed("{NAME}", b, i))
"""
    )
    kernel(func, backend)(np.zeros(8, "int32"))
    assert sorted(int(str(c[1])) for c in seen) == list(range(8))
