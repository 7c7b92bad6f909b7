"""A limit of time of a compilation: its thread is interrupted wherever it is.

Compiling is Python in one thread, beside processes and threads that work for it. An exception is
set in that thread, as the one of Ctrl-C is in the main one, and again until the compilation has
ended: one that comes within a callback of the collector of garbage, say, is lost.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

from ekiden.runtime.errors import CompileLimitError

__all__ = ["call_within"]

Result = TypeVar("Result")
AGAIN_SECONDS = 0.25
"""Until the exception is set again."""


class _TimeIsOverError(BaseException):
    """What interrupts the thread; no error, so that nothing takes it for one of its own."""


class _Watcher:
    """Interrupts a thread after some seconds, until it is stopped."""

    def __init__(self, seconds: float) -> None:
        self._target = threading.get_ident()
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(seconds,), daemon=True)
        self._thread.start()

    def _run(self, seconds: float) -> None:
        while not self._ends.wait(seconds):
            seconds = AGAIN_SECONDS
            with self._lock:
                if not self._ends.is_set():
                    _set_exception(self._target, _TimeIsOverError)

    def stop(self) -> None:
        """Interrupt no more, and take back an exception that has not come yet."""
        with self._lock:
            self._ends.set()
            _set_exception(self._target, None)


def _set_exception(thread: int, kind: type[BaseException] | None) -> None:
    value = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), value)


def call_within(seconds: float | None, call: Callable[[], Result]) -> Result:
    """Return what a compilation gives. Raises CompileLimitError where it takes longer; what waits
    in C, for a process or for NumPy, is interrupted when that comes back.
    """
    if seconds is None:
        return call()
    watcher = _Watcher(seconds)
    try:
        try:
            return call()
        finally:
            watcher.stop()
    except _TimeIsOverError:
        watcher.stop()
        raise CompileLimitError(
            f"compile: it was stopped at its limit of {seconds:g} s (timeout)"
        ) from None
