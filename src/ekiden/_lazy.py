"""Lazy loading of modules and names: the one mechanism of the package.

- `LazyModule(name)` stands for a module in the globals of another.
- `attach(__name__, {module: names})` gives a package the names of its modules (PEP 562).
- `register_deferred_modules(modules)` notes modules that add rows to registries
  (`ekiden.ir.lazy_registry`).

An answer from the cache loads 54 of Ekiden's modules, a first compilation some 530 of 1100.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from types import FrameType, ModuleType

from ekiden._locks import ForkSafeLock, register_fork_guard

__all__ = [
    "LazyModule",
    "attach",
    "exported_names",
    "load_deferred",
    "load_module",
    "register_deferred_modules",
]

_IMPORT_LOCK = ForkSafeLock()
"""Held by the thread that loads a module. importlib's own locks are one a module, and of two
threads that wait for each other's it gives one an error or half a module."""
_COMPLETE_MODULES: set[str] = set()
"""Modules that have been loaded to their end."""


def _modules_in_import() -> set[str]:
    """Return the names of the modules that this thread is importing; it holds importlib's lock of
    each. Code that `exec` runs is no module.
    """
    names: set[str] = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            name = frame.f_globals.get("__name__", "")
            if getattr(sys.modules.get(name), "__dict__", None) is frame.f_globals:
                names.add(name)
        frame = frame.f_back
    return names - {"__main__"}


def _import_lock_for(running: set[str]) -> AbstractContextManager[object]:
    """Return the import lock for a thread that is importing nothing; a thread that holds a lock of
    importlib's must not wait for it (deadlock).
    """
    return nullcontext() if running else _IMPORT_LOCK


register_fork_guard(
    lambda: _import_lock_for(_modules_in_import())
)  # a child would wait for others' modules


def load_module(name: str) -> ModuleType:
    """Import a module by its full name. One thread imports at a time, and packages before what is
    in them: importlib holds the lock of a module while it imports its package.
    """
    module = sys.modules.get(name)
    if module is not None and name in _COMPLETE_MODULES:
        return module
    running = _modules_in_import()
    with _import_lock_for(running):
        *_, module = map(import_module, accumulate(name.split("."), "{}.{}".format))
    if name not in running:
        _COMPLETE_MODULES.add(name)
    return module


_DEFERRED_MODULES: dict[str, None] = {}
"""Modules that add rows to tables and are not loaded yet, in the order of their packages."""


def register_deferred_modules(modules: Iterable[str]) -> None:
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
            load_module(name)  # waits for another thread that imports it
            if name in _COMPLETE_MODULES:  # else other threads would not wait for its rows
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
            if self._module in _COMPLETE_MODULES:
                self._loaded = module
        return getattr(module, name)


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
    register_deferred_modules(
        [rest] if rest else [module for module, _ in targets.values()] if registers else []
    )
    package_module = sys.modules[package]

    def load_name(name: str) -> object:
        """Load the value of a name, and store it in the package unless it is a submodule."""
        if name in targets:
            module, attribute = targets[name]
            value: object = load_module(module)
            value = vars(package_module)[name] = getattr(value, attribute) if attribute else value
            return value
        is_special = name.startswith("__")
        if (
            not is_special
            and hasattr(package_module, "__path__")
            and find_spec(f"{package}.{name}")
        ):
            return load_module(f"{package}.{name}")
        if not rest or (is_special and name != "__all__"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        source = load_module(rest)
        if "__all__" not in vars(
            package_module
        ):  # all at once: looking for a module takes 30 us a name
            loaded = {
                name_there: vars(source)[name_there]
                for name_there in source.__all__
                if name_there in vars(source)
            }
            vars(package_module).update(loaded, __all__=source.__all__)
        return getattr(source, name)

    def list_names() -> list[str]:
        """Return all names, loaded or not."""
        return sorted(
            {*vars(package_module), *targets, *(load_module(rest).__all__ if rest else ())}
        )

    return load_name, list_names


def exported_names(exports: Mapping[str, str]) -> list[str]:
    """Return the sorted names of an export table (see `attach`)."""
    return sorted(name.partition(":")[0] for text in exports.values() for name in text.split())
