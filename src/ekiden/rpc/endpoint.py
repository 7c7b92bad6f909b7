"""The side of a session that asks, and keeps what the other side holds handles of: callbacks.

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

from ekiden.rpc.channel import Channel
from ekiden.rpc.errors import FrameError, RPCError, remote_error
from ekiden.rpc.messages import (
    ANSWERS,
    CALL_DEPTH,
    FRAME_LIMIT,
    HANDLE_LIMIT,
    HEADER,
    HELLO_LIMIT,
    LEAST_LIMIT,
    MAGIC,
    SERVED,
    VERSION,
    Kind,
    Tag,
)
from ekiden.rpc.wire import check_lent, read_body, write_parts
from ekiden.runtime import kind_of_error

__all__ = ["Endpoint", "Far", "Progress", "Request"]

Request = tuple[Kind, tuple[object, ...]]
"""A message and its fields."""
Progress = Callable[[int, int], object]
"""Called with the bytes that have crossed, and all there are."""
WINDOW = 4
"""Requests that wait for answers where many are sent: one under way each way, one at each end."""


class Far(Protocol):
    """How things of the other side appear here."""

    def appear(self, tag: Tag, handle: int, about: object) -> object:
        """A thing of the other side."""

    def handle_of(self, thing: object) -> int | None:
        """The other side's handle of such a thing; None for any other."""


# Invariants. One lock is held from a request to its answer, by a thread that callbacks may enter
# again (RLock): messages of two threads do not mix, and an answer is that of the request which
# waits. A handle is given away in a message that was sent, or not at all (`_send` takes it back).
# What is dropped here is told later: a finalizer may run in the middle of a message.
class Endpoint:
    """A side on a channel. Where `far` says how things of the other side appear, it may call."""

    def __init__(self, channel: Channel, far: Far | None = None) -> None:
        self.channel = channel
        self.far = far
        self.peer_limit = HELLO_LIMIT
        self.things: dict[int, object] = {}
        self._last = 0
        """The newest handle."""
        self._dropped: deque[int] = deque()
        self._lock = threading.RLock()
        self._depth = 0
        self._waiting = 0
        """Requests of an exchange that are not answered yet."""
        weakref.finalize(self, channel.close)

    def say_hello(
        self,
        key: str = "",
        timeout: int = 0,
        constructor: Sequence[object] = (),
        limit: int = FRAME_LIMIT,
    ) -> None:
        """Send the first message of this side."""
        self._send(Kind.HELLO, (MAGIC, VERSION, limit, timeout, key, list(constructor)))
        self.channel.limit = limit

    def hear_hello(self, kind: Kind, body: memoryview) -> tuple[int, str, list[object]]:
        """Take in that of the other side: timeout in milliseconds, key, constructor. Raises
        FrameError for another message or version, what the other side refuses this one with.
        """
        try:
            fields = read_body(kind, body, self)
            if kind is Kind.ERROR:
                raise remote_error(*map(str, fields))
            magic, version, limit, timeout, key, constructor = _hello(kind, fields)
            if magic != MAGIC:
                raise FrameError("rpc: this is another protocol")
            if version != VERSION:
                raise FrameError(f"rpc: version {VERSION} expected, got {version}")
            if limit < LEAST_LIMIT:
                raise FrameError(f"rpc: a limit of {LEAST_LIMIT} expected at least, got {limit}")
        except RPCError as error:
            self._refuse(error)
            raise
        self.peer_limit = limit
        return timeout, key, constructor

    def refuse(self, error: RPCError) -> None:
        """Tell the other side why there is no session, and end it. Raises RPCError."""
        self._send(Kind.ERROR, (*kind_of_error(error), ""))
        self.close()

    def request(self, kind: Kind, *fields: object, seconds: float | None = None) -> object:
        """Ask for something and wait for the answer, serving meanwhile. Raises what was raised
        there, RPCError where the session is over.
        """
        with self._lock:
            if self._dropped or self._waiting:
                self._begin()
            self._send(kind, fields)
            return self._answer(False, seconds)

    # A file is many requests, and waiting for each answer would leave the line idle for a round
    # trip. Answers are taken in the order of requests; whatever fails on the way, those that are
    # still to come are read and dropped, so that the next request finds its own.
    def exchange(
        self,
        requests: Iterable[Request],
        take: Callable[[object], object],
        place: Callable[[], memoryview | None] = lambda: None,
    ) -> None:
        """Ask for many things that call nobody back, some before former ones are answered: `take`
        gets each answer in turn, bytes as a view that is good until it returns; as what `place`
        gave before, where that has as many. Raises what `request` raises, or `take` and `requests`
        raise: the session goes on.
        """
        with self._lock:
            self._begin()
            try:
                for kind, fields in requests:
                    if self._waiting == WINDOW:
                        take(self._next(place()))
                    self._send(kind, fields)
                    self._waiting += 1
                while self._waiting:
                    take(self._next(place()))
            finally:
                while self._waiting:
                    with suppress(RPCError):
                        self._next()

    def fetch(
        self,
        ask: Callable[[int, int], Request],
        to: memoryview,
        step: int,
        progress: Progress | None = None,
    ) -> bool:
        """Fill memory with what requests give: `ask(first byte, bytes)` is one, for at most `step`
        bytes; `progress(done, all)` is called after each. False where one gave fewer or more."""
        begin, is_whole, places = 0, True, [to]

        def place() -> memoryview:
            places[0] = to[begin : begin + step]
            return places[0]

        def take(answer: object) -> None:
            """Goes on to the next piece. An answer is right if it lies where it was wanted: one of
            another size was put elsewhere.
            """
            nonlocal begin, is_whole
            is_whole = is_whole and answer is places[0]
            begin = min(begin + step, len(to))
            if progress is not None and is_whole:
                progress(begin, len(to))

        ends = range(0, len(to), step)
        self.exchange((ask(at, min(step, len(to) - at)) for at in ends), take, place)
        return is_whole

    def _begin(self) -> None:
        """Before a request: release what was dropped. Raises RPCError within an exchange."""
        if self._waiting:
            raise RPCError("rpc: a request while a file or tensor crosses, as from its progress=")
        self._drop_now()

    def _next(self, place: memoryview | None = None) -> object:
        """The next answer of an exchange."""
        self._waiting -= 1
        return self._answer(True, place=place)

    def _answer(
        self, lends: bool, seconds: float | None = None, place: memoryview | None = None
    ) -> object:
        """What the request that waits gets. Raises what was raised there."""
        try:
            while True:
                kind, body = self.channel.receive(seconds, place)
                if self.channel.is_placed:
                    check_lent(body, place)
                    return place
                if kind in ANSWERS:
                    found = read_body(kind, body, self, lends)
                    break
                self._serve(kind, body)
        except FrameError as error:
            self._refuse(error)
            raise
        if kind is Kind.ERROR:
            raise remote_error(*map(str, found))
        return found[0]

    def drop(self, handle: int) -> None:
        """Release a thing of the other side, with the next request."""
        self._dropped.append(handle)

    def close(self) -> None:
        """End the session and let go of all that the other side held."""
        self.channel.close()
        self.things.clear()

    def export(self, thing: object) -> int:
        """A new handle of a thing of this side. Raises RPCError when the other side holds
        HANDLE_LIMIT already."""
        if len(self.things) >= HANDLE_LIMIT:
            raise RPCError(f"rpc: the other side holds {HANDLE_LIMIT} things already")
        self._last += 1
        self.things[self._last] = thing
        return self._last

    def held(self, handle: int) -> object:
        """The thing of a handle. Raises FrameError for one that was not given, or was let go."""
        if handle not in self.things:
            raise FrameError(f"rpc: no thing has the handle {handle}")
        return self.things[handle]

    def handle_of(self, thing: object) -> int | None:
        """The other side's handle of a thing of its own."""
        return None if self.far is None else self.far.handle_of(thing)

    def appear(self, tag: Tag, handle: int, about: object) -> object:
        """A thing of the other side. Raises FrameError outside a session."""
        if self.far is None:
            raise FrameError("rpc: handles are for sessions")
        return self.far.appear(tag, handle, about)

    def _send(self, kind: Kind, fields: tuple[object, ...]) -> None:
        """Send a message; what was exported for one that cannot be made is let go again."""
        before = self._last
        try:
            frame, tail = write_parts(kind, fields, self)
            size = len(frame) + (0 if tail is None else len(tail))
            if size > self.peer_limit + HEADER:
                wanted = f"at most {self.peer_limit} bytes"
                raise ValueError(f"rpc: {kind.name}: {wanted} expected, got {size}")
        except BaseException:
            for handle in range(before + 1, self._last + 1):
                self.things.pop(handle, None)
            raise
        self.channel.send(frame, tail)

    def _refuse(self, error: RPCError) -> None:
        """End the session; the other side is told why if it still listens."""
        if self.channel.is_open and isinstance(error, FrameError):
            with suppress(RPCError):  # it does not listen
                self._send(Kind.ERROR, (*kind_of_error(error), ""))
        self.close()

    # An error of a callback is its answer; what is to end this process (KeyboardInterrupt) is told
    # and then goes on. A FrameError is nobody's answer: the session is over.
    def _serve(self, kind: Kind, body: memoryview) -> None:
        """Do what the other side asks for: call what it holds a handle of, or let that go."""
        is_idle = kind is Kind.RELEASE or not self._waiting
        if kind not in SERVED or self.far is None or not is_idle:
            raise FrameError(f"rpc: {kind.name} was not expected")
        fields = read_body(kind, body, self)
        if kind is Kind.RELEASE:
            for handle in cast(list[int], fields[0]):
                self.held(handle)
                del self.things[handle]
            return
        self._depth += 1
        try:
            if self._depth > CALL_DEPTH:
                raise RecursionError(f"rpc: more than {CALL_DEPTH} calls wait for each other")
            self._send(Kind.RETURN, (self._call(*fields),))
        except FrameError:
            raise
        except BaseException as error:
            if not self.channel.is_open:
                raise
            self._answer_error(error)
            if not isinstance(error, Exception):  # somebody wants this process to stop
                raise
        finally:
            self._depth -= 1

    def _call(self, handle: object, arguments: object) -> object:
        """Call a function of this side."""
        found = self.held(cast(int, handle))
        if not callable(found):
            raise FrameError(f"rpc: handle {handle} of a function expected")
        return found(*cast(list[object], arguments))

    def _answer_error(self, error: BaseException) -> None:
        """Say what went wrong, as much of it as the other side takes."""
        kind, message = kind_of_error(error)
        room = self.peer_limit // 4
        self._send(Kind.ERROR, (kind[:100], message[:room], _traceback(error)[:room]))

    def _drop_now(self) -> None:
        """Tell the other side what is held no more."""
        while self._dropped:
            count = min(len(self._dropped), 1000)
            self._send(Kind.RELEASE, ([self._dropped.popleft() for _ in range(count)],))


def _hello(kind: Kind, fields: list[Any]) -> tuple[int, int, int, int, str, list[object]]:
    """The fields of HELLO. Raises FrameError for another message."""
    if kind is not Kind.HELLO:
        raise FrameError(f"rpc: HELLO expected, got {kind.name}")
    magic, version, limit, timeout, key, constructor = fields
    return magic, version, limit, timeout, key, constructor


def _traceback(error: BaseException) -> str:
    """Frames of an error, most recent call first, and what was noted of it."""
    lines = []
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        lines.append(f'  File "{code.co_filename}", line {at.tb_lineno}, in {code.co_name}\n')
        at = at.tb_next
    return "".join(reversed(lines)) + "".join(f"{n}\n" for n in getattr(error, "__notes__", ()))
