"""Scheduling, lowering and code-generation time of a convolution, in Python on one core.

    python benchmarks/schedule_time.py [RUNS]

A 3x3 convolution (64 to 64 channels, 56 x 56 points) with padding, bias and relu: a schedule of ten
primitives (limit 15 ms), lowering (25 ms), LLVM IR (15 ms), and, apart, what LLVM takes. Figures
are medians of processor time over the runs; the wall clock beside them is that of a busy machine.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from ekiden import te, tir
from ekiden.codegen import llvm
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import const, logical_and, maximum
from ekiden.target import Target
from ekiden.tir.transform import lower

T = TypeVar("T")


def conv2d_func(channels: int = 64, size: int = 56) -> tir.PrimFunc:
    """Return relu(conv2d(pad(x), w) + b) as four blocks."""
    x = te.placeholder((1, channels, size, size), name="x")
    w = te.placeholder((channels, channels, 3, 3), name="w")
    b = te.placeholder((channels,), name="b")
    zero, end = const(0.0, "float32"), size + 1
    pad = te.compute(
        (1, channels, size + 2, size + 2),
        lambda n, c, h, v: if_then_else(
            logical_and(logical_and(h >= 1, h < end), logical_and(v >= 1, v < end)),
            x[n, c, h - 1, v - 1],
            zero,
        ),
        name="pad",
    )
    c, y, z = te.reduce_axis((0, channels)), te.reduce_axis((0, 3)), te.reduce_axis((0, 3))
    shape = (1, channels, size, size)
    conv = te.compute(
        shape,
        lambda n, o, h, v: te.sum(pad[n, c, h + y, v + z] * w[o, c, y, z], [c, y, z]),
        name="conv",
    )
    bias = te.compute(shape, lambda n, o, h, v: conv[n, o, h, v] + b[o], name="bias")
    relu = te.compute(shape, lambda n, o, h, v: maximum(bias[n, o, h, v], 0.0), name="relu")
    return te.create_prim_func([x, w, b, relu])


def schedule_conv2d(func: tir.PrimFunc) -> tir.Schedule:
    """Apply ten primitives: tiles of 7 points by 16 channels, the padding made row by row."""
    sch = tir.Schedule(func)
    conv = sch.get_block("conv")
    sch.compute_inline("bias")
    n, o, h, v, c, y, z = sch.get_loops(conv)
    outer, lanes = sch.split(o, [None, 16])
    columns, points = sch.split(v, [None, 7])
    sch.reorder(n, outer, h, columns, c, y, z, points, lanes)
    sch.reverse_compute_at("relu", columns)
    sch.compute_at("pad", h)
    sch.decompose_reduction(conv, c)
    sch.vectorize(lanes)
    sch.unroll(points)
    sch.parallel(outer)
    return sch


def time_step(step: Callable[[], T], runs: int) -> tuple[T, float, float]:
    """Return a step's result, and its median CPU and wall time in milliseconds."""
    result = step()
    processor: list[float] = []
    wall: list[float] = []
    for _ in range(runs):
        started, began = time.process_time(), time.perf_counter()
        step()
        processor.append((time.process_time() - started) * 1e3)
        wall.append((time.perf_counter() - began) * 1e3)
    return result, statistics.median(processor), statistics.median(wall)


def main() -> None:
    """Print a table."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    target = Target.host()
    func = conv2d_func()
    gc.collect()
    # Objects of the imports leave the collector, which would otherwise scan them while timing.
    gc.freeze()
    sch, *scheduling = time_step(lambda: schedule_conv2d(func), runs)
    lowered, *lowering = time_step(lambda: lower(sch.func, target), runs)
    text, *emitting = time_step(lambda: llvm.emit_module([lowered], target), runs)
    _, *compiling = time_step(lambda: llvm.compile_ir(text, target), max(runs // 5, 1))
    print(f"convolution 3x3, 64 channels, 56 x 56: median of {runs} runs (limit), wall")
    for name, (processor, wall), limit in (
        ("schedule of 10 primitives", scheduling, "15"),
        ("lowering", lowering, "25"),
        ("LLVM IR", emitting, "15"),
        ("LLVM itself", compiling, "-"),
    ):
        print(f"{name:28} {processor:8.1f} ms ({limit:>2}) {wall:8.1f} ms")


if __name__ == "__main__":
    main()
