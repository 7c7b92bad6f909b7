"""Matrix products as shares of the multiply-add peak, products of one row as shares of the
bandwidth of reading, all measured in this process, turn by turn.

    python benchmarks/matmul_peak.py [MxNxK ...] [--threads 2] [--variable] [--rounds 15]

The peak is a loop of 24 independent multiply-adds on full vectors on each thread, compiled by
Ekiden like any kernel; the bandwidth that of reading as many bytes as the weights have, and adding
them up. Weights are constants and packed beforehand, or with `--variable` operands as any other.
Each figure is of the least time over the rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from ekiden import te
from ekiden.codegen.llvm import compile_object, link
from ekiden.driver.peak import CHAINS, STEPS, peak_loop
from ekiden.ir.prim import Var, const
from ekiden.runtime import Tensor, empty, load_image, num_threads, tensor
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, PrimFunc, seq
from ekiden.tir.transform import lower
from ekiden.topi.nn import dense_pack, matmul
from ekiden.topi.nn.weights import pack_weight
from ekiden.topi.rule import schedule

Kernel = Callable[..., object]

SHAPES = (
    "512x512x512", "1024x1024x1024", "2048x2048x2048", "128x768x768", "128x3072x768",
    "128x768x3072", "37x768x768", "1x1000x2048", "1x4096x4096",
)  # fmt: skip
STREAMS = 8
"""Vectors that the reading loop takes in one step."""


def build(func: PrimFunc, target: Target) -> tuple[Kernel, float]:
    """The compiled kernel, and the milliseconds that lowering and compiling took."""
    start = time.thread_time()
    image = link([compile_object([lower(func, target)], target)], [func.name])
    spent = (time.thread_time() - start) * 1e3
    return load_image(image)[func.name], spent


def product(
    shape: tuple[int, int, int], variable: bool, target: Target
) -> tuple[Kernel, list[Tensor], float]:
    """A product with its arguments, checked against NumPy."""
    m, n, k = shape
    tile = 4 * target.lanes("float32")
    random = np.random.default_rng(0)
    x = random.standard_normal((m, k), np.float32)
    w = random.standard_normal((n, k), np.float32)
    operand = np.ascontiguousarray(w.T) if variable else pack_weight(w, "dense", tile)
    data, weight = te.placeholder((m, k), name="data"), te.placeholder(operand.shape, name="weight")
    result = matmul(data, weight) if variable else dense_pack(data, weight, n, tile)
    kernel, spent = build(schedule([data, weight], [result], target, "product"), target)
    arguments = [placed(x), placed(operand), placed(np.zeros((m, n), np.float32))]
    kernel(*arguments)
    np.testing.assert_allclose(arguments[2].numpy(), x @ w.T, rtol=1e-3, atol=2e-3)
    return kernel, arguments, spent


def placed(array: np.ndarray) -> Tensor:
    """A copy where the runtime puts what kernels make: in large pages, if it is large."""
    made = empty(array.shape, "float32")
    made.numpy()[...] = array
    return made


def reading(elements: int, parts: int, target: Target) -> PrimFunc:
    """Sums of `parts` equal parts of an array, each on a thread: STREAMS vectors at a time."""
    lanes = target.lanes("float32")
    source, out = Buffer("source", (const(elements),)), Buffer("out", (const(parts * lanes),))
    acc = Buffer("acc", (const(STREAMS),), f"float32x{lanes}", "register")
    part, step, size = Var("part"), Var("step"), elements // parts

    def load(stream: int) -> BufferStore:
        at = part * size + (step * STREAMS + stream) * lanes
        value = source[ramp(at, 1, lanes)].with_fields(dtype=acc.dtype)
        return BufferStore(acc, acc[stream] + value, (const(stream),))

    zero = broadcast(const(0.0, "float32"), lanes)
    clear = [BufferStore(acc, zero, (const(s),)) for s in range(STREAMS)]
    steps = const(size // (STREAMS * lanes))
    loop = For(step, const(0), steps, ForKind.SERIAL, seq(*map(load, range(STREAMS))))
    total = acc[0]
    for s in range(1, STREAMS):
        total = total + acc[s]
    keep = BufferStore(out, total, (ramp(part * lanes, 1, lanes),))
    body = Allocate(acc, seq(*clear, loop, keep))
    shared = For(part, const(0), const(parts), ForKind.PARALLEL, body, {"grain": 1})
    return PrimFunc((source, out), shared, {"global_symbol": "reading"})


def shared_peak(target: Target, threads: int) -> Callable[[], object]:
    """The loop of multiply-adds on every thread."""
    one = peak_loop(target)
    (out,) = one.params
    part = Var("part")
    body = For(part, const(0), const(threads), ForKind.PARALLEL, one.body, {"grain": 1})
    kernel, _ = build(one.with_fields(body=body), target)
    result = tensor(np.zeros([int(str(d)) for d in out.shape], np.float32))
    return lambda: kernel(result)


def seconds(
    call: Callable[[], object], repeat: int, clock: Callable[[], float] = time.thread_time
) -> float:
    """Time of one call, averaged over `repeat`."""
    start = clock()
    for _ in range(repeat):
        call()
    return (clock() - start) / repeat


def measure(
    shape: tuple[int, int, int], options: argparse.Namespace, target: Target
) -> tuple[float, float, float]:
    """(seconds of a product, the least that its limit admits, milliseconds of compiling)."""
    m, n, k = shape
    kernel, arguments, spent = product(shape, options.variable, target)
    # On one thread time of the processor: other programs on the machine do not count.
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    repeat = max(1, int(2e8 // (2 * m * n * k)))
    if m == 1:
        read, _ = build(reading(n * k, options.threads, target), target)
        sums = tensor(np.zeros(options.threads * target.lanes("float32"), np.float32))
        source = arguments[1].numpy().reshape(-1)[: n * k]
        least, limit, share = repeat, lambda: read(tensor(source), sums), 1.0
    else:
        work = 2 * CHAINS * STEPS * target.lanes("float32") * options.threads
        least, limit, share = 1, shared_peak(target, options.threads), 2 * m * n * k / work
    ours, best = [], []
    for _ in range(options.rounds):
        best.append(seconds(limit, least, clock) * share)
        ours.append(seconds(lambda: kernel(*arguments), repeat, clock))
    return min(ours), min(best), spent


def main() -> None:
    """Print a line per shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="*", default=SHAPES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--variable", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    num_threads(options.threads)
    target = Target.host()
    print(f"{'MxNxK':>16} {'us':>9} {'GFLOP/s':>8} {'GB/s':>6} {'of limit':>9} {'compile ms':>11}")
    for text in options.shapes:
        m, n, k = (int(d) for d in text.split("x"))
        spent, limit, compiling = measure((m, n, k), options, target)
        rate, bytes_ = 2 * m * n * k / spent / 1e9, 4 * n * k / spent / 1e9
        numbers = f"{spent * 1e6:9.1f} {rate:8.1f} {bytes_:6.1f} {limit / spent:9.1%}"
        print(f"{text:>16} {numbers} {compiling:11.1f}", flush=True)


if __name__ == "__main__":
    main()
