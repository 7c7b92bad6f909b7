"""TensorFlow Lite files, compared with LiteRT (XNNPACK) on one thread, in turns in one process.

    python benchmarks/tflite_models.py MODEL.tflite ... [--seconds 2]

Of each file: microseconds of a call of Ekiden's, from arrays to tensors; of LiteRT's with its
inputs set and its outputs fetched, and of its `invoke` alone; how often Ekiden runs while LiteRT
runs once, by both. Medians. Inputs are random, and the same in every call. Needs the packages
`tflite` and `ai-edge-litert`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

import ekiden

Call = Callable[[], object]
MIN_ROUND_SECONDS = 5e-4
"""Seconds of one turn, at least."""


def build_calls(path: str) -> dict[str, Call]:
    """Return the timed calls by name."""
    peer = Interpreter(path, num_threads=1)
    peer.allocate_tensors()
    rng, input_details, results = (
        np.random.default_rng(0),
        peer.get_input_details(),
        peer.get_output_details(),
    )
    feed = [random_input(detail, rng) for detail in input_details]
    program = ekiden.compile(path, num_threads=1, tier="full")

    def run_litert() -> object:
        """Set the inputs, run LiteRT, and fetch the outputs."""
        for detail, array in zip(input_details, feed, strict=True):
            peer.set_tensor(detail["index"], array)
        peer.invoke()
        return [peer.get_tensor(output_detail["index"]) for output_detail in results]

    return {"ekiden": lambda: program(*feed), "litert": run_litert, "invoke": peer.invoke}


def random_input(detail: dict[str, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return a random input as LiteRT describes it: small numbers, which are valid indices too."""
    if np.issubdtype(detail["dtype"], np.floating):
        return rng.standard_normal(detail["shape"]).astype(detail["dtype"])
    return rng.integers(0, 100, detail["shape"]).astype(detail["dtype"])


def interleaved_medians(timed: dict[str, Call], seconds: float) -> dict[str, float]:
    """Return the median duration of each call in microseconds."""
    counts, samples = {}, {name: list[float]() for name in timed}
    for name, call in timed.items():
        call()
        begin = time.perf_counter()
        call()
        # Repeated until a turn takes ROUND_S: single calls are near the clock's resolution.
        counts[name] = max(1, round(MIN_ROUND_SECONDS / (time.perf_counter() - begin)))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in timed.items():
            begin = time.perf_counter()
            for _ in range(counts[name]):
                call()
            samples[name].append((time.perf_counter() - begin) / counts[name] * 1e6)
    return {name: statistics.median(call_samples) for name, call_samples in samples.items()}


def main() -> None:
    """Print a line for each file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    ratios = []
    for path in options.models:
        us = interleaved_medians(build_calls(path), options.seconds)
        ratios.append(us["litert"] / us["ekiden"])
        shown = "  ".join(f"{name} {microseconds:9.2f}" for name, microseconds in us.items())
        alone = us["invoke"] / us["ekiden"]
        print(f"{Path(path).name:28}  {shown} us  {ratios[-1]:.2f} ({alone:.2f})", flush=True)
    print(f"geometric mean of {len(ratios)}: {statistics.geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main()
