"""What this machine reaches at best, measured: multiply-adds, and bytes from memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ekiden.codegen.llvm import compile_object, link
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Var, const
from ekiden.runtime import load_image, num_threads, tensor
from ekiden.runtime.profile import Peak
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, PrimFunc, seq
from ekiden.tir.transform import lower

__all__ = ["CHAINS", "STEPS", "measure_peak", "peak_loop"]

CHAINS, STEPS = 24, 50_000
ROUNDS = 7
BYTES = 1 << 26
"""Of the array that is read and the one that is written: more than caches hold."""


def peak_loop(target: Target) -> PrimFunc:
    """CHAINS accumulators, STEPS multiply-adds each; 2 * CHAINS * STEPS * lanes operations."""
    lanes = target.lanes("float32")
    vector = f"float32x{lanes}"
    out = Buffer("out", (const(CHAINS * lanes),))
    acc = Buffer("acc", (const(CHAINS),), vector, "register")
    factor = broadcast(const(0.999, "float32"), lanes)
    clear = [BufferStore(acc, factor, (const(c),)) for c in range(CHAINS)]
    steps = [
        BufferStore(acc, call_intrin("fma", acc[c], factor, factor, dtype=vector), (const(c),))
        for c in range(CHAINS)
    ]
    loop = For(Var("i"), const(0), const(STEPS), ForKind.SERIAL, seq(*steps))
    keep = [BufferStore(out, acc[c], (ramp(const(c * lanes), 1, lanes),)) for c in range(CHAINS)]
    return PrimFunc((out,), Allocate(acc, seq(*clear, loop, *keep)), {"global_symbol": "peak"})


def measure_peak(target: Target | None = None) -> Peak:
    """The best of some rounds of a loop of independent multiply-adds, times the threads of the
    pool; and of a copy that no cache holds. Takes 0.2 s.
    """
    chosen = Target.host() if target is None else target
    image = link([compile_object([lower(peak_loop(chosen), chosen)], chosen)], ["peak"], chosen)
    lanes = chosen.lanes("float32")
    loop, out = load_image(image)["peak"], tensor(np.zeros(CHAINS * lanes, np.float32))
    flops = 2 * CHAINS * STEPS * lanes * num_threads() / _best(lambda: loop(out))
    source, copy = np.ones(BYTES, np.uint8), np.empty(BYTES, np.uint8)
    return Peak(flops, 2 * BYTES / _best(lambda: np.copyto(copy, source)))


def _best(run: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
