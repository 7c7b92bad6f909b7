"""Deep recursion on the stack of a fresh thread."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_Result = TypeVar("_Result")

MAX_RECURSION_LEVELS = 60
"""Maximum recursion depth of a visitor on one stack."""


def call_on_fresh_stack(function: Callable[[_T], _Result], argument: _T) -> _Result:
    """Return `function(argument)` computed on a new thread with an empty stack, and wait for it.

    Python counts the depth of calls per thread, so a visitor that goes to a fresh stack every
    `MAX_RECURSION_LEVELS` levels has no limit but memory. Context variables are those of the
    caller; errors come back.
    """
    done: list[_Result] = []
    failed: list[BaseException] = []
    # A new thread starts with empty context variables: the current PassContext would be lost.
    context = contextvars.copy_context()

    def run_in_thread() -> None:
        """Run the function in the thread and store its result or the exception it raised."""
        try:
            done.append(context.run(function, argument))
        # Everything, KeyboardInterrupt too: an error in a thread would be printed and lost.
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run_in_thread)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]
