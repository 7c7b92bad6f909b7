"""Registries that load their rows on lookup."""

from __future__ import annotations

import pytest

from ekiden.ir.lazy_registry import LazyRegistry

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("which", ["rows", "items", "keys", "values", "__iter__"])
def test_rows_may_be_added_during_iteration(which: str) -> None:
    """As by modules that other threads import."""
    table: LazyRegistry[str, int] = LazyRegistry()
    table.update(a=1, b=2)
    seen = 0
    for _ in getattr(table, which)():
        table[f"more {seen}"] = seen
        seen += 1
    assert seen == 2 and len(table) == 4


class Squares(LazyRegistry[int, int]):
    """A table whose modules are the texts of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.row_modules = {2: "two", 3: "three"}
        self.loaded: list[str] = []

    def load(self, module: str) -> None:
        self.loaded.append(module)
        self.update({"two": {2: 4}, "three": {3: 9}}[module])

    def load_all(self) -> None:
        for module in ("two", "three"):
            self.load(module)


def test_looking_a_row_up_loads_its_module_alone() -> None:
    table = Squares()
    assert not table.has(2) and table[2] == 4 and table.loaded == ["two"]
    assert dict(table.rows()) == {2: 4}


def test_listing_rows_loads_all() -> None:
    table = Squares()
    assert dict(table.items()) == {2: 4, 3: 9} and len(table) == 2


def test_missing_row_is_reported_after_loading_all() -> None:
    table = Squares()
    assert 5 not in table and table.loaded == ["two", "three"]
    assert table.get(5) is None
    with pytest.raises(KeyError, match="5"):
        table[5]
