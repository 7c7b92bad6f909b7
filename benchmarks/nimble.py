"""The workloads of the Nimble paper (Shen et al., 2021) at batch 1, compared with other engines.

    python benchmarks/nimble.py [--only lstm1 lstm2 tree bert] [--threads 1 2] [--rounds 5]
                                [--cases N]

lstm1, lstm2  LSTM, inputs 300, hidden 512, 1 and 2 layers; a stream of random lengths 5-64 tree
child-sum Tree-LSTM 300/150; trees of 5-50 leaves, ADT values for us bert          BERT-base; a
stream of random lengths 5-128

Weights are seeded and the same everywhere; results are compared with ours before anything is timed.
Each engine holds its model in a process of its own and takes the whole stream without a break, as a
server would; engines take turns round by round, after a first round in which lengths are seen for
the first time. (With a pause of 20 ms after each case, runs of a millisecond take up to twice as
long: cores sleep, and caches hold the data of others.) Printed for each engine: time of the stream
per token (for trees: per node), each case by its median over the later rounds; the same as a
multiple of ours; and the 99th percentile of all times of the stream, the first ones included, as
multiples of the median of their case. The two figures in brackets are the same for the time in
which the calling thread ran: others may use the machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import nimble_bert
import nimble_lstm
import nimble_tree
import numpy as np
from nimble_engines import WEIGHT_SEED, Array, EngineWorker, MakeRun

RESULT_TOLERANCE = 1e-4
ENGINE_PAUSE_S = 0.02
"""Seconds until the threads of the engine before have stopped spinning."""


@dataclass(frozen=True, slots=True)
class NimbleWorkload:
    """Workload: its engines, Ekiden's first; the range and default number of cases; the tokens of a
    case.
    """

    engines: Mapping[str, MakeRun]
    low: int
    high: int
    count: int
    tokens: Callable[[int], int]

    def random_cases(self, count: int | None) -> list[int]:
        """Return random cases."""
        rng = np.random.default_rng(WEIGHT_SEED)
        return [int(n) for n in rng.integers(self.low, self.high + 1, count or self.count)]


NIMBLE_WORKLOADS = {
    "lstm1": NimbleWorkload(nimble_lstm.lstm_engines(1), 5, 64, 100, lambda n: n),
    "lstm2": NimbleWorkload(nimble_lstm.lstm_engines(2), 5, 64, 100, lambda n: n),
    "tree": NimbleWorkload(
        nimble_tree.TREE_ENGINES,
        5,
        50,
        100,
        lambda n: nimble_tree.count_nodes(nimble_tree.random_tree(n)),
    ),
    "bert": NimbleWorkload(nimble_bert.BERT_ENGINES, 5, 128, 200, lambda n: n),
}
Times = dict[str, list[list[float]]]
"""engine -> rounds -> seconds of each case of the stream."""
Measured = tuple[Times, Times]
"""All seconds, and those in which the calling thread ran."""


def all_close(expected: list[Array], actual: list[Array]) -> bool:
    """Return whether results agree up to rounding."""
    return len(expected) == len(actual) and all(
        np.allclose(a, b, rtol=RESULT_TOLERANCE, atol=RESULT_TOLERANCE)
        for a, b in zip(expected, actual, strict=True)
    )


def verify_engines(workers: Mapping[str, EngineWorker], cases: list[int]) -> None:
    """Compare all engines on lengths that are not measured, which also warms them up."""
    for case in cases:
        ours, *other_results = (
            (n, w.run_cases([case], keep=True).results) for n, w in workers.items()
        )
        for name, results in other_results:
            if not all_close(ours[1], results):
                raise SystemExit(f"{name} disagrees with {ours[0]} on case {case}")


def measure_rounds(workers: Mapping[str, EngineWorker], cases: list[int], rounds: int) -> Measured:
    """Return the times of a first round and of `rounds` more."""
    times: Measured = ({name: [] for name in workers}, {name: [] for name in workers})
    # The first round counts for tail latency only.
    for _ in range(rounds + 1):
        for name, worker in workers.items():
            time.sleep(ENGINE_PAUSE_S)
            reply = worker.run_cases(cases)
            times[0][name].append(reply.seconds)
            times[1][name].append(reply.cpu_seconds)
    return times


def steady_medians(times: list[list[float]]) -> list[float]:
    """Return the median of each case over all rounds but the first."""
    return [statistics.median(samples) for samples in zip(*times[1:], strict=True)]


def tail_latency_ratio(times: list[list[float]]) -> float:
    """Return the 99th percentile of all times, the first round included, relative to each case's
    steady time.
    """
    usual = steady_medians(times)
    ratios = [s / u for of_round in times for s, u in zip(of_round, usual, strict=True)]
    return float(np.percentile(ratios, 99))


def print_report(
    name: str, threads: int, workload: NimbleWorkload, cases: list[int], times: Measured
) -> None:
    """Print one line per engine."""
    tokens = sum(map(workload.tokens, cases))
    sums = [
        {engine: sum(steady_medians(rounds)) for engine, rounds in by_engine.items()}
        for by_engine in times
    ]
    ours = [next(iter(engine_sums.values())) for engine_sums in sums]
    for engine, seconds in sums[0].items():
        ratio, busy = (
            sums_of_kind[engine] / own for sums_of_kind, own in zip(sums, ours, strict=True)
        )
        late, busy_late = (tail_latency_ratio(kind_times[engine]) for kind_times in times)
        print(
            f"{name:6} {threads} thread{'s' if threads > 1 else ' '} {engine:14}"
            f" {seconds / tokens * 1e6:9.1f} us/token  x{ratio:6.2f} (x{busy:6.2f})"
            f"   99 %: x{late:.2f} (x{busy_late:.2f}) of steady",
            flush=True,
        )


def main() -> None:
    """Run the requested workloads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="*", default=list(NIMBLE_WORKLOADS), choices=list(NIMBLE_WORKLOADS)
    )
    parser.add_argument("--engines", nargs="*")
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", type=int, help="length of the stream")
    options = parser.parse_args()
    for name in options.only:
        workload = NIMBLE_WORKLOADS[name]
        cases = workload.random_cases(options.cases)
        chosen = {
            n: m for n, m in workload.engines.items() if not options.engines or n in options.engines
        }
        for threads in options.threads:
            workers: dict[str, EngineWorker] = {}
            try:
                for engine, make in chosen.items():
                    workers[engine] = EngineWorker(make, threads)
                verify_engines(workers, [workload.low, (workload.low + workload.high) // 2])
                times = measure_rounds(workers, cases, options.rounds)
            finally:
                for worker in workers.values():
                    worker.close()
            print_report(name, threads, workload, cases, times)


if __name__ == "__main__":
    main()
