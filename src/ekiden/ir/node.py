"""Nodes: immutable, slotted values with a type key, whose dataclass fields are the reflection: for
Python, and for every other language, to which a node is an object of the runtime.

Identity is the default equality. `ekiden.ir.structural` compares meaning. A node is made with

    @node("relay.Let")
    class Let(Expr):
        var: Var = binding()      # a field that defines a variable
        value: Expr
        body: Expr
        hint: str = ignored(default=None)     # a field that does not take part in structural
        equality
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np

from ekiden.ir.table import Table
from ekiden.runtime import Object, define_node_class, set_node_hooks
from ekiden.runtime.lazy_dataclass import (
    declared_defaults,
    decorate,
    delete_attribute,
    field_values,
    set_attribute,
    set_field_values,
)

_N = TypeVar("_N", bound="Node")

NODE_TYPES: Table[str, type[Node]] = Table()
"""Every node class by type key; what JSON loading looks names up in."""


class Node:
    """Base of all IR nodes: hashable by identity, immutable after construction."""

    __slots__ = ("__weakref__",)
    type_key: ClassVar[str] = "ir.Node"

    __setattr__ = set_attribute
    __delattr__ = delete_attribute
    __getstate__ = field_values
    __setstate__ = set_field_values

    def with_fields(self: _N, **changes: object) -> _N:
        """Return a copy with some fields replaced; the node itself if nothing differs by
        identity.
        """
        if all(getattr(self, name) is value for name, value in changes.items()):
            return self
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def same_as(self, other: object) -> bool:
        """Return whether both are one object."""
        return self is other


Object.register(Node)


def binding(default: object = dataclasses.MISSING) -> Any:  # noqa: ANN401
    """Mark a field whose variables are defined here (compared up to renaming)."""
    return dataclasses.field(default=default, metadata={"binding": True})


def shown(default: object) -> Any:  # noqa: ANN401
    """Return a field of attributes that texts show even where it has its default: TVM has none for
    it.
    """
    return dataclasses.field(default=default, metadata={"shown": True})


def ignored(default: object = None) -> Any:  # noqa: ANN401
    """Return a field that structural equality and hashing do not look at."""
    return dataclasses.field(default=default, repr=False, compare=False, metadata={"ignored": True})


def freeze(node: Node, /, **values: object) -> None:
    """Put fields into the form they are kept in; for `__post_init__` alone."""
    for name, value in values.items():
        # Past the frozen dataclass's own `__setattr__`.
        object.__setattr__(node, name, value)


def as_given(value: object) -> Any:  # noqa: ANN401
    """Return the value of a field, whatever a caller has put there."""
    return value


@dataclass_transform(
    eq_default=False,
    frozen_default=True,
    field_specifiers=(dataclasses.field, binding, shown, ignored),
)
def node(type_key: str) -> Callable[[type[_N]], type[_N]]:
    """Make a class a frozen, slotted dataclass and register it under `type_key`.

    Raises ValueError when the key is taken.
    """

    def register(cls: type[_N]) -> type[_N]:
        """Return the class with slots, an initializer of its own fields and its place in
        NODE_TYPES.

        Raises ValueError when the key is taken.
        """
        defaults = declared_defaults(cls)
        # Slots need a new class object: from here on `cls` is not the class that programs see.
        node_class = decorate(
            cls, repr=not hasattr(cls, "astext"), eq=False, frozen=True, slots=True
        )
        node_class.type_key = type_key
        if NODE_TYPES.has(type_key):
            raise ValueError(f"node type {type_key!r}: already made by {NODE_TYPES[type_key]!r}")
        NODE_TYPES[type_key] = node_class
        annotations = cls.__annotations__
        fields = [_reflected(name, annotations[name], value) for name, value in defaults.items()]
        define_node_class(node_class, _keys(node_class), fields)
        return node_class

    return register


def _keys(cls: type) -> list[str]:
    """Return the type keys of the bases of a class that are nodes, the farthest first, and its own.

    Those of abstract classes are their folder and name: "ir.RelayExpr".
    """
    nodes = [base for base in reversed(cls.__mro__) if issubclass(base, Node)]
    return [NODE_KEYS.get(base) or NODE_KEYS.setdefault(base, _key_of(base)) for base in nodes]


def _key_of(cls: type) -> str:
    own = getattr(cls, "type_key", "")
    # An abstract class inherits `type_key` from a registered base: that key is not its own.
    is_own = NODE_TYPES.has(own) and NODE_TYPES[own] is cls
    return own if is_own else f"{cls.__module__.split('.')[1]}.{cls.__name__}"


NODE_KEYS: dict[type, str] = {}
"""Class of nodes -> the key of its type, also of abstract classes."""


def _reflected(name: str, annotation: object, default: object) -> tuple[str, str, bool, bool]:
    """Return what other languages know of a field: name, annotation, whether it may be left out,
    whether equality ignores it.
    """
    is_ignored = False
    if isinstance(default, dataclasses.Field):
        is_ignored, default = bool(default.metadata.get("ignored")), default.default
    return name, str(annotation), default is not dataclasses.MISSING, is_ignored


def _read(source: object, name: str) -> object:
    """Return a field as it crosses to other languages: enums by their names, arrays in one
    piece.
    """
    value = getattr(source, name)
    if isinstance(value, Enum):
        return value.name
    return np.ascontiguousarray(value) if isinstance(value, np.ndarray) and value.ndim else value


def _build(cls: type, fields: Mapping[str, object]) -> object:
    """Return a node from fields as they cross."""
    enums = _enums_of(cls)
    values = {name: enums[name][v] if name in enums else v for name, v in fields.items()}  # type: ignore[index]
    return cls(**values)


@cache
def _enums_of(cls: type) -> dict[str, type[Enum]]:
    """Return the fields of a class of nodes that are enums, with the classes of these."""
    hints = typing.get_type_hints(cls)
    return {n: h for n, h in hints.items() if isinstance(h, type) and issubclass(h, Enum)}


set_node_hooks(_read, _build)


def fields_of(value: Node | type[Node]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the dataclass fields of a node: its reflection table."""
    return dataclasses.fields(value)  # type: ignore[arg-type]
