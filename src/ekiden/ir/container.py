"""TVM's container names for isinstance checks: Array accepts tuples and lists, Map accepts
dictionaries.
"""

from __future__ import annotations

from abc import ABC
from types import MappingProxyType


class Array(ABC):  # noqa: B024 - a name for classes that are there
    """Abstract class of sequences: tuple and list."""


class Map(ABC):  # noqa: B024
    """Abstract class of mappings: dict and MappingProxyType."""


Array.register(tuple)
Array.register(list)
Map.register(dict)
Map.register(MappingProxyType)

__all__ = ["Array", "Map"]
