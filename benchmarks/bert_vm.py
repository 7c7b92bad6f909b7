"""What running BERT costs beside its kernels, at one length.

    python benchmarks/bert_vm.py [--layers 12] [--length 128] [--rounds 15] [--threads 1]

Compiles the network three times: for any length, for this length alone, and for this length with
native code of its functions ("aot"). Prints the time of a run of each, and of the kernels alone,
called in program order on the buffers of the memory plan; medians of interleaved rounds. On one
thread the time is the thread's own: other programs on the machine do not count.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import numpy as np
from bert import LAYERS, WORDS, bert
from profile_kernels import Plan

import ekiden
from ekiden import relay
from ekiden.backend.kernels import build_kernels
from ekiden.backend.vm.compile import primitive_functions
from ekiden.backend.vm.pipeline import optimize
from ekiden.relay.expr import Function
from ekiden.relay.transform import InferType
from ekiden.runtime import num_threads
from ekiden.target import Target

Run = Callable[[], object]


def kernels_alone(module: relay.IRModule) -> Run:
    """The kernel calls of a module without symbols, one after the other."""
    target = Target.host()
    module = optimize(InferType()(module), target)
    main, fused = module["main"], primitive_functions(module)
    assert isinstance(main, Function)
    kernels = build_kernels(fused, [], target)
    plan = Plan(main, {}, dict(zip(fused, kernels.names, strict=True)), kernels.image)
    calls = [step.run for step in plan.steps]

    def run() -> None:
        for call in calls:
            call()

    return run


def executable(module: relay.IRModule, length: int, executor: str) -> Run:
    """A run of a compiled network."""
    exe = ekiden.compile(module, executor=executor)
    rng = np.random.default_rng(1)
    words = rng.integers(0, WORDS, (1, length), dtype=np.int64)
    kinds, mask = np.zeros((1, length), np.int64), np.ones((1, length), np.float32)
    return lambda: exe(words, kinds, mask)


def medians(runs: dict[str, Run], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """The median seconds of each, in rounds that run them all."""
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 2):
        for name, run in runs.items():
            start = clock()
            run()
            if turn >= 2:
                spent[name].append(clock() - start)
    return {name: statistics.median(times) for name, times in spent.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    num_threads(options.threads)
    layers, length = options.layers, options.length
    runs: dict[str, Run] = {}
    for name, sequence, executor in (
        ("dynamic", "sequence", "vm"),
        ("fixed", length, "vm"),
        ("fixed, aot", length, "aot"),
    ):
        runs[name] = executable(bert(layers, 1, sequence), length, executor)
        gc.collect()
    runs["kernels alone"] = kernels_alone(bert(layers, 1, length))
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    found = medians(runs, options.rounds, clock)
    least = found["kernels alone"]
    for name, seconds in found.items():
        print(f"{name:<14}{seconds * 1e3:9.3f} ms  {seconds / least - 1:+7.2%} of the kernels")
    print(f"dynamic against fixed: {found['dynamic'] / found['fixed'] - 1:+.2%}")


if __name__ == "__main__":
    main()
