"""How much memory compiled programs use in this process, and how much they may."""

from __future__ import annotations

from typing import NamedTuple

from ekiden.runtime._core import _pool_stats, get_global_func


class MemoryStats(NamedTuple):
    """What the pools of the process hold, in bytes."""

    allocations: int
    """Requests to the system since the process began."""
    held: int
    """From the system, in use or not; mapped files do not count."""
    free: int
    """Of these, kept for reuse."""
    in_use: int
    """Of buffers: data of tensors, arenas of programs (also those that rest), scratch memory."""
    peak: int
    """The most that was in use at once, since `reset_peak_memory`."""
    limit: int
    """The most that may be held; 0 for no limit."""


def memory_stats() -> MemoryStats:
    """The numbers of now, of all programs and threads together."""
    return MemoryStats(*_pool_stats())


def reset_peak_memory() -> None:
    """Count the peak from what is in use now."""
    _call("ek.runtime.reset_peak")


def memory_limit(limit: int | None = None) -> int:
    """The most bytes that may be held, 0 for no limit; then set to `limit` where one is given.

    A run that needs more raises MemoryLimitError, after memory kept for reuse, that of idle
    programs too, was given back. `EKIDEN_MEMORY_LIMIT` is the initial one.
    """
    found = _call("ek.runtime.memory_limit", *(() if limit is None else (limit,)))
    assert isinstance(found, int)
    return found


def _call(name: str, *args: int) -> object:
    function = get_global_func(name)
    assert function is not None
    return function(*args)
