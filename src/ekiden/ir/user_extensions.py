"""Record of user extensions of the compiler: converters, operators, passes.

What is compiled then depends on more than Ekiden's source, and is not taken from the cache of
artifacts.
"""

from __future__ import annotations

import os

_USER_DEFINITIONS: list[object] = []
PROCESS_CACHE_SALT = os.urandom(16).hex()
"""Random component of the cache keys of code that depends on registrations, which exist in this
process alone.
"""


def record_extension(definition: object) -> None:
    """Record a registered definition unless it belongs to Ekiden itself."""
    home = getattr(definition, "__module__", None) or ""
    if not home.startswith("ekiden."):
        _USER_DEFINITIONS.append(definition)


def has_extensions() -> bool:
    """Return whether the program has registered any extension of its own."""
    return bool(_USER_DEFINITIONS)
