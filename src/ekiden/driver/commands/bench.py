"""`ekiden bench FILE`"""

from __future__ import annotations

import argparse
import statistics
import time

from ekiden import runtime
from ekiden.driver.commands.options import FILE, add_dims, open_executable, random_inputs


def arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("file", help=FILE)
    add_dims(parser)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure (2)")


def run(options: argparse.Namespace) -> int:
    """Time whole calls from Python on random inputs; print the minimum, median and 90th
    percentile.
    """
    executable = open_executable(options.file)
    feed = random_inputs(executable, options.dim)
    for _ in range(3):
        executable(**feed)
    times: list[float] = []
    until = time.perf_counter() + options.seconds
    while time.perf_counter() < until or len(times) < 5:
        started = time.perf_counter()
        executable(**feed)
        times.append(time.perf_counter() - started)
    times.sort()
    low, middle, high = times[0], statistics.median(times), times[int(0.9 * (len(times) - 1))]
    shapes = ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in feed.items())
    print(f"{options.file} on {shapes}, {runtime.num_threads()} threads, {len(times)} runs")
    print(f"  min {low * 1e3:.3f} ms   median {middle * 1e3:.3f} ms   90% {high * 1e3:.3f} ms")
    return 0
