"""Cooperative yielding of long work in other threads to the event loop, which shares the GIL with
them.

Python's lock has no queue. A thread that gives it back for the microseconds of a NumPy call mostly
takes it again before the loop's thread is awake, and each time the loop's wait of
`sys.setswitchinterval` begins anew: 64 MB of numbers let it wait for 130 ms on end. So work in
chunks waits for a turn of the loop every few milliseconds:

    with yielding_to_loop(loop): read_request(...)    # yield_to_loop() before each chunk
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["yield_to_loop", "yielding_to_loop"]

YIELD_INTERVAL_S = 0.004
"""Seconds of work between two turns, each of which takes about 0.1 ms."""
MAX_WAIT_S = 1.0
"""Seconds that a turn is waited for: a loop that stops has none."""


class _LoopYielder:
    """Yield point between a worker thread and an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._has_run = threading.Event()
        self._last = time.monotonic()

    def yield_if_due(self) -> None:
        """Wait until the loop has run an iteration, if the last yield is older than the
        interval.
        """
        if time.monotonic() - self._last < YIELD_INTERVAL_S:
            return
        # The event is cleared first, as the loop may set it before the wait begins.
        self._has_run.clear()
        try:
            self._loop.call_soon_threadsafe(self._has_run.set)
        except RuntimeError:  # the loop is closed: nobody waits for the lock
            return
        self._has_run.wait(MAX_WAIT_S)
        self._last = time.monotonic()


_LOOP_YIELDER: ContextVar[_LoopYielder | None] = ContextVar("turns", default=None)


@contextmanager
def yielding_to_loop(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Set the event loop to which `yield_to_loop` yields in this thread, inside the context."""
    token = _LOOP_YIELDER.set(_LoopYielder(loop))
    try:
        yield
    finally:
        _LOOP_YIELDER.reset(token)


def yield_to_loop() -> None:
    """Let the event loop of `yielding_to_loop` run if it has not done so for the yield interval."""
    turns = _LOOP_YIELDER.get()
    if turns is not None:
        turns.yield_if_due()
