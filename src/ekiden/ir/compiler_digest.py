"""What the compiler is, as one digest: a part of the key of everything that is cached on disk."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import time
from collections.abc import Iterable, Iterator

from ekiden import IMPORTED_NS
from ekiden.ir.installed import version_of
from ekiden.ir.known import known, state_of

_PACKAGES = ("ekiden", "llvmlite", "numpy", "ml_dtypes", "onnx")
"""The packages whose versions decide what is compiled."""


@functools.cache
def compiler_digest() -> str:
    """A digest of all of Ekiden, source and runtime, and of the versions beneath. Takes 15 ms; a
    third of that where the files are as they were, of which only the times are asked then."""
    return digest_of(sys.modules["ekiden"].__path__, IMPORTED_NS)


def digest_of(roots: Iterable[str], imported_ns: int | None = None) -> str:
    """The digest of a package that stands in some folders. Where a file changed after
    `imported_ns`, in nanoseconds since 1970, no other process has the same: modules are imported
    when they are first used, and what runs is neither what the files are nor what they were.
    """
    files = [(root, sorted(sources(root), key=lambda each: each.path)) for root in roots]
    states = [(each.path, state_of(each.stat())) for _, found in files for each in found]
    beneath = " ".join([sys.version, *map(version_of, _PACKAGES)])
    changed = max((max(state[-2:]) for _, state in states), default=0)
    if imported_ns is not None and imported_ns < changed <= time.time_ns():
        beneath += f" changed under {os.getpid()} {imported_ns}"
    return known(f"compiler {beneath} {states}", changed, lambda: _digest(beneath, files))


def _digest(beneath: str, files: Iterable[tuple[str, Iterable[os.DirEntry[str]]]]) -> str:
    found = hashlib.sha256(beneath.encode())
    for root, entries in files:
        for each in entries:
            found.update(each.path.removeprefix(root).encode())
            with open(each.path, "rb", buffering=0) as file:
                found.update(file.read())
    return found.hexdigest()


def sources(root: str) -> Iterator[os.DirEntry[str]]:
    """The files of a package that decide what it does: Python, Relay text, libraries."""
    with os.scandir(root) as entries:
        for each in entries:
            if each.name.endswith((".py", ".so", ".rly")):
                yield each
            elif each.is_dir(follow_symlinks=False):
                yield from sources(each.path)
