"""RPC proxy: a meeting point for servers that nobody can connect to and their clients."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable

from ekiden.rpc.client import open_channel, open_session
from ekiden.rpc.endpoint import Endpoint
from ekiden.rpc.errors import RPCError
from ekiden.rpc.hub import Hub, HubPeer
from ekiden.rpc.messages import MAX_HELLO_BYTES, PROTOCOL_MAGIC, PROTOCOL_VERSION, Kind
from ekiden.rpc.server import listen
from ekiden.rpc.websocket import require_websockets, start_websocket_server
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import PathName
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["Proxy"]

_CLIENT_WAIT_S = 20.0
"""How long a client waits for a server that is not there yet."""


class Proxy(Hub):
    """RPC proxy in a separate process. Servers connect with `rpc.Server(host, port,
    is_proxy=True)`, clients with `rpc.connect`; with `tracker_addr`, the proxy registers its
    servers with a tracker. Without `credentials`, only this machine may connect. Web pages of this
    machine are servers over WebSocket at `web_port`, which needs the package websockets. Raises
    what `Server` raises, ImportError.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 9200,
        port_end: int = 9299,
        web_port: int = 0,
        tracker_addr: tuple[str, int] | None = None,
        *,
        credentials: PathName | None = None,
    ) -> None:
        web = [] if not web_port else [_listen_websockets(host, web_port, credentials)]
        path = None if credentials is None else os.path.abspath(os.fspath(credentials))
        try:
            super().__init__(
                "rpc.Proxy", (host, port, port_end), credentials,
                "ekiden.rpc.proxy:make_proxy_handler",
                (host, tracker_addr, path), web,
            )  # fmt: skip
        finally:
            # The hub's process has its own copies of the descriptors.
            for listener in web:
                listener.close()


def make_proxy_handler(
    listener: socket.socket,
    host: str,
    tracker: tuple[str, int] | None,
    credentials: str | None,
    web: socket.socket | None = None,
) -> Callable[[HubPeer], Awaitable[None]]:
    """Return the connection handler of a proxy for clients, servers and, with a WebSocket listener,
    pages.
    """
    port = listener.getsockname()[1]
    if web is not None:
        start_websocket_server(web, (host, port))
    return _ProxyRegistry((host, port), tracker, credentials).serve


def _listen_websockets(host: str, port: int, credentials: PathName | None) -> socket.socket:
    """Listen for WebSockets. Raises InputError with credentials, since a page has no key to be
    authenticated by.
    """
    if credentials is not None:
        raise InputError("rpc.Proxy: web_port: a page has no key; expected without credentials")
    require_websockets()
    return listen("rpc.Proxy: web_port", host, port, port + 1, None)[0]


@dataclass(eq=False, slots=True)
class _WaitingServer:
    """Registered server that waits for a client; the future `client` receives it."""

    peer: HubPeer
    match: str
    client: asyncio.Future[HubPeer]


class _ProxyRegistry:
    """Registry of waiting servers, which matches clients with them."""

    def __init__(
        self,
        own_address: tuple[str, int],
        tracker: tuple[str, int] | None,
        credentials: PathName | None,
    ) -> None:
        self._here, self._tracker_address, self._credentials = own_address, tracker, credentials
        self._tracker: Endpoint | None = None
        self.servers: dict[str, list[_WaitingServer]] = defaultdict(list)
        self._came = asyncio.Condition()
        self._telling = asyncio.Lock()

    async def serve(self, peer: HubPeer) -> None:
        """Handle one connection until it ends."""
        await peer.receive_hello()
        side, colon, key = peer.key.partition(":")
        if side == "server" and colon:
            await self._serve_server(peer, key)
        else:
            await self._serve_client(peer, peer.key)

    async def _serve_server(self, peer: HubPeer, key: str) -> None:
        """Register a server until a client takes it, then forward between them."""
        future: asyncio.Future[HubPeer] = asyncio.get_running_loop().create_future()
        waiting = _WaitingServer(peer, secrets.token_hex(8), future)
        async with self._came:
            self.servers[key].append(waiting)
            self._came.notify_all()
        await self._notify_tracker(Kind.PUT, key, *self._here, waiting.match)
        # A waiting server sends nothing, so any byte or EOF means that it has gone or begun.
        end = asyncio.ensure_future(peer.reader.read(1))
        await asyncio.wait((future, end), return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            self.servers[key].remove(waiting)
            await self._notify_tracker(Kind.DROP, waiting.match)
            return
        await self._notify_tracker(Kind.DROP, waiting.match)
        client = future.result()
        try:
            await self._join_peers(peer, client, key, end)
        finally:
            # A server that fails now must not leave its client waiting for ever.
            client.writer.close()

    async def _join_peers(
        self, peer: HubPeer, client: HubPeer, key: str, first_byte: asyncio.Future[bytes]
    ) -> None:
        """Introduce a client to its server and forward between them until either ends.

        Waiting for the server has begun to read its answer: `first_byte`, which the client needs.
        """
        await peer.send(
            Kind.HELLO,
            PROTOCOL_MAGIC,
            PROTOCOL_VERSION,
            MAX_HELLO_BYTES,
            client.timeout,
            key,
            client.constructor,
        )
        client.writer.write(await first_byte)
        await asyncio.wait(
            [
                asyncio.ensure_future(_forward_bytes(*direction))
                for direction in ((peer, client), (client, peer))
            ],
            return_when=asyncio.FIRST_COMPLETED,
        )

    async def _serve_client(self, peer: HubPeer, key: str) -> None:
        """Connect a client to a server: any of that name, or the one of the tracker's match."""
        try:
            await asyncio.wait_for(self._match_server(key, peer), _CLIENT_WAIT_S)
        except TimeoutError:
            await peer.send(Kind.ERROR, "RPCError", f"rpc: no server of key {key!r}", "")
            return
        await peer.writer.wait_closed()

    async def _match_server(self, key: str, client: HubPeer) -> None:
        """Await a server and hand it the client in the same step in which it leaves the list, so
        that neither can end in between and leave the other waiting.
        """
        async with self._came:
            while True:
                name, _, match = key.rpartition(":")
                for chosen, required_match in ((key, ""), (name, match)):
                    for server in self.servers.get(chosen, ()):
                        if required_match in ("", server.match):
                            self.servers[chosen].remove(server)
                            server.client.set_result(client)
                            return
                await self._came.wait()

    async def _notify_tracker(self, kind: Kind, *fields: object) -> None:
        """Send the tracker a message, if there is one; a lost message is sent again with the next
        server.
        """
        if self._tracker_address is not None:
            # One tracker connection, whose requests must not mix.
            async with self._telling:
                # The request blocks, so it runs in a thread and other connections proceed.
                await asyncio.to_thread(self._send_to_tracker, kind, *fields)

    def _send_to_tracker(self, kind: Kind, *fields: object) -> None:
        assert self._tracker_address is not None
        try:
            if self._tracker is None or not self._tracker.channel.is_open:
                channel = open_channel(*self._tracker_address, self._credentials)
                self._tracker = open_session(channel, f"proxy:{os.getpid()}", 0)
            self._tracker.request(kind, *fields, seconds=_CLIENT_WAIT_S)
        except RPCError:
            # The next message opens a new connection.
            self._tracker = None


async def _forward_bytes(one: HubPeer, destination: HubPeer) -> None:
    """Forward one side's bytes to the other until it ends."""
    while data := await one.reader.read(1 << 18):
        destination.writer.write(data)
        # Back pressure: a slow receiver slows the sender instead of filling memory.
        await destination.writer.drain()
