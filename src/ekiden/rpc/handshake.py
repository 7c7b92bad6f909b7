"""Connection acceptance of a server: handshakes run on threads of their own, before a client gets a
session.

Handshakes and first messages run in threads of the server, so many at once and so long; of more,
the oldest are sent away. So whoever only knocks, or speaks a byte a minute, holds no session.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from ekiden.rpc.endpoint import Endpoint
from ekiden.rpc.errors import RPCError
from ekiden.rpc.services import receive_hello
from ekiden.rpc.tls_keys import Key, wrap_server_socket
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["HandshakeServer", "HandshakenClient", "forward_both_ways", "run_in_thread"]

_log = logging.getLogger("ekiden.rpc")
MAX_PENDING_HANDSHAKES = 64
"""Connections that are greeted at once: that of the oldest ends for one more."""
HANDSHAKE_TIMEOUT_S = 10.0
"""How long a handshake and the first message may take together, however they trickle."""
RELAY_BUFFER_BYTES = 1 << 18
"""Most that is read at once of what is passed on."""


@dataclass(eq=False, slots=True)
class HandshakenClient:
    """Client that has completed the handshake and sent its first message."""

    endpoint: Endpoint
    stream: socket.socket
    seconds: float
    """How long its session may last at most; 0: as long as the server lets it."""
    key: str
    constructor: Sequence[object]
    received_at: float

    @property
    def is_unencrypted(self) -> bool:
        """Return whether its connection is unencrypted, so that its descriptor can be passed to
        another process.
        """
        return not isinstance(self.stream, ssl.SSLSocket)

    def send_refusal(self, text: str) -> None:
        """Send the client the reason why there is no session."""
        with suppress(RPCError, OSError):  # it has gone
            self.endpoint.send_refusal(RPCError(text))


@dataclass(eq=False, slots=True)
class _PendingHandshake:
    """Connection whose first message is awaited until its deadline."""

    connection: socket.socket
    deadline: float | None


class HandshakeServer:
    """Acceptor that performs handshakes with new connections on threads. `wake` becomes readable
    when `take` has something to return.
    """

    def __init__(self, secret: Key | None) -> None:
        self._secret = secret
        self._greetings: dict[int, _PendingHandshake] = {}
        self._lock = threading.Lock()
        self._heard: deque[HandshakenClient] = deque()
        # The self-pipe trick: greeting threads wake the poll loop of the server.
        self.wake, self._news = os.pipe()
        os.set_blocking(self._news, False)
        os.set_blocking(self.wake, False)

    def start_handshake(self, connection: socket.socket, *, is_known: bool = False) -> None:
        """Start a handshake on a connection. With `is_known` the handshake has been made already
        and the first message may take any time, as on a connection to a proxy.
        """
        ends = None if is_known else time.monotonic() + HANDSHAKE_TIMEOUT_S
        greeting = _PendingHandshake(connection, ends)
        with self._lock:
            # Connections to proxies may wait for ever and do not count as unfinished handshakes.
            bounded = [g for g in self._greetings.values() if g.deadline is not None]
            self._greetings[id(greeting)] = greeting
        if len(bounded) >= MAX_PENDING_HANDSHAKES:
            # Dictionaries keep insertion order, so the first is the oldest.
            _shutdown_socket(bounded[0].connection)
        run_in_thread(lambda: self._perform_handshake(greeting, is_known))

    def _perform_handshake(self, greeting: _PendingHandshake, is_known: bool) -> None:
        """Perform the handshake and receive the first message, in a separate thread."""
        connection = greeting.connection
        try:
            # Requests are small and wait for answers: Nagle's algorithm would delay each of them.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = connection
            if self._secret is not None and not is_known:
                stream = wrap_server_socket(connection, self._secret)
            # From now on a cut must go through the TLS socket that wraps the connection.
            greeting.connection = stream
            seconds = None if is_known else HANDSHAKE_TIMEOUT_S
            endpoint, milliseconds, key, constructor = receive_hello(stream, seconds)
            # The handshake's time limit must not apply to the session.
            stream.settimeout(None)
            heard_at = time.monotonic()
            client = HandshakenClient(
                endpoint, stream, milliseconds / 1000, key, constructor, heard_at
            )
            self._heard.append(client)
        except (RPCError, OSError, ValueError) as error:
            _log.info("%s", error)
            with suppress(OSError):
                greeting.connection.close()
        finally:
            with self._lock:
                del self._greetings[id(greeting)]
            self.wake_up()

    def wake_up(self) -> None:
        """Make `wake` readable."""
        with suppress(BlockingIOError):  # it is already
            os.write(self._news, b"!")

    def take_completed(self) -> list[HandshakenClient]:
        """Return the clients whose handshake completed since the last call."""
        with suppress(BlockingIOError):
            os.read(self.wake, 4096)
        return [self._heard.popleft() for _ in range(len(self._heard))]

    @property
    def is_busy(self) -> bool:
        """Return whether a handshake is in progress, or a completed client has not been taken."""
        # In this order: a client is appended before its greeting is deleted, so that a server which
        # asks in between never takes itself for idle and waits at its proxy twice.
        return bool(self._greetings) or bool(self._heard)

    def close_expired(self) -> None:
        """Close the connections whose handshake deadline has passed."""
        current_time = time.monotonic()
        with self._lock:
            late = [
                g
                for g in self._greetings.values()
                if g.deadline is not None and g.deadline < current_time
            ]
        for greeting in late:
            _shutdown_socket(greeting.connection)


def _shutdown_socket(connection: socket.socket) -> None:
    """Shut down a connection that another thread is blocked on."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def run_in_thread(run: Callable[[], object]) -> None:
    """Run a function in a daemon thread."""
    threading.Thread(target=run, daemon=True).start()


def forward_both_ways(one: socket.socket, second: socket.socket) -> None:
    """Forward bytes in both directions until one side closes, through a single buffer: allocating
    memory for each message would take longer than a small message itself.
    """
    sides = {one.fileno(): (one, second), second.fileno(): (second, one)}
    room = memoryview(bytearray(RELAY_BUFFER_BYTES))
    poll = select.poll()
    for number in sides:
        poll.register(number, select.POLLIN)
    while True:
        for number, _ in poll.poll():
            source, target = sides[number]
            is_more = True
            while is_more:
                count = source.recv_into(room)
                if not count:
                    return
                target.sendall(room[:count])
                # Bytes that TLS has decrypted already are invisible to poll.
                is_more = isinstance(source, ssl.SSLSocket) and source.pending() > 0
