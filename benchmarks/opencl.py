"""Kernels on an OpenCL device, compared with this machine's own code: times, interleaved, as
shares.

    python benchmarks/opencl.py [NAME...]

On a processor with PoCL both run on the same cores, so that the share tells what the kernels lose.
A device that takes SPIR-V, as Intel's for processors (docs/guides/devices.md), gets the kernels as
that too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

import ekiden
from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.relay.expr import RelayExpr
from ekiden.runtime import Tensor, get_global_func
from ekiden.target import Target

INTERLEAVED_ROUNDS = 10
ABILITIES_ATTRIBUTE = 4
"""The number of ek_device_attribute for what code may ask a device for."""
INPUT_RNG = np.random.default_rng(0)
Case = tuple[Callable[..., RelayExpr], tuple[tuple[int, ...], ...], float]
"""The program, the shapes that it is given, multiply-adds in millions (0: none to speak of)."""


def same_padded_conv(size: int, **options: object) -> Callable[..., RelayExpr]:
    """Return a function that emits a convolution with square kernels and "same" padding."""
    taps = {"kernel_size": (size, size), "padding": (size // 2, size // 2), **options}
    return lambda x, w: relay.nn.conv2d(x, w, **taps)


def emit_layer_norm(x: RelayExpr) -> RelayExpr:
    """Return a layer norm of rows of 768."""
    one = relay.const(np.ones(768, "float32"))
    return relay.nn.layer_norm(x, one, one)


# fmt: off
KERNEL_CASES: dict[str, Case] = {
    "matmul 512":        (relay.nn.matmul, ((512, 512), (512, 512)), 134.2),
    "dense 512":         (relay.nn.dense, ((512, 512), (512, 512)), 134.2),
    "batch_matmul":      (relay.nn.batch_matmul, ((12, 128, 64), (12, 128, 64)), 12.6),
    "dense of one row":  (relay.nn.dense, ((1, 2048), (2048, 2048)), 4.2),
    "conv 3x3, 64":      (same_padded_conv(3), ((1, 64, 56, 56), (64, 64, 3, 3)), 115.6),
    "conv 3x3, 256":     (same_padded_conv(3), ((1, 256, 14, 14), (256, 256, 3, 3)), 115.6),
    "conv 7x7, step 2":  (same_padded_conv(7, strides=(2, 2)),
                          ((1, 3, 224, 224), (64, 3, 7, 7)), 118.0),
    "conv 1x1, step 2":  (same_padded_conv(1, strides=(2, 2)),
                          ((1, 256, 28, 28), (512, 256, 1, 1)), 25.7),
    "depthwise 3x3":     (same_padded_conv(3, groups=128), ((1, 128, 56, 56), (128, 1, 3, 3)), 3.6),
    "softmax":           (relay.nn.softmax, ((512, 1024),), 0),
    "layer_norm":        (emit_layer_norm, ((512, 768),), 0),
    "sum":               (relay.sum, ((1024, 1024),), 0),
    "exp":               (relay.exp, ((1024, 1024),), 0),
    "relu":              (relay.nn.relu, ((2048, 2048),), 0),
}
# fmt: on


def case_runners(case: Case) -> list[Callable[[], float]]:
    """Return functions that run a case once on the CPU and on each device target, and return the
    seconds.
    """
    program, shapes, _ = case
    params = [relay.var(f"x{n}", shape=shape) for n, shape in enumerate(shapes)]
    module = IRModule.from_expr(relay.Function(params, program(*params)))
    arrays = [INPUT_RNG.standard_normal(shape).astype("float32") for shape in shapes]
    device = ekiden.opencl(0)
    runs: list[Callable[[], float]] = []
    for target in benchmark_targets():
        tensors = [
            ekiden.runtime.nd.array(g, ekiden.cpu(0) if target == "llvm" else device)
            for g in arrays
        ]
        runs.append(partial(time_call, ekiden.compile(module, target), tensors))
    return runs


def benchmark_targets() -> list[str]:
    """Return the targets: this machine, the device through OpenCL C and, if it supports
    it, SPIR-V.
    """
    abilities = get_global_func("ek.device.attribute")(ekiden.opencl(0), ABILITIES_ATTRIBUTE)
    spirv = ["opencl -mtriple=spirv64"] if "spirv" in str(abilities).split() else []
    return ["llvm", "opencl", *spirv]


def time_call(exe: Callable[..., object], args: list[Tensor]) -> float:
    """Return the seconds of one call, including the device's completion."""
    start = time.perf_counter()
    exe(*args)
    ekiden.opencl(0).sync()
    return time.perf_counter() - start


def main() -> None:
    """Print a row for each case."""
    names = sys.argv[1:] or list(KERNEL_CASES)
    print(f"processor {Target('llvm').cpu}, device", end=" ")
    print(get_global_func("ek.device.attribute")(ekiden.opencl(0), 0), Target("opencl"))
    runs = {name: case_runners(KERNEL_CASES[name]) for name in names}
    best = {name: [float("inf")] * len(benchmark_targets()) for name in names}
    for _ in range(INTERLEAVED_ROUNDS):
        for name in names:
            for n, run_once in enumerate(runs[name]):
                best[name][n] = min(best[name][n], run_once())
    device_names = ["OpenCL", "SPIR-V"][: len(benchmark_targets()) - 1]
    print("| kernel | processor's code, ms |", *(f"{n}, ms |" for n in device_names), end=" ")
    print("share |" * len(device_names), "GFLOP/s of each |")
    print("|---|" + "---|" * (2 + 2 * len(device_names)))
    for name in names:
        cpu_best, *device_best = best[name]
        million = KERNEL_CASES[name][2]
        rates = ", ".join(f"{million * 2e-3 / t:.0f}" for t in best[name]) if million else ""
        times = " | ".join(f"{t * 1e3:.2f}" for t in best[name])
        shares = " | ".join(f"{cpu_best / t:.2f}" for t in device_best)
        print(f"| {name} | {times} | {shares} | {rates} |")


if __name__ == "__main__":
    main()
