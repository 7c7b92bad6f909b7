"""Modules that are imported when something of theirs is first used: what a program that starts does
not need.

    if TYPE_CHECKING:
        from ekiden.runtime import profile
    else:
        profile = Late("ekiden.runtime.profile")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

__all__ = ["Late", "names_from"]


class Late:
    """Stands for a module, whose names it has; the first that is asked for imports it."""

    __slots__ = ("_module",)

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> object:
        """What the module has under this name."""
        return getattr(import_module(self._module), name)


def names_from(
    package: str, names: Mapping[str, str], modules: Mapping[str, str]
) -> Callable[[str], object]:
    """The `__getattr__` of a package (PEP 562): `names` says which of its modules, or which one of
    Ekiden's by its full name, each stands in, with another name there behind a colon; `modules`
    which module each is.
    """

    def find(name: str) -> object:
        """Loads what a name stands for and sets it in the package, so that it is asked for once.
        Raises AttributeError for other names.
        """
        if name not in names and name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, _, own = (modules.get(name) or names[name]).partition(":")
        module = import_module(home if home.startswith("ekiden.") else f"{package}.{home}")
        value: object = module if name in modules else getattr(module, own or name)
        setattr(sys.modules[package], name, value)
        return value

    return find
