"""The client side of sessions: `connect`, `LocalSession`, `PopenSession`."""

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

from ekiden.rpc.channel import FrameChannel, PipeStream
from ekiden.rpc.endpoint import Endpoint, Request
from ekiden.rpc.errors import RPCError
from ekiden.rpc.messages import Kind
from ekiden.rpc.remote import (
    TRANSFER_CHUNK_BYTES,
    Progress,
    RemoteDevice,
    RemoteFunction,
    RemoteModule,
    SessionProxies,
)
from ekiden.rpc.services import receive_hello, serve_client
from ekiden.rpc.tls_keys import Key, wrap_client_socket
from ekiden.runtime import device
from ekiden.runtime.files import PathName, rewrite_os_errors

__all__ = ["LocalSession", "PopenSession", "RPCSession", "connect"]

_HELLO_TIMEOUT_S = 20.0
"""How long the other side may take to say HELLO: it may have to start first."""
_MAX_TIMEOUT_S = (2**32 - 1) // 1000
"""Seconds of a session whose end can be said in milliseconds."""
_session_numbers = itertools.count()


class RPCSession:
    """RPC session with a remote process: the functions, modules, tensors and files of another
    process or machine.

    Created by `connect`. It handles one request at a time; other threads wait. Leaving it as a
    context manager, or `close`, ends it, and everything it has on the other side.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._number = next(_session_numbers)

    def get_function(self, name: str) -> RemoteFunction:
        """Return a global function by name. Raises AttributeError."""
        function = self._endpoint.request(Kind.FUNCTION, 0, name)
        if not isinstance(function, RemoteFunction):
            raise AttributeError(f"session: no function named {name!r}")
        return function

    def upload(
        self,
        data: PathName | bytes | bytearray,
        target: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Send a file, or named bytes, to the session's folder, in chunks; `progress(done, all)` is
        called after each. The file is there once all of it is: what had its name before stays
        until then. Raises OSError, ValueError for no name, RPCError for a file that becomes
        smaller meanwhile.
        """
        if isinstance(data, (bytes, bytearray)):
            if not target:
                raise ValueError("upload: bytes need a name: target=")
            blob = memoryview(data)
            pieces = (
                blob[position : position + self._chunk_bytes]
                for position in range(0, len(blob), self._chunk_bytes)
            )
            self._upload_chunks(pieces, len(blob), target, progress)
            return
        name = target or os.path.basename(os.fspath(data))
        with _open_file(data) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:  # or a pipe, or one of those in /proc: known when it has been read
                self.upload(file.readall(), name, progress)
            else:
                self._upload_chunks(
                    _iter_chunks(file, size, self._chunk_bytes), size, name, progress
                )

    @property
    def _chunk_bytes(self) -> int:
        """Return the bytes of a chunk of a file."""
        # A message also holds the file's name and a header, for which 1,024 bytes remain.
        return min(self._endpoint.peer_limit - 1024, TRANSFER_CHUNK_BYTES)

    def _upload_chunks(
        self, pieces: Iterable[memoryview], size: int, name: str, progress: Progress | None
    ) -> None:
        """Send a file's chunks."""
        ends: deque[int] = deque()

        def chunk_requests() -> Iterator[Request]:
            """Yield a request for each chunk; an empty file is sent as one empty chunk, so that it
            is created.
            """
            position = 0
            for piece in pieces if size else (memoryview(b""),):
                ends.append(position + len(piece))
                yield Kind.UPLOAD, (name, position, size, piece)
                position = ends[-1]
            if position != size:
                raise RPCError(f"upload '{name}': it became smaller meanwhile")

        def report_progress(answer: object) -> None:
            """Report the bytes that have arrived: answers come in the order of the requests."""
            done = ends.popleft()
            if progress is not None:
                progress(done, size)

        self._endpoint.pipeline_requests(chunk_requests(), report_progress)

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
        """Return the bytes of a file in the session's folder.

        Args:
            path: The name of the file.
            progress: Called with the bytes received so far and their total.
            into: A buffer to fill, of which the filled part is returned; reusing memory is faster
                than allocating it.

        Raises an RPCError that is also an OSError, and ValueError for a buffer that is too small.
        """
        size = cast(int, self._endpoint.request(Kind.SIZE, path))
        buffer = bytearray(size) if into is None else memoryview(into).cast("B")[:size]
        if isinstance(buffer, memoryview) and buffer.readonly:
            raise ValueError(f"download '{path}': memory that can be written expected")
        if len(buffer) < size:
            raise ValueError(
                f"download '{path}': room for {size} bytes expected, got {len(buffer)}"
            )
        step = min(self._endpoint.channel.limit - 1024, TRANSFER_CHUNK_BYTES)

        def chunk_request(at: int, size: int) -> Request:
            """Return the request for a chunk of the file."""
            return Kind.DOWNLOAD, (path, at, size)

        if not self._endpoint.fetch_chunks(chunk_request, memoryview(buffer), step, progress):
            raise RPCError(f"download '{path}': it changed its size meanwhile")
        return buffer

    def remove(self, path: str) -> None:
        """Remove a file from the session's folder."""
        self._endpoint.request(Kind.REMOVE, path)

    def listdir(self, path: str = "") -> str:
        """Return the names of the files in the session's folder, separated by commas as in TVM."""
        return ",".join(cast(list[str], self._endpoint.request(Kind.LIST)))

    def load_module(self, path: str) -> RemoteModule:
        """Load an uploaded file as a module."""
        module = self._endpoint.request(Kind.LOAD, path)
        assert isinstance(module, RemoteModule)
        return module

    def download_linked_module(self, path: str) -> bytearray:
        """Return the library linked by the remote side from an uploaded archive. Ekiden's servers
        start no compilers and raise an error.
        """
        link_module = self.get_function("tvm.rpc.server.download_linked_module")(path)
        return bytearray(cast(bytes, link_module))

    def device(self, dev_type: str | int, dev_id: int = 0) -> RemoteDevice:
        """Return a device of the remote side, by name or DLPack number."""
        return RemoteDevice.of(self._endpoint, self._number, device(dev_type, dev_id))

    def cpu(self, dev_id: int = 0) -> RemoteDevice:
        """Return the remote side's host device."""
        return self.device("cpu", dev_id)

    def _device_constructor(name: str) -> Callable[[RPCSession, int], RemoteDevice]:  # type: ignore[misc]  # noqa: N805  # makes the methods below
        def make_device(self: RPCSession, dev_id: int = 0) -> RemoteDevice:
            return self.device(name, dev_id)

        make_device.__doc__ = f"A device of the kind {name!r} of the other side."
        return make_device

    cuda, cl, vulkan, metal = (
        _device_constructor("cuda"),
        _device_constructor("opencl"),
        _device_constructor("vulkan"),
        _device_constructor("metal"),
    )
    rocm, ext_dev = _device_constructor("rocm"), _device_constructor("ext_dev")
    hexagon, webgpu = _device_constructor("hexagon"), _device_constructor("webgpu")
    del _device_constructor

    @property
    def is_open(self) -> bool:
        """Return whether the session is open, as far as this side knows."""
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
    channel: FrameChannel, key: str, timeout: float, constructor: Sequence[object] = ()
) -> Endpoint:
    """Exchange HELLO messages and return the session's endpoint."""
    far = SessionProxies()
    endpoint = Endpoint(channel, far)
    far.endpoint = weakref.ref(endpoint)
    begun = time.monotonic()  # before the other side begins to count: it may end the session first
    if timeout:
        channel.ends = begun + timeout
    endpoint.send_hello(key, math.ceil(timeout * 1000), constructor)  # 0 would be no timeout
    try:
        kind, body = channel.receive(_HELLO_TIMEOUT_S)
    except RPCError:
        channel.close()
        raise
    endpoint.receive_hello(kind, body)
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

    Args:
        url: The host of the server.
        port: Its port.
        key: The name of the device that is meant.
        session_timeout: Seconds after which the server ends the session; 0 for no limit.
        session_constructor_args: ["rpc.Connect", url, port, key] makes the server connect to
            another one, which then serves the session.
        enable_logging: Accepted for TVM's programs: `ekiden.rpc` always logs.
        credentials: The key file that the server has, too (`ekiden rpc keygen`).

    Raises:
        RPCError: There is no server, or it refuses.
        TypeError, ValueError: For wrong arguments.
    """
    constructor = session_constructor_args or ()
    if not isinstance(constructor, (list, tuple)):
        raise TypeError(f"connect: a list of arguments expected, got {constructor!r}")
    if not 0 <= session_timeout <= _MAX_TIMEOUT_S:
        raise ValueError(
            f"connect: session_timeout: 0 to {_MAX_TIMEOUT_S} seconds expected, got "
            f"{session_timeout!r}"
        )
    channel = open_channel(url, port, credentials)
    return RPCSession(open_session(channel, key, session_timeout, constructor))


def open_channel(url: str, port: int, credentials: PathName | None = None) -> FrameChannel:
    """Open a channel to a server, tracker or proxy. Raises RPCError."""
    secret = None if credentials is None else Key.read(credentials)
    try:
        plain = socket.create_connection((url, port), _HELLO_TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = plain if secret is None else wrap_client_socket(plain, secret)
    except (OSError, OverflowError, UnicodeError) as error:  # of a port or a name that cannot be
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise RPCError(f"connect to {url}:{port}: {reason}") from error
    stream.settimeout(None)
    return FrameChannel(stream)


class LocalSession(RPCSession):
    """Session with this process itself, for programs that run both locally and remotely."""

    def __init__(self) -> None:
        client_socket, server_socket = socket.socketpair()
        threading.Thread(target=_serve_in_thread, args=(server_socket,), daemon=True).start()
        super().__init__(open_session(FrameChannel(client_socket), "", 0))


def _serve_in_thread(stream: socket.socket) -> None:
    folder = tempfile.TemporaryDirectory(prefix="ekiden-rpc-")
    with folder as path, stream, suppress(RPCError):  # who asks hears of it
        endpoint, *_ = receive_hello(stream)
        serve_client(stream.fileno(), endpoint.peer_limit, Path(path), "")


def _open_file(path: PathName) -> FileIO:
    with rewrite_os_errors("upload", path):
        return open(path, "rb", buffering=0)


def _iter_chunks(file: FileIO, size: int, step: int) -> Iterator[memoryview]:
    """Yield the first `size` bytes of a file, or all it has, in chunks valid until the next one.
    Raises OSError.
    """
    room = memoryview(bytearray(step))
    while count := file.readinto(room[: min(step, size)]):
        yield room[:count]
        size -= count


class PopenSession(RPCSession):
    """Session with a program over its standard input and output, such as `ekiden-rpc --pipe`,
    possibly started in an emulator.

    `binary` is its path, its bytes, or a command line of several words. Raises RPCError.
    """

    def __init__(self, binary: PathName | bytes | bytearray | Sequence[str]) -> None:
        super().__init__(
            open_session(FrameChannel(start_piped_program(_command_line(binary))), "", 0)
        )


def start_piped_program(command: Sequence[str]) -> PipeStream:
    """Start a program and return its standard input and output as a stream, which owns the process.
    Raises RPCError if it cannot be started.
    """
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RPCError(f"start '{command[0]}': {reason}") from error
    assert process.stdin is not None and process.stdout is not None
    ends = (process.stdout.fileno(), process.stdin.fileno())
    source, target = (os.dup(end) for end in ends)
    process.stdin.close()
    process.stdout.close()

    def end_program() -> None:
        """Kill the program and reap it."""
        process.kill()
        process.wait()

    return PipeStream(source, target, end_program)


def _command_line(binary: PathName | bytes | bytearray | Sequence[str]) -> list[str]:
    """Return the command line. Bytes are written to a temporary executable, removed when this
    process ends.
    """
    if isinstance(binary, (bytes, bytearray)):
        folder = tempfile.mkdtemp(prefix="ekiden-rpc-")
        path = Path(folder, "server")
        path.write_bytes(binary)
        path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        weakref.finalize(_PROCESS_LIFETIME, shutil.rmtree, folder, True)
        return [str(path), "--pipe"]
    if isinstance(binary, (str, os.PathLike)):
        return [os.path.abspath(binary), "--pipe"]
    return list(binary)


class _ProcessLifetime:
    """Weakly referenceable object with the lifetime of the process."""


_PROCESS_LIFETIME = _ProcessLifetime()
