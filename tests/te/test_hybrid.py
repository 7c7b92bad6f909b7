"""Hybrid scripts give the same results compiled and as Python."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from te_programs import evaluate

import ekiden
from ekiden import te
from ekiden.runtime.errors import ParseError
from ekiden.te import Tensor
from ekiden.tir import For, ForKind
from ekiden.tir.visitor import pre_order_stmts

# ruff: noqa: ANN001, ANN201, ANN202, F821  scripts have no annotations, and the names of hybrid scripts are not those of this file
RNG = np.random.default_rng(5)


def check(function: te.hybrid.HybridFunction, *arrays: np.ndarray) -> list[Tensor]:
    """Compile a script for the arrays' shapes; its outputs are those of the Python function."""
    inputs = [te.placeholder(a.shape, str(a.dtype), f"x{n}") for n, a in enumerate(arrays)]
    result = function(*inputs)
    outputs = result if isinstance(result, list) else [result]
    actual = evaluate(inputs, outputs, list(arrays))
    plain = function(*arrays)
    expected = plain if isinstance(plain, (tuple, list)) else [plain]
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return outputs


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("float32")


@te.hybrid.script
def outer(a, b):  # type: ignore[no-untyped-def]
    """Products of all pairs."""
    c = output_tensor((a.shape[0], b.shape[0]), a.dtype)
    for i in range(a.shape[0]):
        for j in range(b.shape[0]):
            assert i < a.shape[0] and j < b.shape[0], "index out of range"
            c[i, j] = a[i] * b[j]
    return c


@te.hybrid.script
def window(a):  # type: ignore[no-untyped-def]
    """Means of three neighbours, by a variable."""
    b = output_tensor((a.shape[0] - 3,), a.dtype)
    for i in range(a.shape[0] - 3):
        total = 0.0
        for j in range(3):
            total += a[i + j]
        b[i] = total / 3.0
    return b


@te.hybrid.script
def branches(a):  # type: ignore[no-untyped-def]
    """Conditions, and two outputs."""
    b = output_tensor(a.shape, "float32")
    c = output_tensor(a.shape, "int32")
    for i in range(len(a)):
        c[i] = i
        if a[i] > 0.5:
            b[i] = a[i]
        elif not (a[i] > -0.5) or i == 3:
            b[i] = 0.0 - a[i]
        else:
            b[i] = exp(a[i]) if i % 2 == 0 else tanh(a[i])
            c[i] = int32(a[i] * 8.0) + max(i, 2)
    return b, c


@te.hybrid.script
def kinds(a):  # type: ignore[no-untyped-def]
    """All kinds of loops, and a buffer of its own."""
    b = output_tensor((4, 8), "float32")
    kept = allocate((4, 8), "float32", "local")
    for i in serial(4):
        for j in vectorize(8):
            kept[i, j] = a[i, j] * 2.0
    for i in parallel(4):
        for j in unroll(2):
            for k in const_range(4):
                b[i, j * 4 + k] = kept[i, j * 4 + k] + float32(k)
    return b


def test_loops_over_elements() -> None:
    check(outer, normal(4), normal(3))
    check(window, normal(9))


def test_conditions_and_two_outputs() -> None:
    outputs = check(branches, np.linspace(-1, 1, 12, dtype="float32"))
    assert [t.dtype for t in outputs] == ["float32", "int32"]


def test_hybrid_loop_kinds_match_python() -> None:
    (out,) = check(kinds, normal(4, 8))
    result = {s.kind for s in pre_order_stmts(out.op.body) if isinstance(s, For)}  # type: ignore[attr-defined]
    assert result == {ForKind.SERIAL, ForKind.VECTORIZED, ForKind.PARALLEL, ForKind.UNROLLED}


def test_scripts_call_scripts_and_see_constants() -> None:
    weights = (2.0, 3.0)
    is_negated = True

    @te.hybrid.script
    def weighted(a):  # type: ignore[no-untyped-def]
        b = output_tensor(a.shape, a.dtype)
        c = outer(a, a)
        for i in range(a.shape[0]):
            for k in const_range(2):
                if k == 0:
                    b[i] = c[i, i] * weights[k]
                else:
                    b[i] = b[i] + weights[k]
            if is_negated:
                b[i] = -b[i]
        return b

    a = te.placeholder((5,), name="a")
    x = normal(5)
    result = evaluate([a], [weighted(a)], [x])[0]
    np.testing.assert_allclose(result, -(x * x * 2 + 3), rtol=1e-6)


def test_sizes_that_are_data_and_schedules_around() -> None:
    n = te.size_var("n")
    a = te.placeholder((n,), name="a")
    doubled = te.compute((n,), lambda i: a[i] * 2.0, name="doubled")
    result = window(doubled)
    shifted = te.compute(result.shape, lambda i: result[i] + 1.0, name="shifted")
    x = normal(10)
    expected = np.convolve(x * 2, np.ones(3) / 3, "valid")[:7] + 1
    s = te.create_schedule(shifted.op)
    s[shifted].vectorize(shifted.op.axis[0])
    out = ekiden.nd.array(np.zeros(7, "float32"))
    ekiden.build(s, [a, shifted], "llvm", name="f")["f"](ekiden.nd.array(x), out)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5)


def test_unsupported_hybrid_scripts_are_refused() -> None:
    @te.hybrid.script
    def forever(a):  # type: ignore[no-untyped-def]
        while a[0] > 0:
            pass
        return a

    @te.hybrid.script
    def unknown(a):  # type: ignore[no-untyped-def]
        b = output_tensor(a.shape, a.dtype)
        b[0] = nowhere(a[0])
        return b

    @te.hybrid.script
    def ranks(a):  # type: ignore[no-untyped-def]
        b = output_tensor(a.shape, a.dtype)
        b[0] = a[0, 1]
        return b

    a = te.placeholder((3,), name="a")
    with pytest.raises(ParseError, match="no such statement: while"):
        forever(a)
    with pytest.raises(ParseError, match="undefined name 'nowhere'"):
        unknown(a)
    with pytest.raises(ParseError, match="'a' has 1 axes, got 2 indices"):
        ranks(a)
    with pytest.raises(ParseError, match="takes 2 arguments, got 1"):
        outer(a)


BOTH_ARE_IN, ONE_IS_OUT = threading.Barrier(2), threading.Event()


@te.hybrid.script
def meeting(a, is_last):  # type: ignore[no-untyped-def]
    """Runs as Python alone."""
    BOTH_ARE_IN.wait()
    if is_last:
        ONE_IS_OUT.wait()
    return output_tensor(a.shape, a.dtype)


def test_scripts_run_as_python_at_the_same_time() -> None:
    """The end of one takes no names from the other."""
    with ThreadPoolExecutor(2) as pool:
        last = pool.submit(meeting, np.ones(3), True)
        assert pool.submit(meeting, np.ones(3), False).result().shape == (3,)
        ONE_IS_OUT.set()
        assert last.result().shape == (3,)
    assert "output_tensor" not in globals()
