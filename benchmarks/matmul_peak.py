"""Dense layers as shares of the multiply-add peak of one core, both measured in this process, turn
by turn.

    python benchmarks/matmul_peak.py [MxNxK ...]

The peak is a loop of 24 independent multiply-adds on full vectors, compiled by Ekiden like any
kernel. Times are medians.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from ekiden import te
from ekiden.codegen.llvm import compile_object, link
from ekiden.driver.peak import CHAINS, STEPS, peak_loop
from ekiden.runtime import Tensor, load_image, num_threads, tensor
from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc
from ekiden.tir.transform import lower
from ekiden.topi.nn import dense_pack
from ekiden.topi.nn.weights import pack_weight
from ekiden.topi.rule import schedule

Kernel = Callable[..., object]


def build(func: PrimFunc, target: Target) -> tuple[Kernel, float]:
    """The compiled kernel, and the milliseconds that lowering and compiling took."""
    start = time.thread_time()
    image = link([compile_object([lower(func, target)], target)], [func.name])
    spent = (time.thread_time() - start) * 1e3
    return load_image(image)[func.name], spent


def dense(m: int, n: int, k: int, target: Target) -> tuple[Kernel, list[Tensor], float]:
    """A dense layer with its arguments, checked against NumPy."""
    tile = 4 * target.lanes("float32")
    random = np.random.default_rng(0)
    x = random.standard_normal((m, k), np.float32)
    w = random.standard_normal((n, k), np.float32)
    packed = pack_weight(w, "dense", tile)
    data, weight = te.placeholder((m, k), name="data"), te.placeholder(packed.shape, name="weight")
    func = schedule([data, weight], [dense_pack(data, weight, n, tile)], target, "dense")
    kernel, spent = build(func, target)
    arguments = [tensor(x), tensor(packed), tensor(np.zeros((m, n), np.float32))]
    kernel(*arguments)
    np.testing.assert_allclose(arguments[2].numpy(), x @ w.T, rtol=1e-3, atol=1e-3)
    return kernel, arguments, spent


def seconds(call: Callable[[], object], repeat: int) -> float:
    """Processor time of one call, averaged over `repeat`: other programs on the machine do not
    count."""
    start = time.thread_time()
    for _ in range(repeat):
        call()
    return (time.thread_time() - start) / repeat


def main(shapes: list[tuple[int, int, int]]) -> None:
    """Print a line per shape."""
    num_threads(1)
    target = Target.host()
    peak, _ = build(peak_loop(target), target)
    out = tensor(np.zeros(CHAINS * target.lanes("float32"), np.float32))
    work = 2 * CHAINS * STEPS * target.lanes("float32")
    print(f"{'MxNxK':>16} {'us':>9} {'GFLOP/s':>9} {'peak':>8} {'share':>7} {'compile ms':>11}")
    for m, n, k in shapes:
        kernel, arguments, spent = dense(m, n, k, target)
        repeat = max(1, int(5e8 // (2 * m * n * k)))
        ours, best = [], []
        for _ in range(15):
            best.append(work / seconds(lambda: peak(out), 1))
            ours.append(seconds(lambda: kernel(*arguments), repeat))  # noqa: B023
        rate = 2 * m * n * k / statistics.median(ours)
        limit = statistics.median(best)
        print(
            f"{f'{m}x{n}x{k}':>16} {statistics.median(ours) * 1e6:9.1f} {rate / 1e9:9.1f}"
            f" {limit / 1e9:8.1f} {rate / limit:7.1%} {spent:11.1f}"
        )


if __name__ == "__main__":
    wanted = [tuple(int(d) for d in text.split("x")) for text in sys.argv[1:]]
    default = [
        (1024, 1024, 1024),
        (512, 512, 512),
        (128, 768, 768),
        (128, 3072, 768),
        (37, 768, 768),
        (1, 1000, 2048),
    ]
    main([(m, n, k) for m, n, k in wanted] or default)
