"""Values with fields, under the module that TVM has them in."""

from __future__ import annotations

from collections.abc import Iterable

from ekiden.runtime._core import Shape as ShapeTuple

ADT: type[tuple[object, ...]] = tuple
"""What a constructed value is: a tuple of its fields; the class of those with a tag other than 0,
`ekiden.runtime.ADT`, is a subclass.
"""
String = str
"""What a text is."""


def tuple_object(fields: Iterable[object]) -> tuple[object, ...]:
    """A tuple as an argument of the virtual machine."""
    return tuple(fields)


__all__ = ["ADT", "ShapeTuple", "String", "tuple_object"]
