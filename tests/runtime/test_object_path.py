"""Paths from a root to something inside it."""

from __future__ import annotations

import pytest

from ekiden.ir.base import get_first_structural_mismatch
from ekiden.runtime import ObjectPath, object_path

pytestmark = pytest.mark.quick

ROOT = ObjectPath.root()
PATHS = [
    (ROOT, "<root>"),
    (ObjectPath.root("main"), "main"),
    (ROOT.attr("body").attr("args").array_index(2), "<root>.body.args[2]"),
    (ROOT.attr(None), "<root>.<unknown attribute>"),
    (ROOT.array_index(0).missing_array_element(3), "<root>[0][<missing element #3>]"),
    (ROOT.map_value("key").map_value(5), '<root>["key"][5]'),
    (ROOT.missing_map_entry(), "<root>[<missing entry>]"),
]


@pytest.mark.parametrize(("path", "text"), PATHS)
def test_object_path_prints(path: ObjectPath, text: str) -> None:
    assert str(path) == text


def test_paths_are_equal_by_their_steps() -> None:
    assert ROOT.attr("a").array_index(1) == ObjectPath.root().attr("a").array_index(1)
    assert len({path for path, _ in PATHS}) == len(PATHS)
    assert ROOT.attr("a") != ROOT.map_value("a") and ObjectPath.root("main") != ROOT


def test_parents_and_prefixes() -> None:
    path = ROOT.attr("a").array_index(1)
    assert len(path) == 3 and path.parent == ROOT.attr("a") and ROOT.parent is None
    assert [str(path.get_prefix(n)) for n in (1, 2, 3)] == ["<root>", "<root>.a", "<root>.a[1]"]
    assert ROOT.attr("a").is_prefix_of(path) and not path.is_prefix_of(ROOT.attr("a"))
    for length in (0, 4):
        with pytest.raises(IndexError, match=f"a length from 1 to 3, got {length}"):
            path.get_prefix(length)
    assert isinstance(path, object_path.ArrayIndexPath)


def test_first_difference_has_a_path_on_either_side() -> None:
    assert get_first_structural_mismatch([1, 2, 3], [1, 4]) == (
        ROOT.array_index(1),
        ROOT.array_index(1),
    )
    assert get_first_structural_mismatch([1], [1, 4]) == (
        ROOT.missing_array_element(1),
        ROOT.array_index(1),
    )
    assert get_first_structural_mismatch({"a": 1, "b": 2}, {"a": 1}) == (
        ROOT.map_value("b"),
        ROOT.missing_map_entry(),
    )
    assert get_first_structural_mismatch({"a": (1, 2)}, {"a": (1, 2)}) is None
