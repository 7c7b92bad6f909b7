"""Requests that wait for a program, and what runs them, several in one run.

The event loop puts work in; a thread that is free takes all that waits for one program. Requests
that come while a run is under way so make up the next one, and nobody waits for nothing.

A run that takes a moment, as those of its size did before, is made by the event loop itself: to
wake a thread and be woken by it takes longer, and where both want the one lock of Python much
longer. It then takes all that came with one look at the sockets: the last of them makes the run as
it is put in, where it knows that it is the last. Else each turn of the loop would read further
requests before the answers of these are written, and each would wait for several turns.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field

import numpy as np

from ekiden.runtime.errors import EkidenError, RequestError, RunLimitError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.datatypes import Array
from ekiden.serve.reasons import refusal

__all__ = ["Arrivals", "Batcher", "Run", "Runners", "Work"]

_log = logging.getLogger(__name__)

Key = tuple[tuple[int, ...], ...]
Run = Callable[[Sequence[Array], float], list[Array]]
"""A run of a program: arrays, and the seconds it may take."""
LAST = 2**63
"""The priority of what says none."""
MOMENT = 0.0003
"""The seconds of a run that the event loop makes itself."""
PATIENCE = 0.02
"""The seconds after which such a run is ended after all, and made again by a thread."""


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
    can_repeat: bool = False
    """A run that was ended can be made again: it leaves nothing behind."""

    @property
    def size(self) -> int:
        """The bytes that it brings."""
        return sum(array.nbytes for array in self.arrays)


class Costs:
    """What runs of a program took: one figure for each power of two of the bytes they were given.
    A long one counts at once, and fades."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def note(self, size: int, seconds: float) -> None:
        """A run took so long."""
        at = size.bit_length()
        before = self._seconds.get(at, 0.0)
        self._seconds[at] = max(seconds, before + 0.25 * (seconds - before))

    def is_brief(self, size: int) -> bool:
        """Whether a run will take a moment; not where none was seen."""
        return self._seconds.get(size.bit_length(), PATIENCE) <= MOMENT


class Arrivals:
    """Requests that came with one look at the sockets and that nothing was done for yet. A hint:
    wrong, it makes runs smaller or later, and nothing else.
    """

    def __init__(self) -> None:
        self._count = 0

    def come(self) -> None:
        """A request has come, and will begin when it is its turn."""
        self._count += 1

    def begin(self) -> None:
        """One of them begins."""
        self._count -= 1

    @property
    def are_over(self) -> bool:
        """Whether all that came have begun."""
        return self._count <= 0


class Runners:
    """The threads that run programs: as many at once as the machine has use for, whichever models
    they are of. A thread that has ended a run takes the next of any, so that many small models
    wake no thread each.
    """

    def __init__(self, count: int, clock: Callable[[], float] = time.thread_time) -> None:
        """`clock()` is the seconds for which the calling thread had the processor so far."""
        self.lock = threading.Lock()
        """Guards this and the queues of all batchers."""
        self.clock = clock
        self._changed = threading.Condition(self.lock)
        self.pending: set[Work] = set()
        """What somebody waits for, of all batchers. Of the event loop's thread alone."""
        self._ready: deque[tuple[Batcher, list[Work]]] = deque()
        """Whose turn it is, and a run where it is made up already."""
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
            self._ready.append((batcher, []))
            self._changed.notify()

    def hand(self, batcher: Batcher, batch: list[Work]) -> None:
        """Let a thread make a run, which the batcher counts among those under way."""
        with self.lock:
            self._ready.append((batcher, batch))
            self._changed.notify()

    def give_up(self, error: Exception) -> None:
        """Answer all that has no answer yet by an error; what runs goes on for nobody."""
        for work in list(self.pending):
            if not work.future.done():
                work.future.set_exception(error)

    def close(self) -> None:
        """Let the threads end when nothing waits any more."""
        with self.lock:
            self._is_closed = True
            self._changed.notify_all()

    def _serve(self) -> None:
        while found := self._next():
            batcher, batch = found
            started, busy = time.perf_counter(), self.clock()
            answers = run_batch(batch)
            busy, seconds = self.clock() - busy, time.perf_counter() - started
            with self.lock:
                batcher.ended(batch, busy)
                if not batcher.is_brief():
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
                    self._changed.wait()
                batcher, batch = self._ready.popleft()
                if batch:
                    return batcher, batch
                batcher.is_offered = False
                if batch := batcher.take():
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
        self._has_turn = False
        """Whether the loop will look at what waits."""
        self._on_run = on_run
        self.runners = runners
        self._bound, self._rows, self._wait = queue, rows, wait
        self._heap: list[tuple[int, int, Work]] = []
        self._size = 0
        """The bytes of all that waits."""
        self._count = 0
        self._instances = instances
        self._smoothed = 0.01
        self._costs = Costs()

    @property
    def waiting(self) -> int:
        """Requests that no thread has taken."""
        return len(self._heap)

    def put(self, work: Work, priority: int = 0, is_last: bool = False) -> None:
        """Let work wait; smaller priorities go first, 0 last. With `is_last` nothing else comes
        before the loop looks again, and a run of a moment is made now. Raises RequestError where
        the queue is full."""
        with self.runners.lock:
            if len(self._heap) >= self._bound:
                self._forget_dropped()
            if len(self._heap) >= self._bound:
                raise RequestError(f"{self._bound} requests wait already", "busy", self.estimate())
            self._count += 1
            heapq.heappush(self._heap, (priority or LAST, self._count, work))
            self._size += work.size
            if not is_last:
                self._place()
        self.runners.pending.add(work)
        if is_last:
            self._take_turn()
        if self._wait:
            self.loop.call_later(self._wait, self._look)

    def _look(self) -> None:
        with self.runners.lock:
            self._place()

    def _place(self) -> None:
        """Let what waits have its turn, here or with the threads. On the loop, with the lock."""
        if not self.is_brief():
            self.runners.offer(self)
        elif not self._has_turn:
            self._has_turn = True
            self.loop.call_soon(self._take_turn)

    def is_brief(self) -> bool:
        """Whether a run of what waits is one for the loop itself. With the lock held."""
        if not self._heap or not self._heap[0][2].can_repeat:
            return False
        part = min(1.0, self._rows / len(self._heap))
        return self._costs.is_brief(int(self._size * part))

    def _take_turn(self) -> None:
        """Run what waits, on the loop."""
        with self.runners.lock:
            self._has_turn = False
            if not self.may_run():
                return
            if not self.is_brief():
                self.runners.offer(self)
                return
            batch = self.take()
        if not batch:
            return
        started, busy = time.perf_counter(), self.runners.clock()
        try:
            answers = run_at_once(batch)
        except Exception:  # it takes longer than thought, or one of several is wrong
            self.runners.hand(self, batch)
            return
        busy, seconds = self.runners.clock() - busy, time.perf_counter() - started
        with self.runners.lock:
            self.ended(batch, busy)
        self.answer(answers, seconds)

    def ended(self, batch: Sequence[Work], seconds: float) -> None:
        """A run has ended, for which its thread had the processor so long. With the lock held."""
        self.running -= 1
        self._costs.note(sum(work.size for work in batch), seconds)

    def may_run(self) -> bool:
        """Whether there is work, an instance for it, and nothing more to wait for."""
        if not self._heap or self.running >= self._instances:
            return False
        if self._wait == 0:
            return True
        oldest = min(entry[2].came for entry in self._heap)
        rows = sum(entry[2].rows for entry in self._heap)
        return rows >= self._rows or oldest + self._wait <= time.monotonic() + 1e-3

    def drop(self, work: Work) -> None:
        """Nobody waits for it any more. On the loop."""
        work.is_dropped = True
        self.runners.pending.discard(work)

    def estimate(self) -> float:
        """The seconds until what waits now is done, as runs went so far."""
        return max(0.001, (len(self._heap) + 1) * self._smoothed / self._instances)

    def _forget_dropped(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2].is_dropped]
        self._size = sum(entry[2].size for entry in self._heap)
        heapq.heapify(self._heap)

    def take(self) -> list[Work]:
        """Work for one run, in order and of one key, up to the most rows; none where all that
        waited was dropped. The run is counted as under way. With the lock held."""
        batch: list[Work] = []
        others: list[tuple[int, int, Work]] = []
        rows = 0
        while self._heap and rows < self._rows:
            entry = heapq.heappop(self._heap)
            work = entry[2]
            self._size -= work.size
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
            self._size += entry[2].size
        self.running += bool(batch)
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
        if self._heap:
            self._look()


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


def run_at_once(batch: Sequence[Work]) -> list[tuple[Work, object]]:
    """The same on the loop. Raises whatever a run of several raises, and RunLimitError for one that
    takes longer than the loop can wait."""
    if len(batch) > 1:
        return list(zip(batch, _together(batch, PATIENCE), strict=True))
    return [(batch[0], _alone(batch[0], PATIENCE))]


def _together(batch: Sequence[Work], most: float = math.inf) -> list[list[Array]]:
    """One run of all: arrays one behind the other, and outputs cut where requests meet."""
    columns = zip(*(work.arrays for work in batch), strict=True)
    seconds = min(most, max(work.deadline for work in batch) - time.monotonic())
    outputs = batch[0].run([np.concatenate(column) for column in columns], seconds)
    rows = [work.rows for work in batch]
    if any(len(output) != sum(rows) for output in outputs):
        raise EkidenError("a run of several requests gave another number of rows")
    ends = np.cumsum(rows).tolist()
    return [
        [output[end - count : end] for output in outputs]
        for end, count in zip(ends, rows, strict=True)
    ]


def _alone(work: Work, most: float = math.inf) -> object:
    """The outputs of a request, or the error that its client is told. Raises RunLimitError where
    the run took `most` seconds and has more."""
    left = work.deadline - time.monotonic()
    if left <= 0:
        return RequestError("the time of the request ended before it ran", "deadline")
    try:
        return work.run(work.arrays, min(left, most))
    except Exception as error:  # whatever it is: its request is answered, the thread goes on
        if isinstance(error, RunLimitError) and left > most:
            raise
        made = refusal(error)
        if made is not error:
            made.__cause__ = error
        return made
