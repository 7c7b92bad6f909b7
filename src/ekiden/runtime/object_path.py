"""Paths to parts of nested objects; the steps that lead there from a root.

    ObjectPath.root().attr("body").attr("args").array_index(0)    prints <root>.body.args[0]

A path holds its last step and the path before it, so a long one costs no more than its last step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class ObjectPath:
    """Path to a part of an object; begin one with `root`. Paths are equal if all their
    steps are.
    """

    parent: ObjectPath | None
    key: object = None

    form: ClassVar[str] = "{}"
    """Format string of a step's text, applied to its key."""

    @staticmethod
    def root(root_name: str | None = None) -> RootPath:
        """Return the path to the object itself."""
        return RootPath(None, root_name)

    def attr(self, attr_key: str | None) -> ObjectPath:
        """Return the path to a field; None: a field of unknown name."""
        if attr_key is None:
            return UnknownAttributeAccessPath(self)
        return AttributeAccessPath(self, attr_key)

    def array_index(self, index: int | str) -> ObjectPath:
        """Return the path to an item of a sequence; of a multi-dimensional array, by the text of
        its indices.
        """
        return ArrayIndexPath(self, index)

    def missing_array_element(self, index: int) -> ObjectPath:
        """Return the path to an item that a sequence lacks, and another has."""
        return MissingArrayElementPath(self, index)

    def map_value(self, key: object) -> ObjectPath:
        """Return the path to the value of a key."""
        return MapValuePath(self, key)

    def missing_map_entry(self) -> ObjectPath:
        """Return the path to a key that a mapping lacks, and another has."""
        return MissingMapEntryPath(self)

    def steps(self) -> Iterator[ObjectPath]:
        """Yield the paths from here up to the root."""
        current: ObjectPath | None = self
        while current is not None:
            yield current
            current = current.parent

    def __len__(self) -> int:
        return sum(1 for _ in self.steps())

    def get_prefix(self, length: int) -> ObjectPath:
        """Return the path of the first `length` steps. Raises IndexError unless it has as many."""
        if not 1 <= length <= len(self):
            raise IndexError(f"path: expected a length from 1 to {len(self)}, got {length}")
        return list(self.steps())[-length]

    def is_prefix_of(self, other: ObjectPath) -> bool:
        """Return whether another path begins with this one."""
        return len(self) <= len(other) and self == other.get_prefix(len(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectPath):
            return NotImplemented
        steps, other_steps = list(self.steps()), list(other.steps())
        return len(steps) == len(other_steps) and all(
            type(a) is type(b) and a.key == b.key for a, b in zip(steps, other_steps, strict=True)
        )

    def __hash__(self) -> int:
        return hash(tuple((type(step), str(step.key)) for step in self.steps()))

    def __str__(self) -> str:
        return "".join(reversed([step.form.format(step.shown()) for step in self.steps()]))

    def shown(self) -> object:
        """Return the key as it is printed."""
        return self.key


class RootPath(ObjectPath):
    """Root of a path."""

    def shown(self) -> object:
        """Return the root's name."""
        return "<root>" if self.key is None else self.key


class AttributeAccessPath(ObjectPath):
    """Step to a field."""

    form = ".{}"


class UnknownAttributeAccessPath(ObjectPath):
    """Step to a field of unknown name."""

    form = ".<unknown attribute>"


class ArrayIndexPath(ObjectPath):
    """Step to an item."""

    form = "[{}]"


class MissingArrayElementPath(ObjectPath):
    """Step to a missing item."""

    form = "[<missing element #{}>]"


class MapValuePath(ObjectPath):
    """Step to the value of a key."""

    form = "[{}]"

    def shown(self) -> object:
        """Return the key, text in quotes."""
        return f'"{self.key}"' if isinstance(self.key, str) else self.key


class MissingMapEntryPath(ObjectPath):
    """Step to a missing entry."""

    form = "[<missing entry>]"


__all__ = [
    "ArrayIndexPath",
    "AttributeAccessPath",
    "MapValuePath",
    "MissingArrayElementPath",
    "MissingMapEntryPath",
    "ObjectPath",
    "RootPath",
    "UnknownAttributeAccessPath",
]
