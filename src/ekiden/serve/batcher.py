"""Request queues with dynamic batching, and the threads that run the batches.

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
from ekiden.serve.failure_reasons import to_request_error

__all__ = [
    "Batcher",
    "PendingArrivals",
    "QueuedRequest",
    "RunFunction",
    "RunObserver",
    "RunnerThreads",
]

_log = logging.getLogger(__name__)

Key = tuple[tuple[int, ...], ...]
RunFunction = Callable[[Sequence[Array], float], list[Array]]
"""A run of a program: arrays, and the seconds it may take."""
RunObserver = Callable[[int, float, int, float], None]
"""Called with the rows of a run, its seconds, the number of its requests and the seconds that they
were queued together."""
DEFAULT_REQUEST_PRIORITY = 2**63
"""The priority of what says none."""
INLINE_RUN_LIMIT_S = 0.0003
"""The seconds of a run that the event loop makes itself."""
INLINE_RUN_TIMEOUT_S = 0.02
"""The seconds after which such a run is ended after all, and made again by a thread."""


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """Queued request: its inputs, and the future of its outputs."""

    arrays: Sequence[Array]
    future: asyncio.Future[list[Array]]
    deadline: float
    """By `time.monotonic`."""
    run_function: RunFunction
    batch_key: Key | None = None
    """Work of one key can be run together; None: alone."""
    rows: int = 1
    arrival_time: float = field(default_factory=time.monotonic)
    is_dropped: bool = False
    """Nobody waits for it any more."""
    can_repeat: bool = False
    """A run that was ended can be made again: it leaves nothing behind."""

    @property
    def size(self) -> int:
        """Return the size of the inputs in bytes."""
        return sum(array.nbytes for array in self.arrays)


class RunCosts:
    """Moving averages of a program's run times, one per power of two of the input size. A slow run
    counts at once, and decays.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def record(self, size: int, seconds: float) -> None:
        """Record the time of a run."""
        at = size.bit_length()
        before = self._seconds.get(at, 0.0)
        # Pessimistic: a slow run counts at once, so that one estimate cannot stall the event loop
        # twice.
        self._seconds[at] = max(seconds, before + 0.25 * (seconds - before))

    def is_inline_run(self, size: int) -> bool:
        """Return whether a run is expected to be short enough for the event loop; false if none was
        measured.
        """
        return self._seconds.get(size.bit_length(), INLINE_RUN_TIMEOUT_S) <= INLINE_RUN_LIMIT_S


class PendingArrivals:
    """Counter of requests that arrived in one poll of the sockets and have not started. It is only
    a hint: a wrong count makes batches smaller or later.
    """

    def __init__(self) -> None:
        self._count = 0

    def increment(self) -> None:
        """Count an arrived request that has not started."""
        self._count += 1

    def mark_begun(self) -> None:
        """Count the start of an arrived request."""
        self._count -= 1

    @property
    def none_waiting(self) -> bool:
        """Return whether all arrived requests have started."""
        return self._count <= 0


class RunnerThreads:
    """Thread pool that runs programs, shared by all models, with one thread per usable core. A
    thread that has finished a run takes the next one of any model, so that many small models do not
    each wake a thread.
    """

    def __init__(self, count: int, clock: Callable[[], float] = time.thread_time) -> None:
        """Start `count` threads; `clock()` returns the CPU time of the calling thread in
        seconds.
        """
        self.lock = threading.Lock()
        """Guards this and the queues of all batchers."""
        self.clock = clock
        self._changed = threading.Condition(self.lock)
        self.pending: set[QueuedRequest] = set()
        """What somebody waits for, of all batchers. Of the event loop's thread alone."""
        self._ready: deque[tuple[Batcher, list[QueuedRequest]]] = deque()
        """Whose turn it is, and a run where it is made up already."""
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._run_batches, name=f"serve {at}", daemon=True)
            for at in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def enqueue_batcher(self, batcher: Batcher) -> None:
        """Queue a batcher that has runnable work."""
        if not batcher.is_offered and batcher.is_runnable():
            batcher.is_offered = True
            self._ready.append((batcher, []))
            self._changed.notify()

    def enqueue_batch(self, batcher: Batcher, batch: list[QueuedRequest]) -> None:
        """Queue a prepared batch, which the batcher already counts as running."""
        with self.lock:
            self._ready.append((batcher, batch))
            self._changed.notify()

    def fail_all(self, error: Exception) -> None:
        """Fail all unanswered requests; the results of running ones are discarded."""
        for work in list(self.pending):
            if not work.future.done():
                work.future.set_exception(error)

    def close(self) -> None:
        """Stop the threads once the queue is empty."""
        with self.lock:
            self._is_closed = True
            self._changed.notify_all()

    def _run_batches(self) -> None:
        """Run batches until the threads are stopped."""
        while assignment := self._next_batch():
            batcher, batch = assignment
            started, busy = time.perf_counter(), self.clock()
            answers = run_batch(batch)
            busy, seconds = self.clock() - busy, time.perf_counter() - started
            with self.lock:
                batcher.record_run(batch, busy)
                # A batcher that has become brief is left to the event loop, which spares a thread
                # switch.
                if not batcher.can_run_inline():
                    self.enqueue_batcher(batcher)
            with suppress(RuntimeError):  # the loop is closed: nobody waits for an answer
                batcher.loop.call_soon_threadsafe(batcher.deliver, answers, seconds)

    def _next_batch(self) -> tuple[Batcher, list[QueuedRequest]] | None:
        """Return the next batch to run; None once the pool is closed and empty."""
        with self.lock:
            while True:
                while not self._ready:
                    if self._is_closed:
                        return None
                    self._changed.wait()
                batcher, batch = self._ready.popleft()
                if batch:
                    return batcher, batch
                # Cleared before take(), so that requests arriving from now on offer the batcher
                # again.
                batcher.is_offered = False
                if batch := batcher.take_batch():
                    self.enqueue_batcher(batcher)
                    return batcher, batch


class Batcher:
    """Request queue of one loaded program, with dynamic batching. Created and used on the event
    loop's thread.
    """

    def __init__(
        self,
        runners: RunnerThreads,
        *,
        instances: int,
        queue: int,
        rows: int,
        wait: float,
        on_run: RunObserver,
    ) -> None:
        """Create the queue. `rows` is the maximum batch size, `wait` the seconds the first request
        may wait for others; `on_run` is called on the loop after each run.
        """
        self.loop = asyncio.get_running_loop()
        self.running = 0
        """Runs under way."""
        self.is_offered = False
        self._has_turn = False
        """Whether the loop will look at what waits."""
        self._on_run = on_run
        self.runners = runners
        self._bound, self._rows, self._wait = queue, rows, wait
        self._heap: list[tuple[int, int, QueuedRequest]] = []
        self._size = 0
        """The bytes of all that waits."""
        self._count = 0
        self._instances = instances
        self._smoothed = 0.01
        self._costs = RunCosts()

    @property
    def waiting(self) -> int:
        """Return the number of queued requests."""
        return len(self._heap)

    def put(self, work: QueuedRequest, priority: int = 0, is_last: bool = False) -> None:
        """Queue a request; smaller priorities run first, 0 last. With `is_last` nothing else comes
        before the loop looks again, and a run of a moment is made now. Raises RequestError where
        the queue is full.
        """
        with self.runners.lock:
            if len(self._heap) >= self._bound:
                self._purge_dropped()
            if len(self._heap) >= self._bound:
                raise RequestError(
                    f"{self._bound} requests wait already", "busy", self.estimated_wait_s()
                )
            self._count += 1
            # The count breaks ties: equal priorities keep the order of arrival, and Work is never
            # compared.
            heapq.heappush(self._heap, (priority or DEFAULT_REQUEST_PRIORITY, self._count, work))
            self._size += work.size
            if not is_last:
                self._schedule()
        # Only the loop's thread touches this set; no lock is needed.
        self.runners.pending.add(work)
        if is_last:
            self._run_inline()
        if self._wait:
            self.loop.call_later(self._wait, self._wake)

    def _wake(self) -> None:
        with self.runners.lock:
            self._schedule()

    def _schedule(self) -> None:
        """Schedule the waiting requests, on the loop or on the threads."""
        if not self.can_run_inline():
            self.runners.enqueue_batcher(self)
        elif not self._has_turn:
            self._has_turn = True
            self.loop.call_soon(self._run_inline)

    def can_run_inline(self) -> bool:
        """Return whether the next batch is short enough to run on the event loop. The lock must be
        held.
        """
        if not self._heap or not self._heap[0][2].can_repeat:
            return False
        batch_share = min(1.0, self._rows / len(self._heap))
        return self._costs.is_inline_run(int(self._size * batch_share))

    def _run_inline(self) -> None:
        """Run the waiting requests on the loop."""
        with self.runners.lock:
            self._has_turn = False
            if not self.is_runnable():
                return
            if not self.can_run_inline():
                self.runners.enqueue_batcher(self)
                return
            batch = self.take_batch()
        if not batch:
            return
        started, busy = time.perf_counter(), self.runners.clock()
        try:
            # Outside of the lock: the threads must be able to take other work during the run.
            answers = run_batch_inline(batch)
        except Exception:  # it takes longer than thought, or one of several is wrong
            # The run left no state behind (`can_repeat`), so a thread may repeat it without harm.
            self.runners.enqueue_batch(self, batch)
            return
        busy, seconds = self.runners.clock() - busy, time.perf_counter() - started
        with self.runners.lock:
            self.record_run(batch, busy)
        self.deliver(answers, seconds)

    def record_run(self, batch: Sequence[QueuedRequest], seconds: float) -> None:
        """Record the end of a run and its CPU time. The lock must be held."""
        self.running -= 1
        self._costs.record(sum(work.size for work in batch), seconds)

    def is_runnable(self) -> bool:
        """Return whether requests wait, an instance is free, and the batching delay is over."""
        if not self._heap or self.running >= self._instances:
            return False
        # Without a batching delay a batch is whatever waits when an instance becomes free.
        if self._wait == 0:
            return True
        oldest = min(entry[2].arrival_time for entry in self._heap)
        rows = sum(entry[2].rows for entry in self._heap)
        # The tolerance of a millisecond covers timers that fire slightly early.
        return rows >= self._rows or oldest + self._wait <= time.monotonic() + 1e-3

    def discard(self, work: QueuedRequest) -> None:
        """Discard a request whose client is gone."""
        work.is_dropped = True
        self.runners.pending.discard(work)

    def estimated_wait_s(self) -> float:
        """Estimate the queueing delay of a new request in seconds."""
        return max(0.001, (len(self._heap) + 1) * self._smoothed / self._instances)

    def _purge_dropped(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2].is_dropped]
        self._size = sum(entry[2].size for entry in self._heap)
        heapq.heapify(self._heap)

    def take_batch(self) -> list[QueuedRequest]:
        """Take a batch of requests with the same key, in priority order, up to the maximum size;
        empty if all were dropped. It is counted as running. The lock must be held.
        """
        batch: list[QueuedRequest] = []
        other_entries: list[tuple[int, int, QueuedRequest]] = []
        rows = 0
        while self._heap and rows < self._rows:
            entry = heapq.heappop(self._heap)
            work = entry[2]
            self._size -= work.size
            if work.is_dropped:
                continue
            if not batch or (
                work.batch_key == batch[0].batch_key and rows + work.rows <= self._rows
            ):
                batch.append(work)
                rows += work.rows
                # Work without a key belongs to a sequence, which is never batched.
                if work.batch_key is None:
                    break
            else:
                # Requests of other shapes go back: they keep their priority and arrival number.
                other_entries.append(entry)
        for entry in other_entries:
            heapq.heappush(self._heap, entry)
            self._size += entry[2].size
        self.running += bool(batch)
        return batch

    def deliver(self, answers: Sequence[tuple[QueuedRequest, object]], seconds: float) -> None:
        """Complete the requests' futures with outputs or errors, on the event loop."""
        rows = sum(work.rows for work, _ in answers)
        self._smoothed += 0.1 * (seconds / len(answers) - self._smoothed)
        started = time.monotonic() - seconds
        queued = sum(max(0.0, started - work.arrival_time) for work, _ in answers)
        self._on_run(rows, seconds, len(answers), queued)
        for work, answer in answers:
            # Its client has gone, or its deadline has passed.
            if work.future.done():
                continue
            if isinstance(answer, BaseException):
                work.future.set_exception(answer)
            else:
                work.future.set_result(answer)  # type: ignore[arg-type]  # no error: outputs
        if self._heap:
            self._wake()


def run_batch(batch: Sequence[QueuedRequest]) -> list[tuple[QueuedRequest, object]]:
    """Return each request's outputs or error. If a run of several fails, they are rerun one by one,
    so that only faulty requests get an error.
    """
    if len(batch) > 1:
        try:
            return list(zip(batch, _run_batched(batch), strict=True))
        except Exception as error:  # whose fault it is shows when they run alone
            _log.debug("a run of several failed: %s", type(error).__name__)
    # One bad request must not fail the others of its batch.
    return [(work, _run_single(work)) for work in batch]


def run_batch_inline(batch: Sequence[QueuedRequest]) -> list[tuple[QueuedRequest, object]]:
    """Run a batch on the event loop, without a thread switch. Raises what a run of several raises,
    and RunLimitError for a run too long for the loop.
    """
    if len(batch) > 1:
        return list(zip(batch, _run_batched(batch, INLINE_RUN_TIMEOUT_S), strict=True))
    return [(batch[0], _run_single(batch[0], INLINE_RUN_TIMEOUT_S))]


def _run_batched(batch: Sequence[QueuedRequest], time_limit: float = math.inf) -> list[list[Array]]:
    """Run requests as one batch: concatenate the inputs along the batch dimension, and split the
    outputs.
    """
    columns = zip(*(work.arrays for work in batch), strict=True)
    # A batch may run as long as its most patient request; impatient ones are expired by their own
    # timers.
    seconds = min(time_limit, max(work.deadline for work in batch) - time.monotonic())
    outputs = batch[0].run_function([np.concatenate(column) for column in columns], seconds)
    rows = [work.rows for work in batch]
    if any(len(output) != sum(rows) for output in outputs):
        raise EkidenError("a run of several requests gave another number of rows")
    ends = np.cumsum(rows).tolist()
    return [
        [output[end - count : end] for output in outputs]
        for end, count in zip(ends, rows, strict=True)
    ]


def _run_single(work: QueuedRequest, time_limit: float = math.inf) -> object:
    """Return a request's outputs, or the error reported to its client. Raises RunLimitError if the
    run is not finished after `time_limit` seconds though the request allows more.
    """
    remaining = work.deadline - time.monotonic()
    if remaining <= 0:
        return RequestError("the time of the request ended before it ran", "deadline")
    try:
        return work.run_function(work.arrays, min(remaining, time_limit))
    except Exception as error:  # whatever it is: its request is answered, the thread goes on
        if isinstance(error, RunLimitError) and remaining > time_limit:
            raise
        client_error = to_request_error(error)
        if client_error is not error:
            client_error.__cause__ = error
        return client_error
