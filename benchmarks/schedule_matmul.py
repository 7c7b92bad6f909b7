"""A matrix product scheduled with primitives, as a share of one core's multiply-add peak; and the
same schedule for any number of rows, against itself for each number alone.

    python benchmarks/schedule_matmul.py [--size 1024] [--step 8]

The schedule is that of docs/tutorials/matmul.md. Times are those for which the thread had the
processor; the variants take turns, and the best of each counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

import ekiden
from ekiden import te, tir
from ekiden.codegen.cache import KernelCache
from ekiden.script import tir as T  # noqa: N812 - TVM's name
from ekiden.tir import PrimFunc

ROWS, VECTORS, LANES = 6, 4, 16
CHAINS, STEPS = 24, 50_000


@T.prim_func
def build_fma_peak_loop(out: T.Buffer((24, 16), "float32")) -> None:
    acc = T.alloc_buffer((24, 16), "float32", scope="register")
    for c in T.unroll(24):
        for lane in T.vectorized(16):
            acc[c, lane] = T.float32(0.999)
    for _step in range(50_000):
        for c in T.unroll(24):
            for lane in T.vectorized(16):
                acc[c, lane] = T.fma(acc[c, lane], T.float32(0.999), T.float32(0.999))
    for c in T.unroll(24):
        for lane in T.vectorized(16):
            out[c, lane] = acc[c, lane]


def matmul_func(rows: object, size: int) -> PrimFunc:
    """Return C[i, j] = sum over r of A[i, r] * B[r, j]."""
    a = te.placeholder((rows, size), name="A")
    b = te.placeholder((size, size), name="B")
    r = te.reduce_axis((0, size), name="r")
    c = te.compute((rows, size), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    return te.create_prim_func([a, b, c])


def schedule_matmul(func: PrimFunc) -> tir.Schedule:
    """Return the product tiled to ROWS x VECTORS vectors in registers, over packed panels of B."""
    sch = tir.Schedule(func)
    block = sch.get_block("C")
    copy = sch.cache_write(block, 0, "register")
    i, j, r = sch.get_loops(block)
    i_tile, i_row = sch.split(i, factors=[None, ROWS])
    j_tile, j_vector, j_lane = sch.split(j, factors=[None, VECTORS, LANES])
    sch.reorder(j_tile, i_tile, r, i_row, j_vector, j_lane)
    sch.unroll(i_row)
    sch.unroll(j_vector)
    sch.vectorize(j_lane)
    sch.reverse_compute_at(copy, i_tile)
    row, column = sch.get_loops(copy)[-2:]
    vector, lane = sch.split(column, factors=[None, LANES])
    sch.unroll(row)
    sch.unroll(vector)
    sch.vectorize(lane)
    # After tiling: the initialization moves in front of the reduction loop, outside its body.
    sch.decompose_reduction(block, r)
    panel = sch.cache_read(block, 1, "global")
    sch.compute_at(panel, j_tile)
    sch.vectorize(sch.split(sch.get_loops(panel)[-1], factors=[None, LANES])[1])
    return sch


def build_matmul(rows: object, size: int) -> Callable[..., object]:
    """Return the compiled product."""
    module = ekiden.build(schedule_matmul(matmul_func(rows, size)).mod, cache=KernelCache(None))
    function: Callable[..., object] = module["main"]
    return function


def random_arguments(rows: int, size: int) -> list[object]:
    """Return the tensors of one call."""
    random = np.random.default_rng(rows)
    a, b = (random.standard_normal(s).astype("float32") for s in ((rows, size), (size, size)))
    return [ekiden.runtime.tensor(x) for x in (a, b, np.zeros((rows, size), "float32"))]


def interleaved_min_times(
    calls: Sequence[Callable[[], object]], rounds: int, number: int = 1
) -> list[float]:
    """Return the minimum CPU seconds of each call, measured alternately."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for n, call in enumerate(calls):
            start = time.thread_time()
            for _ in range(number):
                call()
            best[n] = min(best[n], (time.thread_time() - start) / number)
    return best


def share_of_peak(size: int) -> float:
    """Return the share of the peak for size x size matrices."""
    limit, out = (
        ekiden.build(build_fma_peak_loop)["peak"],
        ekiden.runtime.tensor(np.zeros((24, 16), "float32")),
    )
    kernel, tensors = build_matmul(size, size), random_arguments(size, size)
    kernel(*tensors)
    spent, reference = interleaved_min_times([lambda: kernel(*tensors), lambda: limit(out)], 9)
    return (2 * size**3 / spent) / (2 * CHAINS * LANES * STEPS / reference)


def symbolic_speed_ratio(size: int, counts: Sequence[int]) -> list[float]:
    """Return the speed of the kernel with symbolic rows relative to the specialized one, for each
    row count.
    """
    any_rows = build_matmul(te.size_var("m"), size)
    shares = []
    for rows in counts:
        own, tensors = build_matmul(rows, size), random_arguments(rows, size)
        calls = [lambda k=k, g=tensors: k(*g) for k in (own, any_rows)]  # type: ignore[misc]
        static, symbolic = interleaved_min_times(calls, 7, max(1, 48 // rows))
        shares.append(static / symbolic)
    return shares


def main() -> None:
    """Print both figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--step", type=int, default=8, help="of the numbers of rows, 1 to 512")
    options = parser.parse_args()
    ekiden.runtime.num_threads(1)
    size = options.size
    print(f"{size}x{size}x{size} fp32, one core: {share_of_peak(size):.1%} of the peak")
    counts = [*range(1, 513, options.step)]
    shares = symbolic_speed_ratio(size, counts)
    worst = min(zip(shares, counts, strict=True))
    print(
        f"any number of rows, over {len(counts)} from 1 to 512: {statistics.mean(shares):.1%} of "
        f"the kernel for that number on average; worst {worst[0]:.1%} at {worst[1]}"
    )


if __name__ == "__main__":
    main()
