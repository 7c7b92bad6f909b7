"""Locks across forks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ekiden import _locks
from ekiden._locks import ForkSafeLock, register_fork_guard

pytestmark = [
    pytest.mark.quick,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]


@contextmanager
def held_by_another_thread(lock: ForkSafeLock) -> Iterator[Callable[[], None]]:
    """Let another thread hold a lock until the function that is yielded is called, or the end."""
    entered, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            entered.set()
            release.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(20)
    try:
        yield release.set
    finally:
        release.set()
        thread.join()


def status_of_child(work: Callable[[], bool]) -> int:
    """Return the exit status of a forked process: 0 where `work` returns true there."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_fork_releases_locks_of_other_threads() -> None:
    lock = ForkSafeLock()
    with held_by_another_thread(lock):
        assert status_of_child(lambda: lock._lock.acquire(blocking=False)) == 0


def test_fork_keeps_locks_of_forking_thread() -> None:
    lock = ForkSafeLock()
    with lock, lock:
        assert status_of_child(lambda: lock.is_held_by_this_thread) == 0
        assert lock.is_held_by_this_thread
    assert not lock.is_held_by_this_thread


def test_fork_waits_for_a_guard_that_another_thread_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_locks, "_GUARDS", [])
    guard = ForkSafeLock()
    register_fork_guard(lambda: guard)
    with held_by_another_thread(guard) as release:
        releasing = threading.Timer(0.1, release)
        releasing.start()
        assert status_of_child(lambda: not guard.is_held_by_this_thread) == 0
        assert releasing.finished.is_set()
    assert not guard.is_held_by_this_thread
