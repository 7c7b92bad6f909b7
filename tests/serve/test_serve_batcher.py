"""The queue of a program: order, bounds, runs of several, errors that stay with their request."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import pytest

from ekiden.runtime.errors import RequestError, RunLimitError
from ekiden.serve.batcher import Batcher, PendingArrivals, QueuedRequest, RunnerThreads
from ekiden.serve.datatypes import Array

SOON = 60.0


class Gate:
    """A run that waits until it is let go, and notes what it was given."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []
        self.begun, self.open = threading.Event(), threading.Event()

    def run(self, arrays: Sequence[Array], seconds: float) -> list[Array]:
        self.begun.set()
        assert self.open.wait(SOON)
        self.seen.append(arrays[0].ravel().tolist())
        if 13.0 in arrays[0]:
            raise ZeroDivisionError("13")
        return [arrays[0] * 2]


def work(gate: Gate, values: list[float], key: Any = ((),), seconds: float = SOON) -> QueuedRequest:  # noqa: ANN401
    future: asyncio.Future[list[Array]] = asyncio.get_running_loop().create_future()
    x = np.array(values)
    return QueuedRequest([x], future, time.monotonic() + seconds, gate.run, key, len(values))


def run(test: Callable[[Batcher, Gate], Coroutine[Any, Any, None]], **argument: Any) -> None:  # noqa: ANN401
    async def inner() -> None:
        settings = {"instances": 1, "queue": 8, "rows": 4, "wait": 0.0}
        runners = RunnerThreads(
            2, clock=lambda: 0.0
        )  # each run takes a moment, however busy the machine
        batcher = Batcher(runners, **{**settings, **argument}, on_run=lambda *run: None)
        gate = Gate()
        try:
            await test(batcher, gate)
        finally:
            gate.open.set()
            runners.close()

    asyncio.run(inner())


async def hold(batcher: Batcher, gate: Gate) -> QueuedRequest:
    """Let a first request occupy the only instance."""
    first = work(gate, [0.0])
    batcher.put(first)
    await asyncio.to_thread(gate.begun.wait, SOON)
    return first


def test_waiting_requests_are_batched_up_to_the_row_limit() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        works = [await hold(batcher, gate)]
        for values in ([1.0], [2.0, 3.0], [4.0], [5.0]):
            works.append(work(gate, values))
            batcher.put(works[-1])
        gate.open.set()
        result = [(await item.future)[0].tolist() for item in works]
        assert result == [[0.0], [2.0], [4.0, 6.0], [8.0], [10.0]]
        assert gate.seen == [[0.0], [1.0, 2.0, 3.0, 4.0], [5.0]]

    run(test)


def test_keys_are_not_mixed_and_priorities_go_first() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        works = [await hold(batcher, gate)]
        for values, key, priority in (
            ([1.0], "a", 0), ([2.0], "b", 0), ([3.0], "a", 5), ([4.0], None, 1), ([5.0], "b", 0),
        ):  # fmt: skip
            works.append(work(gate, values, key))
            batcher.put(works[-1], priority)
        gate.open.set()
        await asyncio.gather(*(item.future for item in works))
        assert gate.seen == [[0.0], [4.0], [3.0, 1.0], [2.0, 5.0]]

    run(test)


def test_full_queue_refuses_and_says_when_to_come() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        await hold(batcher, gate)
        waiting = [work(gate, [1.0]) for _ in range(8)]
        for item in waiting:
            batcher.put(item)
        with pytest.raises(RequestError, match="8 requests wait already") as result:
            batcher.put(work(gate, [2.0]))
        assert result.value.reason == "busy" and result.value.retry_after > 0
        waiting[3].is_dropped = True  # its client has gone: there is room again
        batcher.put(work(gate, [2.0]))

    run(test)


def test_error_stays_with_its_request() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        await hold(batcher, gate)
        works = [work(gate, [value]) for value in (1.0, 13.0, 2.0)]
        for item in works:
            batcher.put(item)
        gate.open.set()
        assert (await works[0].future)[0].tolist() == [2.0]
        with pytest.raises(RequestError, match="the server failed"):
            await works[1].future
        assert (await works[2].future)[0].tolist() == [4.0]

    run(test)


def test_expired_and_dropped_requests_do_not_run() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        await hold(batcher, gate)
        late, dropped, last = work(gate, [1.0], None, -1.0), work(gate, [2.0]), work(gate, [3.0])
        dropped.is_dropped = True
        for item in (late, dropped, last):
            batcher.put(item)
        gate.open.set()
        with pytest.raises(RequestError, match="ended before it ran"):
            await late.future
        await last.future
        assert gate.seen == [[0.0], [3.0]] and not dropped.future.done()

    run(test)


def test_batching_delay_holds_the_first_request() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        gate.open.set()
        works = [work(gate, [float(value)]) for value in range(4)]
        for item in works:
            batcher.put(item)
        await asyncio.gather(*(item.future for item in works))
        assert gate.seen == [[0.0, 1.0, 2.0, 3.0]]  # four rows are the most: nobody waited longer

    run(test, wait=SOON)


class Brief:
    """A run that notes its thread, and ends where it is told to be slow and has little time."""

    def __init__(self) -> None:
        self.seen: list[tuple[bool, list[float]]] = []
        """Whether it ran on the loop's thread, and what it was given."""
        self.is_slow = False
        self._loop = threading.get_ident()

    def run(self, arrays: Sequence[Array], seconds: float) -> list[Array]:
        self.seen.append((threading.get_ident() == self._loop, arrays[0].tolist()))
        if self.is_slow and seconds < SOON / 2:
            raise RunLimitError("the run took longer than it may")
        if 13.0 in arrays[0]:
            raise ZeroDivisionError("13")
        return [arrays[0] * 2]


def brief(result: Brief, value: float, can_repeat: bool = True) -> QueuedRequest:
    future: asyncio.Future[list[Array]] = asyncio.get_running_loop().create_future()
    deadline = time.monotonic() + SOON
    return QueuedRequest(
        [np.array([value])], future, deadline, result.run, ((),), can_repeat=can_repeat
    )


async def until_known(batcher: Batcher, result: Brief) -> None:
    """Runs of one and of two rows, until the loop makes them itself."""
    for count in (1, 2):
        result.seen.clear()
        while not result.seen or result.seen[-1] != (True, [0.0] * count):
            works = [brief(result, 0.0) for _ in range(count)]
            for item in works:
                batcher.put(item)
            await asyncio.gather(*(item.future for item in works))
    result.seen.clear()


def test_brief_runs_execute_on_the_event_loop() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        result = Brief()
        await until_known(batcher, result)
        works = [brief(result, value) for value in (1.0, 2.0)]
        for item in works:
            batcher.put(item)
        assert [(await item.future)[0].tolist() for item in works] == [[2.0], [4.0]]
        last = brief(result, 3.0, can_repeat=False)  # of a sequence: what it leaves would be lost
        batcher.put(last)
        await last.future
        assert result.seen == [(True, [1.0, 2.0]), (False, [3.0])]

    run(test)


def test_last_arrival_starts_the_batch() -> None:
    """With those before it; what takes longer or leaves something behind is for a thread still."""
    result = Brief()

    async def test(batcher: Batcher, gate: Gate) -> None:
        await until_known(batcher, result)
        first, second = brief(result, 1.0), brief(result, 2.0)
        batcher.put(first)
        assert not first.future.done()
        batcher.put(second, is_last=True)
        assert [item.future.result()[0].tolist() for item in (first, second)] == [[2.0], [4.0]]
        last = brief(result, 3.0, can_repeat=False)
        batcher.put(last, is_last=True)
        await last.future
        assert result.seen == [(True, [1.0, 2.0]), (False, [3.0])]

    run(test)


def test_pending_arrivals_end_when_all_have_begun() -> None:
    arrivals = PendingArrivals()
    assert arrivals.none_waiting
    arrivals.increment()
    arrivals.increment()
    arrivals.mark_begun()
    assert not arrivals.none_waiting
    arrivals.mark_begun()
    assert arrivals.none_waiting


def test_overlong_inline_runs_are_repeated_on_a_thread() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        result = Brief()
        await until_known(batcher, result)
        result.is_slow = True
        slow = brief(result, 1.0)
        batcher.put(slow)
        assert (await slow.future)[0].tolist() == [2.0]
        assert result.seen == [(True, [1.0]), (False, [1.0])]

    run(test)


def test_error_on_the_loop_stays_with_its_request() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        result = Brief()
        await until_known(batcher, result)
        right, wrong = brief(result, 1.0), brief(result, 13.0)
        batcher.put(right)
        batcher.put(wrong)
        assert (await right.future)[0].tolist() == [2.0]
        with pytest.raises(RequestError, match="the server failed"):
            await wrong.future
        assert batcher.running == 0 and batcher.waiting == 0

    run(test)
