"""Shares of an iteration of the event loop, which reads and writes a bounded number of bytes of
bodies, however many clients send or receive at once.

A read or write of 256 KB takes about 0.5 ms of the loop, copies included. A hundred clients whose
bodies arrive together would hold the loop for 50 ms an iteration, and a request behind them needs
two.
"""

from __future__ import annotations

import asyncio
from collections import deque

from uvicorn.protocols.http.flow_control import FlowControl

__all__ = ["BodyReadingQueue", "HeldFlowControl", "SendTurns"]

BODY_BYTES_PER_ITERATION = 2 << 20
"""About 3 ms of the processor."""
RESUMED_PER_ITERATION = 8
"""Each read is of 256 KB at most, the size of the buffers of uvloop and asyncio."""
SENT_PER_ITERATION = 4
"""Pieces of long responses, of 256 KB."""


class HeldFlowControl(FlowControl):
    """uvicorn's flow control, with reading that the server may hold for reasons of its own."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._num_holds = 0

    def hold(self) -> None:
        """Stop reading until `release`; holds are counted."""
        self._num_holds += 1
        # The application may have paused the transport already.
        if self._num_holds == 1 and not self.read_paused:
            self._pause_transport()

    def release(self) -> None:
        """End a hold."""
        self._num_holds -= 1
        if self._num_holds == 0 and not self.read_paused:
            self._resume_transport()

    def pause_reading(self) -> None:
        """Stop reading until the application asks for more."""
        if not self.read_paused:
            self.read_paused = True
            if self._num_holds == 0:
                self._pause_transport()

    def resume_reading(self) -> None:
        """Read on, unless the server holds the connection."""
        if self.read_paused:
            self.read_paused = False
            if self._num_holds == 0:
                self._resume_transport()

    def _pause_transport(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume_transport(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()


class BodyReadingQueue:
    """Queue of connections that receive bodies. Once an iteration has read its share, all of them
    wait, and some of them are resumed in each of the next iterations, in turn.
    """

    def __init__(self) -> None:
        self._reading: dict[HeldFlowControl, None] = {}
        self._waiting: dict[HeldFlowControl, None] = {}
        """Both in the order in which they came: dictionaries, for constant time of leaving."""
        self._num_bytes = 0
        self._is_scheduled = False

    @property
    def bytes_left(self) -> int:
        """Return the bytes that this iteration may still read. All connections whose first bytes
        come in one look at the sockets have been read before any of them can be held.
        """
        return max(0, BODY_BYTES_PER_ITERATION - self._num_bytes)

    def join(self, flow: HeldFlowControl) -> None:
        """Add a connection at the beginning of a body."""
        self._reading[flow] = None

    def leave(self, flow: HeldFlowControl) -> None:
        """Remove a connection at the end of its body, or at its own."""
        self._reading.pop(flow, None)
        # The values are None: False means that the connection did not wait and has no hold.
        if self._waiting.pop(flow, False) is None:
            flow.release()

    def count(self, num_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        """Count bytes that were read in this iteration of the loop."""
        self._num_bytes += num_bytes
        self._schedule(loop)
        if self._num_bytes >= BODY_BYTES_PER_ITERATION:
            for flow in self._reading:
                flow.hold()
            self._waiting.update(self._reading)
            self._reading.clear()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            # The callback runs in the loop's next iteration, which begins a new share.
            loop.call_soon(self._begin_iteration, loop)

    def _begin_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled, self._num_bytes = False, 0
        for _ in range(min(len(self._waiting), RESUMED_PER_ITERATION)):
            flow = next(iter(self._waiting))
            del self._waiting[flow]
            self._reading[flow] = None
            flow.release()
        if self._waiting:
            self._schedule(loop)


class SendTurns:
    """Turns of long responses: each iteration of the loop sends a few pieces, in the order in which
    they were ready. A client that reads fast would otherwise take a whole response at once.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    async def wait(self) -> None:
        """Wait until the next piece may be sent, in a later iteration."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        self._schedule(loop)
        await turn

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._begin_iteration, loop)

    def _begin_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled, num_sent = False, 0
        while self._waiting and num_sent < SENT_PER_ITERATION:
            turn = self._waiting.popleft()
            if not turn.done():  # of a client that has gone
                turn.set_result(None)
                num_sent += 1
        if self._waiting:
            self._schedule(loop)
