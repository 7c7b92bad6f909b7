"""Requests that wait for a program, and the threads that run them, several in one run.

The event loop puts work in; a thread for each instance takes what waits when it is free. Requests
that come while a run is under way so make up the next one, and nobody waits for nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ekiden.runtime.errors import EkidenError, RequestError
from ekiden.serve.datatypes import Array
from ekiden.serve.reasons import refusal

__all__ = ["Batcher", "Run", "Work"]

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


class Batcher:
    """The queue of one loaded program. Made and asked on the event loop's thread."""

    def __init__(
        self,
        name: str,
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
        self._on_run = on_run
        self._bound, self._rows, self._wait = queue, rows, wait
        self._heap: list[tuple[int, int, Work]] = []
        self._count = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._instances = instances
        self._smoothed = 0.01
        self._threads = [
            threading.Thread(target=self._serve, name=f"serve {name}", daemon=True)
            for _ in range(instances)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Requests that no thread has taken."""
        return len(self._heap)

    def put(self, work: Work, priority: int = 0) -> None:
        """Let work wait; smaller priorities go first, 0 last. Raises RequestError where the queue
        is full."""
        with self._changed:
            if len(self._heap) >= self._bound:
                self._forget_dropped()
            if len(self._heap) >= self._bound:
                raise RequestError(f"{self._bound} requests wait already", "busy", self.estimate())
            self._count += 1
            heapq.heappush(self._heap, (priority or LAST, self._count, work))
            self._changed.notify_all()

    def estimate(self) -> float:
        """The seconds until what waits now is done, as runs went so far."""
        return max(0.001, (len(self._heap) + 1) * self._smoothed / self._instances)

    def close(self) -> None:
        """Let the threads end when nothing waits any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _forget_dropped(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2].is_dropped]
        heapq.heapify(self._heap)

    def _serve(self) -> None:
        while batch := self._take():
            started = time.perf_counter()
            answers = run_batch(batch)
            seconds = time.perf_counter() - started
            try:
                self.loop.call_soon_threadsafe(self._answer, answers, seconds)
            except RuntimeError:  # the loop is closed: nobody waits for an answer
                return

    def _take(self) -> list[Work]:
        """Work for one run; none when the batcher is closed and empty."""
        with self._changed:
            while True:
                while not self._heap and not self._is_closed:
                    self._changed.wait()
                if not self._heap:
                    return []
                first = heapq.heappop(self._heap)[2]
                if not first.is_dropped:
                    break
            batch = [first]
            if first.key is not None and first.rows < self._rows:
                self._gather(batch)
            return batch

    def _gather(self, batch: list[Work]) -> None:
        """Add work of the same key, in order, up to the most rows, for as long as may be waited."""
        rows = batch[0].rows
        until = batch[0].came + self._wait
        while True:
            rows = self._pick(batch, rows)
            left = until - time.monotonic()
            if rows >= self._rows or left <= 0 or self._is_closed:
                return
            self._changed.wait(left)

    def _pick(self, batch: list[Work], rows: int) -> int:
        key, others = batch[0].key, []
        while self._heap and rows < self._rows:
            entry = heapq.heappop(self._heap)
            work = entry[2]
            if work.is_dropped:
                continue
            if work.key == key and rows + work.rows <= self._rows:
                batch.append(work)
                rows += work.rows
            else:
                others.append(entry)
        for entry in others:
            heapq.heappush(self._heap, entry)
        return rows

    def _answer(self, answers: Sequence[tuple[Work, object]], seconds: float) -> None:
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
