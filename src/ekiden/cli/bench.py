"""`ekiden bench FILE`"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Mapping

import numpy as np

from ekiden import runtime
from ekiden.cli import benchmark_log
from ekiden.cli.options import (
    MODEL_FILE_HELP,
    add_dim_argument,
    add_remote_arguments,
    load_named_arrays,
    open_local_or_remote,
    parse_dim_sizes,
    positive_float,
    thread_count,
)
from ekiden.compiler.remote_model import RemoteModel
from ekiden.compiler.sample_inputs import random_inputs
from ekiden.ir.op import Array
from ekiden.runtime.errors import InputError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.files import check_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", help=MODEL_FILE_HELP)
    add_dim_argument(parser)
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=array.npy",
        help="the array of an input (default: random numbers)",
    )
    parser.add_argument(
        "--seconds", type=positive_float, default=2.0, help="seconds to measure (2)"
    )
    parser.add_argument(
        "--threads", type=thread_count, help="threads of the pool (default: one per core)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--log", metavar="FILE", help="add a line in TVM's Benchmark Performance Log Format"
    )
    add_remote_arguments(parser)


def _describe_input(value: object) -> str:
    """Describe an input by dtype and shape; a sequence by those of each element."""
    if isinstance(value, list):
        return f"[{', '.join(map(_describe_input, value))}]"
    array = np.asarray(value)
    kind = "string" if array.dtype.kind == "U" else str(array.dtype)
    return f"{kind}{list(array.shape)}"


def run(options: argparse.Namespace) -> int:
    """Time whole calls from Python on random inputs, and print the minimum, median and 90th
    percentile. Raises InputError for `--threads` with a server, which has its own setting.
    """
    if options.threads is not None and options.remote is not None:
        raise InputError("--threads: the server chooses its threads: set EKIDEN_NUM_THREADS there")
    if options.threads is not None:
        runtime.num_threads(options.threads)
    if options.log is not None:
        check_folder(options.log)
    executable = open_local_or_remote(options)
    feed = random_inputs(executable, parse_dim_sizes(options.dim), load_named_arrays(options.input))
    times = _measure_call_times(executable, feed, options.seconds)
    times.sort()
    # Order statistics, which single disturbed calls do not move.
    low, middle, high = times[0], statistics.median(times), times[int(0.9 * (len(times) - 1))]
    shapes = {name: _describe_input(value) for name, value in feed.items()}
    threads = None if options.remote is not None else runtime.num_threads()
    if options.log is not None:
        where = options.remote or ""
        name = os.path.basename(options.file)
        log_entry = benchmark_log.build_log_entry(
            name, shapes, times, executable.target, threads, where
        )
        benchmark_log.append_log_entry(options.log, log_entry)
    if options.json:
        summary = {
            "file": options.file,
            "inputs": shapes,
            "threads": threads,
            "target": executable.target,
            "runs": len(times),
            "min_ms": low * 1e3,
            "median_ms": middle * 1e3,
            "p90_ms": high * 1e3,
        }
        print(json.dumps(summary, indent=1))
        return 0
    inputs_text = ", ".join(f"{n} {text}" for n, text in shapes.items())
    where = f"at {options.remote}" if threads is None else f"{threads} threads"
    print(f"{options.file} on {inputs_text}, {where}, {len(times)} runs")
    print(f"  min {low * 1e3:.3f} ms   median {middle * 1e3:.3f} ms   90% {high * 1e3:.3f} ms")
    return 0


def _measure_call_times(
    executable: Executable | RemoteModel, feed: Mapping[str, Array], seconds: float
) -> list[float]:
    """Return the durations of whole calls in seconds, output conversion included; of a remote
    model, those of its server's clock.
    """
    if isinstance(executable, RemoteModel):
        return executable.measure(feed, seconds)
    # Warm-up: first calls fault pages in and fill caches.
    for _ in range(3):
        executable(**feed)
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times) < 5:
        started = time.perf_counter()
        runtime.wait_for(executable(**feed))
        times.append(time.perf_counter() - started)
    return times
