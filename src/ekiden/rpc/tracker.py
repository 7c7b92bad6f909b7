"""RPC tracker: registry of free devices, and queue of requests for them.

It keeps what its connections have told it and nothing else: when it begins anew, servers put
themselves again. A device whose server ends goes with the connection; a request whose client ends
waits no more.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import math
import socket
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypedDict, TypeVar, cast

from ekiden.rpc.client import RPCSession, connect, open_channel, open_session
from ekiden.rpc.endpoint import Endpoint
from ekiden.rpc.errors import FrameError, RPCError, RPCSessionTimeoutError
from ekiden.rpc.hub import Hub, HubPeer
from ekiden.rpc.messages import Kind
from ekiden.runtime.files import PathName
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["Tracker", "TrackerSession", "connect_tracker"]

Result = TypeVar("Result")
CONNECT_TIMEOUT_S = 5.0
"""How long a client that was given a device may take to connect to it."""


class TrackerSummary(TypedDict):
    """Status of a tracker."""

    queue_info: dict[str, dict[str, int]]
    server_info: list[dict[str, object]]


class Tracker(Hub):
    """Tracker in a process of its own, on the first free port from `port` to `port_end`. Without
    `credentials` only this machine may connect. Raises InputError, ValueError as `Server` does.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 9190,
        port_end: int = 9199,
        silent: bool = False,
        reuse_addr: bool = True,
        timeout: float | None = None,
        *,
        credentials: PathName | None = None,
    ) -> None:
        where = (host, port, port_end)
        super().__init__(
            "rpc.Tracker", where, credentials, "ekiden.rpc.tracker:make_registry_handler"
        )


def make_registry_handler(listener: socket.socket) -> Callable[[HubPeer], Awaitable[None]]:
    """Return the handler of a tracker's clients and devices."""
    return _DeviceRegistry().serve


@dataclass(frozen=True, slots=True)
class _FreeDevice:
    """Free device, with the connection that registered it."""

    key: str
    host: str
    port: int
    match_key: str
    owner: HubPeer


class _DeviceRegistry:
    """Registry of free devices and pending requests."""

    def __init__(self) -> None:
        self.free: dict[str, list[_FreeDevice]] = defaultdict(list)
        self.known: dict[HubPeer, dict[str, _FreeDevice]] = {}
        """Devices of a connection by match: those in use, too."""
        self.waiting: dict[str, list[tuple[int, int, asyncio.Future[_FreeDevice]]]] = defaultdict(
            list
        )
        self.taken: dict[str, float] = {}
        """When a device was given away, by match."""
        self._order = itertools.count()

    async def serve(self, peer: HubPeer) -> None:
        """Handle one connection until it ends."""
        await peer.receive_hello()
        await peer.send_hello()
        self.known[peer] = {}
        try:
            while True:
                kind, fields = await peer.receive()
                await self._handle_message(peer, kind, fields)
        finally:
            # Devices live as long as the connection that announced them.
            for device in self.known.pop(peer).values():
                self._remove_device(device)

    async def _handle_message(self, peer: HubPeer, kind: Kind, fields: list[object]) -> None:
        """Answer one message."""
        match kind:
            case Kind.PUT:
                self._register_device(
                    _FreeDevice(*cast(tuple[str, str, int, str], tuple(fields)), peer)
                )
                await peer.send(Kind.RETURN, None)
            case Kind.DROP:
                if device := self.known[peer].pop(str(fields[0]), None):
                    self._remove_device(device)
                await peer.send(Kind.RETURN, None)
            case Kind.REQUEST:
                key, priority = cast(tuple[str, int], tuple(fields))
                assigned = await self._request_device(peer, key, priority)
                await peer.send(Kind.RETURN, [assigned.host, assigned.port, assigned.match_key])
            case Kind.SUMMARY:
                await peer.send(Kind.RETURN, json.dumps(self._summary()))
            case _:
                raise FrameError(f"rpc: a tracker does not serve {kind.name}")

    def _register_device(self, device: _FreeDevice) -> None:
        """Register a free device. One that was assigned a while ago and still reports itself free
        was never connected to, and is assigned again.
        """
        owned_devices = self.known.get(device.owner)
        if owned_devices is None or device in self.free[device.key]:
            return
        begin = self.taken.get(device.match_key)
        if (
            begin is not None
            and device.match_key in owned_devices
            and time.monotonic() < begin + CONNECT_TIMEOUT_S
        ):
            return
        if device.match_key in owned_devices:  # elsewhere before, or never connected to
            self._remove_device(owned_devices[device.match_key])
        if device.owner.key.startswith("server:"):
            for (
                known_device
            ) in owned_devices.values():  # a server is one device, whatever its match was before
                self._remove_device(known_device)
            owned_devices.clear()
        owned_devices[device.match_key] = device
        self._assign_device(device)

    def _assign_device(self, device: _FreeDevice) -> None:
        """Assign a device to the waiting client of highest priority, first come first served;
        otherwise keep it free.
        """
        queue = self.waiting[device.key]
        if queue:
            self.taken[device.match_key] = time.monotonic()
            heapq.heappop(queue)[2].set_result(device)
        else:
            self.free[device.key].append(device)

    def _remove_device(self, device: _FreeDevice) -> None:
        self.taken.pop(device.match_key, None)
        if device in self.free[device.key]:
            self.free[device.key].remove(device)

    async def _request_device(self, peer: HubPeer, key: str, priority: int) -> _FreeDevice:
        """Return a free device, waiting for one if necessary. Raises asyncio.IncompleteReadError if
        the client disconnects meanwhile; a device that was already assigned goes to the next.
        """
        if self.free.get(key):
            device = self.free[key].pop(0)
            self.taken[device.match_key] = time.monotonic()
            return device
        future: asyncio.Future[_FreeDevice] = asyncio.get_running_loop().create_future()
        # heapq with (-priority, order): highest priority first, then first come, first served.
        queue = self.waiting[key]
        heapq.heappush(queue, entry := (-priority, next(self._order), future))
        await asyncio.wait((future, peer.next_message()), return_when=asyncio.FIRST_COMPLETED)
        if peer.next_message().done():
            # The client left in the same step in which it was given the device: it goes to the next
            # one.
            if future.done() and future.result().owner in self.known:
                self._assign_device(future.result())
            elif not future.done():
                queue.remove(entry)
                heapq.heapify(queue)
            await peer.receive()
            raise FrameError("rpc: a message while a request waits")
        return future.result()

    def _summary(self) -> TrackerSummary:
        """Return the status in the format of TVM's trackers."""
        devices = [d for devices in self.known.values() for d in devices.values()]
        keys = sorted(self.free.keys() | {k for k, q in self.waiting.items() if q})
        queues = {
            key: {
                "free": len(self.free.get(key, ())),
                "pending": len(self.waiting.get(key, ())),
            }
            for key in keys
        }
        servers: list[dict[str, object]] = [
            {"addr": [d.host, d.port], "key": f"server:{d.key}"} for d in devices
        ]
        return {"queue_info": queues, "server_info": servers}


class TrackerSession:
    """Connection to a tracker, created by `connect_tracker`."""

    def __init__(self, addr: tuple[str, int], credentials: PathName | None = None) -> None:
        self._address, self._credentials = addr, credentials
        self._endpoint: Endpoint | None = self._open()

    def _open(self) -> Endpoint:
        return open_session(open_channel(*self._address, self._credentials), "client", 0)

    def _send_request(self, kind: Kind, *fields: object) -> object:
        """Send a request, reconnecting once if the connection has ended."""
        if self._endpoint is None or not self._endpoint.channel.is_open:
            self._endpoint = self._open()
        return self._endpoint.request(kind, *fields)

    def close(self) -> None:
        """Close the connection."""
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def summary(self) -> TrackerSummary:
        """Return the devices (`server_info`: address and key of each) and queues (`queue_info`:
        free and pending by key).
        """
        return cast(TrackerSummary, json.loads(str(self._send_request(Kind.SUMMARY))))

    def text_summary(self) -> str:
        """Return the summary as text."""
        status = self.summary()
        lines = ["server-address           key"]
        for server in sorted(status["server_info"], key=lambda e: str(e["key"])):
            lines.append(
                f"{':'.join(map(str, cast(list[object], server['addr']))):24} {server['key']}"
            )
        lines += ["", "key                      free  pending"]
        for key, counts in status["queue_info"].items():
            lines.append(f"{key:24} {counts['free']:<5} {counts['pending']}")
        return "\n".join(lines) + "\n"

    def request(
        self,
        key: str,
        priority: int = 1,
        session_timeout: float = 0,
        max_retry: int = 5,
        session_constructor_args: list[object] | None = None,
    ) -> RPCSession:
        """Return a session with a device of this name, once one is free.

        Args:
            key: The name of the device.
            priority: Requests of higher priority are served first.
            session_timeout: The time limit of the session in seconds, 0 for none.
            max_retry: How many devices to try if one cannot be reached.
            session_constructor_args: The arguments of the session's constructor.

        Raises RPCError, and RPCSessionTimeoutError if the session's time is over before it opens.
        """
        last: RPCError | None = None
        for _ in range(max_retry):
            begin = math.inf
            try:
                host, port, match = cast(
                    tuple[str, int, str], self._send_request(Kind.REQUEST, key, priority)
                )
                begin = time.monotonic()
                return connect(
                    host, port, f"{key}:{match}", session_timeout, session_constructor_args,
                    credentials=self._credentials,
                )  # fmt: skip
            except RPCError as error:
                is_over = session_timeout and time.monotonic() - begin >= session_timeout
                if is_over and isinstance(error, RPCSessionTimeoutError):
                    raise  # another device would give it no more
                last = error
        raise RPCError(f"request '{key}': no device in {max_retry} tries; the last: {last}")

    def request_and_run(
        self,
        key: str,
        func: Callable[[RPCSession], Result],
        priority: int = 1,
        session_timeout: float = 0,
        max_retry: int = 2,
    ) -> Result:
        """Return the result of a function of a session, retried on another device if one fails
        meanwhile. Raises what the function raises, and RPCError if no device lasts.
        """
        last: RPCError | None = None
        for _ in range(max_retry):
            session = self.request(key, priority, session_timeout)
            begin = time.monotonic()
            try:
                return func(session)
            except RPCSessionTimeoutError:
                raise
            except RPCError as error:
                if session.is_open:
                    raise
                last = error
                if session_timeout and time.monotonic() - begin >= session_timeout:
                    raise
        raise RPCError(f"run on '{key}': no device lasted in {max_retry} tries; the last: {last}")


def connect_tracker(url: str, port: int, *, credentials: PathName | None = None) -> TrackerSession:
    """Connect to a tracker."""
    return TrackerSession((url, port), credentials)
