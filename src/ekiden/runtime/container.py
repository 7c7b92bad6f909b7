"""Algebraic data values, under TVM's module name."""

from __future__ import annotations

from collections.abc import Iterable

from ekiden.runtime.binding._core import ADT as runtime_adt  # noqa: N811
from ekiden.runtime.binding._core import Shape as ShapeTuple


class _ADTMeta(type):
    """Metaclass of `ADT`, to which tuples belong."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, tuple)


class ADT(metaclass=_ADTMeta):
    """Value of an algebraic data type: a tuple of fields with a constructor tag (runtime.ADT).
    Tuples are such values, of tag 0; `ADT(tag, fields)` makes one.
    """

    def __new__(cls, tag: object, fields: Iterable[object] = ()) -> runtime_adt:  # type: ignore[misc]
        """Return the value that constructor number `tag` makes of `fields`."""
        return runtime_adt(tag, fields)


String = str
"""TVM's name of the string type; strings are plain `str`."""


def tuple_object(fields: Iterable[object]) -> tuple[object, ...]:
    """Return a tuple as an argument of the virtual machine."""
    return tuple(fields)


__all__ = ["ADT", "ShapeTuple", "String", "tuple_object"]
