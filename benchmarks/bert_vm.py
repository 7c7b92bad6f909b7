"""Overhead of the virtual machine in a run of BERT: whole runs minus the time of the kernels.

    python benchmarks/bert_vm.py [--layers 12] [--length 128] [--rounds 15] [--threads 1]

Compiles the network three times: for any length, for this length alone, and for this length with
native code of its functions ("aot"). Prints the time of a run of each, and the sum of the times of
the kernels in a run of the last, each measured where it is called; minima of interleaved rounds.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable

import numpy as np
from bert import LAYERS, WORDS, bert_module

import ekiden
from ekiden import relay
from ekiden.runtime import VirtualMachine, get_global_func, num_threads
from ekiden.runtime.debug.instructions import decode

Measure = Callable[[], float]
"""Runs once; gives seconds."""


def bert_inputs(length: int) -> tuple[np.ndarray, ...]:
    """Return token ids, segment ids and attention mask of one sequence."""
    words = np.random.default_rng(1).integers(0, WORDS, (1, length), dtype=np.int64)
    return words, np.zeros((1, length), np.int64), np.ones((1, length), np.float32)


def measure_whole_run(machine: VirtualMachine, length: int) -> Measure:
    """Return a function that measures a run of the compiled network in seconds."""
    feed = bert_inputs(length)

    def measure() -> float:
        start = time.perf_counter()
        machine.invoke("main", *feed)
        return time.perf_counter() - start

    return measure


def measure_kernels(machine: VirtualMachine, length: int) -> Measure:
    """Return a function that measures the kernel calls of a run alone, on the memory that the run
    uses.
    """
    feed = bert_inputs(length)
    exe = machine.executable
    index = exe.index("main")
    profile = get_global_func("ek.vm.module")(machine)["profile"]
    first = sum(len(decode(exe.code(n)[1])) for n in exe.globals[:index])
    code = decode(exe.code("main")[1])
    calls = [
        first + i
        for i, instruction in enumerate(code)
        if instruction.name.startswith("InvokePacked")
    ]

    def measure() -> float:
        _, counted, _ = profile(index, 0, *feed)
        spent = np.frombuffer(counted, np.int64).reshape(-1, 2)[:, 1]
        return float(spent[calls].sum()) / 1e9

    return measure


def interleaved_minima(measures: dict[str, Measure], rounds: int) -> dict[str, float]:
    """Return the minimum of each measurement in seconds over alternating rounds, after two warm-up
    rounds. Each runs once before it counts, since the previous one left other weights in the
    caches.
    """
    best = {name: float("inf") for name in measures}
    for round_index in range(rounds + 2):
        for name, measure in measures.items():
            # Untimed: warms the caches after the other measurements.
            measure()
            seconds = measure()
            if round_index >= 2:
                best[name] = min(best[name], seconds)
    return best


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
    length = options.length

    def compile_bert(sequence: str | int, executor: str) -> VirtualMachine:
        module: relay.IRModule = bert_module(options.layers, 1, sequence)
        exe = ekiden.compile(module, executor=executor)
        gc.collect()
        return VirtualMachine(exe.raw)

    aot = compile_bert(length, "aot")
    measures = {
        "dynamic": measure_whole_run(compile_bert("sequence", "vm"), length),
        "fixed": measure_whole_run(compile_bert(length, "vm"), length),
        "aot": measure_whole_run(aot, length),
        "kernels": measure_kernels(aot, length),
    }
    seconds_by_name = interleaved_minima(measures, options.rounds)
    for name, seconds in seconds_by_name.items():
        print(f"{name:<9}{seconds * 1e3:9.3f} ms")
    print(
        f"dynamic against fixed: {seconds_by_name['dynamic'] / seconds_by_name['fixed'] - 1:+.2%}"
    )
    print(
        "aot against the sum of its kernels: "
        f"{seconds_by_name['aot'] / seconds_by_name['kernels'] - 1:+.2%}"
    )


if __name__ == "__main__":
    main()
