"""Matrix products with block-quantized weights, as in LLM decoding: bytes of weights a second
beside the bandwidth of reading, and multiply-adds a second, by format, rows of data and threads.

    python benchmarks/block_quantized_matmul.py [FORMAT ...] [--rows 1 4 512] [--threads 1 2]
        [--size 2048]

Weights are [size, size], as many different ones one after the other as `--megabytes` of them hold:
more than caches do. Bytes are those of the file. The bandwidth is that of reading as many bytes and
adding them up, in turn with the products; least times over the rounds. `--activations float32`
keeps data as floats. Every product is compared with NumPy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from matmul_peak import build_kernel, build_read_kernel, cpu_model_name, processor_class_target
from peer_engines import select_clock

from ekiden import te
from ekiden.kernels import FAMILIES, schedule, select_kernel
from ekiden.kernels.family import MatmulSizes
from ekiden.runtime import Tensor, empty, num_threads, tensor
from ekiden.target import Target
from ekiden.topi.nn import dense_blocks_pack
from ekiden.topi.nn.block_formats import BLOCK_FORMATS_BY_NAME, BlockFormat
from ekiden.topi.nn.block_quantized import pack_blocks

Call = Callable[[], object]
BLOCK_FORMAT_NAMES = ("q4_0", "q8_0", "q4_k", "q5_k", "q6_k")
MIN_COMPUTE_BOUND_ROWS = 16
"""Rows from which multiply-adds are what takes time, and one weight is enough."""


def copy_to_runtime(array: np.ndarray) -> Tensor:
    """Copy an array into runtime-allocated memory, in huge pages if it is large."""
    copy = empty(array.shape, str(array.dtype))
    copy.numpy()[...] = array
    return copy


def build_block_matmul(
    row: BlockFormat, rows: int, options: argparse.Namespace, target: Target
) -> tuple[Call, int, str]:
    """Return a function that runs the products of all weights once, their number, and the decision;
    results are checked first.
    """
    size = options.size
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, size), np.float32)
    plain = row.encode(random.standard_normal((size, size), np.float32))
    panel = FAMILIES["dense_blocks_pack"].choose_panel_width(
        MatmulSizes(rows, size, size), target, {}
    )
    packed = pack_blocks(plain, row.name, panel)
    data = te.placeholder(x.shape, name="data")
    weight = te.placeholder(packed.shape, "uint8", "weight")
    how = row.name, size, panel, options.activations
    result = dense_blocks_pack(data, weight, *how)
    kernel, _ = build_kernel(schedule([data, weight], [result], target, "product"), target)
    count = (
        1
        if rows >= MIN_COMPUTE_BOUND_ROWS
        else max(1, options.megabytes * 1_000_000 // plain.nbytes)
    )
    # Enough copies of the weight to exceed the last-level cache: decoding reads each weight once.
    weights = [copy_to_runtime(packed) for _ in range(count)]
    data_copy, output = copy_to_runtime(x), copy_to_runtime(np.zeros((rows, size), np.float32))
    kernel(data_copy, weights[-1], output)
    expected = x @ row.decode(plain).T
    error = np.sqrt(np.mean((output.numpy() - expected) ** 2) / np.mean(expected**2))
    assert error < 0.01, error

    def run_all_weights() -> None:
        """Run the kernel on every weight."""
        for one_weight in weights:
            kernel(data_copy, one_weight, output)

    chosen = f"{select_kernel([result], target).decision} panel={panel} error={error:.5f}"
    return run_all_weights, count, chosen


def build_memory_reader(megabytes: int, threads: int, target: Target) -> tuple[Call, int]:
    """Return a function that reads this many megabytes, and the number of bytes."""
    elements = megabytes * 1_000_000 // 4 // (4096 * threads) * 4096 * threads
    kernel, _ = build_kernel(build_read_kernel(elements, threads, target), target)
    source = copy_to_runtime(np.ones(elements, np.float32))
    sums = tensor(np.zeros(threads * target.lanes("float32"), np.float32))
    return lambda: kernel(source, sums), elements * 4


def interleaved_min_times(
    calls: list[Call], rounds: int, clock: Callable[[], float]
) -> list[float]:
    """Return the minimum duration of each call in seconds, measured alternately."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for n, call in enumerate(calls):
            start = clock()
            call()
            best[n] = min(best[n], clock() - start)
    return best


def print_throughput_table(threads: int, options: argparse.Namespace) -> None:
    """Print a line for each format and number of rows."""
    num_threads(threads)
    target = processor_class_target(options.processor, threads)
    read, size = build_memory_reader(options.megabytes, threads, target)
    print(f"\n{cpu_model_name()}, {threads} threads, {options.activations}: {target}")
    print(f"{'format':>8} {'rows':>5} {'GB/s':>7} {'of read':>8} {'GFLOP/s':>8}")
    for name in options.formats:
        row = BLOCK_FORMATS_BY_NAME[name]
        for rows in options.rows:
            run, count, chosen = build_block_matmul(row, rows, options, target)
            spent, reading_spent = interleaved_min_times(
                [run, read], options.rounds, select_clock(threads)
            )
            one = spent / count
            rate = options.size**2 * row.block_bytes / row.values_per_block / one / 1e9
            share = rate / (size / reading_spent / 1e9)
            work = 2 * rows * options.size**2 / one / 1e9
            print(
                f"{name:>8} {rows:>5} {rate:>7.1f} {share:>8.1%} {work:>8.1f}  {chosen}",
                flush=True,
            )
    print(f"{'reading':>8} {'':>5} {size / reading_spent / 1e9:>7.1f}")


def main() -> None:
    """Print a table for each number of threads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("formats", nargs="*", default=BLOCK_FORMAT_NAMES)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 512])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--megabytes", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--activations", default="int8", choices=("int8", "float32"))
    parser.add_argument("--processor", default="host", help="a class, such as x86-64-v3")
    options = parser.parse_args()
    for threads in options.threads:
        print_throughput_table(threads, options)


if __name__ == "__main__":
    main()
