"""What the compiler is, as one digest: a part of the key of everything that is cached on disk."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import version

_PACKAGES = ("ekiden", "llvmlite", "numpy", "ml_dtypes", "onnx")
"""The packages whose versions decide what is compiled."""


@functools.cache
def compiler_digest() -> str:
    """A digest of all of Ekiden, source and runtime, and of the versions beneath. Takes 10 ms."""
    return digest_of(sys.modules["ekiden"].__path__)


def digest_of(roots: Iterable[str]) -> str:
    """The digest of a package that stands in some folders."""
    found = hashlib.sha256(" ".join([sys.version, *map(version, _PACKAGES)]).encode())
    for root in roots:
        for path in sorted(sources(root)):
            found.update(path.removeprefix(root).encode())
            with open(path, "rb", buffering=0) as file:
                found.update(file.read())
    return found.hexdigest()


def sources(root: str) -> Iterator[str]:
    """The files of a package that decide what it does: Python, Relay text, libraries."""
    for folder, _, names in os.walk(root):
        yield from (f"{folder}/{name}" for name in names if name.endswith((".py", ".so", ".rly")))
