"""ResNet-50's convolutions as a share of a processor class's multiply-add peak, measured in turns.

    python benchmarks/conv_peak.py [--class host x86-64-v3] [--threads 2]

Counted are all taps, those in the border of zeros included, as in the usual figures of 4.1 GFLOP
per image.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from matmul_peak import (
    Kernel,
    build_fma_loop_on_threads,
    build_kernel,
    cpu_model_name,
    processor_class_target,
)
from peer_engines import mean_call_seconds, select_clock

from ekiden import te
from ekiden.compiler.machine_peak import peak_loop_flops
from ekiden.kernels import FAMILIES, schedule, select_kernel
from ekiden.kernels.family import MatmulSizes
from ekiden.runtime import Tensor, num_threads, tensor
from ekiden.target import Target
from ekiden.topi.nn import conv

# fmt: off
# height = width, in channels, out channels, kernel, stride, how often in the network
RESNET50_CONV_SHAPES = [
    (224,    3,   64, 7, 2, 1),
    ( 56,   64,   64, 1, 1, 1),
    ( 56,   64,   64, 3, 1, 3),
    ( 56,   64,  256, 1, 1, 4),
    ( 56,  256,   64, 1, 1, 2),
    ( 56,  256,  128, 1, 1, 1),
    ( 56,  128,  128, 3, 2, 1),
    ( 28,  128,  512, 1, 1, 4),
    ( 56,  256,  512, 1, 2, 1),
    ( 28,  512,  128, 1, 1, 3),
    ( 28,  128,  128, 3, 1, 3),
    ( 28,  512,  256, 1, 1, 1),
    ( 28,  256,  256, 3, 2, 1),
    ( 14,  256, 1024, 1, 1, 6),
    ( 28,  512, 1024, 1, 2, 1),
    ( 14, 1024,  256, 1, 1, 5),
    ( 14,  256,  256, 3, 1, 5),
    ( 14, 1024,  512, 1, 1, 1),
    ( 14,  512,  512, 3, 2, 1),
    (  7,  512, 2048, 1, 1, 3),
    ( 14, 1024, 2048, 1, 2, 1),
    (  7, 2048,  512, 1, 1, 2),
    (  7,  512,  512, 3, 1, 2),
]
# fmt: on


def build_conv2d(
    size: int, c: int, o: int, k: int, stride: int, target: Target
) -> tuple[Kernel, list[Tensor], float, str]:
    """Return a convolution kernel with its arguments, the milliseconds of compiling it, and its
    decision.
    """
    # As an implicit matrix product: pixels x out channels, reduced over k * k * c.
    pixels, pad = (size // stride) ** 2, k // 2
    tile = FAMILIES["conv_nhwc_pack"].choose_panel_width(
        MatmulSizes(pixels, o, c * k * k), target, {}
    )
    start = time.thread_time()
    data = te.placeholder((1, size, size, c), name="data")
    weight = te.placeholder((-(-o // tile), k, k, c, tile), name="weight")
    layout = f"OHWI{tile}o"
    padding = (pad, pad, pad, pad)
    anchor = conv(data, weight, stride, padding, 1, 1, "NHWC", layout, channels=o)
    func = schedule([data, weight], [anchor], target, "conv")
    scheduled = (time.thread_time() - start) * 1e3
    kernel, spent = build_kernel(func, target)
    random = np.random.default_rng(0)
    shapes = [tuple(int(d.value) for d in t.shape) for t in (data, weight, anchor)]  # type: ignore[attr-defined]
    arguments = [tensor(random.standard_normal(s).astype("float32")) for s in shapes]
    return kernel, arguments, scheduled + spent, str(select_kernel([anchor], target).decision)


def print_percent_of_peak(name: str, options: argparse.Namespace) -> None:
    """Print the share of the peak of each convolution, and of the whole network, on one processor
    class.
    """
    target, clock = processor_class_target(name, options.threads), select_clock(options.threads)
    limit, work = (
        build_fma_loop_on_threads(target, options.threads),
        peak_loop_flops(target) * options.threads,
    )
    total = ideal = 0.0
    print(f"\n{name}, convolutions of ResNet-50: {target}")
    print(f"{'convolution':>28} {'us':>9} {'share':>7} {'compile ms':>11}")
    for size, c, o, k, stride, count in RESNET50_CONV_SHAPES:
        kernel, arguments, spent, chosen = build_conv2d(size, c, o, k, stride, target)
        operations = 2 * (size // stride) ** 2 * c * o * k * k
        repeat = max(1, int(3e8 // operations))
        ours, best = [], []
        for _ in range(options.rounds):
            best.append(work / mean_call_seconds(limit, 1, clock))
            ours.append(mean_call_seconds(lambda: kernel(*arguments), repeat, clock))  # noqa: B023
        best_seconds, reached = min(ours), max(best)
        total, ideal = total + count * best_seconds, ideal + count * operations / reached
        label = f"{size}x{size} {c}->{o} {k}x{k}/{stride} *{count}"
        share = operations / best_seconds / reached
        print(
            f"{label:>28} {best_seconds * 1e6:9.1f} {share:7.1%} {spent:11.1f}  {chosen}",
            flush=True,
        )
    print(f"{'all 53':>28} {total * 1e6:9.1f} {ideal / total:7.1%}", flush=True)


def main() -> None:
    """Print a table for each class."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--class", dest="classes", nargs="+", default=["host"], metavar="CPU")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    num_threads(options.threads)
    print(f"{cpu_model_name()}, {options.threads} thread(s), least of {options.rounds} rounds")
    for name in options.classes:
        print_percent_of_peak(name, options)


if __name__ == "__main__":
    main()
