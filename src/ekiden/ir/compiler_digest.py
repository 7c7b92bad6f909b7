"""What the compiler is, as one digest: a part of the key of everything that is cached on disk."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator

from ekiden.ir.installed import version_of
from ekiden.ir.known import known, state_of

_PACKAGES = ("ekiden", "llvmlite", "numpy", "ml_dtypes", "onnx")
"""The packages whose versions decide what is compiled."""


@functools.cache
def compiler_digest() -> str:
    """A digest of all of Ekiden, source and runtime, and of the versions beneath. Takes 15 ms; a
    third of that where the files are as they were, of which only the times are asked then."""
    return digest_of(sys.modules["ekiden"].__path__)


def digest_of(roots: Iterable[str]) -> str:
    """The digest of a package that stands in some folders."""
    files = [(root, sorted(sources(root), key=lambda each: each.path)) for root in roots]
    states = [(each.path, state_of(each.stat())) for _, found in files for each in found]
    beneath = " ".join([sys.version, *map(version_of, _PACKAGES)])
    changed = max((max(state[-2:]) for _, state in states), default=0)
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
