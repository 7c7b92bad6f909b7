"""Memory use and limits of compiled programs in this process."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from ekiden._locks import ForkSafeLock
from ekiden.runtime.binding._core import _pool_stats, get_global_func
from ekiden.runtime.errors import MemoryLimitError


class MemoryStats(NamedTuple):
    """Memory statistics of the process's pools, in bytes."""

    allocations: int
    """Allocations requested from the system since the process began."""
    held: int
    """Bytes obtained from the system, in use or not, without mapped files."""
    free: int
    """Bytes of `held` that are cached for reuse."""
    in_use: int
    """Bytes in use: tensor data, arenas of programs (idle ones included), workspaces."""
    peak: int
    """Maximum of `in_use` since `reset_peak_memory`."""
    limit: int
    """Maximum of `held`; 0 for no limit."""


def memory_stats() -> MemoryStats:
    """Return the current statistics, of all programs and threads together."""
    return MemoryStats(*_pool_stats())


def reset_peak_memory() -> None:
    """Reset the peak to the memory in use now."""
    _call_runtime("ek.runtime.reset_peak")


@contextmanager
def within_free_memory() -> Iterator[None]:
    """Limit programs inside to the free memory of the system: a run that needs more raises
    MemoryLimitError instead of being killed. A limit that was set stays.
    """
    free = free_memory()
    # A limit that the user has set holds.
    is_bounded = memory_limit() != 0 or free is None
    with nullcontext() if is_bounded else memory_bound(memory_stats().held + (free or 0)):
        yield


class _MemoryBounds:
    """Active memory bounds, in whatever order they begin and end."""

    def __init__(self) -> None:
        self.lock = ForkSafeLock()
        self.active: list[int] = []
        self.before = 0
        """The limit without them."""

    def update(self, change: Callable[[], None]) -> None:
        """Add or remove a bound, and set the smallest as the limit."""
        with self.lock:
            if not self.active:
                self.before = memory_limit()
            change()
            memory_limit(min(filter(None, (self.before, *self.active)), default=0))


_MEMORY_BOUNDS = _MemoryBounds()


@contextmanager
def memory_bound(byte_limit: int) -> Iterator[None]:
    """Limit the memory of programs inside to `byte_limit` bytes, and to any outer limit; of several
    threads' bounds the smallest holds.
    """
    _MEMORY_BOUNDS.update(lambda: _MEMORY_BOUNDS.active.append(byte_limit))
    try:
        yield
    finally:
        _MEMORY_BOUNDS.update(lambda: _MEMORY_BOUNDS.active.remove(byte_limit))


class _HostArrayAccounting:
    """Accounting of the arrays that a compiler holds: program constants and values computed from
    them.

    The limit of compiled programs holds them too. Mapped files and arrays
    smaller than MIN_TRACKED_BYTES do not count.
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._sizes: dict[int, int] = {}
        """Identity of the array that owns memory -> its bytes."""

    @property
    def total_bytes(self) -> int:
        """Return the sum of all sizes."""
        return sum(list(self._sizes.values()))

    def track(self, array: Any) -> None:  # noqa: ANN401  # NumPy need not be imported here
        """Count an array as long as it lives."""
        owner = _base_array(array)
        if owner is None:
            return
        key = id(owner)
        with self._lock:
            if key in self._sizes:
                return
            # Entered before the check, so that two threads do not both count one array.
            self._sizes[key] = 0
        weakref.finalize(owner, self._sizes.pop, key, None).atexit = False
        check_memory_limit(owner.nbytes, "a constant")
        self._sizes[key] = owner.nbytes


def _base_array(array: Any) -> Any:  # noqa: ANN401  # NumPy need not be imported here
    """Return the array that owns a view's memory. None for memory of a mapped file."""
    kind = type(array).__mro__[-2]  # ndarray, of which some have classes of their own
    while isinstance(array.base, kind):
        array = array.base
    memory = array.base
    if isinstance(memory, memoryview):
        memory = memory.obj
    # Mapped files are not anonymous memory: the system can drop their pages.
    return None if isinstance(memory, mmap.mmap) else array


MIN_TRACKED_BYTES = 1 << 16
"""Bytes of the smallest array that counts."""
_HOST_ARRAYS = _HostArrayAccounting()


def track_array(array: Any) -> None:  # noqa: ANN401  # NumPy need not be imported here
    """Count an array of a program under compilation for as long as it lives."""
    if array.nbytes >= MIN_TRACKED_BYTES:
        _HOST_ARRAYS.track(array)


def check_memory_limit(size: int, what: str) -> None:
    """Raise MemoryLimitError if `size` more bytes, of `what`, would exceed the limit."""
    if size < MIN_TRACKED_BYTES:
        return
    limit = memory_limit()
    held = _HOST_ARRAYS.total_bytes + memory_stats().held
    if limit and held + size > limit:
        raise MemoryLimitError(
            f"compile: {what} takes {size} bytes beside {held} that are held, and the limit is"
            f" {limit} (EKIDEN_MEMORY_LIMIT)"
        )


def free_memory() -> int | None:
    """Return the bytes that this process may still allocate before the system kills it, swap
    included, according to kernel and control group; None if neither says.
    """
    limits = [_available_system_memory(), _cgroup_free_memory()]
    return min((n for n in limits if n is not None), default=None)


def _available_system_memory() -> int | None:
    rows = dict(line.split(":", 1) for line in _read_lines("/proc/meminfo") if ":" in line)
    values = [rows[n].split()[0] for n in ("MemAvailable", "SwapFree") if n in rows]
    return sum(map(int, values)) << 10 if values else None


def _cgroup_free_memory() -> int | None:
    """Return the bytes that the control group (cgroup v2) may still allocate."""
    limit, used = (_read_lines(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if not limit or not used or not limit[0].isdigit():
        return None
    return max(0, int(limit[0]) - int(used[0]))


def _read_lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def memory_limit(limit: int | None = None) -> int:
    """Return the memory limit in bytes, 0 for none; set it first if one is given. A run that needs
    more raises MemoryLimitError after memory kept for reuse has been freed, that of idle
    programs too. `EKIDEN_MEMORY_LIMIT` is the initial limit.
    """
    current = _call_runtime("ek.runtime.memory_limit", *(() if limit is None else (limit,)))
    assert isinstance(current, int)
    return current


def _call_runtime(name: str, *args: int) -> object:
    function = get_global_func(name)
    assert function is not None
    return function(*args)
