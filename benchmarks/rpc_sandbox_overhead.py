"""Overhead of session sandboxes and of a server's limits: this build and another, in turns.

    python benchmarks/rpc_sandbox_overhead.py --before PYTHON [--rounds 15] [--seconds 3]
    [--json FILE]

PYTHON is the interpreter of an environment that has the other build. Each measurement is a process
of its own, and the two builds take turns, so that what else the machine does falls on both. Printed
are, of each build, the median of the first call of a session (from `rpc.connect` to the answer, the
server being ready), in ms, and of the requests a second of one client to a model server, and the
ratio of this build to the other with its 95 % interval (of the ratios of the rounds, by the order
of their signs). A ratio whose interval holds 1.03 or 0.97 decides nothing: take more rounds.

On a machine with other work run it by `chrt -r 5`: a session of this server is a session of the
system's, too, so that no priority of the autogroup of this program is its own.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

FIRST_CALL_PROGRAM = """
import json, time
from ekiden import rpc
server = rpc.Server(port=0, key="board")
rpc.connect("127.0.0.1", server.port, "board").close()  # the server is up, and has a spare program
time.sleep(2)
started = time.perf_counter()
session = rpc.connect("127.0.0.1", server.port, "board")
session.listdir()
print(json.dumps(1e3 * (time.perf_counter() - started)))
session.close()
server.terminate()
"""
REQUEST_RATE_PROGRAM = """
import http.client, json, pathlib, signal, subprocess, sys, tempfile, time
import ekiden
from ekiden import relay
seconds = float(sys.argv[1])
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "m.eki")
    ekiden.compile(relay.parse("def @main(%x: Tensor[(n, 4), float32]) { add(%x, %x) }")).save(path)
    words = [sys.executable, "-m", "ekiden", "serve", folder, "--port", "0"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    port = next(json.loads(line) for line in server.stderr if '"listening"' in line)["port"]
    next(line for line in server.stderr if '"started"' in line)
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    body = json.dumps({"inputs": [tensor]})
    client = http.client.HTTPConnection("127.0.0.1", port)
    count, started, end = 0, 0.0, 0.0
    while not end or time.perf_counter() < end:
        client.request("POST", "/v2/models/m/infer", body, {"Content-Type": "application/json"})
        answer = client.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        count += 1
        if count == 200 and not end:  # warm
            count, started = 0, time.perf_counter()
            end = started + seconds
    print(json.dumps(count / (time.perf_counter() - started)))
    server.send_signal(signal.SIGTERM)
    server.communicate()
"""
MEASURED_PROGRAMS = {
    "first call of a session, ms": FIRST_CALL_PROGRAM,
    "requests a second": REQUEST_RATE_PROGRAM,
}


def run_program(python: str, program: str, seconds: float) -> float:
    """Run a program with an interpreter, and return the last number that it prints."""
    words = [python, "-c", program, str(seconds)]
    run = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")
    if run.returncode:
        raise SystemExit(f"{python}: {run.stderr[-2000:]}")
    return float(json.loads(run.stdout.splitlines()[-1]))


def median_confidence_interval(ratios: list[float]) -> tuple[float, float]:
    """Return the distribution-free 95 % confidence interval of the median (sign test on order
    statistics).
    """
    ordered, count = sorted(ratios), len(ratios)
    tail, rank = 0.0, 0
    # Each tail of the binomial(n, 1/2) holds at most 2.5 %.
    while rank < count // 2 and (tail := tail + math.comb(count, rank) / 2**count) <= 0.025:
        rank += 1
    low = max(rank - 1, 0)
    return ordered[low], ordered[count - 1 - low]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", required=True, help="the interpreter that has the other build")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=3.0, help="of requests, each time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, dict[str, list[float]]] = {}
    for name, program in MEASURED_PROGRAMS.items():
        numbers: dict[str, list[float]] = {"before": [], "after": []}
        for round_index in range(options.rounds):
            # The order alternates, so that drift of the machine cancels out.
            order = ["before", "after"] if round_index % 2 == 0 else ["after", "before"]
            for side in order:
                python = options.before if side == "before" else sys.executable
                numbers[side].append(run_program(python, program, options.seconds))
        ratios = [a / b for a, b in zip(numbers["after"], numbers["before"], strict=True)]
        before, after = (statistics.median(numbers[side]) for side in ("before", "after"))
        low, high = median_confidence_interval(ratios)
        ratio = f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"
        print(f"{name}: {before:.2f} before, {after:.2f} after; ratio {ratio}", flush=True)
        report[name] = numbers
    if options.json:
        options.json.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
