"""Calls that go deeper than one Python stack."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_Result = TypeVar("_Result")

LEVELS = 60
"""How many levels of a program a recursive visitor may go down on one stack."""


def on_fresh_stack(function: Callable[[_T], _Result], argument: _T) -> _Result:
    """Return `function(argument)`, called with an empty stack: on a thread that this one waits for.

    Python counts the depth of calls per thread, so a visitor that goes to a fresh stack every
    `LEVELS` levels has no limit but memory. Context variables are those of the caller; errors come
    back.
    """
    done: list[_Result] = []
    failed: list[BaseException] = []
    context = contextvars.copy_context()

    def run() -> None:
        """Call the function in the thread, and hand over its result, or the error it raised."""
        try:
            done.append(context.run(function, argument))
        # Everything, KeyboardInterrupt too: an error in a thread would be printed and lost.
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]
