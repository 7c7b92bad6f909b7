"""Pool of virtual machines for concurrent callers of one program; a machine for each call, and
calls that are waited for later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from ekiden._lazy import LazyModule
from ekiden.runtime.binding._core import Executable, VirtualMachine, num_threads

if TYPE_CHECKING:
    from concurrent import futures

    from ekiden.runtime.executable import output_buffers
else:
    futures = LazyModule("concurrent.futures")
    output_buffers = LazyModule("ekiden.runtime.executable.output_buffers")

CallResult = TypeVar("CallResult")


def executor_kind(executable: Executable) -> str:
    """Return the executor kind that an executable was compiled for."""
    return "async" if executable.metadata.get("executor") == "async" else "vm"


class VMPool:
    """Virtual machines of one executable: at most as many as there were concurrent calls. Each
    keeps its arena for the next call until another one needs the memory (`memory_limit`).
    """

    def __init__(self, executable: Executable, executor: str) -> None:
        self.executable = executable
        self._executor = executor
        self._idle = [VirtualMachine(executable, executor)]

    def invoke(self, name: str, *args: object) -> object:
        """Call a function as VirtualMachine.invoke, from any thread."""
        return self.run(args, name=name)

    def run(
        self,
        args: Sequence[object],
        seconds: object = None,
        buffer_pairs: Sequence[object] = (),
        name: str = "main",
    ) -> object:
        """Call a function, stopped after `seconds` with a RunLimitError.

        Args:
            args: the arguments.
            seconds: time limit; None for none.
            buffer_pairs: pairs of an allocating instruction and the tensor or array that replaces
                its memory.
            name: the function's name.

        Returns:
            The function's result.

        Raises:
            TypeError: for seconds that are no number.
            ValueError: for seconds that are not positive.
        """
        try:
            # list.pop and append are atomic under the interpreter lock, so the pool needs no lock.
            machine = self._idle.pop()
        except IndexError:
            machine = VirtualMachine(self.executable, self._executor)
        try:
            if seconds is None and not buffer_pairs:
                return machine.invoke(name, *args)
            return _invoke_within(machine, seconds, buffer_pairs, name, args)
        finally:
            self._idle.append(machine)


def _invoke_within(
    machine: VirtualMachine,
    seconds: object,
    pairs: Sequence[object],
    name: str,
    args: Sequence[object],
) -> object:
    if seconds is None:
        return output_buffers.invoke_into(machine, pairs, name, args)
    if not isinstance(seconds, (int, float)):
        raise TypeError(f"timeout: a number of seconds expected, got {type(seconds).__name__}")
    try:
        machine.limit(seconds=seconds)
        return output_buffers.invoke_into(machine, pairs, name, args)
    finally:
        # Limits belong to the call, the machine to the pool.
        machine.limit()


@cache
def _thread_pool() -> futures.ThreadPoolExecutor:
    return futures.ThreadPoolExecutor(num_threads(), "ekiden")


if hasattr(os, "register_at_fork"):  # a child has none of the threads
    os.register_at_fork(after_in_child=_thread_pool.cache_clear)


def submit(call: Callable[[], CallResult]) -> futures.Future[CallResult]:
    """Submit a call to the process's threads for asynchronous runs, as many as the runtime has, so
    that waiting calls take no core from running ones.
    """
    return _thread_pool().submit(call)
