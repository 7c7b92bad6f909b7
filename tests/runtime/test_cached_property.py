"""Cached properties."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ekiden.runtime.cached_property import cached_property

pytestmark = pytest.mark.quick


def test_cached_properties_of_different_objects_do_not_block() -> None:
    """As with Python's own before 3.12, whose lock was closed in the child of a fork."""
    begun, done = threading.Event(), threading.Event()

    class Owner:
        def __init__(self, waits: bool) -> None:
            self.waits = waits

        @cached_property
        def value(self) -> object:
            if self.waits:
                begun.set()
                done.wait(20)
            return object()

    slow, quick = Owner(True), Owner(False)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: slow.value)
        assert begun.wait(20)
        assert quick.value is quick.value
        assert not waiting.done()
        done.set()
        assert waiting.result() is slow.value
