"""Modules that are imported late, by several threads at once."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ekiden
from ekiden.runtime import late
from ekiden.runtime.forks import Lock
from ekiden.runtime.late import Table, cached_property, import_late, load_postponed, postpone

pytestmark = pytest.mark.quick

Events = dict[str, threading.Event]
Put = Callable[[str, str], Events]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Puts modules into `ekiden`, whose bodies have events by name."""
    monkeypatch.setattr(ekiden, "__path__", [*ekiden.__path__, str(tmp_path)])
    events: Events = {}
    monkeypatch.setattr(sys, "_events", events, raising=False)

    def make(name: str, body: str) -> Events:
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"import sys\nevents = sys._events\n{body}\n")
        importlib.invalidate_caches()
        return events

    for each in ("begun", "inside", "go"):
        events[each] = threading.Event()
    return make


def test_rows_wait_for_modules_that_another_thread_imports(put: Put) -> None:
    """They were missing: what one thread had begun to import was nobody else's to wait for."""
    events = put("late_rows", "events['begun'].set()\nevents['go'].wait(20)\nwhole = True")
    postpone(["ekiden.late_rows"])
    thread = threading.Thread(target=load_postponed)
    thread.start()
    assert events["begun"].wait(20)
    releasing = threading.Timer(0.1, events["go"].set)
    releasing.start()
    load_postponed()
    assert sys.modules["ekiden.late_rows"].whole
    thread.join()
    releasing.join()


def test_a_module_may_ask_for_all_rows_while_it_is_imported(put: Put) -> None:
    put("late_asking", "from ekiden.runtime.late import load_postponed\nload_postponed()\nrow = 1")
    postpone(["ekiden.late_asking"])
    load_postponed()
    assert sys.modules["ekiden.late_asking"].row == 1
    assert "ekiden.late_asking" not in late._POSTPONED


@pytest.mark.parametrize("which", ["rows", "items", "keys", "values", "__iter__"])
def test_rows_may_be_added_while_others_are_looked_through(which: str) -> None:
    """As by modules that other threads import."""
    table: Table[str, int] = Table()
    table.update(a=1, b=2)
    seen = 0
    for _ in getattr(table, which)():
        table[f"more {seen}"] = seen
        seen += 1
    assert seen == 2 and len(table) == 4


def test_a_package_and_a_module_of_it_are_imported_by_two_threads(put: Put) -> None:
    """Each would wait for the other: one of them got half a module."""
    body = "events['begun'].set()\nevents['inside'].wait(0.2)\nname = 1\nfrom ekiden.late_package "
    events = put("late_package/__init__", f"{body} import part")
    put("late_package/part", "events['inside'].set()\nfrom ekiden.late_package import name")
    with ThreadPoolExecutor(1) as pool:
        package = pool.submit(import_late, "ekiden.late_package")
        assert events["begun"].wait(20)
        part: Any = import_late("ekiden.late_package.part")
        assert part.name == 1 and package.result() is sys.modules["ekiden.late_package"]


def test_a_module_that_is_being_imported_may_import_late(put: Put) -> None:
    """Who holds a lock of importlib's never waits for one that others hold while they import."""
    events = put("late_first", "events['begun'].set()\nevents['inside'].wait(20)\nimport_late = 1")
    put("late_other", "pass")
    body = "from ekiden.runtime.late import import_late\nevents['go'].set()"
    put("late_second", f"{body}\nimport_late('ekiden.late_other')\nevents['inside'].set()")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(import_late, "ekiden.late_first")  # has the lock, and waits
        assert events["begun"].wait(20)
        second = pool.submit(importlib.import_module, "ekiden.late_second")
        assert second.result(20).__name__ == "ekiden.late_second"
        assert first.result(20).import_late == 1


def test_a_property_of_one_object_does_not_wait_for_that_of_another() -> None:
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
            is_free = others._lock.acquire(blocking=False)  # type: ignore[attr-defined]
            os._exit(0 if is_free and own._lock._is_owned() else 1)  # type: ignore[attr-defined]
    assert os.waitpid(child, 0)[1] == 0
    done.set()
    thread.join()
