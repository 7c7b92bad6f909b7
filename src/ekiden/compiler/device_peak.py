"""Peak measurement of a device by generated kernels: FMA throughput, memory bandwidth, launch
latency, and copy bandwidth.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import numpy as np

from ekiden.compiler.lowering import build
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Var, const
from ekiden.kernels.gpu.launch import serial_loop, thread_loop
from ekiden.runtime import Device, empty, get_global_func, tensor
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.target.kinds import TARGET_KINDS
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import Allocate, BufferStore, PrimFunc, Stmt, seq

__all__ = ["DevicePeaks", "measure_device"]

MAX_COPY_ARRAY_BYTES = 1 << 25
"""Maximum bytes of each copied array, larger than the caches."""
MEMORY_FRACTION_DIVISOR = 16
"""Device memory over the maximum size of an array."""
BLOCK_THREADS = 64
CHAINS_PER_THREAD = 8
"""Independent FMA chains per thread."""
CHAIN_STEPS = 256
MIN_RUN_S = 0.005
"""Minimum seconds per measured run; the number of blocks grows until a run takes that long."""
BLOCKS_GROWTH = 8
DEVICE_MEASURE_ROUNDS = 3
TOTAL_MEMORY_ATTRIBUTE = 9
"""Number of the total-memory attribute (ek_device_attribute in runtime.h)."""


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """Measured figures of a device: FLOP/s, memory bandwidth, launch latency, copy bandwidth in
    both directions, and copy latency.
    """

    flops: float
    bandwidth: float
    launch_s: float
    to_device_bandwidth: float
    to_host_bandwidth: float
    copy_latency_s: float

    def __str__(self) -> str:
        """Return the figures in one line."""
        return (
            f"{self.flops / 1e9:.3g} GFLOP/s, {self.bandwidth / 1e9:.3g} GB/s, a kernel "
            f"{self.launch_s * 1e6:.3g} us, copies {self.to_device_bandwidth / 1e9:.3g} GB/s "
            f"there and {self.to_host_bandwidth / 1e9:.3g} GB/s back"
        )


def fma_kernel() -> PrimFunc:
    """Return a kernel in which each thread runs CHAINS_PER_THREAD independent chains of CHAIN_STEPS
    FMAs.
    """
    blocks, block, thread, step = map(Var, ("blocks", "block", "thread", "step"))
    out = Buffer("out", (blocks, const(BLOCK_THREADS * CHAINS_PER_THREAD)))
    # Independent chains hide the latency of multiply-adds within a thread.
    sums = Buffer("sums", (const(CHAINS_PER_THREAD),), "float32", "local")
    start = [BufferStore(sums, const(0.5 + c), (const(c),)) for c in range(CHAINS_PER_THREAD)]
    factor, term = const(0.999), const(0.25)
    more = [
        BufferStore(sums, call_intrin("fma", sums[c], factor, term, dtype="float32"), (const(c),))
        for c in range(CHAINS_PER_THREAD)
    ]
    keep = [
        BufferStore(out, sums[c], (block, thread * CHAINS_PER_THREAD + c))
        for c in range(CHAINS_PER_THREAD)
    ]
    body = Allocate(sums, seq(*start, serial_loop(step, CHAIN_STEPS, seq(*more)), *keep))
    return _bind_threads(body, (out,), block, blocks, thread)


def copy_kernel() -> PrimFunc:
    """Return a kernel in which each thread copies one element, plus one."""
    blocks, block, thread = map(Var, ("blocks", "block", "thread"))
    source, to = (Buffer(name, (blocks, const(BLOCK_THREADS))) for name in ("source", "to"))
    at = (block, thread)
    body = BufferStore(to, BufferLoad(source, at) + const(1.0), at)
    return _bind_threads(body, (source, to), block, blocks, thread)


def _bind_threads(
    body: Stmt, buffers: tuple[Buffer, ...], block: Var, blocks: Var, thread: Var
) -> PrimFunc:
    inner = thread_loop(thread, BLOCK_THREADS, "threadIdx.x", body)
    return PrimFunc(
        buffers, thread_loop(block, blocks, "blockIdx.x", inner), {"global_symbol": "loop"}
    )


@cache
def measure_device(device: Device) -> DevicePeaks:
    """Measure a device and return the best figures of several rounds; takes about a second, more if
    kernels are built for the first time. Raises DeviceError if the device, its driver or its
    compiler fails, and ValueError for a kind without a code generator.
    """
    kinds = [
        k.name for k in TARGET_KINDS.values() if k.device_type == device.type and k.has_generator
    ]
    if not kinds:
        raise ValueError(f"measure: there is no code generator for {device}")
    room = (
        int(str(get_global_func("ek.device.attribute")(device, TOTAL_MEMORY_ATTRIBUTE)))
        // MEMORY_FRACTION_DIVISOR
    )
    sums = _DeviceLoop(fma_kernel(), CHAINS_PER_THREAD, kinds[0], device)
    copies = _DeviceLoop(copy_kernel(), 1, kinds[0], device)
    max_blocks = max(1, min(MAX_COPY_ARRAY_BYTES, room) // (4 * BLOCK_THREADS))
    blocks, seconds = sums.calibrate_blocks(max_blocks // CHAINS_PER_THREAD)
    flops = 2 * blocks * BLOCK_THREADS * CHAINS_PER_THREAD * CHAIN_STEPS / seconds
    blocks, seconds = copies.calibrate_blocks(max_blocks)
    count = max_blocks * BLOCK_THREADS
    host, device_array = tensor(np.zeros(count, "float32")), empty((count,), "float32", device)
    one, one_there = tensor(np.zeros(1, "float32")), empty((1,), "float32", device)
    return DevicePeaks(
        flops,
        8 * blocks * BLOCK_THREADS / seconds,
        copies.measure_seconds(1),
        4 * count / _min_seconds(lambda: device_array.copyfrom(host), device),
        4 * count / _min_seconds(lambda: device_array.copyto(host), device),
        _min_seconds(lambda: one_there.copyfrom(one), device),
    )


class _DeviceLoop:
    """Benchmark loop over threads, built for a device."""

    def __init__(self, loop: PrimFunc, columns: int, kind: str, device: Device) -> None:
        self._run = build(loop, Target(kind))["loop"]
        self._arrays, self._columns, self._device = (
            len(loop.buffers),
            BLOCK_THREADS * columns,
            device,
        )

    def measure_seconds(self, blocks: int) -> float:
        """Measure the seconds of a run with the given number of blocks."""
        shape = blocks, self._columns
        arrays = [empty(shape, "float32", self._device) for _ in range(self._arrays)]
        return _min_seconds(lambda: self._run(*arrays), self._device)

    def calibrate_blocks(self, max_blocks: int) -> tuple[int, float]:
        """Return the number of blocks, at most `max_blocks`, whose run takes MIN_RUN_S, and the
        seconds of that run.
        """
        blocks = 1
        while True:
            seconds = self.measure_seconds(blocks)
            if seconds >= MIN_RUN_S or blocks >= max_blocks:
                return blocks, seconds
            blocks = min(max_blocks, blocks * BLOCKS_GROWTH)


def _min_seconds(run: Callable[[], object], device: Device) -> float:
    run()
    # Kernel launches are asynchronous.
    device.sync()
    times = []
    for _ in range(DEVICE_MEASURE_ROUNDS):
        started = time.perf_counter()
        run()
        device.sync()
        times.append(time.perf_counter() - started)
    return min(times)
