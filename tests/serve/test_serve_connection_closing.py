"""Connections whose clients go: some are closed in each turn of the loop."""

from __future__ import annotations

import asyncio

import pytest

from ekiden.serve.connections import CLOSED_PER_ITERATION, ClosingQueue

pytestmark = pytest.mark.quick


class _Transport:
    """A transport that counts how often any is closed."""

    def __init__(self, closed: list[_Transport]) -> None:
        self._closed = closed

    def close(self) -> None:
        """Close it."""
        self._closed.append(self)


def test_loop_iteration_closes_a_bounded_number_of_connections() -> None:
    closed: list[_Transport] = []
    transports = [_Transport(closed) for _ in range(3 * CLOSED_PER_ITERATION + 1)]

    async def close_all() -> list[int]:
        queue, loop, counts = ClosingQueue(), asyncio.get_running_loop(), []
        for transport in transports:
            queue.add(transport, loop)  # type: ignore[arg-type]  # all that it uses
        while not counts or counts[-1] < len(transports):
            await asyncio.sleep(0)
            counts.append(len(closed))
        return counts

    counts = asyncio.run(close_all())
    assert closed == transports
    steps = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert max(steps) == CLOSED_PER_ITERATION
