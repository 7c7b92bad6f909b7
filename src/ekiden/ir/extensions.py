"""Whether a program has taught the compiler something of its own: a converter, an operator, a pass.

What is compiled then depends on more than Ekiden's source, and is not taken from the cache of
artifacts.
"""

from __future__ import annotations

_FOREIGN: list[object] = []


def note_extension(definition: object) -> None:
    """Remember what was registered, unless Ekiden itself defines it."""
    home = getattr(definition, "__module__", None) or ""
    if not home.startswith("ekiden."):
        _FOREIGN.append(definition)


def is_extended() -> bool:
    """Return whether anything was registered that is not Ekiden's own."""
    return bool(_FOREIGN)
