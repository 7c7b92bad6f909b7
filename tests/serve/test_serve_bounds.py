"""What a client or the machine does to the server: slowness, silence, floods, death, full disks."""

from __future__ import annotations

import gc
import http.client
import io
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from serving import Running, ask_on, put, rows, serving

from ekiden.runtime import memory_stats, trim_pools
from ekiden.serve import Message, Piece, Sampling
from ekiden.serve.batcher import QueuedRequest
from ekiden.serve.datatypes import Array
from ekiden.serve.logs import JsonLog
from long_runs import sizes

X = [[1.0, 2.0, 3.0, 4.0]]
BODY = json.dumps({"inputs": rows({"x": X})}).encode()
SOFT = "/v2/models/soft/infer"


@pytest.fixture(scope="module")
def hasty(models: Path) -> Iterator[Running]:
    """One that gives bodies and the readers of answers little time, and all else enough."""
    limits = {"body_seconds": 0.3, "body_bytes": 1 << 20}
    with serving(models, {"flood": Flood()}, limits=limits, grpc=False) as running:
        yield running


@pytest.fixture(scope="module")
def curt(models: Path) -> Iterator[Running]:
    """One that waits for headers only so long."""
    with serving(models, limits={"idle_seconds": 0.3}, grpc=False) as running:
        yield running


class Flood:
    """Says the same without end."""

    closed = threading.Event()

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        return 1

    def generate(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[Piece]:
        try:
            while True:
                yield Piece("again and again " * 4096)
        finally:
            self.closed.set()


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), 30)


def ended(connection: socket.socket) -> bytes:
    """All that the server says before it closes."""
    result = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            result += data
    connection.close()
    return result


def test_stalled_body_is_timed_out(hasty: Running) -> None:
    connection = connect(hasty)
    connection.sendall(
        f"POST {SOFT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{".encode()
    )
    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 408")
    connection.close()


def test_missing_headers_are_timed_out(curt: Running) -> None:
    for data in (b"", b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n"):
        connection = connect(curt)
        with suppress(OSError):  # it was closed before they were said
            connection.sendall(data)
        assert ended(connection) == b""


def test_slow_headers_are_timed_out(curt: Running) -> None:
    connection = connect(curt)
    with pytest.raises(OSError):  # a reset or a broken pipe, as it comes
        connection.sendall(b"GET /v2 HTTP/1.1\r\n")
        while True:
            connection.sendall(b"A: b\r\n")
            time.sleep(0.02)
    connection.close()


def test_endless_headers_are_refused(hasty: Running) -> None:
    connection = connect(hasty)
    with suppress(OSError):
        connection.sendall(b"GET /v2 HTTP/1.1\r\n" + b"A: " + b"b" * (1 << 20))
    assert ended(connection)[:12] in (b"HTTP/1.1 400", b"")


def test_unread_answer_is_timed_out(hasty: Running) -> None:
    connection = connect(hasty)
    message = [{"role": "user", "content": "go"}]
    body = json.dumps({"model": "flood", "messages": message, "stream": True}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    assert Flood.closed.wait(30)
    connection.close()
    assert hasty.ask("GET", "/v2/health/live").status == 200


@contextmanager
def blocked(server: Running, name: str) -> Iterator[threading.Event]:
    """The model's only instance is busy until the block ends, or the event is set."""
    begun, free = threading.Event(), threading.Event()

    def wait(arrays: Sequence[Array], seconds: float) -> list[Array]:
        begun.set()
        assert free.wait(60)
        return []

    def put_work() -> None:
        version = server.server.engine.repository.get(name).get()
        future = server.loop.create_future()
        version.batcher.put(QueuedRequest([], future, time.monotonic() + 60, wait))

    server.loop.call_soon_threadsafe(put_work)
    try:
        assert begun.wait(30)
        yield free
    finally:
        free.set()


def waiting(server: Running, name: str, count: int) -> None:
    """Come back when so many requests wait for a model."""
    model = server.server.engine.repository.get(name)
    while sum(v.batcher.waiting for v in model.versions.values()) < count:
        time.sleep(0.002)


def test_excess_requests_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "soft", config="[model]\nqueue = 2\n")
    with serving(tmp_path, grpc=False) as server, ThreadPoolExecutor(2) as pool:
        with blocked(server, "soft"):
            asked = [pool.submit(server.infer, "soft", x=X) for _ in range(2)]
            waiting(server, "soft", 2)
            result = server.infer("soft", x=X)
            assert result.status == 429 and result.error == "2 requests wait already"
            assert int(result.headers["retry-after"]) >= 1
        assert [item.result().status for item in asked] == [200, 200]


def test_expired_requests_are_refused(server: Running) -> None:
    body = {"inputs": rows({"x": X}), "parameters": {"timeout": 20_000}}
    with blocked(server, "soft"):
        result = server.ask("POST", SOFT, body)
        assert result.status == 504 and result.error == "the time of the request is over"
    assert server.infer("soft", x=X).status == 200


def test_requests_beyond_memory_are_refused(models: Path) -> None:
    gc.collect()
    trim_pools()  # what others keep for reuse would be given back before a run fails
    with serving(models, memory=memory_stats().held + (4 << 20), grpc=False) as server:
        wide = np.ones((1, 1 << 21), np.float32)
        ports = [
            {"name": name, "shape": [1, 1 << 21], "datatype": "FP32",
             "parameters": {"binary_data_size": wide.nbytes}}
            for name in "xy"
        ]  # fmt: skip
        head = json.dumps({"inputs": ports, "parameters": {"binary_data_output": True}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        result = server.ask("POST", "/v2/models/add/infer", head + wide.tobytes() * 2, headers)
        assert result.status == 503 and "memory" in result.error, result.data
        assert result.headers["retry-after"]
        assert server.infer("soft", x=X).status == 200


def test_graceful_shutdown_finishes_requests(models: Path) -> None:
    with ThreadPoolExecutor(1) as pool, serving(models) as server:
        kept = server.connect()
        assert ask_on(kept, "GET", "/v2/health/ready").status == 200
        with blocked(server, "soft") as free:
            asked = pool.submit(server.infer, "soft", x=X)
            waiting(server, "soft", 1)
            server.loop.call_soon_threadsafe(server.stop.set)
            while not server.server.engine.is_stopping:
                time.sleep(0.002)
            assert ask_on(kept, "GET", "/v2/health/ready").status == 503
            refused = ask_on(kept, "POST", SOFT, BODY)
            assert refused.status == 503 and refused.error == "the server stops"
            free.set()
        assert asked.result().status == 200
        kept.close()
        server.thread.join(30)
        assert not server.thread.is_alive()


def test_shutdown_wait_is_bounded(models: Path) -> None:
    limits = {"stop_seconds": 0.2}
    with (
        ThreadPoolExecutor(1) as pool,
        serving(models, limits=limits) as server,
        blocked(server, "soft"),
    ):
        asked = pool.submit(server.infer, "soft", x=X)
        waiting(server, "soft", 1)
        server.loop.call_soon_threadsafe(server.stop.set)
        result = asked.result()
        assert result.status == 503 and result.error == "the server stops"
        server.thread.join(30)
        assert not server.thread.is_alive()


def test_unwritable_log_does_not_stop_the_server(models: Path) -> None:
    with serving(models, grpc=False) as server, open("/dev/full", "w") as full:
        server.server.engine.log = JsonLog("debug", full)
        assert server.infer("soft", x=X).status == 200
        assert server.infer("soft", y=X).status == 400
        with suppress(OSError):
            full.close()


def test_full_disk_does_not_stop_the_server(tmp_path: Path) -> None:
    """Compiling, reloading, sequences and the log on a disk without a byte left."""
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs unshare and user namespaces, to mount a small disk")
    program = Path(__file__).with_name("full_disk.py")
    argv = ["unshare", "-rm", sys.executable, str(program), str(tmp_path)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


@contextmanager
def process(models: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server of its own, and its port."""
    argv = [sys.executable, "-m", "ekiden", "serve", str(models), "--port", str(port)]
    output = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        assert output.stderr is not None
        result = next(json.loads(line) for line in output.stderr if '"listening"' in line)
        assert any('"started"' in line for line in output.stderr)
        yield output, result["port"]
    finally:
        output.kill()
        output.communicate()


class NotYetError(OSError):
    """The server is there and says that it cannot be asked."""


def post(port: int) -> list[float]:
    """The outputs of a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        result = ask_on(connection, "POST", SOFT, BODY)
        if result.status == 503:
            raise NotYetError
        return result.output()
    finally:
        connection.close()


@sizes("count", 200, 10_000)
def test_server_process_starts_and_stops(tmp_path: Path, count: int) -> None:
    """Idle connections beside requests; death by kill -9 under load; a new one in its place; a stop
    by SIGTERM."""
    models = tmp_path / "models"
    put(models, "soft")
    (models / "serve.toml").write_text("[server]\ngrpc = false\n")
    with process(models) as (result, port):
        expected = post(port)
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        assert [post(port) for _ in range(20)] == [expected] * 20
        for item in idle[: count // 2]:
            item.close()
        assert post(port) == expected
        asking = [Asking(port, expected) for _ in range(4)]
        try:
            for item in asking:
                item.until("right")
            os.kill(result.pid, signal.SIGKILL)
            result.wait(30)
            for item in asking:  # the death is an error to each
                item.until("none")
            with process(models, port) as (second, _):
                for item in asking:
                    item.until("right")
                    item.end()
                second.terminate()
                assert second.wait(30) == 0
        finally:
            for item in asking:
                item.end()
        assert not any(item.counts["wrong"] for item in asking)
        for item in idle:
            item.close()


class Asking:
    """A thread that asks a server again and again, and how often what came of it."""

    def __init__(self, port: int, expected: object) -> None:
        self.counts: Counter[str] = Counter()
        self._counted, self._ends = threading.Condition(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(port, expected))
        self._thread.start()

    def _run(self, port: int, expected: object) -> None:
        while not self._ends.is_set():
            try:
                outcome = "right" if post(port) == expected else "wrong"
            except (OSError, http.client.HTTPException):
                outcome = "none"
                time.sleep(0.01)
            with self._counted:
                self.counts[outcome] += 1
                self._counted.notify()

    def until(self, outcome: str) -> None:
        """Wait for a further one."""
        with self._counted:
            before = self.counts[outcome]
            assert self._counted.wait_for(lambda: self.counts[outcome] > before, 60), self.counts

    def end(self) -> None:
        self._ends.set()
        self._thread.join()


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    key, result = folder / f"{name}.key", folder / f"{name}.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    argv += ["-nodes", "-keyout", str(key), "-out", str(result), "-days", "2"]
    argv += ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run(argv, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs the command openssl")
    return result, key


def test_tls_and_client_certificates_are_checked(models: Path, tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc", reason="needs the package grpcio")
    result, key = certificate(tmp_path, "server")
    reference, their_key = certificate(tmp_path, "client")
    inputs = {"tls_certificate": str(result), "tls_key": str(key), "tls_client_ca": str(reference)}
    with serving(models, **inputs) as server:
        context = ssl.create_default_context(cafile=str(result))
        for has_certificate in (True, False):
            if has_certificate:
                context.load_cert_chain(reference, their_key)
            else:
                context = ssl.create_default_context(cafile=str(result))
            connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context)
            if has_certificate:
                assert ask_on(connection, "POST", SOFT, BODY).status == 200
            else:
                with pytest.raises(OSError):  # an alert or a reset, as it comes
                    ask_on(connection, "POST", SOFT, BODY)
            connection.close()
        credentials = grpc.ssl_channel_credentials(
            result.read_bytes(), their_key.read_bytes(), reference.read_bytes()
        )
        place = f"127.0.0.1:{server.server.grpc_port}"
        with grpc.secure_channel(place, credentials) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert call(b"", timeout=30) == b"\x08\x01"


def test_opentelemetry_spans_are_emitted(models: Path) -> None:
    sdk = pytest.importorskip(
        "opentelemetry.sdk.trace", reason="needs the package opentelemetry-sdk"
    )
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace.set_tracer_provider(provider)
    with serving(models, traces=True, grpc=False) as server:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        assert server.ask("POST", SOFT, BODY, {"traceparent": parent}).status == 200
    (span,) = kept.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == parent[3:35]
    assert dict(span.attributes) == {"ekiden.model": "soft"}


def test_log_lines_are_json(models: Path) -> None:
    with serving(models, grpc=False) as server:
        stream = io.StringIO()
        server.server.engine.log = JsonLog("debug", stream)
        server.infer("soft", x=X)
        server.ask("POST", "/v2/models/a-name-of-mine/infer", BODY)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(r["model"], r["outcome"]) for r in lines if r["event"] == "request"] == [
        ("soft", "ok"),
        ("", "unknown"),
    ]
