"""Disk memoization of facts about files and the machine, such as file digests, beside the
compilation cache.

    <cache>/known/<digest>    a fact, preceded by a digest of its key and value

The key of a fact is a text that contains everything the fact depends on. For a file that is
`file_identity`: writing a file sets its change time (ctime), which no program can set back. A file
that changed a moment ago may change again within the resolution of the clock, or by write-back of
mapped pages, so nothing is cached for a file younger than MIN_FILE_AGE_NS.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from ekiden.ir.cache_folders import cache_folders
from ekiden.ir.hashes import sha256
from ekiden.runtime.files import (
    check_trusted,
    evict_least_recent,
    make_private_folder,
    write_atomic,
)

__all__ = ["file_identity", "memoize_on_disk"]

MIN_FILE_AGE_NS = 60 * 10**9
"""Minimum age of a file whose digest is cached, longer than Linux delays writing back pages of a
shared mapping.
"""
MAX_MEMO_BYTES = 100_000
"""Maximum size of the memo file in bytes; an entry takes about 100."""


def file_identity(status: os.stat_result) -> tuple[int, ...]:
    """Return the stat fields that identify a file and its current content: device, inode, size,
    mtime, ctime.
    """
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def memoize_on_disk(about: str, changed_ns: int, find: Callable[[], str]) -> str:
    """Return the memoized result of `find` for the key `about`, computing and storing it on a miss.

    Args:
        about: A text that says what the fact is about, with whatever would change it.
        changed_ns: When what it is about changed last, in nanoseconds.
        find: Computes the fact.

    Raises what `find` raises, and nothing else.
    """
    # A file may change again within the resolution of its time stamp: recent ones are never
    # remembered.
    is_settled = changed_ns + MIN_FILE_AGE_NS < time.time_ns()
    folder = cache_folders()[0] if is_settled else None
    if folder is None:
        return find()
    # The key is hashed, as it may contain paths and be long.
    path = os.path.join(folder, "known", _short_digest(about))
    fact = _read_memo(path, about)
    if fact is None:
        fact = find()
        _write_memo(path, about, fact)
    return fact


def _short_digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]


def _read_memo(path: str, about: str) -> str | None:
    with suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        check_trusted(path)
        digest, _, fact = file.read().partition(" ")
        # A file that was cut short, or is about something else, counts as missing.
        if digest == _short_digest(about + fact):
            return fact
    return None


def _write_memo(path: str, about: str, fact: str) -> None:
    data = f"{_short_digest(about + fact)} {fact}".encode("ascii")
    with suppress(OSError):
        make_private_folder(os.path.dirname(path))
        # Written beside and renamed: a reader never sees half of a fact.
        write_atomic(path, lambda file: file.write(data), is_owners=True)
        evict_least_recent(os.path.dirname(path), MAX_MEMO_BYTES)
