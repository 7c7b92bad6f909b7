"""Responsiveness and memory of a server under 64 MB bodies, slow clients and idle connections.

    python benchmarks/serving_load.py [--only NAME] [--bytes N] [--json FILE]

A server of one small model is a process; this program sends it one body of each form, while another
process asks /v2/health/live every 5 ms. A line for each form: the status and the size of the
answer, the seconds that it took, the median and the longest time that health took, in ms, and the
most memory that the server's process had meanwhile beyond before, as a multiple of the body and the
answer. Other work of the machine counts as the server's: give the program's session priority.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import grpc

import ekiden
from ekiden import relay
from ekiden.serve.grpc_messages import GRPC_SERVICE_NAME, create_message

SERVED_PROGRAM = "def @main(%x: Tensor[(n, 4), float32]) { add(%x, %x) }"
INFER_PATH = "/v2/models/m/infer"
CHAT_PATH = "/v1/chat/completions"
MAX_TEXT_BYTES = (8 << 20) - 100
"""Of a request to a model of text: the server's limit."""
MAX_GRPC_BYTES = (8 << 20) - 100
"""Of a message over gRPC: the server's limit."""
PING_INTERVAL_S = 0.005
Body = tuple[str, bytes, dict[str, str]]
"""Path, body and headers."""


def repeat_to_size(head: bytes, unit: bytes, tail: bytes, size: int) -> bytes:
    """Return `head`, repetitions of `unit` and `tail`, together about `size` bytes."""
    count = (size - len(head) - len(tail)) // (len(unit) + 1)
    return head + b",".join([unit] * count) + tail


def infer_request_body(datatype: str, unit: bytes, size: int, *, nested: bool = False) -> bytes:
    """Return an inference request of about `size` bytes with one tensor."""
    count = (size - 200) // (len(unit) + 1 + nested) // 4 * 4
    row = b"[" + b",".join([unit] * 4) + b"]"
    values = b",".join([row] * (count // 4)) if nested else b",".join([unit] * count)
    head = b'{"inputs":[{"name":"x","shape":[%d,4],"datatype":"%s","data":['
    return head % (count // 4, datatype.encode()) + values + b"]}]}"


def http_bodies(size: int) -> Iterator[tuple[str, Body]]:
    """Yield HTTP bodies of about `size` bytes by name."""
    start = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":['
    texts = {
        "numbers": infer_request_body("FP32", b"1.5", size),
        "one digit each": infer_request_body("FP32", b"1", size),
        "nested numbers": infer_request_body("FP32", b"1.25", size, nested=True),
        "long numbers": infer_request_body("FP32", b"0.12345678901234567890", size),
        "doubles of one digit": infer_request_body("FP64", b"1", size),
        "texts": infer_request_body("BYTES", b'"ab"', size),
        "empty lists as data": repeat_to_size(start, b"[]", b"]}]}", size),
        "objects as inputs": repeat_to_size(b'{"inputs":[', b"{}", b"]}", size),
        "numbers under another key": repeat_to_size(b'{"a":[', b"1", b"]}", size),
        "keys": repeat_to_size(b"{", b'"k":1', b"}", size),
        "brackets": b"[" * size,
        "backslashes": b'{"id":"' + b"\\" * (size - 9) + b'"}',
        "quotes": b'{"id":"' + b'\\"' * (size // 2) + b'"}',
        "one text": b'{"id":"' + b"x" * size + b'"}',
        "one number": b'{"inputs":' + b"1" * size + b"}",
        "blanks": b'{"inputs":' + b" " * size + b"}",
        "zeros": bytes(size),
        "outputs": repeat_to_size(b'{"inputs":[],"outputs":[', b'{"name":"output0"}', b"]}", size),
    }
    for name, text in texts.items():
        yield name, (INFER_PATH, text, {})
    rows = (size - 1000) // 16
    head = json.dumps({
        "inputs": [{"name": "x", "shape": [rows, 4], "datatype": "FP32",
                    "parameters": {"binary_data_size": rows * 16}}],
        "parameters": {"binary_data_output": True},
    }).encode()  # fmt: skip
    binary = {"Inference-Header-Content-Length": str(len(head))}
    yield "binary", (INFER_PATH, head + bytes(rows * 16), binary)
    as_json = head.replace(b": true", b":false")
    yield "binary, answer in JSON", (INFER_PATH, as_json + bytes(rows * 16), binary)
    size = min(size, MAX_TEXT_BYTES)
    yield "chat of objects", (CHAT_PATH, repeat_to_size(b'{"messages":[', b"{}", b"]}", size), {})
    yield "chat", (CHAT_PATH, b'{"model":"m","messages":"' + b"x" * (size - 50) + b'"}', {})


def grpc_messages(size: int) -> Iterator[tuple[str, bytes]]:
    """Yield gRPC messages of about `size` bytes by name."""
    rows = size // 16
    port = {"name": "x", "datatype": "FP32", "shape": [rows, 4]}
    raw = create_message("ModelInferRequest", model_name="m", inputs=[port],
                         raw_input_contents=[bytes(rows * 16)])  # fmt: skip
    yield "gRPC, raw", raw.SerializeToString()
    yield "gRPC, empty inputs", b"\x2a\x00" * (size // 2)
    yield "gRPC, empty raw contents", b"\x3a\x00" * (size // 2)
    yield "gRPC, parameters", b"\x22\x00" * (size // 2)
    contents = b"\x1a" + encode_varint(size - 30) + b"\x01" * (size - 30)
    inner = b"\x2a" + encode_varint(len(contents)) + contents
    yield "gRPC, 64 bits of one byte", b"\x2a" + encode_varint(len(inner)) + inner
    floats = b"\x32" + encode_varint(rows * 16) + bytes(rows * 16)
    inner = encode_infer_tensor(port) + b"\x2a" + encode_varint(len(floats)) + floats
    yield "gRPC, floats", b"\x0a\x01m\x2a" + encode_varint(len(inner)) + inner


def encode_infer_tensor(port: dict[str, object]) -> bytes:
    """Return an input's name, datatype and shape in message format."""
    return bytes(create_message("ModelInferRequest.InferInputTensor", **port).SerializeToString())


def encode_varint(value: int) -> bytes:
    """Encode a varint."""
    result = bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes([*result, value])


@dataclass
class ServerProcess:
    """Server process with its ports."""

    process: subprocess.Popen[str]
    port: int
    grpc_port: int

    def memory_bytes(self, name: str) -> int:
        """Return a memory figure of the process in bytes: VmRSS, or the peak VmHWM."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return (
            int(next(line for line in text.splitlines() if line.startswith(name)).split()[1]) << 10
        )

    def reset_peak(self) -> None:
        """Reset the peak memory figure."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")


@contextmanager
def run_server(folder: Path) -> Iterator[ServerProcess]:
    """Run a server of one model until the block ends."""
    ekiden.compile(relay.parse(SERVED_PROGRAM)).save(folder / "m.eki")
    argv = [sys.executable, "-m", "ekiden", "serve", str(folder), "--port", "0"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        listening = next(json.loads(line) for line in process.stderr if '"listening"' in line)
        next(line for line in process.stderr if '"started"' in line)
        yield ServerProcess(process, listening["port"], listening["grpc_port"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def poll_health(port: int, control: Connection) -> None:
    """Poll the health endpoint, and report the longest response time on request."""
    request = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    times: list[float] = []
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        while True:
            begin = time.perf_counter()
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            times.append(time.perf_counter() - begin)
            if control.poll(PING_INTERVAL_S):
                if not control.recv():
                    return
                control.send(times)
                times = []


def post_body(port: int, body: Body) -> tuple[str, int]:
    """Send a body; return the status and size of the answer."""
    path, data, headers = body
    header_lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header_lines}"
    with socket.create_connection(("127.0.0.1", port), 120) as connection:
        try:
            connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode())
            connection.sendall(data)
        except OSError:
            pass  # refused before all was there
        first, size = b"", 0
        try:
            while received := connection.recv(1 << 20):
                first, size = first or received, size + len(received)
        except OSError:
            pass
    return first[9:12].decode() or "none", size


def call_grpc(port: int, data: bytes) -> tuple[str, int]:
    """Send a message over gRPC; return the name of its status and the bytes of the answer."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        try:
            answer = channel.unary_unary(f"/{GRPC_SERVICE_NAME}/ModelInfer")(data, timeout=120)
        except grpc.RpcError as error:
            return error.code().name, 0
    return "OK", len(answer)


def measure_request(
    target: ServerProcess,
    control: Connection,
    name: str,
    size: int,
    send: Callable[[], tuple[str, int]],
) -> dict[str, object]:
    """Send one request while the health endpoint is polled; return time, memory and
    responsiveness.
    """
    control.send(True)
    if not control.poll(60):
        raise RuntimeError("health is not answered within a minute")
    control.recv()
    target.reset_peak()
    before, begin = target.memory_bytes("VmRSS"), time.perf_counter()
    status, answer = send()
    seconds = time.perf_counter() - begin
    control.send(True)
    times = control.recv()
    grown = target.memory_bytes("VmHWM") - before
    row = {
        "form": name, "status": status, "answer_mb": round(answer / 2**20, 1),
        "seconds": round(seconds, 2), "health_ms": round(max(times) * 1e3, 1),
        "median_health_ms": round(statistics.median(times) * 1e3, 2),
        "memory_mb": round(grown / 2**20), "of_body_and_answer": round(grown / (size + answer), 2),
    }  # fmt: skip
    print(json.dumps(row), flush=True)
    return row


def send_slowly(target: ServerProcess, count: int = 200) -> tuple[str, int]:
    """Send large bodies one byte at a time for a while."""
    head = f"POST {INFER_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {64 << 20}\r\n\r\n"
    opened = [socket.create_connection(("127.0.0.1", target.port)) for _ in range(count)]
    for connection in opened:
        connection.sendall(head.encode())
    for _ in range(20):
        for connection in opened:
            connection.sendall(b"{")
        time.sleep(0.05)
    for connection in opened:
        connection.close()
    return "sent", 0


def upload_at_once(target: ServerProcess, count: int = 100) -> tuple[str, int]:
    """Send 8 MB of numbers over each of many connections at the same time."""
    body = (INFER_PATH, infer_request_body("FP32", b"1.5", 8 << 20), {})
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda _: post_body(target.port, body), range(count)))
    statuses = sorted({status for status, _ in answers})
    return ", ".join(statuses), sum(size for _, size in answers)


def read_slowly(target: ServerProcess, count: int = 50) -> tuple[str, int]:
    """Request 4 MB answers, and read nothing for a while."""
    rows = 1 << 18
    _, (path, body, headers) = next(f for f in http_bodies(rows * 16) if f[0] == "binary")
    header_lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    length = f"Content-Length: {len(body)}\r\n\r\n"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{header_lines}{length}"
    opened = [socket.create_connection(("127.0.0.1", target.port)) for _ in range(count)]
    for connection in opened:
        connection.sendall(head.encode() + body)
    time.sleep(3)
    for connection in opened:
        connection.close()
    return "asked", 0


def open_idle_connections(target: ServerProcess, count: int = 10_000) -> list[socket.socket]:
    """Open silent connections, as many as this process may have open files."""
    opened = []
    try:
        for _ in range(count):
            opened.append(socket.create_connection(("127.0.0.1", target.port)))
    except OSError:
        pass
    return opened


def main() -> None:
    """Measure and print."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="forms whose names hold this")
    parser.add_argument("--bytes", type=int, default=(64 << 20) - 100, help="of each body")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name, run_server(Path(name)) as target:
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        pinging = multiprocessing.get_context("spawn").Process(
            target=poll_health, args=(target.port, theirs), daemon=True
        )
        pinging.start()

        def measure_one(form: str, size: int, send: Callable[[], tuple[str, int]]) -> None:
            if options.only in form:
                rows.append(measure_request(target, ours, form, size, send))

        measure_one("nothing", 1, lambda: (time.sleep(1), ("", 0))[1])
        for form, body in http_bodies(options.bytes):
            measure_one(form, len(body[1]), lambda body=body: post_body(target.port, body))
        for form, data in grpc_messages(min(options.bytes, MAX_GRPC_BYTES)):
            measure_one(form, len(data), lambda data=data: call_grpc(target.grpc_port, data))
        measure_one("200 slow writers", 1, lambda: send_slowly(target))
        measure_one("100 uploads at once", 100 * (8 << 20), lambda: upload_at_once(target))
        measure_one("50 slow readers", 50 * (8 << 20), lambda: read_slowly(target))
        idle: list[socket.socket] = []

        def begin_idle() -> tuple[str, int]:
            idle.extend(open_idle_connections(target))
            return f"{len(idle)} opened", 0

        def end_idle() -> tuple[str, int]:
            while idle:
                idle.pop().close()
            return "closed", 0

        measure_one("opening 10,000 idle connections", 1, begin_idle)
        measure_one("10,000 idle connections", 1, lambda: (time.sleep(2), ("idle", 0))[1])
        measure_one("closing 10,000 idle connections", 1, end_idle)
        ours.send(False)
        pinging.join(30)
    print(f"{len(os.sched_getaffinity(0))} cores, bodies of {options.bytes} bytes")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
