"""Matrix products as a share of a processor class's multiply-add peak, and single-row products as a
share of its read bandwidth; beside ONNX Runtime, and OpenVINO if it is there. All in this
process, turn by turn.

    python benchmarks/matmul_peak.py [MxNxK ...] [--class host x86-64-v3] [--threads 2] [--variable]

The peak is a loop of independent multiply-adds on full vectors on each thread, compiled by Ekiden
for the class like any kernel; the bandwidth that of reading as many bytes as the weights have, and
adding them up. Weights are constants and packed beforehand, or with `--variable` operands as any
other. A class is a processor of the table with the caches of this one. Shares are of the least
times over the rounds, ratios medians over them; other engines use what this machine has, whatever
the class.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from peer_engines import PEER_ENGINES, mean_call_seconds, select_clock

from ekiden import te
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.compiler.machine_peak import num_fma_chains, peak_loop, peak_loop_flops
from ekiden.ir.prim import Var, const
from ekiden.kernels import FAMILIES, schedule, select_kernel
from ekiden.kernels.family import MatmulSizes
from ekiden.runtime import Tensor, empty, load_image, num_threads, tensor
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, PrimFunc, seq
from ekiden.tir.transform import lower
from ekiden.topi.nn import dense_pack, matmul
from ekiden.topi.nn.weight_packing import pack_weight

Kernel = Callable[..., object]
Call = Callable[[], object]
Shape = tuple[int, int, int]

MATMUL_SHAPES = (
    "512x512x512", "1024x1024x1024", "128x768x768", "128x3072x768", "128x768x3072", "37x768x768",
    "1x1000x2048", "1x4096x4096",
)  # fmt: skip
VECTORS_PER_READ = 8
"""Vectors that the reading loop takes in one step."""
MATMUL_NAME = "product"


def build_kernel(func: PrimFunc, target: Target) -> tuple[Kernel, float]:
    """Return the compiled kernel, and the milliseconds of lowering and compiling it."""
    start = time.thread_time()
    image = link_image([compile_object([lower(func, target)], target)], [func.name])
    spent = (time.thread_time() - start) * 1e3
    return load_image(image)[func.name], spent


def random_operands(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Return seeded data [m, k] and weight [n, k]."""
    m, n, k = shape
    random = np.random.default_rng(0)
    return random.standard_normal((m, k), np.float32), random.standard_normal((n, k), np.float32)


def build_matmul(
    shape: Shape, variable: bool, target: Target
) -> tuple[Kernel, list[Tensor], float, str]:
    """Return a matrix product with its arguments, checked against NumPy, the milliseconds of
    compiling it, and its decision.
    """
    m, n, k = shape
    x, w = random_operands(shape)
    panel = FAMILIES["dense_pack"].choose_panel_width(MatmulSizes(m, n, k), target, {})
    operand = np.ascontiguousarray(w.T) if variable else pack_weight(w, "dense", panel)
    data, weight = te.placeholder((m, k), name="data"), te.placeholder(operand.shape, name="weight")
    result = matmul(data, weight) if variable else dense_pack(data, weight, n, panel)
    kernel, spent = build_kernel(schedule([data, weight], [result], target, MATMUL_NAME), target)
    arguments = [
        copy_to_runtime(x),
        copy_to_runtime(operand),
        copy_to_runtime(np.zeros((m, n), np.float32)),
    ]
    kernel(*arguments)
    np.testing.assert_allclose(arguments[2].numpy(), x @ w.T, rtol=1e-3, atol=2e-3)
    return kernel, arguments, spent, str(select_kernel([result], target).decision)


def copy_to_runtime(array: np.ndarray) -> Tensor:
    """Copy an array into runtime-allocated memory, in huge pages if it is large."""
    copy = empty(array.shape, "float32")
    copy.numpy()[...] = array
    return copy


def build_read_kernel(elements: int, count: int, target: Target) -> PrimFunc:
    """Return a kernel that sums equal parts of an array, one per thread, VECTORS_PER_READ vectors
    at a
    time.
    """
    lanes = target.lanes("float32")
    source, out = Buffer("source", (const(elements),)), Buffer("out", (const(count * lanes),))
    acc = Buffer("acc", (const(VECTORS_PER_READ),), f"float32x{lanes}", "register")
    part_index, step, size = Var("part"), Var("step"), elements // count

    def emit_vector_load(stream: int) -> BufferStore:
        position = part_index * size + (step * VECTORS_PER_READ + stream) * lanes
        value = source[ramp(position, 1, lanes)].with_fields(dtype=acc.dtype)
        return BufferStore(acc, acc[stream] + value, (const(stream),))

    zero = broadcast(const(0.0, "float32"), lanes)
    clear = [BufferStore(acc, zero, (const(s),)) for s in range(VECTORS_PER_READ)]
    steps = const(size // (VECTORS_PER_READ * lanes))
    loop = For(
        step, const(0), steps, ForKind.SERIAL, seq(*map(emit_vector_load, range(VECTORS_PER_READ)))
    )
    total = acc[0]
    for s in range(1, VECTORS_PER_READ):
        total = total + acc[s]
    keep = BufferStore(out, total, (ramp(part_index * lanes, 1, lanes),))
    body = Allocate(acc, seq(*clear, loop, keep))
    shared = For(part_index, const(0), const(count), ForKind.PARALLEL, body, {"grain": 1})
    return PrimFunc((source, out), shared, {"global_symbol": "reading"})


def build_fma_loop_on_threads(target: Target, threads: int) -> Call:
    """Return the multiply-add peak loop on every thread."""
    one = peak_loop(target)
    thread_index = Var("part")
    body = For(thread_index, const(0), const(threads), ForKind.PARALLEL, one.body, {"grain": 1})
    kernel, _ = build_kernel(one.with_fields(body=body), target)
    result = tensor(np.zeros(num_fma_chains(target) * target.lanes("float32"), np.float32))
    return lambda: kernel(result)


def roofline_limit(
    shape: Shape, arguments: list[Tensor], options: argparse.Namespace, target: Target
) -> tuple[Call, float]:
    """Return the loop that bounds a product, and the share of its duration that the product takes
    at best.
    """
    m, n, k = shape
    # A product with one row reads each weight once: bandwidth bounds it, otherwise arithmetic does.
    if m > 1:
        share = 2 * m * n * k / (peak_loop_flops(target) * options.threads)
        return build_fma_loop_on_threads(target, options.threads), share
    read, _ = build_kernel(build_read_kernel(n * k, options.threads, target), target)
    sums = tensor(np.zeros(options.threads * target.lanes("float32"), np.float32))
    source = tensor(arguments[1].numpy().reshape(-1)[: n * k])
    return lambda: read(source, sums), 1.0


def measure_shape(shape: Shape, options: argparse.Namespace, target: Target) -> str:
    """Return a line of the table."""
    m, n, k = shape
    kernel, arguments, spent, chosen = build_matmul(shape, options.variable, target)
    clock = select_clock(options.threads)
    limit, share = roofline_limit(shape, arguments, options, target)
    repeat = max(1, int(2e8 // (2 * m * n * k)))
    sides = random_operands(shape)
    peers = {
        n: make(*sides, not options.variable, options.threads) for n, make in PEER_ENGINES.items()
    }
    best: list[float] = []
    ours: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(options.rounds):
        best.append(mean_call_seconds(limit, repeat if m == 1 else 1, clock) * share)
        ours.append(mean_call_seconds(lambda: kernel(*arguments), repeat, clock))
        for name, peer in peers.items():
            theirs[name].append(mean_call_seconds(peer, repeat, clock))
    best_seconds = min(ours)
    rate, bytes_ = 2 * m * n * k / best_seconds / 1e9, 4 * n * k / best_seconds / 1e9
    numbers = f"{best_seconds * 1e6:9.1f} {rate:8.1f} {bytes_:6.1f} {min(best) / best_seconds:8.1%}"
    for times in theirs.values():
        ratio = statistics.median(t / o for t, o in zip(times, ours, strict=True))
        numbers += f" {min(times) * 1e6:9.1f} {ratio:6.2f}"
    return f"{numbers} {spent:10.1f}  {chosen}"


def cpu_model_name() -> str:
    """Return the model name of this machine's CPU."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown'} ({Target.host().cpu})"


def processor_class_target(name: str, threads: int) -> Target:
    """Return a target with the instruction set of a processor class and this machine's caches."""
    if name == "host":
        return Target(Target.host(), cores=threads)
    return Target(f"llvm -mcpu={name} -mtune=native -cores={threads}")


def print_percent_of_peak(name: str, options: argparse.Namespace) -> None:
    """Print a line for each shape, for one class of processor."""
    target = processor_class_target(name, options.threads)
    peer_heads = "".join(f" {f'{peer} us':>9} {'times':>6}" for peer in PEER_ENGINES)
    print(f"\n{name}, {'variable operands' if options.variable else 'constant weights'}: {target}")
    print(
        f"{'MxNxK':>16} {'us':>9} {'GFLOP/s':>8} {'GB/s':>6} {'of limit':>8}"
        f"{peer_heads} {'compile ms':>10}"
    )
    for text in options.shapes:
        m, n, k = (int(d) for d in text.split("x"))
        print(f"{text:>16} {measure_shape((m, n, k), options, target)}", flush=True)


def main() -> None:
    """Print a table for each class."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="*", default=MATMUL_SHAPES)
    parser.add_argument("--class", dest="classes", nargs="+", default=["host"], metavar="CPU")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--variable", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    num_threads(options.threads)
    print(f"{cpu_model_name()}, {options.threads} thread(s), least of {options.rounds} rounds")
    for name in options.classes:
        print_percent_of_peak(name, options)


if __name__ == "__main__":
    main()
