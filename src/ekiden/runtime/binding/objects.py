"""`Object` as Python sees it; the class of every object of the runtime, IR nodes among them."""

from __future__ import annotations

from typing import TypeVar

from ekiden.runtime.binding import _core

_T = TypeVar("_T")


class _ObjectMeta(type):
    """Metaclass of `Object`. Classes that are objects without subclassing it are registered."""

    members: tuple[type, ...] = (_core.Object, _core.ADT)

    def register(cls, member: type[_T]) -> type[_T]:
        """Register a class, and its subclasses, as objects."""
        _ObjectMeta.members += (member,)
        return member

    def __instancecheck__(cls, instance: object) -> bool:
        if cls is Object:
            return isinstance(instance, _ObjectMeta.members)
        return type.__instancecheck__(cls, instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        if cls is Object:
            return issubclass(subclass, _ObjectMeta.members)
        return type.__subclasscheck__(cls, subclass)


class Object(_core.Object, metaclass=_ObjectMeta):
    """An object of the runtime: the base of classes that users register, and by `isinstance` the
    class of tensors, functions, modules and of IR nodes, which Python keeps as values of its own
    and hands to other languages as objects.
    """


__all__ = ["Object"]
