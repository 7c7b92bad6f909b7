"""Peak measurement of this machine by generated kernels: FMA and dot-product throughput, memory
bandwidth.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Var, const
from ekiden.kernels.micro_kernels.matrix_tiles import (
    AMX_LANES,
    AMX_ROWS,
    AMX_WORD_BYTES,
    AMX_WORDS,
    MATRIX_DOT_BY_PANEL,
    NUM_TILE_REGISTERS,
    MatrixDotTypes,
    matrix_call,
)
from ekiden.runtime import load_image, num_threads, tensor
from ekiden.runtime.profile.report import MachinePeak
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, PrimFunc, Stmt, seq
from ekiden.tir.transform import lower
from ekiden.topi.nn.weight_packing import DOT_WORD_BY_DTYPE

__all__ = [
    "PEAK_STEPS",
    "dot_product_loop",
    "measure_peak",
    "num_fma_chains",
    "peak_loop",
    "peak_loop_flops",
    "triad_loop",
]

PEAK_STEPS = 400_000
"""Iterations that make the call overhead negligible."""
MAX_FMA_CHAINS = 24
SPARE_REGISTERS = 2
"""Registers that the FMA chains leave free, so that the compiler does not spill. No more than that:
products and sums apart have a latency of 6, and 12 chains read as 47 of 58 (Zen 4, 128 bits).
"""
HOST_MEASURE_ROUNDS = 7
COPY_BYTES = 1 << 26
"""Bytes of the source and destination arrays, larger than the caches."""
WORKING_SET_BYTES = tuple(1 << n for n in range(14, 27, 2))
"""Array sizes of the triad, from within L1 to beyond the last cache."""
MIN_MOVED_BYTES = 1 << 23
"""Minimum bytes moved per measurement."""


def num_fma_chains(target: Target) -> int:
    """Return the number of independent FMA chains of the peak loop: enough to hide the latency, few
    enough for the registers.
    """
    return min(MAX_FMA_CHAINS, target.registers - SPARE_REGISTERS)


def peak_loop_flops(target: Target) -> int:
    """Return the operation count of `peak_loop`."""
    return 2 * num_fma_chains(target) * PEAK_STEPS * target.lanes("float32")


def peak_loop(target: Target) -> PrimFunc:
    """Return a loop with `chains` accumulators and PEAK_STEPS multiply-adds each."""
    lanes, count = target.lanes("float32"), num_fma_chains(target)
    vector = f"float32x{lanes}"
    out = Buffer("out", (const(count * lanes),))
    acc = Buffer("acc", (const(count),), vector, "register")
    factor = broadcast(const(0.999, "float32"), lanes)
    clear = [BufferStore(acc, factor, (const(c),)) for c in range(count)]
    steps = [
        BufferStore(acc, call_intrin("fma", acc[c], factor, factor, dtype=vector), (const(c),))
        for c in range(count)
    ]
    loop = For(Var("i"), const(0), const(PEAK_STEPS), ForKind.SERIAL, seq(*steps))
    # Stores make the sums observable, or LLVM would remove the loop.
    keep = [BufferStore(out, acc[c], (ramp(const(c * lanes), 1, lanes),)) for c in range(count)]
    return PrimFunc((out,), Allocate(acc, seq(*clear, loop, *keep)), {"global_symbol": "peak"})


def dot_product_loop(target: Target, dtype: str) -> tuple[PrimFunc, int] | None:
    """Return the peak loop of int8 or bfloat16 dot products and its operation count; None if no
    instruction is faster than float32.
    """
    panel_products = MATRIX_DOT_BY_PANEL[dtype]
    if target.has(panel_products.feature):
        return _amx_loop(panel_products)
    dots = {"int8": ("dot4_u8s8", "madd_s16"), "bfloat16": ("dot2_bf16",)}[dtype]
    dot = next(filter(target.has, dots), None)
    if dot is None:
        return None
    lanes, count, sums = target.lanes("float32"), num_fma_chains(target), panel_products.accumulator
    vector = f"{sums}x{lanes}"
    out = Buffer("out", (const(count * lanes),), sums)
    acc = Buffer("acc", (const(count),), vector, "register")
    # Different start values, so that equal chains are not merged.
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
    loop = For(Var("i"), const(0), const(PEAK_STEPS), ForKind.SERIAL, seq(*steps))
    keep = [BufferStore(out, acc[c], (ramp(const(c * lanes), 1, lanes),)) for c in range(count)]
    func = PrimFunc((out,), Allocate(acc, seq(*clear, loop, *keep)), {"global_symbol": "peak"})
    products = 4 if dot == "dot4_u8s8" else 2
    return func, 2 * products * lanes * count * PEAK_STEPS


def _amx_loop(of: MatrixDotTypes) -> tuple[PrimFunc, int]:
    """Return the peak loop of AMX tile products and its operation count."""
    registers, size, steps = range(NUM_TILE_REGISTERS), AMX_ROWS * AMX_LANES, PEAK_STEPS // 8
    out = Buffer("out", (const(size),), of.accumulator)
    shape = matrix_call(
        "matrix_shape", *([AMX_ROWS, AMX_LANES * AMX_WORD_BYTES] * NUM_TILE_REGISTERS)
    )
    clear = [matrix_call("matrix_zero", n) for n in registers]
    multiplications = [matrix_call(of.intrinsic, n, 6, 7) for n in registers[:6]]
    loop = For(Var("i"), const(0), const(steps), ForKind.SERIAL, seq(*multiplications))
    value = call_intrin("matrix_value", 0, dtype=f"{of.accumulator}x{size}")
    keep = BufferStore(out, value, (ramp(const(0), 1, size),))
    attrs = {"global_symbol": "peak", "tir.tiled": 1}
    work = 2 * size * AMX_WORDS * DOT_WORD_BY_DTYPE[of.panel] * len(multiplications) * steps
    return PrimFunc((out,), seq(shape, *clear, loop, keep), attrs), work


def measure_peak(target: Target | None = None) -> MachinePeak:
    """Measure the machine's peak: FMA and dot-product throughput of all threads, copy bandwidth,
    and triad bandwidth per working set. It takes 0.5 s.
    """
    chosen = Target.host() if target is None else target
    flops = _operations_per_second(peak_loop(chosen), peak_loop_flops(chosen), chosen)
    words = {}
    for dtype in MATRIX_DOT_BY_PANEL:
        loop_and_work = dot_product_loop(chosen, dtype)
        words[dtype] = (
            flops if loop_and_work is None else _operations_per_second(*loop_and_work, chosen)
        )
    source, copy = np.ones(COPY_BYTES, np.uint8), np.empty(COPY_BYTES, np.uint8)
    memory = 2 * COPY_BYTES / _min_seconds(lambda: np.copyto(copy, source))
    levels = [(size, _triad_bandwidth(size, chosen)) for size in WORKING_SET_BYTES]
    # Bandwidth is monotonic in nearness: noise must not make a nearer cache look slower.
    for index in range(len(levels) - 2, -1, -1):  # what fits nearer is no slower
        size, speed = levels[index]
        levels[index] = size, max(speed, levels[index + 1][1])
    return MachinePeak(flops, max(memory, levels[-1][1]), tuple(levels), words)


def _operations_per_second(loop: PrimFunc, work: int, target: Target) -> float:
    """Return operations per second of all threads of the pool."""
    image = link_image([compile_object([lower(loop, target)], target)], ["peak"], target)
    (out,) = loop.buffers
    size = out.shape[0].value  # type: ignore[attr-defined]  # a constant
    run, result = load_image(image)["peak"], tensor(np.zeros(size, out.dtype))
    return work * num_threads() / _min_seconds(lambda: run(result))


def triad_loop(size: int, threads: int, target: Target) -> tuple[PrimFunc, int]:
    """Return a loop in which each thread repeatedly stores its share of `c = a + b`, over arrays of
    `size` bytes in total, and the bytes that it moves (STREAM triad without the scale).
    """
    lanes = target.lanes("float32")
    steps = max(1, size // (3 * 4 * lanes * threads))
    # Small arrays are gone over many times, so that the start of the loop does not count.
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


def _triad_bandwidth(size: int, target: Target) -> float:
    threads = num_threads()
    loop, moved = triad_loop(size, threads, target)
    image = link_image([compile_object([lower(loop, target)], target)], ["triad"], target)
    count = loop.buffers[0].shape[0].value  # type: ignore[attr-defined]  # a constant
    arrays = [tensor(np.ones(count, np.float32)) for _ in range(3)]
    run = load_image(image)["triad"]
    return moved / _min_seconds(lambda: run(*arrays))


def _min_seconds(run: Callable[[], object]) -> float:
    times = []
    for _ in range(HOST_MEASURE_ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
