"""Latency and throughput of an RPC session over this machine's loopback interface: a call, and 100
MB each way.

    python benchmarks/rpc.py [--peer PYTHON] [--rounds 5] [--calls 3000] [--megabytes 100]

PYTHON is an interpreter that has TVM (`pip install apache-tvm cloudpickle psutil`). Each side runs
in processes of its own, and all take turns: a round of each, then the next. A call takes an integer
and gives one. `loopback` is what two processes with nothing but sockets reach: a byte there and
back, and bytes that are sent in pieces of 256 KB and thrown away. Files are written and read, too:
the disk counts there. Printed are the best of the rounds, and how they compare.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ekiden.compiler.export.rpc_server import build_server

CLIENT_PROGRAM = """
import json, sys, time
calls, size = int(sys.argv[1]), int(sys.argv[2]) << 20
def rounds(call, *moves):
    for _ in range(calls // 10): call()
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(calls): call()
        found = [(time.perf_counter() - started) / calls]
        for move in moves:
            started = time.perf_counter()
            move()
            found.append(size / (time.perf_counter() - started))
        print("found", json.dumps(found), flush=True)
"""
RAW_SOCKET_SESSION = """
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    there = listener.accept()[0]
    there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(1 << 18))
    while asked := there.recv(1):
        if asked == b"c":
            there.sendall(asked)
        left = size if asked in b"ud" else 0
        while left and asked == b"u":
            left -= there.recv_into(buffer[:min(left, len(buffer))])
        while left:
            left -= there.send(buffer[:min(left, len(buffer))])
        if asked == b"u":
            there.sendall(asked)
    os._exit(0)
here = socket.create_connection(listener.getsockname())
here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
buffer = memoryview(bytearray(1 << 18))
def call():
    here.sendall(b"c")
    here.recv(1)
def up():
    here.sendall(b"u")
    left = size
    while left:
        left -= here.send(buffer[:min(left, len(buffer))])
    here.recv(1)
def down():
    here.sendall(b"d")
    left = size
    while left:
        left -= here.recv_into(buffer[:min(left, len(buffer))])
rounds(call, up, down, up, down)
"""
TENSOR_SESSION = """
import numpy as np
data, elements, into = bytearray(size), np.ones(size, np.uint8), {}
def measured(remote, function, tensor):
    there = tensor(elements, remote.cpu())
    rounds(
        lambda: function(1),
        lambda: there.copyfrom(elements), lambda: there.numpy(),
        lambda: remote.upload(data, "file"), lambda: remote.download("file", **into),
    )
"""
EKIDEN_SESSION = """
import ekiden
from ekiden import rpc
{start}
remote = rpc.connect("127.0.0.1", port)
into["into"] = bytearray(size)  # memory that is there, as loopback's; TVM has no word for it
measured(remote, remote.get_function("ek.runtime.num_threads"), ekiden.nd.array)
"""
PYTHON_SERVER_START = "server = rpc.Server(port=0); port = server.port"
C_SERVER_START = """
import subprocess
server = subprocess.Popen([{program!r}, "--port", "0"], stdout=subprocess.PIPE, text=True)
port = int(server.stdout.readline().rpartition(":")[2])
"""
TVM_SESSION = """
import logging
logging.disable()
import tvm
from tvm import rpc
server = rpc.Server("127.0.0.1", 9190, 9290)
remote = rpc.connect("127.0.0.1", server.port)
measured(remote, remote.get_function("testing.echo"), tvm.runtime.tensor)
"""
MEASURED_TRANSFERS = ("call", "tensor up", "tensor down", "file up", "file down")


def client_programs(program: str, peer: str | None) -> dict[str, tuple[str, str]]:
    """Return the interpreter and program of each compared client by name."""
    from_c = EKIDEN_SESSION.format(start=C_SERVER_START.format(program=program))
    programs = {
        "loopback": (sys.executable, CLIENT_PROGRAM + RAW_SOCKET_SESSION),
        "ekiden, server in Python": (
            sys.executable,
            CLIENT_PROGRAM + TENSOR_SESSION + EKIDEN_SESSION.format(start=PYTHON_SERVER_START),
        ),
        "ekiden, server in C": (sys.executable, CLIENT_PROGRAM + TENSOR_SESSION + from_c),
    }
    if peer is not None:
        programs["TVM"] = (peer, CLIENT_PROGRAM + TENSOR_SESSION + TVM_SESSION)
    return programs


def run_round(process: subprocess.Popen[str]) -> list[float]:
    """Run a process for one more round."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("next\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("found "):
            numbers: list[float] = json.loads(line.removeprefix("found "))
            return numbers
    raise RuntimeError("a side has ended; its error stands above")


def measure_clients(
    options: argparse.Namespace, programs: Mapping[str, tuple[str, str]]
) -> dict[str, list[float]]:
    """Return the seconds of a call and the bytes per second of each side."""
    arguments = (str(options.calls), str(options.megabytes))
    running = {
        name: subprocess.Popen(
            [python, "-c", text, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )
        for name, (python, text) in programs.items()
    }  # fmt: skip
    samples: dict[str, list[list[float]]] = {name: [] for name in running}
    try:
        for _ in range(options.rounds):
            for name, process in running.items():
                samples[name].append(run_round(process))
    finally:
        for process in running.values():
            os.killpg(process.pid, signal.SIGKILL)  # and the servers it has started
            process.communicate()
    return {
        name: [min(row[0] for row in rows), *(max(row[i] for row in rows) for i in range(1, 5))]
        for name, rows in samples.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", help="an interpreter that has TVM")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--megabytes", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "ekiden-rpc")
        build_server(program)
        figures = measure_clients(options, client_programs(str(program), options.peer))
    print(
        f"{'':26}{'call us':>9}"
        + "".join(f"{name + ' MB/s':>18}" for name in MEASURED_TRANSFERS[1:])
    )
    for name, row in figures.items():
        speeds = "".join(f"{value / 1e6:18.0f}" for value in row[1:])
        print(f"{name:26}{row[0] * 1e6:9.1f}{speeds}")
    base = figures["loopback"]
    for name in figures:
        if name.startswith("ekiden"):
            row = figures[name]
            shares = ", ".join(
                f"{w} {row[i] / base[i]:.2f}" for i, w in enumerate(MEASURED_TRANSFERS) if i
            )
            print(f"{name}: of a loopback copy: {shares}")
            if "TVM" in figures:
                print(
                    f"{name}: a call takes {figures[name][0] / figures['TVM'][0]:.2f} of TVM's time"
                )


if __name__ == "__main__":
    main()
