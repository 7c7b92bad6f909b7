"""Latency and memory of a server whose models exceed its memory budget: start, first requests,
memory.

    python benchmarks/model_eviction.py [--models 240] [--resident 200] [--evictions 10000]

It writes `--models` artifacts of 1 MB, serves them on demand with memory for 10 of them,
and asks `--resident` of them at random. It prints the seconds from the start of the process until
the server is ready, the milliseconds of random requests (19 of 20 to an evicted model) beside those
of reading a file and of a request to a resident model, and the resident memory of the process over
the requests.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import ekiden
from ekiden import relay

WIDTH = 512
NUM_IN_MEMORY = 10


def write_models(folder: Path, count: int) -> int:
    """Write artifacts with weights of 1 MB and return the bytes of one."""
    weight = np.random.default_rng(0).standard_normal((WIDTH, WIDTH), np.float32)
    x = relay.var("x", shape=(relay.SizeVar("n"), WIDTH))
    function = relay.Function([x], relay.nn.relu(relay.nn.dense(x, relay.const(weight))))
    first = folder / "m0.eki"
    ekiden.compile(ekiden.IRModule.from_expr(function)).save(first)
    for number in range(1, count):
        shutil.copyfile(first, folder / f"m{number}.eki")
    return first.stat().st_size


def ask(connection: http.client.HTTPConnection, number: int) -> float:
    """Return the seconds of one request."""
    row = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [1.0] * WIDTH}
    body = json.dumps({"inputs": [row]})
    start = time.perf_counter()
    connection.request("POST", f"/v2/models/m{number}/infer", body)
    answer = connection.getresponse()
    data = answer.read()
    assert answer.status == 200, data
    return time.perf_counter() - start


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=240)
    parser.add_argument("--resident", type=int, default=200)
    parser.add_argument("--evictions", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), options)


def measure(folder: Path, options: argparse.Namespace) -> None:
    """Serve the folder in another process and print what is measured."""
    size = write_models(folder, options.models)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "ekiden", "serve", str(folder), "--port", str(port), "--load",
        "demand", "--model-bytes", str(NUM_IN_MEMORY * size), "--log", "error",
    ]  # fmt: skip
    start = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, "EKIDEN_LOG": "error"})
    try:
        connection = wait_until_ready(port)
        print(f"{options.models} models of {size} bytes: ready after"
              f" {time.perf_counter() - start:.2f} s")  # fmt: skip
        source = random.Random(0)
        numbers = [source.randrange(options.resident) for _ in range(options.evictions)]
        warm = statistics.median([ask(connection, 0) for _ in range(50)][1:])
        cold, memory = [], [resident_mb(process.pid)]
        for count, number in enumerate(numbers, 1):
            cold.append(ask(connection, number))
            if count % max(1, len(numbers) // 10) == 0:
                memory.append(resident_mb(process.pid))
        reads = [timed_read(folder / f"m{number}.eki") for number in numbers[:100]]
        cold.sort()
        print(f"a request to a resident model {warm * 1e3:.2f} ms, reading a file"
              f" {statistics.median(reads) * 1e3:.2f} ms")  # fmt: skip
        milliseconds = [cold[int((len(cold) - 1) * share)] * 1e3 for share in (0.5, 0.99, 1)]
        print("random requests, ms: median {:.2f}, 99 % {:.2f}, most {:.2f}".format(*milliseconds))
        connection.request("GET", "/metrics")
        metrics = connection.getresponse().read().decode()
        print(next(line for line in metrics.splitlines() if line.startswith("ekiden_evictions_t")))
        print("resident memory, MB:", " ".join(f"{value:.0f}" for value in memory))
    finally:
        process.terminate()
        process.wait()


def timed_read(path: Path) -> float:
    """Return the seconds of reading a file."""
    start = time.perf_counter()
    path.read_bytes()
    return time.perf_counter() - start


def wait_until_ready(port: int) -> http.client.HTTPConnection:
    """Return a connection to the server once it is ready."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", "/v2/health/ready")
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                return connection
        except OSError:
            pass
        time.sleep(0.01)


if __name__ == "__main__":
    main()
