"""Framing on a byte stream: a socket, or the pipes of a process."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from ekiden.rpc.errors import RPCError, RPCSessionTimeoutError
from ekiden.rpc.messages import FRAME_HEADER_BYTES, MAX_HELLO_BYTES, RETURN_PREFIX_BYTES, Kind
from ekiden.rpc.wire_format import parse_header

__all__ = ["FrameChannel", "PipeStream", "Stream"]

READ_AHEAD_BYTES = 4 << 10
"""Bytes that are read with a head, before its frame's size is known: most frames are whole then."""


class Stream(Protocol):
    """Interface of the socket operations that a channel needs."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive some bytes; 0 at the end."""

    def sendall(self, data: bytes | bytearray | memoryview, /) -> None:
        """Send all bytes."""

    def settimeout(self, seconds: float | None, /) -> None:
        """Set the time limit of each operation."""

    def close(self) -> None:
        """Close the stream."""


class PipeStream:
    """Stream over two file descriptors, with a cleanup action."""

    def __init__(self, source: int, target: int, end: Callable[[], object]) -> None:
        self._source, self._target, self._end = source, target, end
        self._seconds: float | None = None

    def recv_into(self, buffer: memoryview) -> int:
        """Receive some bytes; 0 at the end. Raises TimeoutError."""
        seconds = self._seconds
        if seconds is not None and not select.select([self._source], [], [], seconds)[0]:
            raise TimeoutError
        return os.readv(self._source, [buffer])

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        """Send all bytes."""
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[os.write(self._target, remaining) :]

    def settimeout(self, seconds: float | None) -> None:
        """Set the time limit of a read."""
        self._seconds = seconds

    def close(self) -> None:
        """Close both descriptors, and end the process at the other end."""
        if self._source >= 0:
            os.close(self._source)
            os.close(self._target)
            self._source = -1
            self._end()


class FrameChannel:
    """Channel of length-prefixed frames on a stream. `limit` is the largest body this side accepts;
    `ends` is when the session must be over, by time.monotonic(). With `ahead` 0, nothing beyond
    a frame is read, so that the stream can be given to another reader.
    """

    def __init__(self, stream: Stream, ahead: int = READ_AHEAD_BYTES) -> None:
        self.stream = stream
        self._ahead = ahead
        self.limit = MAX_HELLO_BYTES
        self.ends: float | None = None
        self.is_open = True
        self.is_placed = False
        """Whether the bytes of the last frame went to the place that was given for them."""
        self._data = memoryview(bytearray(2 * READ_AHEAD_BYTES))
        self._begin = self._end = 0
        """Where what has been read and not been given out lies in the data."""
        self._owner = os.getpid()

    def send(self, frame: bytearray, tail: memoryview | None = None) -> None:
        """Send a whole frame, whose last bytes may be in another buffer."""
        try:
            self.stream.sendall(frame)
            # Large payloads are sent from where they are, without a copy into the frame.
            if tail is not None:
                self.stream.sendall(tail)
        except OSError as error:
            raise self._close_with_error(error) from error
        except BaseException:  # an interrupt: nobody knows how much of the frame has gone
            self.close()
            raise

    def receive(
        self, seconds: float | None = None, buffer: memoryview | None = None
    ) -> tuple[Kind, memoryview]:
        """Return the next frame; its body is valid until the next call. A RETURN of exactly as many
        bytes as `buffer` has is received directly into it: then the body is only what precedes
        the bytes, and `is_placed` is set. Raises RPCError at the end of the stream and
        RPCSessionTimeoutError after `seconds`, both of which end the session; FrameError for an
        invalid frame.
        """
        until = None if seconds is None else time.monotonic() + seconds
        try:
            if self._end - self._begin < FRAME_HEADER_BYTES:
                self._buffer_bytes(FRAME_HEADER_BYTES, until)
            kind, size = parse_header(self._data, self.limit, self._begin)
            is_return = buffer is not None and kind is Kind.RETURN
            # Only an exact match is received in place: the body then is just the tag and the
            # length.
            self.is_placed = (
                is_return and buffer is not None and size == RETURN_PREFIX_BYTES + len(buffer)
            )
            if self.is_placed:
                size = RETURN_PREFIX_BYTES
            if self._end - self._begin < FRAME_HEADER_BYTES + size:
                self._buffer_bytes(FRAME_HEADER_BYTES + size, until)
            begin = self._begin + FRAME_HEADER_BYTES
            self._begin = begin + size
            body = self._data[begin : self._begin]
            if self.is_placed and buffer is not None:
                self._read_into(buffer, until)
            if until is not None:
                self.stream.settimeout(None)
        except OSError as error:
            raise self._close_with_error(error) from error
        except RPCError:  # who asked tells the other side, or it has gone
            raise
        except BaseException:  # an interrupt: the answer that comes is not that of the next request
            self.close()
            raise
        return kind, body

    def close(self) -> None:
        """Close the stream."""
        if self.is_open:
            # Set first: closing may be entered again from a finalizer or another thread.
            self.is_open = False
            # A process that was forked has a copy, which does not end the connection.
            if isinstance(self.stream, socket.socket) and self._owner == os.getpid():
                with suppress(OSError):  # the other side was faster
                    self.stream.shutdown(socket.SHUT_RDWR)
            self.stream.close()

    def _buffer_bytes(self, size: int, until: float | None) -> None:
        """Read until `size` bytes are buffered, at the start of the buffer."""
        have = self._end - self._begin
        data, unread = self._data, self._data[self._begin : self._end]
        # Grown to the largest frame of the session, and reused for the others.
        if size > len(data):
            data = self._data = memoryview(bytearray(size + self._ahead))
        data[:have] = unread
        self._begin, self._end = 0, have
        while self._end < size:
            # Reads ahead into the buffer, which saves a system call per small frame.
            self._end += self._read_available(data[self._end : max(size, self._ahead)], until)

    def _read_into(self, buffer: memoryview, until: float | None) -> None:
        """Fill a buffer, first from the read-ahead and then from the stream."""
        have = min(len(buffer), self._end - self._begin)
        buffer[:have] = self._data[self._begin : self._begin + have]
        self._begin += have
        while have < len(buffer):
            have += self._read_available(buffer[have:], until)

    def _read_available(self, data: memoryview, until: float | None) -> int:
        """Read some bytes. Raises RPCError at the end of the stream, OSError."""
        if until is not None:
            # A timeout of 0 would make the socket non-blocking.
            self.stream.settimeout(max(until - time.monotonic(), 1e-3))
        count = self.stream.recv_into(data)
        if count == 0:
            raise self._close_with_error(None)
        return count

    def _close_with_error(self, error: OSError | None) -> RPCError:
        """Close the channel, and return the error for a stream that ended or timed out."""
        self.close()
        if isinstance(error, TimeoutError):
            return RPCSessionTimeoutError("rpc: no answer in time; the session is over")
        if self.ends is not None and time.monotonic() >= self.ends:
            return RPCSessionTimeoutError("rpc: the session took longer than its timeout")
        reason = f": {(error.strerror or str(error)).lower()}" if error is not None else ""
        return RPCError(f"rpc: the other side has gone{reason}")
