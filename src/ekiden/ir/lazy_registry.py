"""Lazy registry, whose entries are defined by modules imported on look-up."""

from __future__ import annotations

from collections.abc import Hashable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import TypeVar, cast

from ekiden._lazy import load_deferred, load_module

__all__ = ["LazyRegistry"]

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class LazyRegistry(dict[_K, _V]):
    """Registry filled by modules that are imported when a missing entry is looked up. Before it
    denies a row, or lists all, it loads deferred modules: the one that makes the row, where
    `row_modules` knows it. `has` and `rows` look at what is loaded. A listing leaves out rows that
    other threads add meanwhile.
    """

    __slots__ = ("row_modules",)

    def __init__(self) -> None:
        super().__init__()
        self.row_modules: Mapping[_K, str] = {}

    def load(self, module: str) -> None:
        """Import a module, which registers its entries."""
        # The import runs the registrations of the module.
        load_module(module)

    def load_all(self) -> None:
        """Import all modules that register entries."""
        load_deferred()

    def _loaded_rows(self) -> dict[_K, _V]:
        # keys are listed in one step of the interpreter, as other threads add rows
        return {key: super(LazyRegistry, self).__getitem__(key) for key in list(super().__iter__())}

    def __missing__(self, key: _K) -> _V:
        if key in self:
            return self[key]
        raise KeyError(key)

    def has(self, key: _K) -> bool:
        """Return whether the entry is already loaded, without importing."""
        return super().__contains__(key)

    def rows(self) -> ItemsView[_K, _V]:
        """Return the entries loaded so far, without importing."""
        return self._loaded_rows().items()

    def __contains__(self, key: object) -> bool:
        if dict.__contains__(self, key):
            return True
        module = cast(Mapping[object, str], self.row_modules).get(key)
        if module is not None:
            self.load(module)
        # The module that `row_modules` names may not have the row after all: then all are loaded.
        if not dict.__contains__(self, key):
            self.load_all()
        return dict.__contains__(self, key)

    def get(self, key: _K, default: _V | None = None) -> _V | None:  # type: ignore[override]
        """Return the entry of a key, or the default."""
        return super().get(key, default) if key in self else default

    def __iter__(self) -> Iterator[_K]:
        self.load_all()
        return iter(self._loaded_rows())

    def __len__(self) -> int:
        self.load_all()
        return super().__len__()

    def keys(self) -> KeysView[_K]:  # type: ignore[override]
        """Return the keys of all entries, importing everything."""
        self.load_all()
        return self._loaded_rows().keys()

    def values(self) -> ValuesView[_V]:  # type: ignore[override]
        """Return all entries, importing everything."""
        self.load_all()
        return self._loaded_rows().values()

    def items(self) -> ItemsView[_K, _V]:  # type: ignore[override]
        """Return all (key, row) items, importing everything."""
        self.load_all()
        return self._loaded_rows().items()
