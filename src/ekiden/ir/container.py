"""TVM's names of what holds objects, for programs that ask `isinstance(value, ir.container.Array)`:
fields that are arrays there are tuples and lists here, those that are maps dictionaries.
"""

from __future__ import annotations

from abc import ABC
from types import MappingProxyType


class Array(ABC):  # noqa: B024 - a name for classes that are there
    """A sequence of objects."""


class Map(ABC):  # noqa: B024
    """A mapping of objects."""


Array.register(tuple)
Array.register(list)
Map.register(dict)
Map.register(MappingProxyType)

__all__ = ["Array", "Map"]
