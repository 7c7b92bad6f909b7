"""An iteration of the event loop parses, reads and sends a bounded part of what clients send."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import cast

import pytest
from serving import Running

from ekiden.serve import connections, iteration_shares
from ekiden.serve.connections import MAX_PIPELINED, HttpConnection
from ekiden.serve.iteration_shares import (
    BODY_BYTES_PER_ITERATION,
    RESUMED_PER_ITERATION,
    SENT_PER_ITERATION,
    BodyReadingQueue,
    HeldFlowControl,
    SendTurns,
)


class _Transport:
    """A transport that says whether it reads."""

    is_reading = True

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True


def _flow() -> tuple[HeldFlowControl, _Transport]:
    transport = _Transport()
    return HeldFlowControl(cast(asyncio.Transport, transport)), transport


def test_held_connection_reads_when_both_sides_want_it() -> None:
    flow, transport = _flow()
    flow.pause_reading()
    flow.hold()
    flow.resume_reading()
    assert not transport.is_reading
    flow.hold()
    flow.release()
    flow.pause_reading()
    flow.release()
    assert not transport.is_reading
    flow.resume_reading()
    assert transport.is_reading


def test_bodies_beyond_the_share_of_an_iteration_wait_for_their_turns() -> None:
    flows = [_flow() for _ in range(3 * RESUMED_PER_ITERATION + 1)]

    async def read_all() -> list[int]:
        queue, loop, counts = BodyReadingQueue(), asyncio.get_running_loop(), []
        for flow, _ in flows:
            queue.join(flow)
        queue.count(BODY_BYTES_PER_ITERATION - 1, loop)
        assert all(transport.is_reading for _, transport in flows)
        queue.count(1, loop)
        assert not any(transport.is_reading for _, transport in flows)
        queue.leave(flows[0][0])
        assert flows[0][1].is_reading
        while not counts or counts[-1] < len(flows):
            await asyncio.sleep(0)
            counts.append(sum(transport.is_reading for _, transport in flows))
        return counts

    counts = asyncio.run(read_all())
    assert counts == [1 + n * RESUMED_PER_ITERATION for n in (1, 2, 3)]


def test_long_responses_are_sent_in_turn() -> None:
    sent: list[int] = []

    async def send_all() -> list[int]:
        turns, counts = SendTurns(), []

        async def send(number: int) -> None:
            await turns.wait()
            sent.append(number)

        tasks = [asyncio.create_task(send(number)) for number in range(2 * SENT_PER_ITERATION + 1)]
        await asyncio.sleep(0)
        tasks[0].cancel()  # a client that has gone
        while len(sent) < len(tasks) - 1:
            await asyncio.sleep(0)
            counts.append(len(sent))
        return counts

    counts = asyncio.run(send_all())
    assert sent == list(range(1, 2 * SENT_PER_ITERATION + 1))
    assert max(b - a for a, b in zip([0, *counts], counts, strict=False)) == SENT_PER_ITERATION


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """The requests that waited after each call of the parser, and the bytes that it was given."""
    calls: list[tuple[int, int]] = []
    parse = HttpConnection._parse

    def recorded(self: HttpConnection, data: memoryview) -> memoryview:
        rest = parse(self, data)
        calls.append((len(self.pipeline), len(data) - len(rest)))
        return rest

    monkeypatch.setattr(HttpConnection, "_parse", recorded)
    yield calls


def _answers(server: Running, data: bytes, count: int) -> list[bytes]:
    """Return the status lines of the answers to data."""
    with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
        connection.sendall(data)
        received = b""
        while received.count(b"HTTP/1.1 ") < count and (part := connection.recv(1 << 16)):
            received += part
    return re.findall(rb"HTTP/1\.1 (\d+)", received)


REQUEST = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_requests_behind_others_are_parsed_as_those_are_answered(
    server: Running, parsed: list[tuple[int, int]]
) -> None:
    shortest = len(b"GET / HTTP/1.1\r\n\r\n")
    assert _answers(server, REQUEST * 1000, 1000) == [b"200"] * 1000
    assert (
        max(waiting for waiting, _ in parsed)
        < MAX_PIPELINED + connections.HEAD_PIECE_BYTES / shortest
    )


def test_bodies_that_begin_at_once_are_parsed_in_turn(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has read the first bytes of all of them before it can hold any."""
    num_parsed: list[int] = []
    begin_iteration = BodyReadingQueue._begin_iteration

    def record(self: BodyReadingQueue, loop: asyncio.AbstractEventLoop) -> None:
        num_parsed.append(self._num_bytes)
        begin_iteration(self, loop)

    monkeypatch.setattr(BodyReadingQueue, "_begin_iteration", record)
    share, size = 100_000, 150_000
    monkeypatch.setattr(iteration_shares, "BODY_BYTES_PER_ITERATION", share)
    head = b"POST /v2/models/soft/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    request, resumed = head % size + b" " * size, threading.Event()
    clients = [socket.create_connection(("127.0.0.1", server.port), 30) for _ in range(30)]
    server.loop.call_soon_threadsafe(resumed.wait, 60)
    try:
        sent = [client.send(request, socket.MSG_DONTWAIT) for client in clients]
        assert sum(sent) > 4 * share
    finally:
        resumed.set()
    for client, count in zip(clients, sent, strict=True):
        client.sendall(request[count:])
    assert [client.recv(1 << 12)[9:12] for client in clients] == [b"400"] * len(clients)
    assert max(num_parsed) < share + connections.SHORT_BODY_BYTES
    for client in clients:
        client.close()


@pytest.mark.parametrize("size", [1, 5000])
def test_requests_behind_a_body_are_no_part_of_it(
    server: Running, parsed: list[tuple[int, int]], size: int
) -> None:
    head = b"POST /v2 HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size
    statuses = _answers(server, head + b"x" * size + REQUEST * 200, 201)
    assert statuses == [b"405"] + [b"200"] * 200
    assert max(bytes for _, bytes in parsed) < 2 * connections.HEAD_PIECE_BYTES + size


def test_chunked_body_is_parsed_in_pieces(server: Running, parsed: list[tuple[int, int]]) -> None:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0, 0, 0, 0]}
    body = json.dumps({"inputs": [tensor]}).encode() + b" " * 20_000
    head = b"POST /v2/models/soft/infer HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    assert _answers(server, head + chunks + b"0\r\n\r\n" + REQUEST, 2) == [b"200", b"200"]
    pieces = connections.HEAD_PIECE_BYTES + connections.CHUNKED_PIECE_BYTES
    assert max(bytes for _, bytes in parsed) <= pieces
