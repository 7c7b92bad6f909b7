"""Concurrent kernels of one program, and two concurrent callers: the speed-up of each.

    python benchmarks/concurrent_kernels.py [MODEL.onnx ...] [--threads 2] [--rounds 30]

For each program the least time of a run, one kernel after another and independent kernels at the
same time, both on all threads, in turn. Then, for the first, the median and 99th-percentile times
of a call with one caller and with two.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

import ekiden
from ekiden import relay, runtime
from ekiden.ir.module import IRModule
from ekiden.relay.expr import Expr, Function
from ekiden.runtime.executable.executable import Executable

Layer = Callable[[Expr, int], Expr]
CALLS_PER_CALLER = 300


def parallel_dense(x: Expr, width: int) -> Expr:
    """Return a layer whose loops are split among threads if it is large."""
    weight = np.random.default_rng(0).standard_normal((width, width)).astype("float32")
    return relay.tanh(relay.nn.dense(x, relay.const(weight / np.float32(width))))


def sort_layer(x: Expr, width: int) -> Expr:
    """Return a layer that threads cannot share."""
    return relay.sort(relay.multiply(x, relay.const(np.float32(-1))), axis=1)


def parallel_chains(layer: Layer, width: int, depth: int, count: int = 2) -> IRModule:
    """Return parallel chains of layers."""
    x = relay.var("x", shape=(1, width))
    ends = []
    for number in range(count):
        y: Expr = relay.add(x, relay.const(np.float32(number)))
        for _ in range(depth):
            y = layer(y, width)
        ends.append(y)
    return IRModule.from_expr(Function([x], relay.concatenate(ends, axis=0)))


def iter_programs(paths: list[str]) -> Iterator[tuple[str, IRModule | str]]:
    """Yield the benchmark programs with their names."""
    yield "two towers, 8 x dense 128", parallel_chains(parallel_dense, 128, 8)
    yield "two towers, 8 x dense 512", parallel_chains(parallel_dense, 512, 8)
    yield "two towers, 8 x sort 4096", parallel_chains(sort_layer, 4096, 8)
    for path in paths:
        yield Path(path).stem, path


def random_inputs(exe: Executable) -> list[np.ndarray]:
    """Return random inputs; symbols are 1."""
    rng = np.random.default_rng(0)
    shapes = [[d if isinstance(d, int) else 1 for d in info.shape] for info in exe.inputs]
    pairs = zip(shapes, exe.inputs, strict=True)
    return [rng.random(shape).astype(info.dtype) for shape, info in pairs]


def interleaved_min_times(runs: list[Callable[[], object]], rounds: int) -> list[float]:
    """Return the minimum duration of each run in microseconds, measured alternately."""
    best = [float("inf")] * len(runs)
    for _ in range(rounds):
        for i, run in enumerate(runs):
            # Untimed: the run before has evicted this one's data from the caches.
            run()
            start = time.perf_counter()
            run()
            best[i] = min(best[i], (time.perf_counter() - start) * 1e6)
    return best


def concurrent_latencies(exe: Executable, callers: int) -> np.ndarray:
    """Return the latencies in microseconds of all calls by concurrent callers."""
    inputs = random_inputs(exe)
    samples: list[float] = []

    def call() -> None:
        ekiden_times = []
        for _ in range(CALLS_PER_CALLER):
            start = time.perf_counter()
            exe(*inputs)
            ekiden_times.append((time.perf_counter() - start) * 1e6)
        samples.extend(ekiden_times)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return np.array(samples)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    runtime.num_threads(options.threads)
    print(
        f"{'us, least of ' + str(options.rounds):32} {'one':>9} {'together':>9} {'gain':>6} memory"
    )
    first = None
    for name, model in iter_programs(options.models):
        exes = [ekiden.compile(model, executor=e) for e in ("vm", "async")]
        first = first or exes[0]
        inputs = random_inputs(exes[0])
        one, both = interleaved_min_times([partial(e, *inputs) for e in exes], options.rounds)
        peaks = [e.peak_memory for e in exes]
        ratio = f"{peaks[1] / peaks[0]:.2f}" if peaks[0] and peaks[1] else "?"
        print(f"{name:32} {one:9.1f} {both:9.1f} {one / both:5.2f}x {ratio:>6}")
    assert first is not None
    for callers in (1, 2):
        samples = concurrent_latencies(first, callers)
        middle, late = np.percentile(samples, [50, 99])
        print(f"{callers} caller(s): median {middle:.1f} us, 99th percentile {late:.1f} us")


if __name__ == "__main__":
    main()
