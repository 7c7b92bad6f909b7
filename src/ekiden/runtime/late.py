"""Modules that are imported when something of theirs is first used: what a program that starts does
not need.

    if TYPE_CHECKING:
        from ekiden.runtime import profile
    else:
        profile = Late("ekiden.runtime.profile")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from importlib import import_module
from importlib.util import find_spec
from typing import TypeVar

__all__ = ["Late", "Table", "load_postponed", "names_from", "names_in"]

_V = TypeVar("_V")

_POSTPONED: list[str] = []
"""Modules that packages import when a name of theirs is first used."""


def load_postponed() -> None:
    """Import what packages have put off (see `names_in`)."""
    while _POSTPONED:
        import_module(_POSTPONED.pop())


class Table(dict[str, _V]):
    """A table that modules fill when they are imported: before it says that there is no such row,
    or all its rows, what was put off is imported. `has` and `rows` say what it has now.
    """

    __slots__ = ()

    def __missing__(self, key: str) -> _V:
        """The row. Raises KeyError."""
        load_postponed()
        if self.has(key):
            return self[key]
        raise KeyError(key)

    def has(self, key: str) -> bool:
        """Whether the row is there now: for who adds it, as while modules are imported."""
        return super().__contains__(key)

    def rows(self) -> ItemsView[str, _V]:
        """What is there now: a program has nothing whose row is not."""
        return super().items()

    def __contains__(self, key: object) -> bool:
        if super().__contains__(key):
            return True
        load_postponed()
        return super().__contains__(key)

    def get(self, key: str, default: _V | None = None) -> _V | None:  # type: ignore[override]
        """The row, or the default."""
        if not self.has(key):
            load_postponed()
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:
        load_postponed()
        return super().__iter__()

    def __len__(self) -> int:
        load_postponed()
        return super().__len__()

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        """The names of all rows."""
        load_postponed()
        return super().keys()

    def values(self) -> ValuesView[_V]:  # type: ignore[override]
        """All rows."""
        load_postponed()
        return super().values()

    def items(self) -> ItemsView[str, _V]:  # type: ignore[override]
        """All rows with their names."""
        load_postponed()
        return super().items()


class Late:
    """Stands for a module, whose names it has; the first that is asked for imports it."""

    __slots__ = ("_module",)

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> object:
        """What the module has under this name."""
        return getattr(import_module(self._module), name)


def names_in(names: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package whose names stand in one of its modules,
    `names`, which is imported, and all that it imports, when the first is asked for: who imports a
    module of the package loads no other. What the package has itself, and its modules, are not
    looked for there.

        if TYPE_CHECKING:
            from ekiden.arith.names import *
        else:
            __getattr__, __dir__ = names_in("ekiden.arith.names")
    """
    package = names.rpartition(".")[0]
    _POSTPONED.append(names)

    def find(name: str) -> object:
        """A module of the package, or what `names` has. Raises AttributeError for others."""
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if name != "__all__" and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        module, own = import_module(names), vars(sys.modules[package])
        if "__all__" not in own:
            shared = {each: vars(module)[each] for each in module.__all__ if each in vars(module)}
            own.update(shared, __all__=module.__all__)
        return getattr(module, name)

    def listed() -> list[str]:
        """All names, those too that are not loaded yet."""
        return sorted({*vars(sys.modules[package]), *import_module(names).__all__})

    return find, listed


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
