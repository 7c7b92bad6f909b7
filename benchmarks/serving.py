"""Requests per second and latencies of the server: `ekiden serve` beside a plain FastAPI and ONNX
Runtime server.

    python benchmarks/serving.py [--seconds 2] [--rounds 3] [--clients 16] [--json FILE]

One small model (three layers of 512) over HTTP with JSON, on the same requests: each server is a
process, the load another, all on 127.0.0.1; rounds of the servers alternate. Where there are two
cores or more the servers have the first and the load the others. First as many requests as
`--clients` connections can make, one after the other on each; then one connection alone; then half
of the most, sent at set times whether answers came or not. Further lines of ours: tensors as binary
data, the five models of one folder asked in turn, and gRPC by grpcio's client. Where the program
`wrk` is there it makes the load of `--clients` connections once more. Times are medians over
rounds, and once the lower quartile: a machine under this one takes its cores away for milliseconds.

The plain server is what one writes in ten lines: a model of the body, a session on all threads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import grpc
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ekiden
from ekiden.serve.grpc_messages import GRPC_SERVICE_NAME, create_message

LAYER_WIDTH = 512
AVAILABLE_CORES = sorted(os.sched_getaffinity(0))
WRK_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
{headers}
wrk.body = io.open("{body}", "rb"):read("*a")
local paths, at = {{{paths}}}, 0
request = function()
  at = at % #paths + 1
  return wrk.format(nil, paths[at])
end
"""
FASTAPI_SERVER = """
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

CONSTANT_RESPONSE_SERVER = """
import sys
import asyncio, uvloop

ANSWER = b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}"

class Ready(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(ANSWER)

async def main():
    server = await asyncio.get_running_loop().create_server(Ready, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()

uvloop.run(main())
"""


def dense_model() -> onnx.ModelProto:
    """Return an ONNX model of dense layers of WIDTH units, for a dynamic batch."""
    rng = np.random.default_rng(0)
    sizes = [64, LAYER_WIDTH, LAYER_WIDTH, 16]
    nodes, weights, position = [], [], "x"
    for number, (rows, columns) in enumerate(pairwise(sizes)):
        weight = (rng.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        nodes.append(helper.make_node("MatMul", [position, f"w{number}"], [f"m{number}"]))
        position = "y" if number == 2 else f"r{number}"
        nodes.append(helper.make_node("Relu", [f"m{number}"], [position]))
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", 64), ("y", 16))
    ]
    graph = helper.make_graph(nodes, "mlp", ports[:1], ports[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def find_free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pin_to_first_core() -> None:
    """Pin this process to the first core, leaving the others to the load generator."""
    os.sched_setaffinity(0, AVAILABLE_CORES[:1])


@contextmanager
def run_server(argv: Sequence[str], port: int, path: str) -> Iterator[None]:
    """Run a server until the block ends; the block begins once `path` is answered."""
    server = subprocess.Popen(argv, stderr=subprocess.DEVNULL, preexec_fn=pin_to_first_core)
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as s:
                    s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                    if b" 200 " in s.recv(100):
                        break
            except OSError:
                pass
            time.sleep(0.1)
        yield
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


@dataclass(frozen=True)
class HttpRequest:
    """HTTP request with one body, sent to several paths in turn."""

    paths: Sequence[str]
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    def serialize(self) -> list[bytes]:
        """Return the serialized requests."""
        header_lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        length = f"Content-Length: {len(self.body)}\r\n\r\n"
        head_end = f"Content-Type: application/json\r\n{header_lines}{length}"
        heads = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{head_end}" for path in self.paths)
        return [head.encode() + self.body for head in heads]


@dataclass
class HttpConnection:
    """HTTP connection with at most one request in flight."""

    sock: socket.socket
    data: bytearray = field(default_factory=bytearray)
    sent: float = 0.0

    def send(self, request: bytes, at: float) -> None:
        self.sent = at
        self.sock.sendall(request)

    def receive(self) -> bool:
        """Return whether the answer is complete. Raises RuntimeError if it is no result."""
        received = self.sock.recv(1 << 16)
        if not received:
            raise RuntimeError("the server closed a connection")
        self.data += received
        end = self.data.find(b"\r\n\r\n")
        if end < 0:
            return False
        if not self.data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"no result: {bytes(self.data[:300])!r}")
        position = self.data.lower().find(b"content-length:")
        size = int(self.data[position + 15 : self.data.find(b"\r", position)])
        if len(self.data) < end + 4 + size:
            return False
        self.data.clear()
        return True


@contextmanager
def open_connections(
    port: int, count: int
) -> Iterator[tuple[selectors.BaseSelector, list[HttpConnection]]]:
    """Open connections for the block."""
    selector = selectors.SelectSelector()  # the others wait whole milliseconds
    opened = []
    for _ in range(count):
        opened.append(HttpConnection(socket.create_connection(("127.0.0.1", port))))
        # Nagle's algorithm would delay small requests.
        opened[-1].sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(opened[-1].sock, selectors.EVENT_READ, opened[-1])
    try:
        yield selector, opened
    finally:
        for connection in opened:
            connection.sock.close()
        selector.close()


def run_closed_loop(
    port: int, requests: Sequence[bytes], clients: int, seconds: float
) -> list[float]:
    """Send the next request on a connection when its response arrives; return all latencies in
    seconds.
    """
    times: list[float] = []
    with open_connections(port, clients) as (selector, all_of_them):
        start = time.perf_counter()
        for index, connection in enumerate(all_of_them):
            connection.send(requests[index % len(requests)], time.perf_counter())
        while (current_time := time.perf_counter()) - start < seconds:
            for key, _ in selector.select(0.1):
                if key.data.receive():
                    current_time = time.perf_counter()
                    times.append(current_time - key.data.sent)
                    key.data.send(requests[len(times) % len(requests)], current_time)
    return times


def run_open_loop(
    port: int, requests: Sequence[bytes], rate: float, seconds: float, clients: int
) -> list[float]:
    """Send requests at a fixed rate; return all latencies in seconds, counted from the scheduled
    time.
    """
    times: list[float] = []
    count = int(rate * seconds)
    with open_connections(port, clients) as (selector, all_of_them):
        free, next_one, start = list(all_of_them), 0, time.perf_counter()
        while len(times) < count:
            current_time = time.perf_counter()
            while next_one < count and start + next_one / rate <= current_time and free:
                # Latency counts from the due time, so that queueing is not omitted (coordinated
                # omission).
                free.pop().send(requests[next_one % len(requests)], start + next_one / rate)
                next_one += 1
            due = start + next_one / rate - time.perf_counter()
            for key, _ in selector.select(max(0.0, due) if next_one < count else 0.1):
                if key.data.receive():
                    times.append(time.perf_counter() - key.data.sent)
                    free.append(key.data)
    return times


def run_wrk(port: int, request: HttpRequest, clients: int, seconds: float) -> dict[str, float]:
    """Return the requests per second and latencies under wrk's load. Raises RuntimeError for
    errors.
    """
    with tempfile.TemporaryDirectory() as name:
        body, script = Path(name) / "body", Path(name) / "load.lua"
        body.write_bytes(request.body)
        headers = "".join(f'wrk.headers["{k}"] = "{v}"' for k, v in request.headers.items())
        paths = ", ".join(f'"{path}"' for path in request.paths)
        script.write_text(WRK_SCRIPT.format(headers=headers, body=body, paths=paths))
        argv = ["wrk", "-t1", f"-c{clients}", f"-d{max(1, round(seconds))}s", "--latency"]
        argv += ["-s", str(script), f"http://127.0.0.1:{port}"]
        output = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in output or "Socket errors" in output:
        raise RuntimeError(output)
    figures = {"requests_per_second": float(re.search(r"Requests/sec:\s+([\d.]+)", output)[1])}
    for percentile in ("50", "99"):
        value, unit = re.search(rf"{percentile}%\s+([\d.]+)(us|ms|s)", output).groups()
        scale = {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]
        figures[f"p{percentile}_ms"] = round(float(value) * scale, 3)
    return figures


def run_grpc_clients(
    port: int, models: Sequence[str], x: np.ndarray, clients: int, seconds: float
) -> list[float]:
    """Return the latencies in seconds of `clients` concurrent gRPC callers."""
    calls = []
    for name in models:
        port_of_x = {"name": "x", "datatype": "FP32", "shape": list(x.shape)}
        grpc_message = create_message(
            "ModelInferRequest", model_name=name, inputs=[port_of_x],
            raw_input_contents=[x.tobytes()],
        )  # fmt: skip
        calls.append(grpc_message.SerializeToString())

    async def run_client(call: Callable[[bytes], Awaitable[bytes]], until: float) -> list[float]:
        times: list[float] = []
        while (start := time.perf_counter()) < until:
            await call(calls[len(times) % len(calls)])
            times.append(time.perf_counter() - start)
        return times

    async def run_all_clients() -> list[float]:
        """Run all clients."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(f"/{GRPC_SERVICE_NAME}/ModelInfer")
            until = time.perf_counter() + seconds
            client_times = await asyncio.gather(*(run_client(call, until) for _ in range(clients)))
            return [seconds_taken for times in client_times for seconds_taken in times]

    return asyncio.run(run_all_clients())


@dataclass
class LatencyRounds:
    """Latency percentiles of each round."""

    rounds: list[tuple[float, float]] = field(default_factory=list)

    def add_round(self, seconds: Sequence[float]) -> None:
        """Add a round."""
        p50, p99 = np.percentile(np.asarray(seconds) * 1e3, [50, 99]).tolist()
        self.rounds.append((p50, p99))

    def summarize(self) -> dict[str, float]:
        """Return milliseconds: the median of all rounds, and of the quietest quarter of them."""
        p50, p99 = np.median(self.rounds, axis=0).tolist()
        calm = np.quantile([r[1] for r in self.rounds], 0.25)
        return {"p50": round(p50, 3), "p99": round(p99, 3), "p99_calm": round(float(calm), 3)}


@dataclass
class HttpSubject:
    """Server and kind of request under test: some lines of the report."""

    name: str
    port: int
    request: HttpRequest
    max_requests_per_s: list[float] = field(default_factory=list)
    """Requests a second, of each round."""
    full_load_latencies: LatencyRounds = field(default_factory=LatencyRounds)
    single_client_latencies: LatencyRounds = field(default_factory=LatencyRounds)
    half_load_latencies: LatencyRounds = field(default_factory=LatencyRounds)
    baseline: LatencyRounds = field(default_factory=LatencyRounds)
    """At the rate of `half`, of a server with a constant response: the latency of the machine."""
    wrk: list[dict[str, float]] = field(default_factory=list)

    def measure_round(self, seconds: float, clients: int, baseline: int) -> None:
        """Measure a round."""
        texts = self.request.serialize()
        run_closed_loop(self.port, texts, clients, 0.2)
        times = run_closed_loop(self.port, texts, clients, seconds)
        self.max_requests_per_s.append(len(times) / seconds)
        self.full_load_latencies.add_round(times)
        self.single_client_latencies.add_round(run_closed_loop(self.port, texts, 1, seconds))
        rate = float(np.median(self.max_requests_per_s)) / 2
        self.half_load_latencies.add_round(run_open_loop(self.port, texts, rate, seconds, clients))
        self.baseline.add_round(run_open_loop(baseline, texts, rate, seconds, clients))

    def finish(self, clients: int) -> None:
        """Finish after all rounds: the load of wrk, which takes whole seconds."""
        if shutil.which("wrk"):
            self.wrk.append(run_wrk(self.port, self.request, clients, 2.0))

    def report_row(self) -> dict[str, object]:
        """Return the measurements."""
        alone, half = self.single_client_latencies.summarize(), self.half_load_latencies.summarize()
        return {
            "name": self.name,
            "requests_per_second": round(float(np.median(self.max_requests_per_s))),
            "full": self.full_load_latencies.summarize(), "alone": alone, "half": half,
            "baseline": self.baseline.summarize(),
            "half_p99_over_alone_p50": round(half["p99"] / alone["p50"], 2),
            "calm_half_p99_over_alone_p50": round(half["p99_calm"] / alone["p50"], 2),
            "wrk": self.wrk,
        }  # fmt: skip


@dataclass
class GrpcSubject:
    """gRPC server and kind of call under test."""

    name: str
    port: int
    models: Sequence[str]
    x: np.ndarray
    max_requests_per_s: list[float] = field(default_factory=list)
    full_load_latencies: LatencyRounds = field(default_factory=LatencyRounds)
    single_client_latencies: LatencyRounds = field(default_factory=LatencyRounds)

    def measure_round(self, seconds: float, clients: int, baseline: int) -> None:
        """Measure a round."""
        run_grpc_clients(self.port, self.models, self.x, clients, 0.2)
        times = run_grpc_clients(self.port, self.models, self.x, clients, seconds)
        self.max_requests_per_s.append(len(times) / seconds)
        self.full_load_latencies.add_round(times)
        self.single_client_latencies.add_round(
            run_grpc_clients(self.port, self.models, self.x, 1, seconds)
        )

    def finish(self, clients: int) -> None:
        """Do nothing."""

    def report_row(self) -> dict[str, object]:
        """Return the measurements."""
        return {
            "name": self.name,
            "requests_per_second": round(float(np.median(self.max_requests_per_s))),
            "full": self.full_load_latencies.summarize(),
            "alone": self.single_client_latencies.summarize(),
        }  # fmt: skip


def steal_seconds() -> float:
    """Return the steal time of all cores in seconds: what the hypervisor took away."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


def make_subjects(ours: int, over_grpc: int, plain: int) -> list[HttpSubject | GrpcSubject]:
    """Return the lines of the report, the plain server's first."""
    x = np.random.default_rng(1).random((1, 64)).astype(np.float32)
    row = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": x.ravel().tolist()}
    as_json = json.dumps({"inputs": [row]}).encode()
    del row["data"]
    row["parameters"] = {"binary_data_size": x.nbytes}
    parameters = {"binary_data_output": True}
    head = json.dumps({"inputs": [row], "parameters": parameters}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    names = [f"m{number}" for number in range(5)]
    paths = [f"/v2/models/{name}/infer" for name in names]
    body = json.dumps({"x": x.tolist()}).encode()
    return [
        HttpSubject("FastAPI + ONNX Runtime, JSON", plain, HttpRequest(["/infer"], body)),
        HttpSubject("ekiden serve, JSON", ours, HttpRequest(paths[:1], as_json)),
        HttpSubject("ekiden serve, JSON, five models", ours, HttpRequest(paths, as_json)),
        HttpSubject(
            "ekiden serve, binary", ours, HttpRequest(paths[:1], head + x.tobytes(), length)
        ),
        GrpcSubject("ekiden serve, gRPC", over_grpc, names[:1], x),
        GrpcSubject("ekiden serve, gRPC, five models", over_grpc, names, x),
    ]


@contextmanager
def run_servers(folder: Path) -> Iterator[tuple[int, int, int, int]]:
    """Run the servers, and yield the ports of ours over HTTP and gRPC, of the plain one and of the
    server with a constant response.
    """
    onnx.save(dense_model(), folder / "plain.onnx")
    models = folder / "models"
    models.mkdir()
    artifact = ekiden.compile(folder / "plain.onnx")
    for number in range(5):
        artifact.save(models / f"m{number}.eki")
    ours, over_grpc, plain, baseline = (find_free_port() for _ in range(4))
    serve = [sys.executable, "-m", "ekiden", "serve", str(models), "--log", "error"]
    serve += ["--port", str(ours), "--grpc-port", str(over_grpc)]
    plain_command = [sys.executable, "-c", FASTAPI_SERVER, str(folder / "plain.onnx"), str(plain)]
    with (
        run_server(serve, ours, "/v2/health/ready"),
        run_server(plain_command, plain, "/openapi.json"),
        run_server([sys.executable, "-c", CONSTANT_RESPONSE_SERVER, str(baseline)], baseline, "/"),
    ):
        yield ours, over_grpc, plain, baseline


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.25, help="of each part of a round")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--only", default="", help="lines whose names hold this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, run_servers(Path(name)) as ports:
        # The servers have the first core, the load generator the others.
        os.sched_setaffinity(0, AVAILABLE_CORES[1:] or AVAILABLE_CORES)
        selected = [
            line_subject
            for line_subject in make_subjects(*ports[:3])
            if options.only in line_subject.name
        ]
        stolen_s = steal_seconds()
        for _ in range(options.rounds):
            for subject in selected:
                subject.measure_round(options.seconds, options.clients, ports[3])
        for subject in selected:
            subject.finish(options.clients)
        stolen_s = steal_seconds() - stolen_s
    rows = [measured_subject.report_row() for measured_subject in selected]
    print(f"{len(AVAILABLE_CORES)} cores, one for the servers, {options.clients} connections, ms")
    print(f"{stolen_s:.2f} s of the machine were taken away meanwhile")
    for row in rows:
        print(json.dumps(row))
    for subject in selected[1:]:
        ratios = [
            a / b
            for a, b in zip(subject.max_requests_per_s, selected[0].max_requests_per_s, strict=True)
        ]
        print(f"{subject.name}: {np.median(ratios):.2f} times the first line's requests a second")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
