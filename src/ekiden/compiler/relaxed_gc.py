"""Garbage collection while a model is compiled: it runs rarely, and leaves the survivors alone."""

from __future__ import annotations

import gc
import os
import threading
from types import ModuleType

from ekiden._lazy import load_module
from ekiden._locks import ForkSafeLock

RELAXED_GC_THRESHOLD = 100_000
"""Generation-0 threshold of the garbage collector while compiling; Python's default is 700."""


class _RelaxedGc:
    """Context in which garbage collection runs rarely: a model's objects stay alive, and scanning
    them takes a twentieth of the compile time (Zen 4). It is reentrant and thread-safe.
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._entered_threads: list[int] = []
        """Entry count of each thread inside the context."""
        self._saved_threshold = gc.get_threshold()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset_in_child)

    def __enter__(self) -> None:
        with self._lock:
            if not self._entered_threads:
                self._saved_threshold = gc.get_threshold()
                if 0 < self._saved_threshold[0] < RELAXED_GC_THRESHOLD:
                    gc.set_threshold(RELAXED_GC_THRESHOLD, *self._saved_threshold[1:])
            self._entered_threads.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._entered_threads.remove(threading.get_ident())
            if not self._entered_threads:
                _promote_to_old_generation()
                gc.set_threshold(*self._saved_threshold)

    def _reset_in_child(self) -> None:
        """Reset the thread counts in a forked child, where other threads do not exist."""
        current = threading.get_ident()
        entered = [thread_id for thread_id in self._entered_threads if thread_id == current]
        if self._entered_threads and not entered:
            gc.set_threshold(*self._saved_threshold)
        self._entered_threads = entered


RELAXED_GC = _RelaxedGc()

_has_frozen = False
"""Whether the program has called gc.freeze; checked once, since counting frozen objects is linear.
"""


def _promote_to_old_generation() -> None:
    """Move all objects to the oldest generation, so that the next allocation does not trigger a
    full scan during the first run.
    """
    global _has_frozen
    if not gc.isenabled() or _has_frozen:
        return
    _has_frozen = gc.get_freeze_count() > 0
    if not _has_frozen:  # unfreeze would undo what the program has frozen
        gc.freeze()
        gc.unfreeze()


def load_without_gc(name: str) -> ModuleType:
    """Import a module with garbage collection disabled: of the compiler's modules, a collection
    would take a tenth of the import time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return load_module(name)
    finally:
        if was_enabled:
            gc.enable()
            _promote_to_old_generation()
            if _has_frozen:
                # A server froze what it had loaded before. Its full collections would otherwise
                # walk the compiler's modules in the midst of requests.
                gc.freeze()
