"""How much memory compiled programs use in this process, and how much they may."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def within_free_memory() -> Iterator[None]:
    """While this is entered, a run that needs more memory than is free raises MemoryLimitError,
    where the system would end the process. A limit that was set stays.
    """
    before, free = memory_limit(), free_memory()
    if before == 0 and free is not None:
        memory_limit(memory_stats().held + free)
    try:
        yield
    finally:
        memory_limit(before)


def free_memory() -> int | None:
    """Bytes that this process may still take before the system ends it, swap included, by what
    the kernel and the control group say; None where neither does.
    """
    found = [_available(), _left_of_group()]
    return min((n for n in found if n is not None), default=None)


def _available() -> int | None:
    rows = dict(line.split(":", 1) for line in _lines("/proc/meminfo") if ":" in line)
    found = [rows[n].split()[0] for n in ("MemAvailable", "SwapFree") if n in rows]
    return sum(map(int, found)) << 10 if found else None


def _left_of_group() -> int | None:
    """What a container may still take (cgroup v2)."""
    limit, used = (_lines(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if not limit or not used or not limit[0].isdigit():
        return None
    return max(0, int(limit[0]) - int(used[0]))


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


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
