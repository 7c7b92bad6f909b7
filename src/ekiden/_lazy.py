"""Lazy loading of modules and names: the one mechanism of the package.

- `LazyModule(name)` stands for a module in the globals of another.
- `attach(__name__, {module: names})` gives a package the names of its modules (PEP 562).
- `defer(modules)` notes modules that add rows to registries (`ekiden.ir.table`).

An answer from the cache loads 54 of Ekiden's modules, a first compilation some 530 of 1100.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from importlib import _bootstrap, import_module
from importlib.util import find_spec
from itertools import accumulate
from threading import RLock, get_ident
from types import ModuleType

__all__ = [
    "ExportingPackage",
    "LazyModule",
    "attach",
    "defer",
    "exported_names",
    "load_deferred",
    "load_module",
]

_IMPORT_LOCK = RLock()
"""Held by the thread that loads a module of Ekiden's. importlib's own locks are one a module, and
of two threads that wait for each other's it gives one an error or half a module."""
THIRD_PARTY_IMPORTERS: list[int] = []
"""Threads that import a module of others for Ekiden, each as often as it does."""


def module_owners() -> list[tuple[str, int]]:
    """Return the modules being imported, with the threads that import them."""
    references = list(getattr(_bootstrap, "_module_locks", {}).items())
    locks = ((str(name), reference()) for name, reference in references)
    return [(name, lock.owner) for name, lock in locks if lock is not None]


def is_importing() -> bool:
    """Return whether this thread is importing a module, whose lock others may wait for."""
    own = get_ident()
    return any(owner == own for _, owner in module_owners())


def _is_initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def load_module(name: str) -> ModuleType:
    """Import a module by its full name; of Ekiden's, one thread imports at a time, and packages
    before what is in them: importlib holds the lock of a module while it imports its package.
    """
    module = sys.modules.get(name)
    if module is not None and not _is_initializing(module):
        return module
    if not name.startswith("ekiden."):
        THIRD_PARTY_IMPORTERS.append(get_ident())
        try:
            return import_module(name)
        finally:
            THIRD_PARTY_IMPORTERS.remove(get_ident())
    # who holds a lock of importlib's never waits for one under which others wait for that
    with nullcontext() if is_importing() else _IMPORT_LOCK:
        *_, module = map(import_module, accumulate(name.split("."), "{}.{}".format))
    return module


def _renew_lock() -> None:
    """Replace the lock in a forked child if another thread held it, since that thread does not
    exist there.
    """
    global _IMPORT_LOCK
    if not _IMPORT_LOCK._is_owned():  # type: ignore[attr-defined]  # as threading.Condition asks
        _IMPORT_LOCK = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)

_DEFERRED_MODULES: dict[str, None] = {}
"""Modules that add rows to tables and are not loaded yet, in the order of their packages."""


def defer(modules: Iterable[str]) -> None:
    """Register modules that add rows to tables when loaded: they load before a table lists all its
    rows, or says that it has no such row.
    """
    _DEFERRED_MODULES.update(dict.fromkeys(modules))


def load_deferred() -> None:
    """Load every deferred module, except those this thread is already importing."""
    tried: set[str] = set()
    while names := [name for name in list(_DEFERRED_MODULES) if name not in tried]:
        for name in names:
            tried.add(name)
            module = load_module(name)  # waits for another thread that imports it
            if not _is_initializing(module):  # else other threads would not wait for its rows
                _DEFERRED_MODULES.pop(name, None)


class LazyModule:
    """A stand-in for a module, loaded when its first attribute is looked up.

    if TYPE_CHECKING:
        from ekiden.runtime.profile import report
    else:
        report = LazyModule("ekiden.runtime.profile.report")
    """

    __slots__ = ("_loaded", "_module")

    def __init__(self, module: str) -> None:
        self._module = module
        self._loaded: ModuleType | None = None

    def __getattr__(self, name: str) -> object:
        module = self._loaded
        if module is None:
            module = load_module(self._module)
            if not _is_initializing(module):  # else another thread may still import it
                self._loaded = module
        return getattr(module, name)


class ExportingPackage(ModuleType):
    """A package with an export that has the name of one of its submodules: importlib would replace
    it by the submodule on import, and PEP 562 has no hook for assignments.
    """

    _exports: Mapping[str, object] = {}

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self._exports or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


def attach(
    package: str, exports: Mapping[str, str], rest: str = "", *, registers: bool = False
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose names and submodules load on first use;
    its modules are attributes too. `__getattr__` raises AttributeError.

    Args:
        package: `__name__` of the package.
        exports: module of the package, or full name of one of Ekiden's -> its names, separated by
            blanks; `name:other` is a name for what the module calls `other`. "" stands before
            names that are modules themselves.
        rest: the module of the package whose `__all__` are all other names; it is deferred.
        registers: whether modules of `exports` add rows to tables: they are deferred then.
    """
    targets: dict[str, tuple[str, str]] = {}
    for module, names in exports.items():
        full = module if module.startswith("ekiden.") else f"{package}.{module}"
        for export in names.split():
            name, _, target_name = export.partition(":")
            home = (
                target_name
                if target_name.startswith("ekiden.")
                else f"{package}.{target_name or name}"
            )
            targets[name] = (full, target_name or name) if module else (home, "")
    rest = rest and f"{package}.{rest}"
    defer([rest] if rest else [module for module, _ in targets.values()] if registers else [])
    own = sys.modules[package]
    if targets and hasattr(own, "__path__"):
        vars(own)["_exports"] = targets
        own.__class__ = ExportingPackage

    def load_name(name: str) -> object:
        """Load the value of a name, and store it in the package unless it is a submodule."""
        if name in targets:
            module, attribute = targets[name]
            value: object = load_module(module)
            value = vars(own)[name] = getattr(value, attribute) if attribute else value
            return value
        is_special = name.startswith("__")
        if not is_special and hasattr(own, "__path__") and find_spec(f"{package}.{name}"):
            return load_module(f"{package}.{name}")
        if not rest or (is_special and name != "__all__"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        source = load_module(rest)
        if "__all__" not in vars(own):  # all at once: looking for a module takes 30 us a name
            loaded = {
                name_there: vars(source)[name_there]
                for name_there in source.__all__
                if name_there in vars(source)
            }
            vars(own).update(loaded, __all__=source.__all__)
        return getattr(source, name)

    def list_names() -> list[str]:
        """Return all names, loaded or not."""
        return sorted({*vars(own), *targets, *(load_module(rest).__all__ if rest else ())})

    return load_name, list_names


def exported_names(exports: Mapping[str, str]) -> list[str]:
    """Return the sorted names of an export table (see `attach`)."""
    return sorted(name.partition(":")[0] for text in exports.values() for name in text.split())
