"""WebSocket bridge: web pages on this machine as servers at a proxy."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
from typing import TYPE_CHECKING

from ekiden.rpc.errors import FrameError, RPCError
from ekiden.rpc.hub import HubPeer
from ekiden.rpc.messages import (
    DEFAULT_MAX_FRAME_BYTES,
    FRAME_HEADER_BYTES,
    MAX_HELLO_BYTES,
    PROTOCOL_MAGIC,
    PROTOCOL_VERSION,
    Kind,
)
from ekiden.rpc.wire_format import parse_header

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection

__all__ = ["require_websockets", "start_websocket_server"]

_log = logging.getLogger("ekiden.rpc")
_LOCAL_ORIGIN_PATTERN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
"""Pages that may be servers; one of another place would be a stranger's program."""


def require_websockets() -> None:
    """Raise ImportError that names the package to install."""
    try:
        import websockets.asyncio.server  # noqa: F401, PLC0415
    except ImportError as error:
        text = "rpc.Proxy: web_port: package 'websockets' is missing; pip install 'ekiden[web]'"
        raise ImportError(text) from error


def start_websocket_server(listener: socket.socket, proxy: tuple[str, int]) -> None:
    """Serve pages in a daemon thread."""
    threading.Thread(target=lambda: asyncio.run(_serve_pages(listener, proxy)), daemon=True).start()


async def _serve_pages(listener: socket.socket, proxy: tuple[str, int]) -> None:
    from websockets.asyncio.server import serve  # noqa: PLC0415  # an extra

    async def handle_page(page: ServerConnection) -> None:
        """Handle one page. Errors are logged and end only this connection."""
        try:
            await _bridge_page(page, proxy)
        except (RPCError, OSError, EOFError, TimeoutError) as error:
            _log.info("%s", error)

    async with serve(
        handle_page,
        sock=listener,
        # None allows programs outside browsers, which send no Origin header.
        origins=[None, _LOCAL_ORIGIN_PATTERN],
        max_size=FRAME_HEADER_BYTES + DEFAULT_MAX_FRAME_BYTES,
        max_queue=1,  # a message waits until what came before has gone on
        compression=None,
    ):
        await asyncio.get_running_loop().create_future()


async def _bridge_page(page: ServerConnection, proxy: tuple[str, int]) -> None:
    """Receive a page's HELLO as a server, then bridge it to a connection to the proxy."""
    # Messages of the page are buffered in the socket pair, which blocks the page when it is full.
    proxy_end, page_end = socket.socketpair()
    page_reader, page_writer = await asyncio.open_connection(sock=proxy_end, limit=MAX_HELLO_BYTES)
    _, page_sink = await asyncio.open_connection(sock=page_end)
    feeding = asyncio.ensure_future(_forward_page_to_stream(page, page_sink))
    reader, writer = await asyncio.open_connection(*proxy)
    try:
        peer = HubPeer(page_reader, writer)
        await peer.receive_hello()
        if not peer.key.startswith("server:"):
            raise FrameError(f"rpc: a page is a server, got the key {peer.key!r}")
        await peer.send(
            Kind.HELLO, PROTOCOL_MAGIC, PROTOCOL_VERSION, MAX_HELLO_BYTES, 0, peer.key, []
        )
        pumps = [
            asyncio.ensure_future(forwarder)
            for forwarder in (
                _write_message_chunks(page_reader, writer),
                _forward_to_page(reader, page),
            )
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
    finally:
        feeding.cancel()
        for writer_or_socket in (writer, page_sink, page_writer):
            writer_or_socket.close()


async def _forward_page_to_stream(page: ServerConnection, into: asyncio.StreamWriter) -> None:
    """Forward a page's messages to a stream, no faster than they are read."""
    try:
        async for data in page:
            # The protocol has no text messages.
            if not isinstance(data, bytes):
                break
            into.write(data)
            await into.drain()
    finally:
        into.close()


async def _write_message_chunks(
    page_reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while data := await page_reader.read(1 << 18):
        writer.write(data)
        await writer.drain()


async def _forward_to_page(reader: asyncio.StreamReader, page: ServerConnection) -> None:
    """Forward a client's bytes to the page, one message each, checking each size before waiting for
    the body.
    """
    while True:
        head = await reader.readexactly(FRAME_HEADER_BYTES)
        _, size = parse_header(head, DEFAULT_MAX_FRAME_BYTES)
        await page.send(head + await reader.readexactly(size))
