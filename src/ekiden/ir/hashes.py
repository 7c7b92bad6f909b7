"""SHA-256 and BLAKE2b without importing hashlib, for short keys and file names.

`hashlib` brings OpenSSL, which takes longer to load than all that is hashed to start from a cache.
Python has both without it too, and `random` of its library takes SHA-512 from there, the same way.
What has megabytes is for the SHA-256 of `hashlib`, which is several times as fast.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["blake2b", "sha256"]


def _import_hash(name: str, homes: tuple[str, ...]) -> object:
    """Return the hash constructor from the first importable C module, else from `hashlib`."""
    for home in homes:
        with suppress(ImportError):
            return getattr(import_module(home), name)
    return getattr(import_module("hashlib"), name)


if TYPE_CHECKING:
    from hashlib import blake2b, sha256
else:
    sha256 = _import_hash("sha256", ("_sha2", "_sha256"))  # from Python 3.12 on, and before
    blake2b = _import_hash("blake2b", ("_blake2",))
