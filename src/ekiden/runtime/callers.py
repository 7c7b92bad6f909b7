"""Many callers of one program: a machine for each call, and calls that are waited for later."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from ekiden.runtime._core import Executable, VirtualMachine, num_threads
from ekiden.runtime.late import Late

if TYPE_CHECKING:
    from concurrent import futures

    from ekiden.runtime import placing
else:
    futures = Late("concurrent.futures")
    placing = Late("ekiden.runtime.placing")

Result = TypeVar("Result")


def executor_of(executable: Executable) -> str:
    """What an executable was compiled for, of the executors that a machine has."""
    return "async" if executable.metadata.get("executor") == "async" else "vm"


class Machines:
    """Machines of one executable: as many as there were calls at once, at most.

    Each keeps its arena for the next call, until another one needs the memory (`memory_limit`).
    """

    def __init__(self, executable: Executable, executor: str) -> None:
        self.executable = executable
        self._executor = executor
        self._idle = [VirtualMachine(executable, executor)]

    def invoke(self, name: str, *args: object, places: Sequence[object] = ()) -> object:
        """As VirtualMachine.invoke, from any thread. `places` are pairs: an instruction that asks
        for memory, and a tensor or array whose memory it gets.
        """
        machine = self._take()
        try:
            return (
                placing.invoke_into(machine, places, name, args)
                if places
                else machine.invoke(name, *args)
            )
        finally:
            self._idle.append(machine)

    def invoke_within(
        self, seconds: object, name: str, *args: object, places: Sequence[object] = ()
    ) -> object:
        """The same, stopped after so many seconds with a RunLimitError. Raises TypeError and
        ValueError for what is no positive number.
        """
        if not isinstance(seconds, (int, float)):
            raise TypeError(f"timeout: a number of seconds expected, got {type(seconds).__name__}")
        machine = self._take()
        try:
            machine.limit(seconds=seconds)
            return (
                placing.invoke_into(machine, places, name, args)
                if places
                else machine.invoke(name, *args)
            )
        finally:
            machine.limit()
            self._idle.append(machine)

    def _take(self) -> VirtualMachine:
        try:
            return self._idle.pop()
        except IndexError:
            return VirtualMachine(self.executable, self._executor)


@cache
def _pool() -> futures.ThreadPoolExecutor:
    return futures.ThreadPoolExecutor(num_threads(), "ekiden")


if hasattr(os, "register_at_fork"):  # a child has none of the threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def start(call: Callable[[], Result]) -> futures.Future[Result]:
    """A call on one of the process's threads for this: as many as the runtime has, so that calls
    which wait take no core from those that run.
    """
    return _pool().submit(call)
