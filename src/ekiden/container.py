"""The container types of node fields, by TVM's names.

Ours are Python's own: tuples and dictionaries, strings and numbers.
"""

from collections.abc import Mapping as Map
from collections.abc import Sequence as Array

__all__ = ["Array", "Map"]
