"""Fork safety: locks and imports when a program forks a process with threads. Ekiden itself makes
none.

The child of a fork has one thread. What others held stays closed in it for ever: each lock of ours
is renewed in the child (`Lock`) or is held by who forks. Those of importlib cannot be renewed, as
what they guard is half a module, so a fork waits until no other thread imports a module of Ekiden's
or for Ekiden.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from ekiden._lazy import THIRD_PARTY_IMPORTERS, module_owners

if TYPE_CHECKING:
    import imp
else:
    imp = sys.modules["_imp"]  # the module `imp` is gone since Python 3.12, this stays

__all__ = ["Lock", "before_fork", "hold_at_forks"]

MAX_IDLE_POLLS = 1000
"""Polls before a fork gives up on other threads' imports while none of them ends and none begins:
they may be waiting for the one that forks. Counted, not timed, so that a suspended process does not
time out."""
_POLL_INTERVAL_S = 0.001
"""Seconds between two looks."""
_holder: int | None = None
"""The thread of this process, that which holds the lock of all imports, that is forking."""


class Lock:
    """Lock that is free in the child of a fork unless the forking thread holds it: any other holder
    does not exist there. It is reentrant.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Release the lock in the child of a fork, where another thread may have held it."""
        if not self._lock._is_owned():  # type: ignore[attr-defined]  # as threading.Condition asks
            self._lock = threading.RLock()


_LOCKS: WeakSet[Lock] = WeakSet()


def _imported_elsewhere() -> list[str]:
    """Return the modules of Ekiden's, and those for Ekiden, that other threads import."""
    own = threading.get_ident()
    return sorted(n for n, owner in module_owners() if owner != own and _is_ours(n, owner))


def _hold() -> None:
    """Wait until no other thread imports one of Ekiden's modules or for Ekiden, and block new
    imports. Raises BlockingIOError with their names if imports make no progress for
    MAX_IDLE_POLLS.
    """
    global _holder
    last_owners: list[tuple[str, int]] = []
    remaining_polls = MAX_IDLE_POLLS
    imp.acquire_lock()
    while foreign_imports := _imported_elsewhere():
        owners = module_owners()
        imp.release_lock()  # which they need to end
        if owners != last_owners:
            last_owners, remaining_polls = owners, MAX_IDLE_POLLS
        elif (remaining_polls := remaining_polls - 1) < 0:
            names = ", ".join(foreign_imports)
            raise BlockingIOError(errno.EAGAIN, f"no fork while another thread imports {names}")
        time.sleep(_POLL_INTERVAL_S)
        imp.acquire_lock()
    _holder = threading.get_ident()


def _release() -> None:
    global _holder
    if _holder is not None:
        _holder = None
        imp.release_lock()


_GUARDS: list[Callable[[], AbstractContextManager[object]]] = []
_FORKS: dict[int, ExitStack] = {}
"""By a thread that forks, what it holds until it has."""


def hold_at_forks(guard: Callable[[], AbstractContextManager[object]]) -> None:
    """Let any fork be made inside of what `guard` gives, which another library has: entered when no
    other thread imports, as who imports may wait for it."""
    _GUARDS.append(guard)


def _is_ours(module: str, thread: int) -> bool:
    return module.partition(".")[0] == "ekiden" or thread in THIRD_PARTY_IMPORTERS


def before_fork() -> None:
    """Any fork of the program: its child may be about to use what another thread imports here. Once
    for each fork."""
    if threading.get_ident() in _FORKS:
        return
    with ExitStack() as held:
        if _holder != threading.get_ident():
            with suppress(BlockingIOError):
                _hold()
                held.callback(_release)
        for guard in _GUARDS:
            held.enter_context(guard())
        _FORKS[threading.get_ident()] = held.pop_all()


def _in_parent() -> None:
    _FORKS.pop(threading.get_ident(), ExitStack()).close()


def _in_child() -> None:
    _in_parent()
    _FORKS.clear()
    _release()
    for lock in list(_LOCKS):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
