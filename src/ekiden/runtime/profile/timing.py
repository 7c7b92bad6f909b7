"""Benchmark timing of functions; repeated runs, and their statistics."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

import numpy as np

CALLS_GROWTH_FACTOR = 1.618
"""Minimum growth factor of the number of calls while a repeat is too short (TVM's constant)."""
MIN_TIMING_ROUNDS = 3


class BenchmarkResult(NamedTuple):
    """Seconds of one call, as measured by each repeat."""

    results: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Return the mean of the repeats."""
        return float(np.mean(self.results))

    @property
    def median(self) -> float:
        """Return the median of the repeats, the figure to quote: it is robust to interruptions."""
        return float(np.median(self.results))

    @property
    def min(self) -> float:
        """Return the fastest repeat."""
        return min(self.results)

    @property
    def max(self) -> float:
        """Return the slowest repeat."""
        return max(self.results)

    @property
    def std(self) -> float:
        """Return the standard deviation of the repeats."""
        return float(np.std(self.results))

    def __str__(self) -> str:
        names = ("mean", "median", "max", "min", "std")
        heads = "".join(f"{name + ' (ms)':>14}" for name in names)
        values = "".join(f"{getattr(self, name) * 1e3:14.4f}" for name in names)
        return f"Execution time summary:\n{heads}\n{values}"


def min_times_interleaved(runs: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Return the minimum time of each function in seconds. The functions run in turns, for
    `seconds` each and at least MIN_TIMING_ROUNDS rounds after a warm-up, so that disturbances
    affect all alike. A run ends when its result is computed, on any device.
    """
    wait_for = import_module("ekiden.runtime.binding._core").wait_for  # which imports this file
    minimum = [math.inf] * len(runs)
    for run in runs:
        wait_for(run())
    until = time.perf_counter() + seconds * len(runs)
    count = 0
    while time.perf_counter() < until or count < MIN_TIMING_ROUNDS:
        count += 1
        # Interleaved, so that changes of clock frequency and load hit all candidates alike.
        for index, run in enumerate(runs):
            start = time.perf_counter()
            wait_for(run())
            minimum[index] = min(minimum[index], time.perf_counter() - start)
    return minimum


class Evaluator(NamedTuple):
    """Time evaluator: measures a function with the arguments it is called with (TVM's
    time_evaluator). `Module.time_evaluator` makes it.

    Calls once to warm up, then `repeat` times `number` calls in a row. `number` grows until a
    repeat takes `min_repeat_ms`.
    """

    run: Callable[[tuple[object, ...], int], float]
    """Function (arguments, number of calls) -> seconds."""
    prepare: Callable[..., object] | None
    """Function called with the arguments before each repeat, outside the timed interval."""
    number: int
    repeat: int
    min_repeat_ms: int
    limit_zero_time_iterations: int
    cooldown_interval_ms: int
    repeats_to_cooldown: int

    def __call__(self, *args: object) -> BenchmarkResult:
        """Run the function and return the times."""
        # Warm-up: first calls fault pages in and fill caches.
        self.run(args, 1)
        results = []
        number = self.number
        for i in range(self.repeat):
            number, seconds = self._run_repeat(args, number)
            results.append(seconds / number)
            if self.cooldown_interval_ms > 0 and (i + 1) % self.repeats_to_cooldown == 0:
                time.sleep(self.cooldown_interval_ms / 1e3)
        return BenchmarkResult(tuple(results))

    def _run_repeat(self, args: tuple[object, ...], number: int) -> tuple[int, float]:
        """Run one repeat; return the final number of calls and their seconds."""
        zeros = 0
        while True:
            if self.prepare is not None:
                self.prepare(*args)
            seconds = self.run(args, number)
            zeros += seconds == 0
            if seconds * 1e3 >= self.min_repeat_ms or zeros >= self.limit_zero_time_iterations:
                return number, seconds
            needed_calls = self.min_repeat_ms / 1e3 / (seconds / number) + 1 if seconds > 0 else 0
            number = int(max(needed_calls, number * CALLS_GROWTH_FACTOR + 1))
