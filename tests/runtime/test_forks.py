"""What the child of a fork has of the locks of its parent."""

from __future__ import annotations

import os
import threading

import pytest

from ekiden.runtime.forks import Lock

pytestmark = pytest.mark.quick


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_child_has_locks_free_that_other_threads_held() -> None:
    others, own = Lock(), Lock()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with others:
            held.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20)
    with own:
        child = os.fork()
        if child == 0:
            is_free = others._lock.acquire(blocking=False)
            os._exit(0 if is_free and own._lock._is_owned() else 1)  # type: ignore[attr-defined]
    assert os.waitpid(child, 0)[1] == 0
    done.set()
    thread.join()
