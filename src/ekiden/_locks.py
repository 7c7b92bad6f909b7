"""Locks that remain usable in the child of a fork.

The child of a fork has one thread, and Python promises nothing of what others held: their locks
stay closed in it. A `ForkSafeLock` is free there unless the forking thread holds it. Where a lock
guards what must be whole in the child (a module that is being imported, LLVM's state), forks wait
until they hold it themselves (`register_fork_guard`).

Ekiden itself forks no process that has threads; this is for programs that do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from threading import RLock, get_ident
from weakref import WeakSet

__all__ = ["ForkSafeLock", "register_fork_guard"]


class ForkSafeLock:
    """Reentrant lock that is free in the child of a fork unless the forking thread holds it."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._owner: int | None = None
        self._depth = 0
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._owner = get_ident()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
        self._lock.release()

    @property
    def is_held_by_this_thread(self) -> bool:
        """Return whether this thread holds the lock."""
        return self._owner == get_ident()

    def _release_in_child(self) -> None:
        """Release the lock in the child of a fork, where a thread that held it does not exist."""
        if not self.is_held_by_this_thread:
            self._lock, self._owner, self._depth = RLock(), None, 0


_LOCKS: WeakSet[ForkSafeLock] = WeakSet()
_GUARDS: list[Callable[[], AbstractContextManager[object]]] = []
_HELD_GUARDS: dict[int, ExitStack] = {}
"""Thread that forks -> the guards that it holds until it has."""


def register_fork_guard(guard: Callable[[], AbstractContextManager[object]]) -> None:
    """Enter the context that `guard` returns before each fork, and leave it in parent and child.

    Guards are entered in the order of registration: a thread that is inside of one may wait for a
    later one, never for an earlier one.
    """
    _GUARDS.append(guard)


def _before_fork() -> None:
    with ExitStack() as guards:
        for guard in _GUARDS:
            guards.enter_context(guard())
        _HELD_GUARDS[get_ident()] = guards.pop_all()


def _release_guards() -> None:
    _HELD_GUARDS.pop(get_ident(), ExitStack()).close()


def _after_fork_in_child() -> None:
    _release_guards()
    _HELD_GUARDS.clear()
    for lock in list(_LOCKS):
        lock._release_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_release_guards, after_in_child=_after_fork_in_child
    )
