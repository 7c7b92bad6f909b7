"""Forks of a process that has threads.

The child of a fork has one thread. What others held stays closed in it for ever: each lock of ours
is renewed in the child or is held by who forks; those of importlib, which nobody can renew, as what
they guard is half a module, are why a fork waits until no other thread imports anything.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import _bootstrap as importing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import imp
else:
    imp = sys.modules["_imp"]  # the module `imp` is gone since Python 3.12, this stays

__all__ = ["PATIENCE", "forking"]

PATIENCE = 1.0
"""Seconds that a fork waits for the imports of other threads. They may be waiting for the one that
forks, as where a module compiles while it is imported: then there is no fork."""
_PAUSE = 0.001
"""Seconds between two looks."""
_is_held = False
"""Whether a thread of this process, that which holds the lock of all imports, is forking."""


def _imported_elsewhere() -> list[str]:
    """The modules that other threads are importing: importlib has a lock of each, which lives as
    long as somebody waits for it or has it."""
    locks = getattr(importing, "_module_locks", {})
    own = threading.get_ident()
    alive = ((name, made()) for name, made in list(locks.items()))
    return sorted(str(n) for n, lock in alive if lock is not None and lock.owner != own)


def _release() -> None:
    global _is_held
    if _is_held:
        _is_held = False
        imp.release_lock()


if hasattr(os, "register_at_fork"):  # a child of `multiprocessing` never leaves `forking`
    os.register_at_fork(after_in_child=_release)


@contextmanager
def forking() -> Iterator[None]:
    """While this is entered no other thread imports a module, and Python does not warn of forks
    beside threads (3.12) or beside JAX's: who forks here answers for the other locks.

    Raises BlockingIOError where others still import after PATIENCE, with their modules.
    """
    global _is_held
    until = time.monotonic() + PATIENCE
    imp.acquire_lock()
    while others := _imported_elsewhere():
        imp.release_lock()  # which they need to end
        if time.monotonic() > until:
            names = ", ".join(others)
            raise BlockingIOError(errno.EAGAIN, f"no fork while another thread imports {names}")
        time.sleep(_PAUSE)
        imp.acquire_lock()
    _is_held = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            yield
    finally:
        _release()
