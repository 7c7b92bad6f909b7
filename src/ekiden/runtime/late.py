"""Modules that are imported when something of theirs is first used: what a program that starts does
not need.

    if TYPE_CHECKING:
        from ekiden.runtime import profile
    else:
        profile = Late("ekiden.runtime.profile.report")
"""

from __future__ import annotations

import sys
from collections.abc import (
    Callable,
    Hashable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    ValuesView,
)
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from threading import get_ident
from types import ModuleType
from typing import Any, Generic, Self, TypeVar, cast, overload

from ekiden.runtime.forks import FOR_US, Lock, imports_here

__all__ = [
    "Late", "LateLog", "Table", "cached_property", "import_late", "lend", "load_postponed",
    "names_from", "names_in", "postpone",
]  # fmt: skip

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

_LOCK = Lock()
"""Of who imports a module of Ekiden's late, and holds no lock of importlib's that others wait for
while they have this one."""


def import_late(name: str) -> ModuleType:
    """A module, as import_module gives it; of Ekiden's, one thread imports at a time, and packages
    before what is in them.

    Packages import modules of theirs, and those of the package. A thread that begins with such a
    module, and one that begins with the package, would wait for each other: importlib notices, and
    one of them gets an error, or half a module.
    """
    found = sys.modules.get(name)
    if found is not None and not _is_half(found):
        return found
    if not name.startswith("ekiden."):
        return _of_others(name)
    with nullcontext() if imports_here() else _LOCK:
        *_, found = map(import_module, accumulate(name.split("."), "{}.{}".format))
    return found


def _of_others(name: str) -> ModuleType:
    FOR_US.append(get_ident())
    try:
        return import_module(name)
    finally:
        FOR_US.remove(get_ident())


def _is_half(module: ModuleType) -> bool:
    """Whether a thread is importing a module."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


_POSTPONED: dict[str, None] = {}
"""Modules that packages import when a name of theirs is first used, in the order they said so."""


def postpone(modules: Iterable[str]) -> None:
    """Import modules when all rows of a table are asked for, or one that nobody knows."""
    _POSTPONED.update(dict.fromkeys(modules))


def load_postponed() -> None:
    """Import what packages have put off (see `names_in`)."""
    asked: set[str] = set()  # what is being imported around this call stays half a module
    while left := [name for name in list(_POSTPONED) if name not in asked]:
        for name in left:
            asked.add(name)
            module = import_late(name)  # waits for another thread that imports it
            if not _is_half(module):  # else another thread would not wait for the rest of it
                _POSTPONED.pop(name, None)


class Table(dict[_K, _V]):
    """A table that modules fill when they are imported: before it says that there is no such row,
    or all its rows, what was put off is imported: the module alone that makes the row, where
    `homes` knows it. `has` and `rows` say what it has now. Rows that another thread adds meanwhile
    are none of those that it gives together.
    """

    __slots__ = ("homes",)

    def __init__(self) -> None:
        super().__init__()
        self.homes: Mapping[_K, str] = {}
        """Row -> the module that makes it."""

    def _look(self, key: object) -> bool:
        """Whether there is such a row, once what makes it is imported."""
        home = cast(Mapping[object, str], self.homes).get(key)
        if home is not None:
            self.load(home)
        if not super().__contains__(key):
            self.load_rest()
        return super().__contains__(key)

    def load(self, home: str) -> None:
        """Have the rows of a module."""
        import_late(home)

    def load_rest(self) -> None:
        """Have all rows."""
        load_postponed()

    def _now(self) -> dict[_K, _V]:
        """The rows of now. Their names are listed in one step of the interpreter: other threads
        import modules, which add some."""
        return {key: super(Table, self).__getitem__(key) for key in list(super().__iter__())}

    def __missing__(self, key: _K) -> _V:
        """The row. Raises KeyError."""
        if self._look(key):
            return self[key]
        raise KeyError(key)

    def has(self, key: _K) -> bool:
        """Whether the row is there now: for who adds it, as while modules are imported."""
        return super().__contains__(key)

    def rows(self) -> ItemsView[_K, _V]:
        """What is there now: a program has nothing whose row is not."""
        return self._now().items()

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self._look(key)

    def get(self, key: _K, default: _V | None = None) -> _V | None:  # type: ignore[override]
        """The row, or the default."""
        return super().get(key, default) if key in self else default

    def __iter__(self) -> Iterator[_K]:
        self.load_rest()
        return iter(self._now())

    def __len__(self) -> int:
        self.load_rest()
        return super().__len__()

    def keys(self) -> KeysView[_K]:  # type: ignore[override]
        """The names of all rows."""
        self.load_rest()
        return self._now().keys()

    def values(self) -> ValuesView[_V]:  # type: ignore[override]
        """All rows."""
        self.load_rest()
        return self._now().values()

    def items(self) -> ItemsView[_K, _V]:  # type: ignore[override]
        """All rows with their names."""
        self.load_rest()
        return self._now().items()


class cached_property(Generic[_V]):  # noqa: N801 - as functools calls it
    """As functools has it from Python 3.12 on: before, a lock of all objects of a class is held
    while a value is made, and stays closed in the child of a fork. Of threads that make one at the
    same time, the first says what it is.
    """

    def __init__(self, make: Callable[[Any], _V]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> _V: ...
    def __get__(self, instance: object, owner: type) -> Self | _V:
        if instance is None:
            return self
        made: _V = vars(instance).setdefault(self._name, self._make(instance))
        return made


class Late:
    """Stands for a module, whose names it has; the first that is asked for imports it."""

    __slots__ = ("_module",)

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> object:
        """What the module has under this name."""
        return getattr(import_late(self._module), name)


class LateLog:
    """The logger of a name: until a program has imported `logging`, which takes a tenth of the time
    to start from a cache, nobody can have asked for what is no warning.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def log(self, level: int, message: str, *values: object) -> None:
        """Say it, as from where this was called."""
        self._say(level, message, values)

    def debug(self, message: str, *values: object) -> None:
        """As `logging` has it."""
        self._say(10, message, values)

    def info(self, message: str, *values: object) -> None:
        """As `logging` has it."""
        self._say(20, message, values)

    def warning(self, message: str, *values: object) -> None:
        """As `logging` has it."""
        self._say(_WARNING, message, values)

    def error(self, message: str, *values: object) -> None:
        """As `logging` has it."""
        self._say(40, message, values)

    def _say(self, level: int, message: str, values: tuple[object, ...]) -> None:
        if "logging" in sys.modules or level >= _WARNING:
            logger = import_module("logging").getLogger(self._name)
            logger.log(level, message, *values, stacklevel=3)


_WARNING = 30
"""The level from which on `logging` shows what nobody has asked for."""


def names_in(names: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package whose names stand in one of its modules,
    `names`, which is imported, and all that it imports, when the first is asked for: who imports a
    module of the package loads no other. What the package has itself, and its modules, are not
    looked for there.

        if TYPE_CHECKING:
            from ekiden.arith.names import *
        else:
            __getattr__, __dir__ = names_in("ekiden.arith.names")

    What is given raises AttributeError for a name that there is not."""
    package = names.rpartition(".")[0]
    postpone([names])

    def find(name: str) -> object:
        """A module of the package, or what `names` has. Raises AttributeError for others."""
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if name != "__all__" and find_spec(f"{package}.{name}") is not None:
            return import_late(f"{package}.{name}")
        module, own = import_late(names), vars(sys.modules[package])
        if "__all__" not in own:
            shared = {each: vars(module)[each] for each in module.__all__ if each in vars(module)}
            own.update(shared, __all__=module.__all__)
        return getattr(module, name)

    def listed() -> list[str]:
        """All names, those too that are not loaded yet."""
        return sorted({*vars(sys.modules[package]), *import_late(names).__all__})

    return find, listed


class _Lending(ModuleType):
    """A package that has the names of its modules (see `lend`). What it has by a name is what the
    name stands for, also where one of its modules is called so: Python would put the module there
    when it is imported.
    """

    _homes: Mapping[str, tuple[str, str]]
    """Name -> its module, and what it is called there; "" is the module itself."""
    _found: Callable[[str, object], None]

    def __getattr__(self, name: str) -> object:
        """What a name stands for. Raises AttributeError for others."""
        home, own = self._homes.get(name, (f"{self.__name__}.{name}", ""))
        if name not in self._homes and (name.startswith("__") or find_spec(home) is None):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module = import_late(home)
        if name not in self._homes:
            return module
        value = getattr(module, own) if own else module
        self._found(name, value)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if name in self._homes and isinstance(value, ModuleType):
            return  # a module that Python has imported: it is asked for above
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self._homes})


def lend(
    package: str,
    names: Mapping[str, str],
    found: Callable[[str, object], None] = lambda name, value: None,
) -> list[str]:
    """Let a package have the names of its modules; each is imported when the first of its names is
    asked for. `names` has by each module, or by each of Ekiden's by its full name, those that it
    has, with a space between (scripts/generate_homes.py writes that), with its name there behind a
    colon where it has another; those that are modules stand by "". `found` is told of each that was
    asked for. Gives all names.
    """
    homes: dict[str, tuple[str, str]] = {}
    for home, of_it in names.items():
        full = home if home.startswith("ekiden.") else f"{package}.{home}"
        for each in of_it.split():
            name, _, own = each.partition(":")
            homes[name] = (full, own or name) if home else (f"{package}.{own or name}", "")
    postpone(home for home, _ in homes.values())
    module = sys.modules[package]
    vars(module).update(_homes=homes, _found=found)
    module.__class__ = _Lending
    return sorted(homes)


def names_from(
    package: str, names: Mapping[str, str], modules: Mapping[str, str]
) -> Callable[[str], object]:
    """The `__getattr__` of a package (PEP 562): `names` says which of its modules, or which one of
    Ekiden's by its full name, each stands in, with another name there behind a colon; `modules`
    which module each is. What is given raises AttributeError for a name that there is not."""

    def find(name: str) -> object:
        """Loads what a name stands for and sets it in the package, so that it is asked for once.
        Raises AttributeError for other names.
        """
        if name not in names and name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, _, own = (modules.get(name) or names[name]).partition(":")
        module = import_late(home if home.startswith("ekiden.") else f"{package}.{home}")
        value: object = module if name in modules else getattr(module, own or name)
        setattr(sys.modules[package], name, value)
        return value

    return find
