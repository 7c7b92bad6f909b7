"""Message hub, the asyncio server on which trackers and proxies are built."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module

from ekiden.rpc.background_process import (
    FIRST_PASSED_DESCRIPTOR,
    Background,
    has_parent,
    start_task,
)
from ekiden.rpc.errors import FrameError, RPCError
from ekiden.rpc.messages import (
    FRAME_HEADER_BYTES,
    MAX_HELLO_BYTES,
    PROTOCOL_MAGIC,
    PROTOCOL_VERSION,
    Kind,
)
from ekiden.rpc.server import listen
from ekiden.rpc.tls_keys import Key
from ekiden.rpc.wire_format import NoHandles, parse_body, parse_header, serialize_frame
from ekiden.runtime.files import PathName

__all__ = ["Hub", "HubPeer"]

_log = logging.getLogger("ekiden.rpc")
_HELLO_TIMEOUT_S = 20.0


class HubPeer:
    """Connected peer of a hub: one connection that exchanges whole messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.key = ""
        self.timeout = 0
        self.constructor: list[object] = []
        self._coming: asyncio.Future[tuple[Kind, list[object]]] | None = None

    def next_message(self) -> asyncio.Future[tuple[Kind, list[object]]]:
        """Return a future of the next message, so that callers can wait for other events too."""
        # Two concurrent reads would split a message, so a pending one is returned again.
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._read_message())
        return self._coming

    async def receive(self) -> tuple[Kind, list[object]]:
        """Return the next message. Raises FrameError, and asyncio.IncompleteReadError at
        the end.
        """
        message = self.next_message()
        try:
            return await message
        finally:
            self._coming = None

    async def _read_message(self) -> tuple[Kind, list[object]]:
        # Hubs exchange no tensors, so the limit of HELLO bounds every message.
        kind, size = parse_header(
            await self.reader.readexactly(FRAME_HEADER_BYTES), MAX_HELLO_BYTES
        )
        return kind, parse_body(kind, await self.reader.readexactly(size), NoHandles())

    async def send(self, kind: Kind, *fields: object) -> None:
        """Send a message."""
        self.writer.write(serialize_frame(kind, fields, NoHandles()))
        # The sender waits while the peer reads slowly, so that no buffer grows without limit.
        await self.writer.drain()

    async def receive_hello(self) -> None:
        """Receive the peer's HELLO. Raises FrameError for another one."""
        kind, fields = await asyncio.wait_for(self.receive(), _HELLO_TIMEOUT_S)
        if kind is not Kind.HELLO or tuple(fields[:2]) != (PROTOCOL_MAGIC, PROTOCOL_VERSION):
            raise FrameError("rpc: HELLO of this version expected")
        assert isinstance(fields[3], int) and isinstance(fields[5], list)
        self.timeout, self.key, self.constructor = fields[3], str(fields[4]), fields[5]

    async def send_hello(
        self, key: str = "", timeout: int = 0, limit: int = MAX_HELLO_BYTES
    ) -> None:
        """Send HELLO."""
        await self.send(Kind.HELLO, PROTOCOL_MAGIC, PROTOCOL_VERSION, limit, timeout, key, [])

    async def authenticate(self, key: Key) -> None:
        """Exchange authentication tokens, as `tls_keys.wrap_server_socket` does."""
        stream: ssl.SSLObject = self.writer.get_extra_info("ssl_object")
        self.writer.write(key.channel_token(stream, b"server"))
        await self.writer.drain()
        peer_token = await asyncio.wait_for(self.reader.readexactly(32), _HELLO_TIMEOUT_S)
        # The comparison takes constant time: an early exit would reveal how much of a guess is
        # right.
        if not hmac.compare_digest(peer_token, key.channel_token(stream, b"client")):
            raise RPCError("rpc: the other side has another key")


class Hub(Background):
    """Process that runs a hub: a listening program that exchanges messages with every connection.
    It runs `serve(peer)`, returned by `make` (a function given as `module:name`), which is called
    with the listener, the plain `arguments`, and the other `listeners` that are open.
    """

    def __init__(
        self,
        what: str,
        where: tuple[str, int, int],
        credentials: PathName | None,
        make: str,
        arguments: Sequence[object] = (),
        listeners: Sequence[socket.socket] = (),
    ) -> None:
        listener, self.port = listen(what, *where, credentials)
        self.host = where[0]
        secret = None if credentials is None else Key.read(credentials)
        numbers = [listening.fileno() for listening in (listener, *listeners)]
        try:
            task = (make, tuple(arguments), len(numbers), secret)
            super().__init__(start_task("ekiden.rpc.hub:serve_program", task, numbers))
        finally:
            # The new process has its own descriptor: this one would keep the port bound after its
            # end.
            listener.close()


def serve_program(make: str, arguments: Sequence[object], count: int, secret: Key | None) -> None:
    """Run a hub's program from start to end."""
    module, _, name = make.partition(":")
    numbers = range(FIRST_PASSED_DESCRIPTOR, FIRST_PASSED_DESCRIPTOR + count)
    listener, *other_listeners = (socket.socket(fileno=number) for number in numbers)
    serve = getattr(import_module(module), name)(listener, *arguments, *other_listeners)
    asyncio.run(_serve_listener(listener, serve, secret))


async def _serve_listener(
    listener: socket.socket, serve: Callable[[HubPeer], Awaitable[None]], secret: Key | None
) -> None:
    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection; it must prove that it knows the secret before anything else is
        read. Errors are logged and end only this connection.
        """
        peer = HubPeer(reader, writer)
        try:
            if secret is not None:
                await peer.authenticate(secret)
            await serve(peer)
        except (RPCError, OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            _log.info("%s", error)
        finally:
            writer.close()

    parent = os.getppid()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, os._exit, 0)
    context = None if secret is None else secret.tls_context(ssl.PROTOCOL_TLS_SERVER)
    await asyncio.start_server(handle_connection, sock=listener, ssl=context)
    # A hub ends with its parent, which may die without sending a signal.
    while has_parent(parent):
        await asyncio.sleep(1)
