"""Digest of the compiler itself, a component of every key of the on-disk cache."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ekiden import IMPORTED_NS
from ekiden._lazy import LazyModule
from ekiden.ir.digest_cache import memoize_on_disk
from ekiden.ir.hashes import sha256
from ekiden.ir.package_versions import package_version
from ekiden.runtime.files import folder_fingerprint

if TYPE_CHECKING:
    import hashlib
else:
    hashlib = LazyModule("hashlib")

_VERSIONED_PACKAGES = ("ekiden", "llvmlite", "numpy", "ml_dtypes", "onnx")
"""Packages whose versions are part of the compiler's digest."""
_SOURCE_SUFFIXES = (".py", ".so", ".rly")
"""Suffixes of files that affect compilation: Python, shared libraries, Relay text."""
_STATE_RECORD_BYTES = 40
"""Size in bytes of the stat record that follows a file's name."""


@functools.cache
def compiler_digest() -> str:
    """Return the digest of Ekiden's sources and runtime and of the versions of its dependencies.

    It takes 15 ms; 5 where the files are as they were, of which only the times are read then.
    """
    return package_digest(sys.modules["ekiden"].__path__, IMPORTED_NS)


def package_digest(roots: Iterable[str], imported_ns: int | None = None) -> str:
    """Return the digest of a package installed in the given folders.

    Where a file changed after `imported_ns`, in nanoseconds since 1970, no other process has the
    same digest: modules are imported when they are first used, and what runs is neither what the
    files are nor what they were.
    """
    states_by_root = {root: folder_fingerprint(root, _SOURCE_SUFFIXES) for root in roots}
    changed = max((latest for _, latest in states_by_root.values()), default=0)
    beneath = " ".join([sys.version, *map(package_version, _VERSIONED_PACKAGES)])
    if imported_ns is not None and imported_ns < changed <= time.time_ns():
        # The modules in memory may be older than the files now on disk: a key that no other process
        # shares.
        beneath += f" changed under {os.getpid()} {imported_ns}"
    states = [(root, sha256(listed).hexdigest()) for root, (listed, _) in states_by_root.items()]
    return memoize_on_disk(
        f"compiler {beneath} {states}",
        changed,
        lambda: _hash_file_contents(
            beneath,
            {root: _parse_file_names(listed) for root, (listed, _) in states_by_root.items()},
        ),
    )


def _hash_file_contents(beneath: str, files: dict[str, list[str]]) -> str:
    digest = hashlib.sha256(beneath.encode())
    for root, names in files.items():
        for name in names:
            digest.update(f"/{name}".encode())
            with open(os.path.join(root, name), "rb", buffering=0) as file:
                digest.update(file.read())
    return digest.hexdigest()


def list_source_files(root: str) -> list[str]:
    """Return the package's source files that affect compilation, as paths relative to its
    folder.
    """
    return _parse_file_names(folder_fingerprint(root, _SOURCE_SUFFIXES)[0])


def _parse_file_names(listed: bytes) -> list[str]:
    """Parse the file names from the records of `folder_fingerprint`, sorted so that the location of
    the package does not matter.
    """
    names, offset = [], 0
    while offset < len(listed):
        # Records: a name, a zero byte, and `_STATE_RECORD_BYTES` bytes that may hold zero bytes
        # themselves.
        end = listed.index(b"\0", offset)
        names.append(os.fsdecode(listed[offset:end]))
        offset = end + 1 + _STATE_RECORD_BYTES
    return sorted(names)
