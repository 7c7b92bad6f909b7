"""RPC server: a program that waits for clients, and one program per session.

    server = rpc.Server(port=9090)
    remote = rpc.connect("127.0.0.1", server.port)

Both are started afresh, never by fork. Sessions have the functions of Python that are registered in
the process that makes the server, as far as these can be sent to another program.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

from ekiden.rpc.background_process import (
    FIRST_PASSED_DESCRIPTOR,
    Background,
    has_parent,
    start_task,
)
from ekiden.rpc.client import open_channel, open_session
from ekiden.rpc.endpoint import Endpoint
from ekiden.rpc.errors import RPCError
from ekiden.rpc.folders import remove_stale_folders
from ekiden.rpc.function_pickle import serialize_function
from ekiden.rpc.handshake import HandshakenClient, HandshakeServer, forward_both_ways, run_in_thread
from ekiden.rpc.messages import MAX_HELLO_BYTES, PROTOCOL_MAGIC, PROTOCOL_VERSION, Kind
from ekiden.rpc.sandbox import Limits, missing_sandbox_facilities
from ekiden.rpc.session import SessionTask
from ekiden.rpc.session_programs import SessionProgram, start_session_program
from ekiden.rpc.tls_keys import Key, is_loopback
from ekiden.rpc.wire_format import NoHandles, serialize_frame
from ekiden.runtime import registered_callables
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import PathName
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["Background", "Limits", "Server", "listen", "serve_program"]

_log = logging.getLogger("ekiden.rpc")
_TRACKER_TIMEOUT_S = 20.0
"""How long a tracker may take to answer."""
_TRACKER_REFRESH_S = 6.0
"""How often a free server tells its tracker so: a client may have been lost that was to come."""
_DISCONNECT_GRACE_S = 1.0
"""How long a session may go on when its client has gone."""
_POLL_INTERVAL_S = 1.0
"""How often a server looks whether who started it is still there, and for its tracker."""
_USAGE_INTERVAL_S = 0.25
"""How often it looks at what its sessions use, while there are any."""
NUM_SPARE_PROGRAMS = 2
"""Programs that are ready before a client comes, of a server that has had one: the next may come
while another program starts. Before the first client there is one."""
_RETRY_DELAY_S = 1.0
"""Seconds before another program is started where one has failed, unless a client comes."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a server, as plain data."""

    tracker: tuple[str, int] | None
    address: str
    """What clients of the tracker are told to connect to."""
    credentials: str | None
    proxy: tuple[str, int] | None
    is_silent: bool
    task: SessionTask
    """What each session's program gets, with a folder of its own."""

    @property
    def secret(self) -> Key | None:
        """Return the key."""
        return None if self.credentials is None else Key.read(self.credentials)


class Server(Background):
    """Session server on `host`, on the first free port from `port` to `port_end`.

    Without `credentials`, the key file that clients must share (`ekiden rpc keygen`), `host` must
    be an address of this machine alone. `key` is the device name for clients and trackers; with
    `tracker_addr` the server tells a tracker when it is free, at `custom_addr` if given, and takes
    one session at a time. With `is_proxy`, `host` and `port` are those of a proxy.

    A session is a separate process, which loads `load_library`'s libraries, has the Python
    functions that are registered here now, and calls `server_init_callback` before its client
    comes. Functions and callback are sent there with the plain data that they use; a function that
    cannot be sent is an RPCError of its caller, a callback that cannot is one here.

    Sessions are held to `limits`, and with `sandbox` to their folder, without network and other
    processes. Raises InputError for unsupported arguments, ValueError if no port is free.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 9091,
        port_end: int = 9199,
        is_proxy: bool = False,
        tracker_addr: tuple[str, int] | None = None,
        key: str = "",
        load_library: str | Sequence[str] | None = None,
        custom_addr: str | None = None,
        silent: bool = False,
        no_fork: bool = False,
        server_init_callback: Callable[[], object] | None = None,
        reuse_addr: bool = True,
        timeout: float | None = None,
        *,
        credentials: PathName | None = None,
        limits: Limits | None = None,
        sandbox: bool = True,
    ) -> None:
        if no_fork or timeout is not None:
            raise InputError("rpc.Server: no_fork and timeout cannot be had: sessions are programs")
        if sandbox and (lack := missing_sandbox_facilities()):
            raise InputError(f"rpc.Server: no sandbox here: {lack}; or: sandbox=False")
        libraries = load_library.split(":") if isinstance(load_library, str) else load_library or ()
        tracker = None if tracker_addr is None else (tracker_addr[0], int(tracker_addr[1]))
        # The server runs in another working directory.
        paths = tuple(os.path.abspath(library) for library in libraries)
        task = _session_task(key, limits or Limits(), sandbox, paths, server_init_callback)
        options = ServerOptions(
            tracker, custom_addr or host,
            None if credentials is None else os.path.abspath(os.fspath(credentials)),
            (host, port) if is_proxy else None, silent, task,
        )  # fmt: skip
        listener = None
        if not is_proxy:
            listener, port = listen("rpc.Server", host, port, port_end, credentials, reuse_addr)
        self.host, self.port = host, port
        descriptors = [] if listener is None else [listener.fileno()]
        try:
            pid = start_task(
                "ekiden.rpc.server:serve_program", (options, not is_proxy), descriptors
            )
        finally:
            if listener is not None:
                listener.close()
        super().__init__(pid)


def _session_task(
    key: str,
    limits: Limits,
    has_sandbox: bool,
    libraries: tuple[str, ...],
    prepare: Callable[[], object] | None,
) -> SessionTask:
    """Build the task of each session's program."""
    functions: dict[str, bytes] = {}
    refused: dict[str, str] = {}
    for name, function in registered_callables().items():
        if str(getattr(function, "__module__", None)).partition(".")[0] == "ekiden":
            continue  # a session has these, or what it needs of them
        try:
            functions[name] = serialize_function("a function of the server's process", function)
        except RPCError as error:
            refused[name] = str(error)
    packed = None if prepare is None else serialize_function("server_init_callback", prepare)
    return SessionTask(key, "", limits, has_sandbox, libraries, functions, refused, packed)


def listen(
    what: str, host: str, port: int, end: int, credentials: PathName | None, reuse: bool = True
) -> tuple[socket.socket, int]:
    """Return a listening socket and its port. Raises InputError for an address reachable by others
    without a key, ValueError if no port is free.
    """
    # Without a key anyone who can connect may run code.
    if credentials is None and not is_loopback(host):
        raise InputError(
            f"{what}: without a key only this machine may connect: host='127.0.0.1' expected, got"
            f" '{host}'; or credentials=, a file that `ekiden rpc keygen` makes"
        )
    if credentials is not None:
        Key.read(credentials)
    else:
        _log.info("%s: no key, so it listens on %s alone", what, host)
    family = socket.getaddrinfo(host, port)[0][0]
    # Port 0 lets the system choose.
    for chosen in range(port, max(end, port + 1)) if port else (0,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        try:
            listener.bind((host, chosen))
            listener.listen(64)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        return listener, listener.getsockname()[1]
    raise ValueError(f"{what}: no port of {port} to {end} is free")


def serve_program(options: ServerOptions, has_listener: bool) -> None:
    """Run a server's program from start to end."""
    listener = socket.socket(fileno=FIRST_PASSED_DESCRIPTOR) if has_listener else None
    if options.is_silent:
        _log.setLevel(logging.ERROR)
    remove_stale_folders()
    _ServerLoop(listener, options).run()


@dataclass(eq=False, slots=True)
class _RunningSession:
    """Session with a connected client, with whose connection it ends."""

    program: SessionProgram
    client: HandshakenClient
    deadline: float
    disconnected_at: float | None = None
    """When the client was found to have gone."""


class _ServerLoop:
    """Event loop of a server: accepts connections, starts and monitors sessions, and keeps its
    tracker informed.
    """

    def __init__(self, listener: socket.socket | None, options: ServerOptions) -> None:
        self.listener, self.options, self.limits = listener, options, options.task.limits
        self.door = HandshakeServer(options.secret)
        self.waiting: list[HandshakenClient] = []
        self.spares: dict[int, SessionProgram] = {}
        self.sessions: dict[int, _RunningSession] = {}
        self.relays = 0
        self._parent = os.getppid()
        self._tracker: Endpoint | None = None
        self._is_put, self._put_at = False, 0.0
        self._match = ""
        self._rests_until = 0.0
        self._has_had_client = False
        signal.signal(signal.SIGTERM, lambda number, frame: self._shut_down())

    def run(self) -> None:
        """Run until the process that started the server ends."""
        try:
            while has_parent(self._parent):
                self._start_spares()
                self._register_at_tracker()
                if self.options.proxy is not None and self._is_idle:
                    self._wait_at_proxy()
                self._wait_for_events()
                self._enforce_limits()
        finally:
            self._shut_down()

    @property
    def _session_limit(self) -> int:
        """Return the maximum number of concurrent sessions."""
        return 1 if self.options.tracker is not None else self.limits.sessions

    @property
    def _is_idle(self) -> bool:
        """Return whether there are no clients, connected or connecting."""
        return not (self.sessions or self.relays or self.waiting or self.door.is_busy)

    def _shut_down(self) -> NoReturn:
        programs = [*self.spares.values(), *(s.program for s in self.sessions.values())]
        for program in programs:
            program.kill()
        for program in programs:
            program.clean_up()
        os._exit(0)

    def _start_spares(self) -> None:
        """Start session programs for waiting clients and spare ones for the next clients."""
        room = self._session_limit - len(self.sessions) - self.relays
        # Starting a sandboxed program takes long, so some are ready before clients come.
        target_count = min(
            room, max(NUM_SPARE_PROGRAMS if self._has_had_client else 1, len(self.waiting))
        )
        if not self.waiting and time.monotonic() < self._rests_until:
            return
        while len(self.spares) < target_count:
            try:
                program = start_session_program(self.options.task)
            except (OSError, RPCError) as error:  # no room for a folder, no more processes
                self._fail_waiting(str(error))
                return
            self.spares[program.process_descriptor] = program

    def _fail_waiting(self, reason: str) -> None:
        """Refuse the waiting clients because a program could not be started or prepared; the next
        client triggers another attempt.
        """
        _log.warning("no session: %s", reason)
        for client in self.waiting:
            client.send_refusal(f"rpc: no session: {reason}")
        self.waiting.clear()
        self._rests_until = time.monotonic() + _RETRY_DELAY_S

    def _wait_for_events(self) -> None:
        """Wait for the next event: a client, a report or the end of a program, or a deadline."""
        actions: dict[int, Callable[[], object]] = {self.door.wake: self._queue_clients}
        poll = select.poll()
        # With enough clients waiting, further connections stay in the kernel's backlog.
        if self.listener is not None and len(self.waiting) < self._session_limit:
            actions[self.listener.fileno()] = self._accept_connection
        for spare in self.spares.values():
            self._watch_program(actions, spare)
            if spare.control is not None and not spare.is_ready:
                actions[spare.control.fileno()] = partial(self._read_ready_report, spare)
        for number in actions:
            poll.register(number, select.POLLIN)
        for session in self.sessions.values():
            self._watch_program(actions, session.program)
            poll.register(session.program.process_descriptor, select.POLLIN)
            if session.program.output_descriptor >= 0:
                poll.register(session.program.output_descriptor, select.POLLIN)
            if session.disconnected_at is None:
                actions[session.client.stream.fileno()] = partial(_mark_disconnected, session)
                # The session's process reads the data; this process only needs to see the client
                # leave.
                poll.register(session.client.stream, select.POLLRDHUP)
        seconds = _USAGE_INTERVAL_S if self.sessions or self.door.is_busy else _POLL_INTERVAL_S
        for number, _ in poll.poll(seconds * 1000):
            actions[number]()
        self._assign_clients()

    def _watch_program(
        self, actions: dict[int, Callable[[], object]], program: SessionProgram
    ) -> None:
        """Register callbacks for a program's exit and output."""
        actions[program.process_descriptor] = lambda: self._reap_program(program)
        if program.output_descriptor >= 0:
            actions[program.output_descriptor] = program.log_output

    def _accept_connection(self) -> None:
        assert self.listener is not None
        with suppress(OSError):  # it has gone already
            connection, address = self.listener.accept()
            _log.info("a session of %s", address)
            self.door.start_handshake(connection)

    def _queue_clients(self) -> None:
        """Queue greeted clients for a program, or relay them to another server."""
        expected_key = (
            f"{self.options.task.key}:{self._match}" if self._match else self.options.task.key
        )
        for client in self.door.take_completed():
            if client.key not in (expected_key, f"client:{expected_key}"):
                client.send_refusal(f"rpc: the key {client.key!r} is not that of this server")
            elif client.constructor and self.relays + len(self.sessions) < self._session_limit:
                self.relays += 1
                # A relayed session runs on another server, so it needs no program here.
                run_in_thread(partial(self._relay_client, client))
            elif client.constructor:
                client.send_refusal("rpc: this server has as many sessions as it may")
            else:
                self.waiting.append(client)

    def _read_ready_report(self, spare: SessionProgram) -> None:
        """Handle a program's report that it is ready, or why not."""
        if spare.process_descriptor not in self.spares:
            return
        if reason := spare.read_report():
            spare.kill()
            self._reap_program(spare)
            self._fail_waiting(reason)

    def _assign_clients(self) -> None:
        """Assign waiting clients to ready programs."""
        for client in list(self.waiting):
            ready = next((p for p in self.spares.values() if p.is_ready), None)
            if ready is None or len(self.sessions) + self.relays >= self._session_limit:
                return
            self.waiting.remove(client)
            del self.spares[ready.process_descriptor]
            self._begin_session(client, ready)

    def _begin_session(self, client: HandshakenClient, program: SessionProgram) -> None:
        """Begin a session. The program receives the connection, or one end of a socket pair whose
        other end this process bridges to TLS, so that no session has the key in its memory.
        """
        ends = time.monotonic() + self.limits.seconds
        if client.seconds:  # which its client counts from before it was heard
            # The time spent waiting for a program counts as well.
            ends = min(ends, client.received_at + client.seconds)
        self._has_had_client = True
        session = _RunningSession(program, client, ends)
        self.sessions[program.process_descriptor] = session
        with suppress(OSError):  # the program has ended, and is reaped
            if client.is_unencrypted:
                program.hand_over(client.stream, client.endpoint.peer_limit)
                return
            # TLS is terminated here, outside of the sandbox, so that no session can read the key.
            own_end, other_end = socket.socketpair()
            with other_end:
                program.hand_over(other_end, client.endpoint.peer_limit)
            run_in_thread(lambda: _forward_tls_bytes(client.stream, own_end))

    def _reap_program(self, program: SessionProgram) -> None:
        """Clean up after a program that has ended; idempotent, as another event of the same round
        may have done so.
        """
        # Already reaped by another action of the same poll.
        if program.process_descriptor < 0:
            return
        self.spares.pop(program.process_descriptor, None)
        session = self.sessions.pop(program.process_descriptor, None)
        is_lost = session is None and not program.is_ready and program.control is not None
        # waitpid after SIGKILL, so that no zombie keeps the process id.
        program.clean_up()
        if session is not None:
            session.client.endpoint.close()
            self._is_put = False
        # It died before it was ready; without a delay a broken setup would fork endlessly.
        elif is_lost:
            self._rests_until = time.monotonic() + _RETRY_DELAY_S

    def _enforce_limits(self) -> None:
        """End sessions whose client has gone, whose time is up, or that exceed a limit."""
        current_time = time.monotonic()
        self.door.close_expired()
        for session in self.sessions.values():
            reason = session.program.exceeded_limit()
            if current_time > session.deadline:
                reason = "its time is over"
            # A grace period lets the session finish by itself.
            elif (
                session.disconnected_at is not None
                and current_time > session.disconnected_at + _DISCONNECT_GRACE_S
            ):
                reason = "its client has gone"
            if reason:
                _log.info("session %d ends: %s", session.program.pid, reason)
                session.program.kill()

    def _register_at_tracker(self) -> None:
        """Register this server with its tracker while it is free, and again after the tracker has
        restarted.
        """
        if self.options.tracker is None or self.options.proxy is not None:
            return
        if self._tracker is not None and _has_disconnected(self._tracker):
            self._tracker = None
        is_known = self._is_put and self._tracker is not None
        is_taken = bool(self.sessions or self.relays or self.waiting)
        if is_taken or (is_known and time.monotonic() < self._put_at + _TRACKER_REFRESH_S):
            return
        assert self.listener is not None
        try:
            if self._tracker is None:
                channel = open_channel(*self.options.tracker, self.options.credentials)
                self._tracker = open_session(channel, f"server:{self.options.task.key}", 0)
            if not self._is_put:
                # A fresh match for every offer: a client of an earlier one cannot take the new
                # session.
                self._match = secrets.token_hex(8)
            port = self.listener.getsockname()[1]
            where = (self.options.task.key, self.options.address, port, self._match)
            self._tracker.request(Kind.PUT, *where, seconds=_TRACKER_TIMEOUT_S)
            self._is_put, self._put_at = True, time.monotonic()
        except RPCError as error:
            _log.info("no tracker: %s", error)
            self._tracker = None

    def _wait_at_proxy(self) -> None:
        """Connect to the proxy, where a client will meet this server."""
        assert self.options.proxy is not None
        try:
            channel = open_channel(*self.options.proxy, self.options.credentials)
            key = f"server:{self.options.task.key}"
            hello_fields = (PROTOCOL_MAGIC, PROTOCOL_VERSION, MAX_HELLO_BYTES, 0, key, ())
            channel.send(serialize_frame(Kind.HELLO, hello_fields, NoHandles()))
        except RPCError as error:
            _log.info("no proxy: %s", error)
            return
        assert isinstance(channel.stream, socket.socket)
        self.door.start_handshake(channel.stream, is_known=True)

    def _relay_client(self, client: HandshakenClient) -> None:
        """Connect to another server, which serves the session, and forward frames unchanged."""
        try:
            upstream = _connect_other_server(client, self.options.credentials)
            client.endpoint.send_hello(self.options.task.key, limit=upstream.peer_limit)
            assert isinstance(upstream.channel.stream, socket.socket)
            forward_both_ways(client.stream, upstream.channel.stream)
        except RPCError as error:
            client.send_refusal(str(error))
        except OSError as error:
            _log.info("%s", error)
        finally:
            client.endpoint.close()
            self.relays -= 1
            self._is_put = False
            self.door.wake_up()


def _mark_disconnected(session: _RunningSession) -> None:
    session.disconnected_at = time.monotonic()


def _has_disconnected(endpoint: Endpoint) -> bool:
    """Return whether the other side of an idle connection has closed it."""
    stream = endpoint.channel.stream
    assert isinstance(stream, socket.socket)
    return not endpoint.channel.is_open or bool(select.select([stream], [], [], 0)[0])


def _forward_tls_bytes(stream: socket.socket, session: socket.socket) -> None:
    """Forward a TLS client's bytes to its session and back, until a side ends."""
    with suppress(OSError), session:
        forward_both_ways(stream, session)
    with suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)


def _connect_other_server(client: HandshakenClient, credentials: str | None) -> Endpoint:
    """Open a session with the server a client asks for."""
    name, *arguments = client.constructor
    if name != "rpc.Connect" or len(arguments) not in (2, 3, 4):
        raise RPCError(f"rpc: a session is made by rpc.Connect, url, port and key; got {name!r}")
    url, port, key = (*arguments[:3], "")[:3]
    if not isinstance(url, str) or not isinstance(port, int) or not isinstance(key, str):
        raise RPCError("rpc: rpc.Connect takes url, port and key")
    return open_session(open_channel(url, port, credentials), key, 0)
