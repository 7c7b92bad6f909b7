"""SHA-256 of little: keys and names of what is kept.

`hashlib` brings OpenSSL, which takes longer to load than all that is hashed to start from a cache.
Python has SHA-256 without it too, and `random` of its library takes SHA-512 from there, the same
way. What has megabytes is for `hashlib`, which is several times as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["sha256"]

_HOMES = ("_sha2", "_sha256", "hashlib")
"""Where it is: from Python 3.12 on, before, and in any."""


def _lean() -> Callable[[bytes], _Hash]:
    for home in _HOMES:
        with suppress(ImportError):
            return cast("Callable[[bytes], _Hash]", import_module(home).sha256)
    raise ImportError("no SHA-256 in this Python")


sha256 = _lean()
