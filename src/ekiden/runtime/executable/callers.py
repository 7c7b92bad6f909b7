"""Many callers of one program: a machine for each call, and calls that are waited for later."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from ekiden._lazy import LazyModule
from ekiden.runtime.binding._core import Executable, VirtualMachine, num_threads

if TYPE_CHECKING:
    from concurrent import futures

    from ekiden.runtime.executable import placing
else:
    futures = LazyModule("concurrent.futures")
    placing = LazyModule("ekiden.runtime.executable.placing")

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

    def invoke(self, name: str, *args: object) -> object:
        """As VirtualMachine.invoke, from any thread."""
        return self.run(args, name=name)

    def run(
        self,
        args: Sequence[object],
        seconds: object = None,
        places: Sequence[object] = (),
        name: str = "main",
    ) -> object:
        """The same, stopped after so many seconds with a RunLimitError. `places` are pairs: an
        instruction that asks for memory, and a tensor or array whose memory it gets.

        Raises TypeError and ValueError for seconds that are no positive number.
        """
        try:
            machine = self._idle.pop()
        except IndexError:
            machine = VirtualMachine(self.executable, self._executor)
        try:
            if seconds is None and not places:
                return machine.invoke(name, *args)
            return _invoke_within(machine, seconds, places, name, args)
        finally:
            self._idle.append(machine)


def _invoke_within(
    machine: VirtualMachine,
    seconds: object,
    places: Sequence[object],
    name: str,
    args: Sequence[object],
) -> object:
    if seconds is None:
        return placing.invoke_into(machine, places, name, args)
    if not isinstance(seconds, (int, float)):
        raise TypeError(f"timeout: a number of seconds expected, got {type(seconds).__name__}")
    try:
        machine.limit(seconds=seconds)
        return placing.invoke_into(machine, places, name, args)
    finally:
        machine.limit()


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
