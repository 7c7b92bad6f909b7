"""ReduceStores: reductions fused into stores, and those left to loops."""

import numpy as np
import pytest

import ekiden
from ekiden.ir.module import IRModule
from ekiden.script import tir as T
from ekiden.tir import PrimFunc, transform


@T.prim_func
def parallel_rows(
    source: T.Buffer((300, 24), "float32"),
    out: T.Buffer((300, 24), "float32"),
    high: T.Buffer((), "float32"),
) -> None:
    T.func_attr({"tir.tiled": 1, "num_outputs": 2})
    for i in T.parallel(300):
        for j in range(3):
            out[T.Ramp(i * 24 + j * 8, 1, 8)] = source[T.Ramp(i * 24 + j * 8, 1, 8)] * T.Broadcast(
                T.float32(2), 8
            )
    high[()] = T.float32("-inf")
    for at in T.serial(7200, annotations={"reduce_stores": "max"}):
        high[()] = T.max(high[()], out[at])


@T.prim_func
def sums_in_the_output(
    source: T.Buffer((4, 16), "float32"),
    out: T.Buffer((16,), "float32"),
    high: T.Buffer((), "float32"),
) -> None:
    T.func_attr({"tir.tiled": 1, "num_outputs": 2})
    for j in range(16):
        out[j] = T.float32(0)
    for i, j in T.grid(4, 16):
        out[j] = out[j] + source[i, j]
    high[()] = T.float32("-inf")
    for at in T.serial(16, annotations={"reduce_stores": "max"}):
        high[()] = T.max(high[()], out[at])


def reduced(func: PrimFunc) -> str:
    """Return the text after the pass alone, with flat buffers."""
    module = transform.FlattenBuffer()(IRModule({"main": func}))
    return transform.ReduceStores()(module)["main"].script()


def run(func: PrimFunc, data: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs of a kernel."""
    out, high = ekiden.nd.array(np.zeros(shape, "float32")), ekiden.nd.array(np.float32(0))
    ekiden.build(func, target="llvm")(ekiden.nd.array(data), out, high)
    return out.numpy(), high.numpy()


def test_stores_of_parallel_loops_are_reduced_by_parts() -> None:
    text = reduced(parallel_rows)
    assert "reduce_stores" not in text and "T.parallel(64" in text
    data = np.random.default_rng(3).normal(size=(300, 24)).astype("float32")
    out, high = run(parallel_rows, data, (300, 24))
    np.testing.assert_array_equal(out, data * 2)
    assert high == out.max()


@pytest.mark.parametrize("at", [(0, 0), (299, 23), (150, 8)])
def test_nan_passes_through(at: tuple[int, int]) -> None:
    data = np.zeros((300, 24), "float32")
    data[at] = np.nan
    assert np.isnan(run(parallel_rows, data, (300, 24))[1])


def test_partial_sums_are_not_reduced() -> None:
    assert "reduce_stores" in reduced(sums_in_the_output)
    data = -np.ones((4, 16), "float32")
    assert run(sums_in_the_output, data, (16,))[1] == -4
