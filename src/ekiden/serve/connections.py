"""HTTP connections of uvicorn with limits on their number, idle time, header size and requests at
once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any
from weakref import ref

from starlette.requests import ClientDisconnect
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ekiden.serve.batcher import PendingArrivals
from ekiden.serve.config import Limits
from ekiden.serve.iteration_shares import BodyReadingQueue, HeldFlowControl
from ekiden.serve.metrics import ServerMetrics

__all__ = ["ABORT_KEY", "CancelOnDisconnect", "connection_class", "has_complete_body"]

ABORT_KEY = "ekiden.abort"
"""Where a request's scope has what ends its connection at once."""
CYCLE_KEY = "ekiden.cycle"
"""Where it has the request as uvicorn keeps it, of which `has_complete_body` asks: by a weak
reference, as that has the scope itself."""
CONNECTION_KEY = "ekiden.connection"
"""Where it has its connection, by a weak reference, whose end ends the task that answers it."""
MAX_HEADER_BYTES = 64 << 10
"""The most bytes of a request's line and headers; the parser itself would take any number."""

MAX_PIPELINED = 8
"""Requests of a connection that wait for the answer of another: further ones are not parsed."""
HEAD_PIECE_BYTES = 1024
"""Bytes of headers that are parsed at once: most requests have fewer, 50 of the shortest fit."""
CHUNKED_PIECE_BYTES = 16 << 10
"""Bytes of a chunked body that are parsed at once: 3,000 of the shortest chunks, about 4 ms."""
SHORT_BODY_BYTES = 16 << 10
"""Bytes of a body that is parsed as it comes, whatever the loop has read of others."""

CLOSED_PER_ITERATION = 256
"""Connections that are closed in one turn of the loop: about 2 ms of the processor."""


class ClosingQueue:
    """Queue of transports of disconnected clients, a few of which are closed in each iteration of
    the event loop.

    Ten thousand clients may go at once; closing all of their connections in one turn takes 80 ms,
    in which nobody is answered.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Transport] = deque()

    def add(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Queue a transport to be closed."""
        if not self._waiting:
            loop.call_soon(self._close_batch, loop)
        self._waiting.append(transport)

    def _close_batch(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(len(self._waiting), CLOSED_PER_ITERATION)):
            self._waiting.popleft().close()
        if self._waiting:
            loop.call_soon(self._close_batch, loop)


def connection_class(
    limits: Limits, metrics: ServerMetrics, arrivals: PendingArrivals
) -> type[HttpToolsProtocol]:
    """Return the connection class for a server's limits and metrics."""
    attributes = {
        "limits": limits,
        "metrics": metrics,
        "arrivals": arrivals,
        "closings": ClosingQueue(),
        "readings": BodyReadingQueue(),
    }
    return type("BoundedConnection", (HttpConnection,), attributes)


def has_complete_body(scope: Scope) -> bool:
    """Return whether a request's body has arrived completely."""
    cycle = scope[CYCLE_KEY]()
    return cycle is not None and not cycle.more_body


class CancelOnDisconnect:
    """Context manager that cancels the running task when the client disconnects.

    Raises ClientDisconnect instead of the cancellation, and at once if the client has already gone.
    It is a class, as each request enters one, and takes a third of a generator's time.
    """

    __slots__ = ("_connection", "_cycle")

    def __init__(self, scope: Scope) -> None:
        self._connection, self._cycle = scope[CONNECTION_KEY](), scope[CYCLE_KEY]()

    def __enter__(self) -> None:
        if self._connection is None or self._cycle is None or self._cycle.disconnected:
            raise ClientDisconnect
        self._connection.task = asyncio.current_task()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._connection.task = None
        if kind is asyncio.CancelledError and self._cycle.disconnected:
            raise ClientDisconnect from None


class HttpConnection(HttpToolsProtocol):
    """HTTP connection with limits on its idle time and the size of its headers. It may be idle for
    `idle_seconds` before each request; a request's headers may take just as long in total.
    """

    limits: Limits
    metrics: ServerMetrics
    arrivals: PendingArrivals
    closings: ClosingQueue
    readings: BodyReadingQueue
    flow: HeldFlowControl
    task: asyncio.Task[Any] | None = None
    """What is ended when the client goes: the task of a request whose result nobody else needs."""
    _timer: asyncio.TimerHandle | None = None
    _is_in_head = True
    _head = 0
    """Bytes of the headers that are not complete."""
    _marks = 0
    """How many headers and bodies have ended."""
    _body_left: int | None = 0
    """Bytes of the body that have not arrived; None for a chunked one."""
    _unparsed: memoryview | None = None
    """What was received behind as many requests as may wait, or as one iteration parses."""
    _is_scheduled = False
    """Whether `_parse_rest` will be called."""

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401  # as uvicorn has it
        """Register a new connection; close it if there are too many."""
        super().connection_made(transport)
        self.flow = HeldFlowControl(transport)
        self._self = ref(self)
        self.metrics.connections = len(self.connections)
        self._start_idle_timer()
        # Accepted first and then closed: the kernel's backlog would otherwise keep it waiting.
        if len(self.connections) > self.limits.connections:
            transport.close()

    def eof_received(self) -> bool | None:  # type: ignore[override]  # uvicorn gives nothing
        """Close the connection, whose client has gone: by the queue, but where TLS ends it."""
        if self.scheme == "https":  # a transport of TLS closes itself, whatever is returned
            return None
        self.closings.add(self.transport, self.loop)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the task of a closed connection."""
        self._stop_idle_timer()
        self.readings.leave(self.flow)
        self._unparsed = None
        self.pipeline.clear()  # its requests refer to the connection: it would become garbage
        if self.task is not None:
            self.task.cancel()
            self.task = None
        super().connection_lost(exc)
        self.metrics.connections = len(self.connections)

    def data_received(self, data: bytes) -> None:
        """Receive bytes of requests, of which one iteration of the loop parses a bounded number."""
        if self._unparsed is not None:  # a transport may give what it had read before the hold
            self._unparsed = memoryview(b"".join((self._unparsed, data)))
            return
        rest = self._parse(memoryview(data))
        if rest:
            self._unparsed = rest
            self.flow.hold()
            self._continue_soon()

    def _continue_soon(self) -> None:
        # With all places taken, the end of a response continues.
        if not self._is_scheduled and len(self.pipeline) < MAX_PIPELINED:
            self._is_scheduled = True
            self.loop.call_soon(self._parse_rest)

    def _parse_rest(self) -> None:
        """Parse what was left, and read on behind its end."""
        self._is_scheduled = False
        if self._unparsed is None or len(self.pipeline) >= MAX_PIPELINED:
            return
        self._unparsed = self._parse(self._unparsed) or None
        if self._unparsed is None:
            self.flow.release()
        else:
            self._continue_soon()

    def _parse(self, data: memoryview) -> memoryview:
        """Parse pieces of data until a second request begins, a chunked body has had its share, or
        all bodies have had theirs; return the rest.
        """
        while data and not self.transport.is_closing():
            size = self._piece_bytes()
            if not size:  # other bodies have had the share of this iteration
                break
            piece, data = data[:size], data[size:]
            num_waiting, is_chunked = len(self.pipeline), self._body_left is None
            self._parse_piece(piece)
            if len(self.pipeline) > num_waiting or is_chunked:
                break
        return data[:0] if self.transport.is_closing() else data

    def _piece_bytes(self) -> int:
        """Return how many bytes may be parsed at once; 0 for those of a long body when the
        iteration's share of all bodies is used up.
        """
        if self._is_in_head:
            return HEAD_PIECE_BYTES
        if self._body_left is None:
            return CHUNKED_PIECE_BYTES
        # Short requests are not kept waiting by long ones.
        is_short = self._body_left <= SHORT_BODY_BYTES
        return self._body_left if is_short else min(self._body_left, self.readings.bytes_left)

    def _parse_piece(self, piece: memoryview) -> None:
        before, is_body = self._marks, not self._is_in_head
        super().data_received(piece)  # type: ignore[arg-type]  # the parser takes any buffer
        if is_body:
            self.readings.count(len(piece), self.loop)
        if self._marks != before or not self._is_in_head:
            self._head = 0
        else:
            # A client that sends an endless header must not fill the memory.
            self._head += len(piece)
            if self._head > MAX_HEADER_BYTES and not self.transport.is_closing():
                self.send_400_response("Headers too large.")

    def on_headers_complete(self) -> None:
        """Start processing a request whose headers are complete; its body has limits of its own."""
        self._is_in_head = False
        self._marks += 1
        self._stop_idle_timer()
        self._begin_body()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:  # a request that the application is asked for
            self.arrivals.increment()
        self.scope[ABORT_KEY] = self.transport.abort  # type: ignore[literal-required]  # ours
        # Weak references: the cycle holds the scope, and a strong one would leave both to the
        # garbage collector.
        self.scope[CYCLE_KEY] = ref(self.cycle)  # type: ignore[literal-required]
        self.scope[CONNECTION_KEY] = self._self  # type: ignore[literal-required]

    def _begin_body(self) -> None:
        """Note the body's length, if there is one, and read it in turn with others."""
        headers = dict(self.headers)
        length = headers.get(b"content-length", b"0")  # digits, as the parser has checked
        self._body_left = None if b"transfer-encoding" in headers else int(length)
        if self._body_left != 0:
            self.readings.join(self.flow)

    def on_body(self, body: bytes) -> None:
        """Receive bytes of a body."""
        if self._body_left is not None:
            self._body_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record that the body is complete."""
        super().on_message_complete()
        self.readings.leave(self.flow)
        self._is_in_head, self._body_left = True, 0
        self._marks += 1

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self.task = None
        if not self.transport.is_closing():
            self._start_idle_timer()
            if self._unparsed is not None:
                self._continue_soon()

    def _start_idle_timer(self) -> None:
        self._stop_idle_timer()
        self._timer = self.loop.call_later(self.limits.idle_seconds, self._close_idle)

    def _stop_idle_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_idle(self) -> None:
        if self.transport.get_write_buffer_size():  # nobody takes the answer: it would stay
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.close()
