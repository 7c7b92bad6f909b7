"""Time limit of a compilation, enforced by an asynchronous exception in its thread.

Compiling is Python in one thread, beside processes and threads that work for it. An exception is
set in that thread, as the one of Ctrl-C is in the main one, and again until the compilation has
ended: one that comes within a callback of the collector of garbage, say, is lost.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ekiden.compiler.options import CompileOptions
from ekiden.frontend.registry import ModelSource
from ekiden.runtime.errors import CompileLimitError

__all__ = ["call_with_time_limit", "limit_time"]

ExecutionResult = TypeVar("ExecutionResult")
INTERRUPT_RETRY_INTERVAL_S = 1.0
"""Seconds until the exception is raised again."""


class _TimeLimitInterrupt(BaseException):
    """Asynchronous exception of an expired time limit; a BaseException, so that no `except
    Exception` swallows it.
    """


class _Watchdog:
    """Watchdog thread that interrupts its creator's thread after some seconds, repeatedly until
    stopped.

    The thread may be interrupted anywhere, also while it starts or stops this: `is_over` is one
    store, after which no further exception is set.
    """

    def __init__(self) -> None:
        self._target = threading.current_thread()
        self._lock = threading.Lock()
        self._stop_event = threading.Event()
        self.is_over = self.is_stopped = False

    def start(self, seconds: float) -> None:
        """Start the timer."""
        threading.Thread(target=self._interrupt_repeatedly, args=(seconds,), daemon=True).start()

    def _interrupt_repeatedly(self, seconds: float) -> None:
        while not self._stop_event.wait(seconds):
            seconds = INTERRUPT_RETRY_INTERVAL_S
            with self._lock:  # an identity is given again when its thread has ended
                if self.is_over or not self._target.is_alive():
                    return
                _raise_in_thread(self._target.ident, _TimeLimitInterrupt)

    def stop(self) -> None:
        """Stop interrupting, and cancel a pending exception."""
        self.is_over = True
        with self._lock:
            _raise_in_thread(self._target.ident, None)
        self._stop_event.set()
        self.is_stopped = True


def _raise_in_thread(thread: int | None, kind: type[BaseException] | None) -> None:
    value = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), value)


def call_with_time_limit(
    seconds: float | None, call: Callable[[], ExecutionResult]
) -> ExecutionResult:
    """Call a function within a time limit; return its result. Raises CompileLimitError where it
    takes longer; what waits in C, for a process or for NumPy, is interrupted when that comes back.
    """
    if seconds is None:
        return call()
    watcher = _Watchdog()
    try:
        try:
            watcher.start(seconds)
            return call()
        finally:
            watcher.stop()
    except _TimeLimitInterrupt:
        # The pending exception may arrive inside the handler itself.
        while not watcher.is_stopped:  # it came while it was stopped
            with suppress(_TimeLimitInterrupt):
                watcher.stop()
        raise CompileLimitError(
            f"compile: it was stopped at its limit of {seconds:g} s (timeout)"
        ) from None


def limit_time(
    compile_function: Callable[[ModelSource, CompileOptions], ExecutionResult],
) -> Callable[[ModelSource, CompileOptions], ExecutionResult]:
    """Decorate a function that compiles a model, so that it ends at the options' time limit with a
    CompileLimitError.
    """

    @functools.wraps(compile_function)
    def compile_in_time(source: ModelSource, options: CompileOptions) -> ExecutionResult:
        return call_with_time_limit(options.time_limit_s, lambda: compile_function(source, options))

    return compile_in_time
