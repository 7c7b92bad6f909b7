"""A stream of bytes on which frames come and go: a socket, or the pipes of a process."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from ekiden.rpc.errors import RPCError, RPCSessionTimeoutError
from ekiden.rpc.messages import HEADER, HELLO_LIMIT, Kind
from ekiden.rpc.wire import read_head

__all__ = ["Channel", "Pipes", "Stream"]


class Stream(Protocol):
    """What a channel needs of a socket."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Read some bytes; 0 at the end."""

    def sendall(self, data: bytes | bytearray, /) -> None:
        """Write all of them."""

    def settimeout(self, seconds: float | None, /) -> None:
        """How long each may take."""

    def close(self) -> None:
        """End it."""


class Pipes:
    """Two file descriptors as a stream, and what to do at its end."""

    def __init__(self, source: int, target: int, end: Callable[[], object]) -> None:
        self._source, self._target, self._end = source, target, end
        self._seconds: float | None = None

    def recv_into(self, buffer: memoryview) -> int:
        """Read some bytes; 0 at the end. Raises TimeoutError."""
        if not select.select([self._source], [], [], self._seconds)[0]:
            raise TimeoutError
        return os.readv(self._source, [buffer])

    def sendall(self, data: bytes | bytearray) -> None:
        """Write all of them."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._target, left) :]

    def settimeout(self, seconds: float | None) -> None:
        """How long a read may take."""
        self._seconds = seconds

    def close(self) -> None:
        """Close both, and end what is at the other end."""
        if self._source >= 0:
            os.close(self._source)
            os.close(self._target)
            self._source = -1
            self._end()


class Channel:
    """Frames on a stream. `limit` is the longest body this side takes, `ends` when the session
    must be over, by time.monotonic().
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.limit = HELLO_LIMIT
        self.ends: float | None = None
        self.is_open = True
        self._head = memoryview(bytearray(HEADER))
        self._body = memoryview(b"")
        self._has_timeout = False
        self._owner = os.getpid()

    def send(self, frame: bytearray) -> None:
        """Send a whole frame. Raises RPCError where the other side is gone."""
        try:
            self.stream.sendall(frame)
        except OSError as error:
            raise self._gone(error) from error

    def receive(self, seconds: float | None = None) -> tuple[Kind, memoryview]:
        """The next frame; its body is good until the next one is asked for. Raises RPCError at the
        end of the stream, RPCSessionTimeoutError after `seconds`: both end the session; FrameError
        for what is none.
        """
        until = None if seconds is None else time.monotonic() + seconds
        try:
            self._fill(self._head, until)
            kind, size = read_head(self._head, self.limit)
            if size > len(self._body):
                self._body = memoryview(bytearray(size))
            body = self._body[:size]
            self._fill(body, until)
        except OSError as error:
            raise self._gone(error) from error
        return kind, body

    def close(self) -> None:
        """End the stream."""
        if self.is_open:
            self.is_open = False
            # A process that was forked has a copy, which does not end the connection.
            if isinstance(self.stream, socket.socket) and self._owner == os.getpid():
                with suppress(OSError):  # the other side was faster
                    self.stream.shutdown(socket.SHUT_RDWR)
            self.stream.close()

    def _fill(self, buffer: memoryview, until: float | None) -> None:
        """Read all of a buffer."""
        at = 0
        while at < len(buffer):
            if until is not None:
                self.stream.settimeout(max(until - time.monotonic(), 1e-3))
                self._has_timeout = True
            elif self._has_timeout:
                self.stream.settimeout(None)
                self._has_timeout = False
            got = self.stream.recv_into(buffer[at:])
            if got == 0:
                raise self._gone(None)
            at += got

    def _gone(self, error: OSError | None) -> RPCError:
        """The error for a stream that ended or took too long."""
        self.close()
        if isinstance(error, TimeoutError):
            return RPCSessionTimeoutError("rpc: no answer in time; the session is over")
        if self.ends is not None and time.monotonic() >= self.ends:
            return RPCSessionTimeoutError("rpc: the session took longer than its timeout")
        said = f": {(error.strerror or str(error)).lower()}" if error is not None else ""
        return RPCError(f"rpc: the other side has gone{said}")
