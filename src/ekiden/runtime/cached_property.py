"""Cached properties of runtime objects (executables, virtual machines, tokenizers) that threads
share and that processes inherit by fork.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

__all__ = ["cached_property"]

_V = TypeVar("_V")


class cached_property(Generic[_V]):  # noqa: N801 - as functools calls it
    """Cached property as functools has it from Python 3.12 on. Before, one lock per class is held
    while a value is computed, and it stays locked in the child of a fork. Of threads that
    compute it at the same time, the first sets the value.
    """

    def __init__(self, compute: Callable[[Any], _V]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> _V: ...
    def __get__(self, instance: object, owner: type) -> Self | _V:
        if instance is None:
            return self
        value: _V = vars(instance).setdefault(self._name, self._compute(instance))
        return value
