"""Sessions, from the side that asks: `connect`, `LocalSession`, `PopenSession`."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self, cast, overload

from ekiden.rpc.channel import Channel, Pipes
from ekiden.rpc.endpoint import Endpoint, Request
from ekiden.rpc.errors import RPCError
from ekiden.rpc.far import PIECE, FarThings, Progress, RemoteDevice, RemoteFunction, RemoteModule
from ekiden.rpc.keys import Key, client_socket
from ekiden.rpc.messages import Kind
from ekiden.rpc.services import hear, serve
from ekiden.runtime import device
from ekiden.runtime.files import PathName, named

__all__ = ["LocalSession", "PopenSession", "RPCSession", "connect"]

_HELLO_SECONDS = 20.0
"""How long the other side may take to say HELLO: it may have to start first."""
_LONGEST = (2**32 - 1) // 1000
"""Seconds of a session whose end can be said in milliseconds."""
_numbers = itertools.count()


class RPCSession:
    """A session: functions, modules, tensors and files of another process or machine.

    Made by `connect`. One request at a time: other threads wait. Leaving it as a context manager,
    or `close`, ends it, and everything it has on the other side.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._number = next(_numbers)

    def get_function(self, name: str) -> RemoteFunction:
        """The global function of that name. Raises AttributeError."""
        found = self._endpoint.request(Kind.FUNCTION, 0, name)
        if not isinstance(found, RemoteFunction):
            raise AttributeError(f"session: no function named {name!r}")
        return found

    def upload(
        self,
        data: PathName | bytes | bytearray,
        target: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Send a file, or bytes with the name they get, to the session's folder, in pieces;
        `progress(done, all)` is called after each. The file is there once all of it is: what had
        its name before stays until then. Raises OSError, ValueError for no name, RPCError for a
        file that becomes smaller meanwhile.
        """
        if isinstance(data, (bytes, bytearray)):
            if not target:
                raise ValueError("upload: bytes need a name: target=")
            blob = memoryview(data)
            pieces = (blob[at : at + self._step] for at in range(0, len(blob), self._step))
            self._upload(pieces, len(blob), target, progress)
            return
        name = target or os.path.basename(os.fspath(data))
        with _opened(data) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:  # or a pipe, or one of those in /proc: known when it has been read
                self.upload(file.readall(), name, progress)
            else:
                self._upload(_pieces_of(file, size, self._step), size, name, progress)

    @property
    def _step(self) -> int:
        """Bytes of a piece of a file."""
        return min(self._endpoint.peer_limit - 1024, PIECE)

    def _upload(
        self, pieces: Iterable[memoryview], size: int, name: str, progress: Progress | None
    ) -> None:
        """Send the pieces of a file."""
        ends: deque[int] = deque()

        def requests() -> Iterator[Request]:
            """A request for each piece; an empty file is one empty piece, so that it is made at
            all.
            """
            at = 0
            for piece in pieces if size else (memoryview(b""),):
                ends.append(at + len(piece))
                yield Kind.UPLOAD, (name, at, size, piece)
                at = ends[-1]
            if at != size:
                raise RPCError(f"upload '{name}': it became smaller meanwhile")

        def take(answer: object) -> None:
            """Reports how far the file has arrived: answers come in the order of the requests."""
            done = ends.popleft()
            if progress is not None:
                progress(done, size)

        self._endpoint.exchange(requests(), take)

    @overload
    def download(self, path: str, progress: Progress | None = None) -> bytearray: ...

    @overload
    def download(
        self, path: str, progress: Progress | None = None, *, into: bytearray | memoryview
    ) -> memoryview: ...

    def download(
        self,
        path: str,
        progress: Progress | None = None,
        *,
        into: bytearray | memoryview | None = None,
    ) -> bytearray | memoryview:
        """The bytes of a file of the session's folder; those of `into` that it fills, where memory
        is given for them, which may have been used before: fresh memory takes longer to be made
        than the bytes to come. Raises an RPCError that is an OSError, ValueError for too little
        memory.
        """
        size = cast(int, self._endpoint.request(Kind.SIZE, path))
        made = bytearray(size) if into is None else memoryview(into).cast("B")[:size]
        if isinstance(made, memoryview) and made.readonly:
            raise ValueError(f"download '{path}': memory that can be written expected")
        if len(made) < size:
            raise ValueError(f"download '{path}': room for {size} bytes expected, got {len(made)}")
        step = min(self._endpoint.channel.limit - 1024, PIECE)

        def ask(at: int, size: int) -> Request:
            return Kind.DOWNLOAD, (path, at, size)

        if not self._endpoint.fetch(ask, memoryview(made), step, progress):
            raise RPCError(f"download '{path}': it changed its size meanwhile")
        return made

    def remove(self, path: str) -> None:
        """Remove a file of the session's folder."""
        self._endpoint.request(Kind.REMOVE, path)

    def listdir(self, path: str = "") -> str:
        """The names of the files of the session's folder, with commas between, as in TVM."""
        return ",".join(cast(list[str], self._endpoint.request(Kind.LIST)))

    def load_module(self, path: str) -> RemoteModule:
        """The module in an uploaded file."""
        found = self._endpoint.request(Kind.LOAD, path)
        assert isinstance(found, RemoteModule)
        return found

    def download_linked_module(self, path: str) -> bytearray:
        """The library that the other side links of an uploaded archive; Ekiden's servers start no
        compilers, and say so.
        """
        found = self.get_function("tvm.rpc.server.download_linked_module")(path)
        return bytearray(cast(bytes, found))

    def device(self, dev_type: str | int, dev_id: int = 0) -> RemoteDevice:
        """A device of the other side, by name or DLPack's number."""
        return RemoteDevice.of(self._endpoint, self._number, device(dev_type, dev_id))

    def cpu(self, dev_id: int = 0) -> RemoteDevice:
        """The other side's host."""
        return self.device("cpu", dev_id)

    def _kind(name: str) -> Callable[[RPCSession, int], RemoteDevice]:  # type: ignore[misc]  # noqa: N805  # makes the methods below
        def make(self: RPCSession, dev_id: int = 0) -> RemoteDevice:
            return self.device(name, dev_id)

        make.__doc__ = f"A device of the kind {name!r} of the other side."
        return make

    cuda, cl, vulkan, metal = _kind("cuda"), _kind("opencl"), _kind("vulkan"), _kind("metal")
    rocm, ext_dev = _kind("rocm"), _kind("ext_dev")
    hexagon, webgpu = _kind("hexagon"), _kind("webgpu")
    del _kind

    @property
    def is_open(self) -> bool:
        """Whether the session goes on, as far as is known here."""
        return self._endpoint.channel.is_open

    def close(self) -> None:
        """End the session, from any thread: what runs there is stopped."""
        self._endpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_session(
    channel: Channel, key: str, timeout: float, constructor: Sequence[object] = ()
) -> Endpoint:
    """Say HELLO and hear it. Raises what the other side refuses it with, RPCSessionTimeoutError
    where the session's time is over before it is open.
    """
    far = FarThings()
    endpoint = Endpoint(channel, far)
    far.endpoint = weakref.ref(endpoint)
    begun = time.monotonic()  # before the other side begins to count: it may end the session first
    if timeout:
        channel.ends = begun + timeout
    endpoint.say_hello(key, math.ceil(timeout * 1000), constructor)  # 0 would be no timeout
    try:
        kind, body = channel.receive(_HELLO_SECONDS)
    except RPCError:
        channel.close()
        raise
    endpoint.hear_hello(kind, body)
    return endpoint


def connect(
    url: str,
    port: int,
    key: str = "",
    session_timeout: float = 0,
    session_constructor_args: Sequence[object] | None = None,
    enable_logging: bool = False,
    *,
    credentials: PathName | None = None,
) -> RPCSession:
    """Open a session with a server.

    `key` is the name of the device that is meant. After `session_timeout` seconds, if that is not
    0, the server ends the session. `session_constructor_args` ["rpc.Connect", url, port, key] asks
    the server to connect to another one, which then serves the session. `enable_logging` is there
    for programs that say so: `ekiden.rpc` logs. `credentials` is the key file that the server has,
    too (`ekiden rpc keygen`).

    Raises RPCError where there is no server, or it refuses; TypeError and ValueError for wrong
    arguments.
    """
    constructor = session_constructor_args or ()
    if not isinstance(constructor, (list, tuple)):
        raise TypeError(f"connect: a list of arguments expected, got {constructor!r}")
    if not 0 <= session_timeout <= _LONGEST:
        raise ValueError(
            f"connect: session_timeout: 0 to {_LONGEST} seconds expected, got {session_timeout!r}"
        )
    channel = dial(url, port, credentials)
    return RPCSession(open_session(channel, key, session_timeout, constructor))


def dial(url: str, port: int, credentials: PathName | None = None) -> Channel:
    """A channel to a server, tracker or proxy. Raises RPCError."""
    secret = None if credentials is None else Key.read(credentials)
    try:
        plain = socket.create_connection((url, port), _HELLO_SECONDS)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = plain if secret is None else client_socket(plain, secret)
    except (OSError, OverflowError, UnicodeError) as error:  # of a port or a name that cannot be
        said = (getattr(error, "strerror", None) or str(error)).lower()
        raise RPCError(f"connect to {url}:{port}: {said}") from error
    stream.settimeout(None)
    return Channel(stream)


class LocalSession(RPCSession):
    """A session with this process itself, for programs that are to run here and elsewhere."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        threading.Thread(target=_serve_here, args=(there,), daemon=True).start()
        super().__init__(open_session(Channel(here), "", 0))


def _serve_here(stream: socket.socket) -> None:
    folder = tempfile.TemporaryDirectory(prefix="ekiden-rpc-")
    with folder as path, stream, suppress(RPCError):  # who asks hears of it
        endpoint, *_ = hear(stream)
        serve(stream.fileno(), endpoint.peer_limit, Path(path), "")


def _opened(path: PathName) -> FileIO:
    with named("upload", path):
        return open(path, "rb", buffering=0)


def _pieces_of(file: FileIO, size: int, step: int) -> Iterator[memoryview]:
    """The first `size` bytes of a file, or all that it has, so many at a time; each is good until
    the next. Raises OSError.
    """
    room = memoryview(bytearray(step))
    while got := file.readinto(room[: min(step, size)]):
        yield room[:got]
        size -= got


class PopenSession(RPCSession):
    """A session with a program that speaks by its standard input and output, such as
    `ekiden-rpc --pipe` and what starts it in an emulator.

    `binary` is its path, its bytes, or a command of several words. Raises RPCError.
    """

    def __init__(self, binary: PathName | bytes | bytearray | Sequence[str]) -> None:
        super().__init__(open_session(Channel(start_program(_command(binary))), "", 0))


def start_program(command: Sequence[str]) -> Pipes:
    """The standard input and output of a program as a stream, with which it ends. Raises
    RPCError where it cannot be started."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        said = (error.strerror or str(error)).lower()
        raise RPCError(f"start '{command[0]}': {said}") from error
    assert process.stdin is not None and process.stdout is not None
    ends = (process.stdout.fileno(), process.stdin.fileno())
    source, target = (os.dup(end) for end in ends)
    process.stdin.close()
    process.stdout.close()

    def end() -> None:
        process.kill()
        process.wait()

    return Pipes(source, target, end)


def _command(binary: PathName | bytes | bytearray | Sequence[str]) -> list[str]:
    """The words of the command. Bytes become a file that goes with the process."""
    if isinstance(binary, (bytes, bytearray)):
        folder = tempfile.mkdtemp(prefix="ekiden-rpc-")
        path = Path(folder, "server")
        path.write_bytes(binary)
        path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        weakref.finalize(_KEEP, shutil.rmtree, folder, True)
        return [str(path), "--pipe"]
    if isinstance(binary, (str, os.PathLike)):
        return [os.path.abspath(binary), "--pipe"]
    return list(binary)


class _Keep:
    """Lives as long as the process."""


_KEEP = _Keep()
