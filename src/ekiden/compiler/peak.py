"""Measure the peak performance of this machine; multiply-adds, and bytes from memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from ekiden.codegen.llvm import compile_object, link
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Var, const
from ekiden.kernels.micro_kernels.matrix_tiles import (
    BY_PANEL,
    LANES,
    REGISTERS,
    ROWS,
    WORD_BYTES,
    WORDS,
    Products,
    matrix_call,
)
from ekiden.runtime import load_image, num_threads, tensor
from ekiden.runtime.profile.report import MachinePeak
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, PrimFunc, Stmt, seq
from ekiden.tir.transform import lower
from ekiden.topi.nn.weights import WORD_BY_DTYPE

__all__ = [
    "PEAK_STEPS",
    "chains",
    "measure_peak",
    "peak_loop",
    "peak_work",
    "triad_loop",
    "words_loop",
]

PEAK_STEPS = 400_000
"""Enough for calling the loop not to count: 50,000 of 256 bits take 85 us, and read as 107 of 117
GFLOP/s (Zen 4)."""
MAX_CHAINS = 24
SPARE_REGISTERS = 2
"""Registers that a compiler needs beside the chains: with all of them sums go to memory, and the
peak of 16 registers reads as 60 of 85 GFLOP/s (Skylake-SP, 256 bits). No more than that: products
and sums apart have a latency of 6, and 12 chains read as 47 of 58 (Zen 4, 128 bits).
"""
MEASURE_ROUNDS = 7
COPY_BYTES = 1 << 26
"""Of the array that is read and the one that is written: more than caches hold."""
LEVEL_BYTES = tuple(1 << n for n in range(14, 27, 2))
"""Bytes of arrays, from what the nearest caches of all threads hold to what none does."""
MIN_MOVED_BYTES = 1 << 23
"""Bytes that one measurement of a level goes over, at least."""


def chains(target: Target) -> int:
    """Return the number of independent multiply-add chains of the peak loop; enough to hide their
    latency, in registers.
    """
    return min(MAX_CHAINS, target.registers - SPARE_REGISTERS)


def peak_work(target: Target) -> int:
    """Return the operation count of `peak_loop`."""
    return 2 * chains(target) * PEAK_STEPS * target.lanes("float32")


def peak_loop(target: Target) -> PrimFunc:
    """Return a loop with `chains` accumulators and PEAK_STEPS multiply-adds each."""
    lanes, count = target.lanes("float32"), chains(target)
    vector = f"float32x{lanes}"
    out = Buffer("out", (const(count * lanes),))
    acc = Buffer("acc", (const(count),), vector, "register")
    factor = broadcast(const(0.999, "float32"), lanes)
    clear = [BufferStore(acc, factor, (const(c),)) for c in range(count)]
    steps = [
        BufferStore(acc, call_intrin("fma", acc[c], factor, factor, dtype=vector), (const(c),))
        for c in range(count)
    ]
    return _accumulating_loop(out, acc, clear, steps)


def _accumulating_loop(
    out: Buffer, acc: Buffer, clear: Sequence[Stmt], steps: Sequence[Stmt]
) -> PrimFunc:
    """Return the function that clears accumulators, repeats the steps and stores the
    accumulators.
    """
    lanes, count = dt.lanes(acc.dtype), len(clear)
    loop = For(Var("i"), const(0), const(PEAK_STEPS), ForKind.SERIAL, seq(*steps))
    keep = [BufferStore(out, acc[c], (ramp(const(c * lanes), 1, lanes),)) for c in range(count)]
    return PrimFunc((out,), Allocate(acc, seq(*clear, loop, *keep)), {"global_symbol": "peak"})


def words_loop(target: Target, dtype: str) -> tuple[PrimFunc, int] | None:
    """Return the peak loop of int8 or bfloat16 word products by the target's fastest instruction,
    and its operation count; None where it has none faster than float's.
    """
    panel_products = BY_PANEL[dtype]
    if target.has(panel_products.ability):
        return _matrices_loop(panel_products)
    dots = {"int8": ("dot4_u8s8", "madd_s16"), "bfloat16": ("dot2_bf16",)}[dtype]
    dot = next(filter(target.has, dots), None)
    if dot is None:
        return None
    lanes, count, sums = target.lanes("float32"), chains(target), panel_products.sums
    vector = f"{sums}x{lanes}"
    out = Buffer("out", (const(count * lanes),), sums)
    acc = Buffer("acc", (const(count),), vector, "register")
    clear = [
        BufferStore(acc, broadcast(const(c + 3, sums), lanes), (const(c),)) for c in range(count)
    ]
    factor = broadcast(const(0x01020103, "int32"), lanes)
    factor = call_intrin("reinterpret", factor, dtype=vector)
    zero = broadcast(const(0, sums), lanes)
    # sums that are an instruction of their own go where they hinder products: without them
    total = [zero if dot == "madd_s16" else acc[c] for c in range(count)]
    steps = [
        BufferStore(acc, call_intrin(dot, total[c], acc[c], factor, dtype=vector), (const(c),))
        for c in range(count)
    ]
    func = _accumulating_loop(out, acc, clear, steps)
    products = 4 if dot == "dot4_u8s8" else 2
    return func, 2 * products * lanes * count * PEAK_STEPS


def _matrices_loop(of: Products) -> tuple[PrimFunc, int]:
    """Return the peak loop of AMX tile products and its operation count."""
    registers, size, steps = range(REGISTERS), ROWS * LANES, PEAK_STEPS // 8
    out = Buffer("out", (const(size),), of.sums)
    shape = matrix_call("matrix_shape", *([ROWS, LANES * WORD_BYTES] * REGISTERS))
    clear = [matrix_call("matrix_zero", n) for n in registers]
    multiplications = [matrix_call(of.dot, n, 6, 7) for n in registers[:6]]
    loop = For(Var("i"), const(0), const(steps), ForKind.SERIAL, seq(*multiplications))
    value = call_intrin("matrix_value", 0, dtype=f"{of.sums}x{size}")
    keep = BufferStore(out, value, (ramp(const(0), 1, size),))
    attrs = {"global_symbol": "peak", "tir.tiled": 1}
    work = 2 * size * WORDS * WORD_BY_DTYPE[of.panel] * len(multiplications) * steps
    return PrimFunc((out,), seq(shape, *clear, loop, keep), attrs), work


def measure_peak(target: Target | None = None) -> MachinePeak:
    """Measure the machine's peak: the best of several rounds of independent multiply-adds times the
    pool's threads, of word products, of a copy beyond the caches, and of triads of all sizes. It
    takes 0.5 s.
    """
    chosen = Target.host() if target is None else target
    flops = _rate(peak_loop(chosen), peak_work(chosen), chosen)
    words = {}
    for dtype in BY_PANEL:
        loop_and_work = words_loop(chosen, dtype)
        words[dtype] = flops if loop_and_work is None else _rate(*loop_and_work, chosen)
    source, copy = np.ones(COPY_BYTES, np.uint8), np.empty(COPY_BYTES, np.uint8)
    memory = 2 * COPY_BYTES / _best(lambda: np.copyto(copy, source))
    levels = [(size, _bandwidth(size, chosen)) for size in LEVEL_BYTES]
    for index in range(len(levels) - 2, -1, -1):  # what fits nearer is no slower
        size, speed = levels[index]
        levels[index] = size, max(speed, levels[index + 1][1])
    return MachinePeak(flops, max(memory, levels[-1][1]), tuple(levels), words)


def _rate(loop: PrimFunc, work: int, target: Target) -> float:
    """Return operations per second of all threads of the pool."""
    image = link([compile_object([lower(loop, target)], target)], ["peak"], target)
    (out,) = loop.buffers
    size = out.shape[0].value  # type: ignore[attr-defined]  # a constant
    run, result = load_image(image)["peak"], tensor(np.zeros(size, out.dtype))
    return work * num_threads() / _best(lambda: run(result))


def triad_loop(size: int, threads: int, target: Target) -> tuple[PrimFunc, int]:
    """Return a loop in which each thread repeatedly stores its share of `c = a + b`, over arrays of
    `size` bytes in total, and the bytes that it moves (STREAM triad without the scale).
    """
    lanes = target.lanes("float32")
    steps = max(1, size // (3 * 4 * lanes * threads))
    repeat = max(1, MIN_MOVED_BYTES // size)
    count = threads * steps * lanes
    a, b, c = (Buffer(name, (const(count),)) for name in "abc")
    thread, again, step = Var("thread"), Var("again"), Var("step")
    at = (ramp((thread * steps + step) * lanes, 1, lanes),)
    vector = f"float32x{lanes}"
    body: Stmt = BufferStore(c, BufferLoad(a, at, vector) + BufferLoad(b, at, vector), at)
    body = For(step, const(0), const(steps), ForKind.SERIAL, body)
    body = For(again, const(0), const(repeat), ForKind.SERIAL, body)
    body = For(thread, const(0), const(threads), ForKind.PARALLEL, body)
    return PrimFunc((a, b, c), body, {"global_symbol": "triad"}), 12 * count * repeat


def _bandwidth(size: int, target: Target) -> float:
    threads = num_threads()
    loop, moved = triad_loop(size, threads, target)
    image = link([compile_object([lower(loop, target)], target)], ["triad"], target)
    count = loop.buffers[0].shape[0].value  # type: ignore[attr-defined]  # a constant
    arrays = [tensor(np.ones(count, np.float32)) for _ in range(3)]
    run = load_image(image)["triad"]
    return moved / _best(lambda: run(*arrays))


def _best(run: Callable[[], object]) -> float:
    times = []
    for _ in range(MEASURE_ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
