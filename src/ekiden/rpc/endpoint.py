"""One side of a session: asks, answers, and keeps what the other side holds handles of.

Both sides are alike: while one waits for an answer it serves what the other asks, so that callbacks
nest. Answers come in the reverse order of the requests, and need no numbers.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from ekiden.rpc.channel import Channel
from ekiden.rpc.errors import FrameError, RPCError, remote_error
from ekiden.rpc.messages import (
    ANSWERS,
    CALL_DEPTH,
    FRAME_LIMIT,
    HANDLE_LIMIT,
    HELLO_LIMIT,
    LEAST_LIMIT,
    MAGIC,
    VERSION,
    Kind,
    Tag,
)
from ekiden.rpc.wire import read_body, write_body
from ekiden.runtime import kind_of_error

__all__ = ["Endpoint", "Far", "Service"]

Service = Callable[..., object]
"""What serves a message: its fields are the arguments, its result is the answer."""


class Far(Protocol):
    """How things of the other side appear here."""

    def appear(self, tag: Tag, handle: int, about: object) -> object:
        """A thing of the other side."""

    def handle_of(self, thing: object) -> int | None:
        """The other side's handle of such a thing; None for any other."""


class Endpoint:
    """A side. `services` has what it does for the other, by message."""

    def __init__(
        self, channel: Channel, services: Mapping[Kind, Service], far: Far | None = None
    ) -> None:
        self.channel = channel
        self.services = services
        self.far = far
        self.peer_limit = HELLO_LIMIT
        self.things: dict[int, object] = {}
        self._numbers = itertools.count(1)
        self._dropped: deque[int] = deque()
        self._lock = threading.RLock()
        self._depth = 0
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
            self._drop_now()
            self._send(kind, fields)
            try:
                answer, found = self._answer(seconds)
            except FrameError as error:
                self._refuse(error)
                raise
        if answer is Kind.ERROR:
            raise remote_error(*map(str, found))
        return found[0]

    def _answer(self, seconds: float | None) -> tuple[Kind, list[object]]:
        """What the request that was sent last gets."""
        while True:
            kind, body = self.channel.receive(seconds)
            if kind in ANSWERS:
                return kind, read_body(kind, body, self)
            self._serve(kind, body)

    def serve(self) -> None:
        """Serve until the other side ends the session."""
        with self._lock:
            while self.channel.is_open:
                try:
                    kind, body = self.channel.receive()
                    self._serve(kind, body)
                except RPCError as error:
                    self._refuse(error)

    def drop(self, handle: int) -> None:
        """Release a thing of the other side, with the next request."""
        self._dropped.append(handle)

    def close(self) -> None:
        """End the session and let go of all that the other side held."""
        self.channel.close()
        self.things.clear()

    def export(self, thing: object) -> int:
        """A new handle of a thing of this side."""
        if len(self.things) >= HANDLE_LIMIT:
            raise RPCError(f"rpc: the other side holds {HANDLE_LIMIT} things already")
        handle = next(self._numbers)
        self.things[handle] = thing
        return handle

    def held(self, handle: int) -> object:
        """The thing of a handle."""
        if handle not in self.things:
            raise FrameError(f"rpc: no thing has the handle {handle}")
        return self.things[handle]

    def handle_of(self, thing: object) -> int | None:
        """The other side's handle of a thing of its own."""
        return None if self.far is None else self.far.handle_of(thing)

    def appear(self, tag: Tag, handle: int, about: object) -> object:
        """A thing of the other side."""
        if self.far is None:
            raise FrameError("rpc: handles are for sessions")
        return self.far.appear(tag, handle, about)

    def _send(self, kind: Kind, fields: tuple[object, ...]) -> None:
        """Send a message; what was exported for one that cannot be made is let go again."""
        before = next(self._numbers)
        try:
            frame = write_body(kind, fields, self)
            if len(frame) > self.peer_limit + 8:
                wanted = f"at most {self.peer_limit} bytes"
                raise ValueError(f"rpc: {kind.name}: {wanted} expected, got {len(frame)}")
        except BaseException:
            for handle in range(before + 1, next(self._numbers)):
                self.things.pop(handle, None)
            raise
        self.channel.send(frame)

    def _refuse(self, error: RPCError) -> None:
        """End the session; the other side is told why if it still listens."""
        if self.channel.is_open and isinstance(error, FrameError):
            with suppress(RPCError):  # it does not listen
                self._send(Kind.ERROR, (*kind_of_error(error), ""))
        self.close()

    def _serve(self, kind: Kind, body: memoryview) -> None:
        """Do what a message asks for, and answer."""
        service = self.services.get(kind)
        if service is None:
            raise FrameError(f"rpc: {kind.name} was not expected")
        fields = read_body(kind, body, self)
        if kind is Kind.RELEASE:
            service(*fields)
            return
        self._depth += 1
        try:
            if self._depth > CALL_DEPTH:
                raise RecursionError(f"rpc: more than {CALL_DEPTH} calls wait for each other")
            self._send(Kind.RETURN, (service(*fields),))
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
