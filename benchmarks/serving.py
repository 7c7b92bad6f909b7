"""Requests a second and their times: `ekiden serve` beside a plain FastAPI and ONNX Runtime server.

    python benchmarks/serving.py [--seconds 2] [--rounds 3] [--clients 16] [--json FILE]

One small model (three layers of 512) over HTTP with JSON, on the same requests: each server is a
process, the load another, all on 127.0.0.1 and on the same cores; rounds of the servers alternate.
First as many requests as `--clients` connections can make, one after the other on each; then one
connection alone; then half of the most, sent at set times whether answers came or not. Further
lines of ours: tensors as binary data, and the five models of one folder asked in turn.

The plain server is what one writes in ten lines: a model of the body, a session on all threads.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ekiden

WIDTH = 512
PLAIN = """
import sys
import numpy as np, onnxruntime, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
app = FastAPI()

class Body(BaseModel):
    x: list[list[float]]

@app.post("/infer")
def infer(body: Body):
    (y,) = session.run(None, {"x": np.asarray(body.x, np.float32)})
    return {"y": y.tolist()}

uvicorn.run(app, port=int(sys.argv[2]), log_level="error", access_log=False)
"""


def model() -> onnx.ModelProto:
    """Layers of WIDTH, for any number of rows."""
    rng = np.random.default_rng(0)
    sizes = [64, WIDTH, WIDTH, 16]
    nodes, weights, at = [], [], "x"
    for number, (rows, columns) in enumerate(pairwise(sizes)):
        weight = (rng.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        nodes.append(helper.make_node("MatMul", [at, f"w{number}"], [f"m{number}"]))
        at = "y" if number == 2 else f"r{number}"
        nodes.append(helper.make_node("Relu", [f"m{number}"], [at]))
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", 64), ("y", 16))
    ]
    graph = helper.make_graph(nodes, "mlp", ports[:1], ports[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@contextmanager
def process(argv: Sequence[str], port: int, path: str) -> Iterator[None]:
    """A server until the block ends; it begins when `path` is answered."""
    made = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as s:
                    s.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                    if b" 200 " in s.recv(100):
                        break
            except OSError:
                pass
            time.sleep(0.1)
        yield
    finally:
        made.send_signal(signal.SIGTERM)
        made.wait(30)


def post(path: str, body: bytes, headers: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class Connection:
    """A connection with at most one request under way."""

    sock: socket.socket
    data: bytearray = field(default_factory=bytearray)
    sent: float = 0.0

    def send(self, request: bytes, at: float) -> None:
        self.sent = at
        self.sock.sendall(request)

    def receive(self) -> bool:
        """Whether the answer is whole. Raises RuntimeError for one that is no result."""
        found = self.sock.recv(1 << 16)
        if not found:
            raise RuntimeError("the server closed a connection")
        self.data += found
        end = self.data.find(b"\r\n\r\n")
        if end < 0:
            return False
        if not self.data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"no result: {bytes(self.data[:300])!r}")
        at = self.data.lower().find(b"content-length:")
        size = int(self.data[at + 15 : self.data.find(b"\r", at)])
        if len(self.data) < end + 4 + size:
            return False
        self.data.clear()
        return True


@contextmanager
def connections(port: int, count: int) -> Iterator[tuple[selectors.BaseSelector, list[Connection]]]:
    selector = selectors.DefaultSelector()
    made = []
    for _ in range(count):
        made.append(Connection(socket.create_connection(("127.0.0.1", port))))
        made[-1].sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(made[-1].sock, selectors.EVENT_READ, made[-1])
    try:
        yield selector, made
    finally:
        for each in made:
            each.sock.close()
        selector.close()


def closed_loop(port: int, requests: Sequence[bytes], clients: int, seconds: float) -> list[float]:
    """Each connection sends when its answer has come; the seconds of each request."""
    times: list[float] = []
    with connections(port, clients) as (selector, all_of_them):
        start = time.perf_counter()
        for at, each in enumerate(all_of_them):
            each.send(requests[at % len(requests)], time.perf_counter())
        while (now := time.perf_counter()) - start < seconds:
            for key, _ in selector.select(0.1):
                if key.data.receive():
                    now = time.perf_counter()
                    times.append(now - key.data.sent)
                    key.data.send(requests[len(times) % len(requests)], now)
    return times


def open_loop(port: int, request: bytes, rate: float, seconds: float, clients: int) -> list[float]:
    """Requests at set times, `rate` a second; the seconds of each from when it was to be sent."""
    times: list[float] = []
    count = int(rate * seconds)
    with connections(port, clients) as (selector, all_of_them):
        free, next_one, start = list(all_of_them), 0, time.perf_counter()
        while len(times) < count:
            now = time.perf_counter()
            while next_one < count and start + next_one / rate <= now and free:
                free.pop().send(request, start + next_one / rate)
                next_one += 1
            due = start + next_one / rate - time.perf_counter()
            for key, _ in selector.select(max(0.0, due) if next_one < count else 0.1):
                if key.data.receive():
                    times.append(time.perf_counter() - key.data.sent)
                    free.append(key.data)
    return times


def milliseconds(times: Sequence[float]) -> dict[str, float]:
    p50, p99 = np.percentile(np.asarray(times) * 1e3, [50, 99]).tolist()
    return {"p50_ms": round(p50, 3), "p99_ms": round(p99, 3)}


@dataclass
class Subject:
    """One line of the report."""

    name: str
    port: int
    requests: list[bytes]
    most: list[float] = field(default_factory=list)
    """Requests a second, of each round."""
    full: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    half: list[float] = field(default_factory=list)

    def measure(self, seconds: float, clients: int) -> None:
        closed_loop(self.port, self.requests, clients, 0.3)
        times = closed_loop(self.port, self.requests, clients, seconds)
        self.most.append(len(times) / seconds)
        self.full += times
        alone = closed_loop(self.port, self.requests[:1], 1, seconds / 2)
        self.alone += alone
        rate = self.most[-1] / 2
        self.half += open_loop(self.port, self.requests[0], rate, seconds, clients)

    def row(self) -> dict[str, object]:
        alone, half = milliseconds(self.alone), milliseconds(self.half)
        return {
            "name": self.name,
            "requests_per_second": round(float(np.median(self.most))),
            "full": milliseconds(self.full),
            "alone": alone,
            "half": half,
            "half_p99_over_alone_p50": round(half["p99_ms"] / alone["p50_ms"], 2),
            "half_p99_over_alone_p99": round(half["p99_ms"] / alone["p99_ms"], 2),
        }


def subjects(ours: int, plain: int) -> list[Subject]:
    x = np.random.default_rng(1).random((1, 64)).astype(np.float32)
    row = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": x.ravel().tolist()}
    as_json = json.dumps({"inputs": [row]}).encode()
    del row["data"]
    row["parameters"] = {"binary_data_size": x.nbytes}
    parameters = {"binary_data_output": True}
    head = json.dumps({"inputs": [row], "parameters": parameters}).encode()
    length = f"Inference-Header-Content-Length: {len(head)}\r\n"
    paths = [f"/v2/models/m{number}/infer" for number in range(5)]
    body = json.dumps({"x": x.tolist()}).encode()
    return [
        Subject("FastAPI + ONNX Runtime, JSON", plain, [post("/infer", body)]),
        Subject("ekiden serve, JSON", ours, [post(paths[0], as_json)]),
        Subject("ekiden serve, binary", ours, [post(paths[0], head + x.tobytes(), length)]),
        Subject("ekiden serve, five models", ours, [post(path, as_json) for path in paths]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(model(), folder / "plain.onnx")
        (folder / "models").mkdir()
        artifact = ekiden.compile(folder / "plain.onnx")
        for number in range(5):
            artifact.save(folder / "models" / f"m{number}.eki")
        ours, plain = free_port(), free_port()
        serve = [sys.executable, "-m", "ekiden", "serve", str(folder / "models"), "--log", "error"]
        (folder / "models" / "serve.toml").write_text("[server]\ngrpc = false\n")
        with (
            process([*serve, "--port", str(ours)], ours, "/v2/health/ready"),
            process([sys.executable, "-c", PLAIN, str(folder / "plain.onnx"), str(plain)], plain,
                    "/openapi.json"),
        ):  # fmt: skip
            found = subjects(ours, plain)
            for _ in range(options.rounds):
                for each in found:
                    each.measure(options.seconds, options.clients)
        rows = [each.row() for each in found]
    print(f"{len(os.sched_getaffinity(0))} cores, {options.clients} connections")
    for row in rows:
        print(json.dumps(row))
    base = found[0].most
    for each in found[1:]:
        ratios = [a / b for a, b in zip(each.most, base, strict=True)]
        print(f"{each.name}: {np.median(ratios):.2f} times the plain server's requests a second")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
