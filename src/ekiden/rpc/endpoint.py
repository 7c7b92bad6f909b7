"""Endpoint of a session, which sends requests, serves callbacks and owns the objects behind handles
that the peer holds: callbacks.

While it waits for an answer it serves what the other side calls, so that callbacks nest. Answers
come in the reverse order of such requests; in the order of those that call nobody back, which may
be sent before former ones are answered. They need no numbers.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

from ekiden.rpc.channel import FrameChannel
from ekiden.rpc.errors import FrameError, RPCError, make_remote_error
from ekiden.rpc.messages import (
    ANSWER_KINDS,
    DEFAULT_MAX_FRAME_BYTES,
    FRAME_HEADER_BYTES,
    MAX_CALL_DEPTH,
    MAX_HANDLES,
    MAX_HELLO_BYTES,
    MIN_FRAME_LIMIT_BYTES,
    PROTOCOL_MAGIC,
    PROTOCOL_VERSION,
    SERVED_KINDS,
    Kind,
    ValueTag,
)
from ekiden.rpc.wire_format import check_lent_size, parse_body, serialize_frame_parts
from ekiden.runtime import kind_of_error

__all__ = ["Endpoint", "Progress", "RemoteProxies", "Request"]

Request = tuple[Kind, tuple[object, ...]]
"""A message and its fields."""
Progress = Callable[[int, int], object]
"""Called with the bytes that have crossed, and all there are."""
MAX_PIPELINED_REQUESTS = 4
"""Requests that wait for answers where many are sent: one under way each way, one at each end."""


class RemoteProxies(Protocol):
    """Interface that maps the peer's handles to local proxies."""

    def make_proxy(self, tag: ValueTag, handle: int, about: object) -> object:
        """Return a proxy of a remote object."""

    def remote_handle(self, value: object) -> int | None:
        """Return the remote handle behind a proxy; None for any other value."""


# Invariants. One lock is held from a request to its answer, by a thread that callbacks may enter
# again (RLock): messages of two threads do not mix, and an answer is that of the request which
# waits. A handle is given away in a message that was sent, or not at all (`_send` takes it back).
# What is dropped here is told later: a finalizer may run in the middle of a message.
class Endpoint:
    """Endpoint of a channel: sends requests, serves callbacks, and owns the exported objects. With
    `far`, which creates proxies of remote objects, it can make calls.
    """

    def __init__(self, channel: FrameChannel, far: RemoteProxies | None = None) -> None:
        self.channel = channel
        self.far = far
        self.peer_limit = MAX_HELLO_BYTES
        self.local_objects: dict[int, object] = {}
        self._last = 0
        """The newest handle."""
        self._dropped: deque[int] = deque()
        self._lock = threading.RLock()
        self._depth = 0
        self._waiting = 0
        """Requests of an exchange that are not answered yet."""
        # A session ends with its last proxy, even if nobody calls close.
        weakref.finalize(self, channel.close)

    def send_hello(
        self,
        key: str = "",
        timeout: int = 0,
        constructor: Sequence[object] = (),
        limit: int = DEFAULT_MAX_FRAME_BYTES,
    ) -> None:
        """Send HELLO."""
        self._send_message(
            Kind.HELLO, (PROTOCOL_MAGIC, PROTOCOL_VERSION, limit, timeout, key, list(constructor))
        )
        self.channel.limit = limit

    def receive_hello(self, kind: Kind, body: memoryview) -> tuple[int, str, list[object]]:
        """Process the peer's HELLO: timeout in milliseconds, key, constructor. Raises FrameError
        for another message or version, what the other side refuses this one with.
        """
        try:
            fields = parse_body(kind, body, self)
            if kind is Kind.ERROR:
                raise make_remote_error(*map(str, fields))
            magic, version, limit, timeout, key, constructor = _parse_hello(kind, fields)
            if magic != PROTOCOL_MAGIC:
                raise FrameError("rpc: this is another protocol")
            if version != PROTOCOL_VERSION:
                raise FrameError(f"rpc: version {PROTOCOL_VERSION} expected, got {version}")
            # Below this, not even an error message would fit in a frame.
            if limit < MIN_FRAME_LIMIT_BYTES:
                raise FrameError(
                    f"rpc: a limit of {MIN_FRAME_LIMIT_BYTES} expected at least, got {limit}"
                )
        except RPCError as error:
            self._abort_session(error)
            raise
        self.peer_limit = limit
        return timeout, key, constructor

    def send_refusal(self, error: RPCError) -> None:
        """Tell the peer why the session is refused, and close the channel."""
        self._send_message(Kind.ERROR, (*kind_of_error(error), ""))
        self.close()

    def request(self, kind: Kind, *fields: object, seconds: float | None = None) -> object:
        """Send a request and await its answer, serving callbacks meanwhile."""
        with self._lock:
            if self._dropped or self._waiting:
                self._flush_releases()
            self._send_message(kind, fields)
            return self._await_answer(False, seconds)

    # A file is many requests, and waiting for each answer would leave the line idle for a round
    # trip. Answers are taken in the order of requests; whatever fails on the way, those that are
    # still to come are read and dropped, so that the next request finds its own.
    def pipeline_requests(
        self,
        requests: Iterable[Request],
        take: Callable[[object], object],
        buffer: Callable[[], memoryview | None] = lambda: None,
    ) -> None:
        """Send many requests, pipelined; none of them may cause callbacks.

        Args:
            requests: The requests.
            take: Called with each answer in turn; bytes are a view, valid until it returns.
            buffer: Returns a buffer to receive the next answer into, if it has exactly that size.

        Raises what `request`, `take` or `requests` raise; the session continues.
        """
        with self._lock:
            self._flush_releases()
            try:
                for kind, fields in requests:
                    # A bounded window, so that neither side's socket buffer fills up while both are
                    # writing.
                    if self._waiting == MAX_PIPELINED_REQUESTS:
                        take(self._next_answer(buffer()))
                    self._send_message(kind, fields)
                    self._waiting += 1
                while self._waiting:
                    take(self._next_answer(buffer()))
            finally:
                while self._waiting:
                    with suppress(RPCError):
                        self._next_answer()

    def fetch_chunks(
        self,
        ask: Callable[[int, int], Request],
        to: memoryview,
        step: int,
        progress: Progress | None = None,
    ) -> bool:
        """Fill memory from requests: `ask(first byte, count)` gives one for at most `step` bytes,
        and `progress(done, total)` is called after each. Return False if an answer had another
        size.
        """
        begin, is_whole, buffers = 0, True, [to]

        def next_buffer() -> memoryview:
            """Return the part of the destination that the next chunk fills."""
            buffers[0] = to[begin : begin + step]
            return buffers[0]

        def advance(answer: object) -> None:
            """Advance to the next chunk."""
            nonlocal begin, is_whole
            is_whole = is_whole and answer is buffers[0]
            begin = min(begin + step, len(to))
            if progress is not None and is_whole:
                progress(begin, len(to))

        ends = range(0, len(to), step)
        self.pipeline_requests(
            (ask(position, min(step, len(to) - position)) for position in ends),
            advance,
            next_buffer,
        )
        return is_whole

    def _flush_releases(self) -> None:
        """Send the pending releases before a request. Raises RPCError within an exchange."""
        if self._waiting:
            raise RPCError("rpc: a request while a file or tensor crosses, as from its progress=")
        self._send_releases()

    def _next_answer(self, buffer: memoryview | None = None) -> object:
        """Return the next answer of an exchange."""
        self._waiting -= 1
        return self._await_answer(True, buffer=buffer)

    def _await_answer(
        self, lends: bool, seconds: float | None = None, buffer: memoryview | None = None
    ) -> object:
        """Return the answer to the pending request. Raises what was raised remotely."""
        try:
            while True:
                kind, body = self.channel.receive(seconds, buffer)
                # The payload has been received straight into the caller's buffer.
                if self.channel.is_placed:
                    check_lent_size(body, buffer)
                    return buffer
                if kind in ANSWER_KINDS:
                    fields = parse_body(kind, body, self, lends)
                    break
                self._serve_request(kind, body)
        except FrameError as error:
            self._abort_session(error)
            raise
        if kind is Kind.ERROR:
            raise make_remote_error(*map(str, fields))
        return fields[0]

    def queue_release(self, handle: int) -> None:
        """Queue the release of a remote object, sent before the next request."""
        self._dropped.append(handle)

    def close(self) -> None:
        """End the session and release every object that the peer held."""
        self.channel.close()
        self.local_objects.clear()

    def export(self, value: object) -> int:
        """Return a new handle of a local object. Raises RPCError if the other side already holds
        MAX_HANDLES.
        """
        # Without a bound, a peer could make this side hold any amount of memory.
        if len(self.local_objects) >= MAX_HANDLES:
            raise RPCError(f"rpc: the other side holds {MAX_HANDLES} objects already")
        self._last += 1
        self.local_objects[self._last] = value
        return self._last

    def local_object(self, handle: int) -> object:
        """Return the object of a handle. Raises FrameError for an unknown or released handle."""
        if handle not in self.local_objects:
            raise FrameError(f"rpc: no object has the handle {handle}")
        return self.local_objects[handle]

    def remote_handle(self, value: object) -> int | None:
        """Return the remote handle behind a proxy, or None."""
        return None if self.far is None else self.far.remote_handle(value)

    def make_proxy(self, tag: ValueTag, handle: int, about: object) -> object:
        """Return a proxy of a remote object. Raises FrameError outside a session."""
        if self.far is None:
            raise FrameError("rpc: handles are for sessions")
        return self.far.make_proxy(tag, handle, about)

    def _send_message(self, kind: Kind, fields: tuple[object, ...]) -> None:
        """Send a message; handles exported for a message that cannot be sent are released."""
        # Handles above this number belong to the message alone and are taken back if it cannot be
        # sent.
        before = self._last
        try:
            frame, tail = serialize_frame_parts(kind, fields, self)
            size = len(frame) + (0 if tail is None else len(tail))
            # The peer would end the session; an error here costs only this message.
            if size > self.peer_limit + FRAME_HEADER_BYTES:
                size_limit = f"at most {self.peer_limit} bytes"
                raise ValueError(f"rpc: {kind.name}: {size_limit} expected, got {size}")
        except BaseException:
            for handle in range(before + 1, self._last + 1):
                self.local_objects.pop(handle, None)
            raise
        self.channel.send(frame, tail)

    def _abort_session(self, error: RPCError) -> None:
        """Close the session, after sending the reason to the peer if it still listens."""
        if self.channel.is_open and isinstance(error, FrameError):
            with suppress(RPCError):  # it does not listen
                self._send_message(Kind.ERROR, (*kind_of_error(error), ""))
        self.close()

    # An error of a callback is its answer; what is to end this process (KeyboardInterrupt) is told
    # and then goes on. A FrameError is nobody's answer: the session is over.
    def _serve_request(self, kind: Kind, body: memoryview) -> None:
        """Serve a request of the peer: call an exported function, or release a handle."""
        is_idle = kind is Kind.RELEASE or not self._waiting
        if kind not in SERVED_KINDS or self.far is None or not is_idle:
            raise FrameError(f"rpc: {kind.name} was not expected")
        fields = parse_body(kind, body, self)
        if kind is Kind.RELEASE:
            for handle in cast(list[int], fields[0]):
                # Raises FrameError for a handle that was released twice.
                self.local_object(handle)
                del self.local_objects[handle]
            return
        self._depth += 1
        try:
            # Two sides that call each other back would otherwise exhaust both stacks.
            if self._depth > MAX_CALL_DEPTH:
                raise RecursionError(f"rpc: more than {MAX_CALL_DEPTH} calls wait for each other")
            self._send_message(Kind.RETURN, (self._call_local(*fields),))
        except FrameError:
            raise
        except BaseException as error:
            if not self.channel.is_open:
                raise
            self._send_error(error)
            if not isinstance(error, Exception):  # somebody wants this process to stop
                raise
        finally:
            self._depth -= 1

    def _call_local(self, handle: object, arguments: object) -> object:
        """Call a local function."""
        function = self.local_object(cast(int, handle))
        if not callable(function):
            raise FrameError(f"rpc: handle {handle} of a function expected")
        return function(*cast(list[object], arguments))

    def _send_error(self, error: BaseException) -> None:
        """Send an error, truncated to the peer's message limit."""
        kind, message = kind_of_error(error)
        # Message and traceback together stay well below the peer's frame limit, headers included.
        room = self.peer_limit // 4
        self._send_message(
            Kind.ERROR, (kind[:100], message[:room], _format_traceback(error)[:room])
        )

    def _send_releases(self) -> None:
        """Send the queued releases of handles."""
        while self._dropped:
            # Batched so that one RELEASE fits any frame limit.
            count = min(len(self._dropped), 1000)
            self._send_message(Kind.RELEASE, ([self._dropped.popleft() for _ in range(count)],))


def _parse_hello(kind: Kind, fields: list[Any]) -> tuple[int, int, int, int, str, list[object]]:
    """Return the fields of HELLO. Raises FrameError for another message."""
    if kind is not Kind.HELLO:
        raise FrameError(f"rpc: HELLO expected, got {kind.name}")
    magic, version, limit, timeout, key, constructor = fields
    return magic, version, limit, timeout, key, constructor


def _format_traceback(error: BaseException) -> str:
    """Format an error's stack frames, most recent call first, and its notes."""
    lines = []
    current = error.__traceback__
    while current is not None:
        code = current.tb_frame.f_code
        lines.append(f'  File "{code.co_filename}", line {current.tb_lineno}, in {code.co_name}\n')
        current = current.tb_next
    return "".join(reversed(lines)) + "".join(f"{n}\n" for n in getattr(error, "__notes__", ()))
