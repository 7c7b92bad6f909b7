"""Record of user extensions of the compiler: converters, operators, passes.

What is compiled then depends on more than Ekiden's source, and is not taken from the cache of
artifacts.
"""

from __future__ import annotations

_FOREIGN: list[object] = []


def note_extension(definition: object) -> None:
    """Record a registered definition unless it belongs to Ekiden itself."""
    home = getattr(definition, "__module__", None) or ""
    if not home.startswith("ekiden."):
        _FOREIGN.append(definition)


def is_extended() -> bool:
    """Return whether the program has registered any extension of its own."""
    return bool(_FOREIGN)
