"""Requests that wait for a program, and the threads that run them, several in one run.

The event loop puts work in; a thread that is free takes all that waits for one program. Requests
that come while a run is under way so make up the next one, and nobody waits for nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from ekiden.runtime.errors import EkidenError, RequestError
from ekiden.serve.datatypes import Array
from ekiden.serve.reasons import refusal

__all__ = ["Batcher", "Run", "Runners", "Work"]

_log = logging.getLogger(__name__)

Key = tuple[tuple[int, ...], ...]
Run = Callable[[Sequence[Array], float], list[Array]]
"""A run of a program: arrays, and the seconds it may take."""
LAST = 2**63
"""The priority of what says none."""


@dataclass(slots=True, eq=False)
class Work:
    """A request that waits, and the future of its outputs."""

    arrays: Sequence[Array]
    future: asyncio.Future[list[Array]]
    deadline: float
    """By `time.monotonic`."""
    run: Run
    key: Key | None = None
    """Work of one key can be run together; None: alone."""
    rows: int = 1
    came: float = field(default_factory=time.monotonic)
    is_dropped: bool = False
    """Nobody waits for it any more."""


class Runners:
    """The threads that run programs: as many at once as the machine has use for, whichever models
    they are of. A thread that has ended a run takes the next of any, so that many small models
    wake no thread each.
    """

    def __init__(self, count: int) -> None:
        self.lock = threading.Condition()
        """Guards this and the queues of all batchers."""
        self.pending: set[Work] = set()
        """What has no answer yet, of all batchers. Of the event loop's thread alone."""
        self._ready: deque[Batcher] = deque()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"serve {at}", daemon=True)
            for at in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def offer(self, batcher: Batcher) -> None:
        """Let a batcher have its turn, where it has work that may run. With the lock held."""
        if not batcher.is_offered and batcher.may_run():
            batcher.is_offered = True
            self._ready.append(batcher)
            self.lock.notify()

    def give_up(self, error: Exception) -> None:
        """Answer all that has no answer yet by an error; what runs goes on for nobody."""
        for work in list(self.pending):
            if not work.future.done():
                work.future.set_exception(error)

    def close(self) -> None:
        """Let the threads end when nothing waits any more."""
        with self.lock:
            self._is_closed = True
            self.lock.notify_all()

    def _serve(self) -> None:
        while found := self._next():
            batcher, batch = found
            started = time.perf_counter()
            answers = run_batch(batch)
            seconds = time.perf_counter() - started
            with self.lock:
                batcher.running -= 1
                self.offer(batcher)
            with suppress(RuntimeError):  # the loop is closed: nobody waits for an answer
                batcher.loop.call_soon_threadsafe(batcher.answer, answers, seconds)

    def _next(self) -> tuple[Batcher, list[Work]] | None:
        """Work for one run; None when all is closed and empty."""
        with self.lock:
            while True:
                while not self._ready:
                    if self._is_closed:
                        return None
                    self.lock.wait()
                batcher = self._ready.popleft()
                batcher.is_offered = False
                if batch := batcher.take():
                    batcher.running += 1
                    self.offer(batcher)
                    return batcher, batch


class Batcher:
    """The queue of one loaded program. Made and asked on the event loop's thread."""

    def __init__(
        self,
        runners: Runners,
        *,
        instances: int,
        queue: int,
        rows: int,
        wait: float,
        on_run: Callable[[int, float], None],
    ) -> None:
        """`rows` is the most of a run, `wait` the seconds that the first of a run may wait for
        others; `on_run(rows, seconds)` is called on the loop after each."""
        self.loop = asyncio.get_running_loop()
        self.running = 0
        """Runs under way."""
        self.is_offered = False
        self._on_run = on_run
        self.runners = runners
        self._bound, self._rows, self._wait = queue, rows, wait
        self._heap: list[tuple[int, int, Work]] = []
        self._count = 0
        self._instances = instances
        self._smoothed = 0.01

    @property
    def waiting(self) -> int:
        """Requests that no thread has taken."""
        return len(self._heap)

    def put(self, work: Work, priority: int = 0) -> None:
        """Let work wait; smaller priorities go first, 0 last. Raises RequestError where the queue
        is full."""
        with self.runners.lock:
            if len(self._heap) >= self._bound:
                self._forget_dropped()
            if len(self._heap) >= self._bound:
                raise RequestError(f"{self._bound} requests wait already", "busy", self.estimate())
            self._count += 1
            heapq.heappush(self._heap, (priority or LAST, self._count, work))
            self.runners.offer(self)
        self.runners.pending.add(work)
        work.future.add_done_callback(lambda future: self.runners.pending.discard(work))
        if self._wait:
            self.loop.call_later(self._wait, self._offer)

    def _offer(self) -> None:
        with self.runners.lock:
            self.runners.offer(self)

    def may_run(self) -> bool:
        """Whether there is work, an instance for it, and nothing more to wait for."""
        if not self._heap or self.running >= self._instances:
            return False
        if self._wait == 0:
            return True
        oldest = min(entry[2].came for entry in self._heap)
        rows = sum(entry[2].rows for entry in self._heap)
        return rows >= self._rows or oldest + self._wait <= time.monotonic() + 1e-3

    def estimate(self) -> float:
        """The seconds until what waits now is done, as runs went so far."""
        return max(0.001, (len(self._heap) + 1) * self._smoothed / self._instances)

    def _forget_dropped(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2].is_dropped]
        heapq.heapify(self._heap)

    def take(self) -> list[Work]:
        """Work for one run, in order and of one key, up to the most rows; none where all that
        waited was dropped. With the lock held."""
        batch: list[Work] = []
        others: list[tuple[int, int, Work]] = []
        rows = 0
        while self._heap and rows < self._rows:
            entry = heapq.heappop(self._heap)
            work = entry[2]
            if work.is_dropped:
                continue
            if not batch or (work.key == batch[0].key and rows + work.rows <= self._rows):
                batch.append(work)
                rows += work.rows
                if work.key is None:
                    break
            else:
                others.append(entry)
        for entry in others:
            heapq.heappush(self._heap, entry)
        return batch

    def answer(self, answers: Sequence[tuple[Work, object]], seconds: float) -> None:
        """On the loop: give each request its outputs, or its error."""
        rows = sum(work.rows for work, _ in answers)
        self._smoothed += 0.1 * (seconds / len(answers) - self._smoothed)
        self._on_run(rows, seconds)
        for work, answer in answers:
            if work.future.done():
                continue
            if isinstance(answer, BaseException):
                work.future.set_exception(answer)
            else:
                work.future.set_result(answer)  # type: ignore[arg-type]  # no error: outputs


def run_batch(batch: Sequence[Work]) -> list[tuple[Work, object]]:
    """The outputs of each request, or its error.

    Where a run of several fails they run again one by one, so that only what is wrong of itself
    is answered by an error.
    """
    if len(batch) > 1:
        try:
            return list(zip(batch, _together(batch), strict=True))
        except Exception as error:  # whose fault it is shows when they run alone
            _log.debug("a run of several failed: %s", type(error).__name__)
    return [(work, _alone(work)) for work in batch]


def _together(batch: Sequence[Work]) -> list[list[Array]]:
    """One run of all: arrays one behind the other, and outputs cut where requests meet."""
    columns = zip(*(work.arrays for work in batch), strict=True)
    seconds = max(work.deadline for work in batch) - time.monotonic()
    outputs = batch[0].run([np.concatenate(column) for column in columns], seconds)
    rows = [work.rows for work in batch]
    if any(len(output) != sum(rows) for output in outputs):
        raise EkidenError("a run of several requests gave another number of rows")
    ends = np.cumsum(rows).tolist()
    return [
        [output[end - count : end] for output in outputs]
        for end, count in zip(ends, rows, strict=True)
    ]


def _alone(work: Work) -> object:
    """The outputs of a request, or the error that its client is told."""
    left = work.deadline - time.monotonic()
    if left <= 0:
        return RequestError("the time of the request ended before it ran", "deadline")
    try:
        return work.run(work.arrays, left)
    except Exception as error:  # whatever it is: its request is answered, the thread goes on
        made = refusal(error)
        if made is not error:
            made.__cause__ = error
        return made
