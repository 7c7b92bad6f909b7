"""The server: a process that waits, and one for each session.

    server = rpc.Server(port=9090)            a process of its own, which forks one for each session
    remote = rpc.connect("127.0.0.1", server.port)

Sessions see the functions that are registered in the process that makes the server.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import secrets
import select
import shutil
import signal
import socket
import ssl
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import NoReturn

from ekiden.rpc.client import dial, open_session
from ekiden.rpc.endpoint import Endpoint
from ekiden.rpc.errors import RPCError
from ekiden.rpc.keys import Key, is_loopback, server_socket
from ekiden.rpc.messages import HELLO_LIMIT, MAGIC, VERSION, Kind
from ekiden.rpc.sandbox import Limits, die_with_parent, enter, missing
from ekiden.rpc.services import hear, serve
from ekiden.rpc.wire import Plain, write_body
from ekiden.runtime import load_module, memory_limit
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import PathName
from ekiden.runtime.forks import forking
from ekiden.runtime.late_methods import dataclass

__all__ = ["Background", "Limits", "Server", "fork", "has_parent", "listen"]

_log = logging.getLogger("ekiden.rpc")
_HELLO_SECONDS = 20.0
_AGAIN = 6.0
"""How often a free server tells its tracker so: a client may have been lost that was to come."""
_GRACE = 1.0
"""How long a session may go on when its client has gone."""
RELAY_BYTES = 1 << 18
"""Most that is read at once of what is passed on."""
_TICK = 1.0
"""How often a server looks whether who started it is still there, and for its tracker."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a server was asked for."""

    key: str
    tracker: tuple[str, int] | None
    address: str
    """What clients of the tracker are told to connect to."""
    credentials: PathName | None
    limits: Limits
    sandbox: bool
    libraries: Sequence[str]
    proxy: tuple[str, int] | None = None

    @property
    def secret(self) -> Key | None:
        """The key."""
        return None if self.credentials is None else Key.read(self.credentials)


# A copy of this object in a forked process must not end the process that it names: the finalizer
# remembers whose it is.
class Background:
    """A process that was forked; it ends with `terminate`, with this object, with this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._end = weakref.finalize(self, _end, pid, os.getpid())

    def terminate(self) -> None:
        """End it, and what it has started."""
        self._end()

    def wait(self) -> None:
        """Wait until it ends."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _end(pid: int, owner: int) -> None:
    if os.getpid() != owner:  # a copy of the object, in a process that was forked
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


class Server(Background):
    """A server of sessions on `host`, on the first free port from `port` to `port_end`.

    Without `credentials`, the key file that clients must have too (`ekiden rpc keygen`), `host`
    must be of this machine alone. `key` is the name of the device for clients and trackers; with
    `tracker_addr` the server tells a tracker when it is free, by `custom_addr` where that is given,
    and takes one session at a time. With `is_proxy`, `host` and `port` are those of a proxy.
    `load_library` has libraries to load first. `server_init_callback` is called in the server.

    Sessions are held to `limits`, and with `sandbox` to their folder, without network and other
    processes. Raises InputError for what cannot be had, ValueError where no port is free.
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
            raise InputError("rpc.Server: no_fork and timeout cannot be had: sessions are forked")
        if sandbox and (lack := missing()):
            raise InputError(f"rpc.Server: no sandbox here: {lack}; or: sandbox=False")
        libraries = load_library.split(":") if isinstance(load_library, str) else load_library or ()
        tracker = None if tracker_addr is None else (tracker_addr[0], int(tracker_addr[1]))
        options = Options(
            key, tracker, custom_addr or host, credentials, limits or Limits(), sandbox, libraries,
            (host, port) if is_proxy else None,
        )  # fmt: skip
        listener = None
        if not is_proxy:
            listener, port = listen("rpc.Server", host, port, port_end, credentials, reuse_addr)
        self.host, self.port = host, port

        def run() -> None:
            """The server's process from its first line to its end."""
            if silent:
                _log.setLevel(logging.ERROR)
            if server_init_callback is not None:
                server_init_callback()
            _Loop(listener, options).run()

        super().__init__(fork(run))
        if listener is not None:
            listener.close()


def listen(
    what: str, host: str, port: int, end: int, credentials: PathName | None, reuse: bool = True
) -> tuple[socket.socket, int]:
    """A socket that listens, and its port. Raises InputError for an address that others reach where
    there is no key, ValueError where no port is free.
    """
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
    for chosen in range(port, max(end, port + 1)) if port else (0,):
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        try:
            made.bind((host, chosen))
            made.listen(64)
        except OSError as error:
            made.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        return made, made.getsockname()[1]
    raise ValueError(f"{what}: no port of {port} to {end} is free")


# A process for each session: what a client uploads runs there, and may crash it, fill its memory or
# never come back, while the server stays as it is.
def fork(run: Callable[[], object]) -> int:
    """The number of a new process that runs a function and ends. Raises OSError."""
    with forking():  # what runs there starts threads of its own
        pid = os.fork()
    if pid == 0:
        _run_child(run)
    return pid


def _run_child(run: Callable[[], object]) -> NoReturn:
    code = 1
    try:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        run()
        code = 0
    except (RPCError, OSError) as error:
        _log.info("%s", error)
    except BaseException:
        _log.exception("a process of ekiden.rpc failed")
    finally:
        os._exit(code)


def has_parent(parent: int) -> bool:
    """Whether who started this process is still there."""
    return os.getppid() == parent


@dataclass(slots=True)
class _Session:
    """A session that runs: its process, and the connection while its client is there."""

    pid: int
    process: int
    """The file descriptor of the process, readable when it has ended."""
    connection: socket.socket
    folder: str
    gone: float | None = field(default=None)
    """When the client was found to have gone."""


class _Loop:
    """What a server's process does: accepts, watches sessions, tells its tracker."""

    def __init__(self, listener: socket.socket | None, options: Options) -> None:
        self.listener, self.options = listener, options
        self.sessions: dict[int, _Session] = {}
        self._parent = os.getppid()
        self._tracker: Endpoint | None = None
        self._is_put, self._put_at = False, 0.0
        self._match = ""
        for each in options.libraries:
            load_module(each)
        signal.signal(signal.SIGTERM, lambda number, frame: self._end())

    def run(self) -> None:
        """Until whoever started the server ends."""
        try:
            while has_parent(self._parent):
                self._tell_tracker()
                if self.options.proxy is not None and not self.sessions:
                    self._wait_at_proxy()
                self._wait()
        finally:
            self._end()

    def _end(self) -> NoReturn:
        for each in self.sessions.values():
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
            os.waitpid(each.pid, 0)
            shutil.rmtree(each.folder, ignore_errors=True)
        os._exit(0)

    def _wait(self) -> None:
        """Wait for what comes first: a client, the end of a session, of a client, of time."""
        poll = select.poll()
        most = 1 if self.options.tracker is not None else self.options.limits.sessions
        is_full = len(self.sessions) >= most
        if self.listener is not None and not is_full:
            poll.register(self.listener, select.POLLIN)
        for number, session in self.sessions.items():
            poll.register(number, select.POLLIN)
            if session.gone is None:
                poll.register(session.connection, select.POLLRDHUP)
        now = time.monotonic()
        for number, _ in poll.poll(_TICK * 1000):
            if self.listener is not None and number == self.listener.fileno():
                self._accept()
            elif number in self.sessions:
                self._reap(self.sessions.pop(number))
            else:
                for session in self.sessions.values():
                    if session.connection.fileno() == number:
                        session.gone = now
        for session in self.sessions.values():
            if session.gone is not None and now > session.gone + _GRACE:
                with suppress(ProcessLookupError):
                    os.kill(session.pid, signal.SIGKILL)

    def _accept(self) -> None:
        assert self.listener is not None
        try:
            connection, address = self.listener.accept()
        except OSError:  # it has gone already
            return
        _log.info("a session of %s", address)
        try:
            self._start(connection)
        except OSError as error:  # no room for a folder, no more processes: the next may have some
            _log.warning("no session of %s: %s", address, error)
            connection.close()

    def _start(self, connection: socket.socket) -> None:
        """Fork a process for a session."""
        folder = tempfile.mkdtemp(prefix="ekiden-rpc-")
        wanted = f"{self.options.key}:{self._match}" if self._match else self.options.key
        try:
            pid = fork(lambda: self._serve(connection, Path(folder), wanted))
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        process = os.pidfd_open(pid)
        self.sessions[process] = _Session(pid, process, connection, folder)

    def _serve(self, connection: socket.socket, folder: Path, wanted: str) -> None:
        """What the process of a session does."""
        if self.listener is not None:
            self.listener.close()
        for each in self.sessions.values():
            each.connection.close()
            os.close(each.process)
        if self._tracker is not None:
            self._tracker.channel.stream.close()
        die_with_parent()
        Session(self.options, folder, wanted).run(connection)

    def _reap(self, session: _Session) -> None:
        os.waitpid(session.pid, 0)
        os.close(session.process)
        session.connection.close()
        shutil.rmtree(session.folder, ignore_errors=True)
        self._is_put = False

    def _tell_tracker(self) -> None:
        """Put this server where it is free; again where the tracker began anew."""
        if self.options.tracker is None or self.options.proxy is not None:
            return
        if self._tracker is not None and _has_ended(self._tracker):
            self._tracker = None
        is_known = self._is_put and self._tracker is not None
        if self.sessions or (is_known and time.monotonic() < self._put_at + _AGAIN):
            return
        assert self.listener is not None
        try:
            if self._tracker is None:
                channel = dial(*self.options.tracker, self.options.credentials)
                self._tracker = open_session(channel, f"server:{self.options.key}", 0)
            if not self._is_put:
                self._match = secrets.token_hex(8)
            port = self.listener.getsockname()[1]
            where = (self.options.key, self.options.address, port, self._match)
            self._tracker.request(Kind.PUT, *where, seconds=_HELLO_SECONDS)
            self._is_put, self._put_at = True, time.monotonic()
        except RPCError as error:
            _log.info("no tracker: %s", error)
            self._tracker = None

    def _wait_at_proxy(self) -> None:
        """Connect to the proxy, which a client will meet there."""
        assert self.options.proxy is not None
        try:
            channel = dial(*self.options.proxy, self.options.credentials)
            key = f"server:{self.options.key}"
            said = (MAGIC, VERSION, HELLO_LIMIT, 0, key, ())
            channel.send(write_body(Kind.HELLO, said, Plain()))
        except RPCError as error:
            _log.info("no proxy: %s", error)
            return
        stream = channel.stream
        assert isinstance(stream, socket.socket)
        self._start(stream)


def _has_ended(endpoint: Endpoint) -> bool:
    """Whether the other side of an idle connection has gone."""
    stream = endpoint.channel.stream
    assert isinstance(stream, socket.socket)
    return not endpoint.channel.is_open or bool(select.select([stream], [], [], 0)[0])


class Session:
    """What the process of one session does."""

    def __init__(self, options: Options, folder: Path, wanted: str) -> None:
        self.options, self.folder, self.wanted = options, folder, wanted

    def run(self, connection: socket.socket) -> None:
        """Shake hands, hear HELLO, and serve until the session ends."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secret = self.options.secret
        is_done = self.options.proxy is not None  # the proxy is who was shaken hands with
        stream = connection if secret is None or is_done else server_socket(connection, secret)
        seconds = None if is_done else _HELLO_SECONDS
        endpoint, timeout, key, constructor = hear(stream, seconds)
        if key not in (self.wanted, f"client:{self.wanted}"):
            endpoint.refuse(RPCError(f"rpc: the key {key!r} is not that of this server"))
            return
        if timeout:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, timeout / 1000)
        if constructor:
            self._relay(endpoint, stream, constructor)
            return
        self._confine(stream)
        serve(endpoint, self.folder, self.options.key)

    def _confine(self, stream: socket.socket) -> None:
        """Leave what the server had open, then the rest of the machine."""
        os.chdir(self.folder)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        kept = stream.fileno()
        os.closerange(3, kept)
        os.closerange(kept + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        if self.options.sandbox:
            memory_limit(self.options.limits.memory)
            enter(self.folder, self.options.limits)

    def _relay(
        self, endpoint: Endpoint, stream: socket.socket, constructor: Sequence[object]
    ) -> None:
        """Connect to another server, which serves the session: frames pass as they are."""
        try:
            name, *arguments = constructor
            if name != "rpc.Connect" or len(arguments) not in (2, 3, 4):
                raise RPCError(
                    f"rpc: a session is made by rpc.Connect, url, port and key; got {name!r}"
                )
            url, port, key = (*arguments[:3], "")[:3]
            if not isinstance(url, str) or not isinstance(port, int) or not isinstance(key, str):
                raise RPCError("rpc: rpc.Connect takes url, port and key")
            other = dial(url, port, self.options.credentials)
            inner = open_session(other, key, 0)
        except RPCError as error:
            endpoint.refuse(error)
            return
        endpoint.say_hello(self.options.key, limit=inner.peer_limit)
        assert isinstance(other.stream, socket.socket)
        relay(stream, other.stream)


def relay(one: socket.socket, other: socket.socket) -> None:
    """Pass bytes both ways until a side ends."""
    sides = {one: other, other: one}
    while True:
        for each in select.select(list(sides), [], [])[0]:
            data = each.recv(RELAY_BYTES)
            if not data:
                return
            sides[each].sendall(data)
            while isinstance(each, ssl.SSLSocket) and each.pending():
                sides[each].sendall(each.recv(RELAY_BYTES))
