"""HTTP connections of uvicorn with limits on their number, idle time and header size."""

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
    task: asyncio.Task[Any] | None = None
    """What is ended when the client goes: the task of a request whose result nobody else needs."""
    _timer: asyncio.TimerHandle | None = None
    _is_in_head = True
    _head = 0
    """Bytes of the headers that are not complete."""
    _marks = 0
    """How many headers and bodies have ended."""

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401  # as uvicorn has it
        """Register a new connection; close it if there are too many."""
        super().connection_made(transport)
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
        if self.task is not None:
            self.task.cancel()
            self.task = None
        super().connection_lost(exc)
        self.metrics.connections = len(self.connections)

    def data_received(self, data: bytes) -> None:
        """Receive bytes of a request."""
        before = self._marks
        super().data_received(data)
        if self._marks != before or not self._is_in_head:
            self._head = 0
        else:
            # A client that sends an endless header must not fill the memory.
            self._head += len(data)
            if self._head > MAX_HEADER_BYTES and not self.transport.is_closing():
                self.send_400_response("Headers too large.")

    def on_headers_complete(self) -> None:
        """Start processing a request whose headers are complete; its body has limits of its own."""
        self._is_in_head = False
        self._marks += 1
        self._stop_idle_timer()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:  # a request that the application is asked for
            self.arrivals.increment()
        self.scope[ABORT_KEY] = self.transport.abort  # type: ignore[literal-required]  # ours
        # Weak references: the cycle holds the scope, and a strong one would leave both to the
        # garbage collector.
        self.scope[CYCLE_KEY] = ref(self.cycle)  # type: ignore[literal-required]
        self.scope[CONNECTION_KEY] = self._self  # type: ignore[literal-required]

    def on_message_complete(self) -> None:
        """Record that the body is complete."""
        super().on_message_complete()
        self._is_in_head = True
        self._marks += 1

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self.task = None
        if not self.transport.is_closing():
            self._start_idle_timer()

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
