"""Node base class: immutable slotted dataclasses with a type key and reflected fields, shared with
other languages as runtime objects.

Identity is the default equality. `ekiden.ir.structural` compares meaning. A node is made with

    @node("relay.Let")
    class Let(Expr):
        var: Var = binding()  # a field that defines a variable
        value: Expr
        body: Expr
        hint: str = ignored_field(default=None)  # a field that structural equality ignores
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np

from ekiden.ir.lazy_registry import LazyRegistry
from ekiden.runtime import Object, define_node_class, set_node_hooks
from ekiden.runtime.lazy_dataclass import (
    apply_dataclass,
    delete_attribute,
    field_values,
    read_declared_defaults,
    set_attribute,
    set_field_values,
)

_N = TypeVar("_N", bound="Node")

NODE_TYPES: LazyRegistry[str, type[Node]] = LazyRegistry()
"""All node classes by type key, used to load JSON."""


class Node:
    """Base class of IR nodes: immutable, hashed by identity."""

    __slots__ = ("__weakref__",)
    type_key: ClassVar[str] = "ir.Node"

    __setattr__ = set_attribute
    __delattr__ = delete_attribute
    __getstate__ = field_values
    __setstate__ = set_field_values

    def with_fields(self: _N, **changes: object) -> _N:
        """Return a copy with some fields replaced, or the node itself if no field changes."""
        # The same object, as passes recognize by identity that nothing has changed.
        if all(getattr(self, name) is value for name, value in changes.items()):
            return self
        cls: Callable[..., _N] = type(self)
        names = _positional_fields(cls)
        if names is None or not changes.keys() <= names.keys():
            return dataclasses.replace(self, **changes)  # type: ignore[type-var]
        # As `replace` does, without its look at each field: passes copy nodes all the time.
        return cls(*[changes[n] if n in changes else getattr(self, n) for n in names])

    def same_as(self, other: object) -> bool:
        """Return whether both are the same object."""
        return self is other


Object.register(Node)


@cache
def _positional_fields(cls: Any) -> Mapping[str, None] | None:  # noqa: ANN401
    """Return the names of a class's fields in the order of its constructor's arguments; None where
    some field is no positional argument.
    """
    fields = dataclasses.fields(cls)
    if any(not f.init or f.kw_only for f in fields):
        return None
    return dict.fromkeys(f.name for f in fields)


def binding(default: object = dataclasses.MISSING) -> Any:  # noqa: ANN401
    """Declare a dataclass field that binds the variables in it, which are compared up to
    renaming.
    """
    return dataclasses.field(default=default, metadata={"binding": True})


def always_printed_field(default: object) -> Any:  # noqa: ANN401
    """Declare an attribute field that is printed even at its default, as TVM has no
    default for it.
    """
    return dataclasses.field(default=default, metadata={"shown": True})


def ignored_field(default: object = None) -> Any:  # noqa: ANN401
    """Declare a dataclass field that structural equality and hashing ignore."""
    return dataclasses.field(default=default, repr=False, compare=False, metadata={"ignored": True})


def set_frozen_fields(node: Node, /, **values: object) -> None:
    """Set fields of a frozen node; for `__post_init__` only."""
    for name, value in values.items():
        # Past the frozen dataclass's own `__setattr__`.
        object.__setattr__(node, name, value)


def as_untyped(value: object) -> Any:  # noqa: ANN401
    """Return the value typed as Any, since callers may pass other types than the annotation."""
    return value


@dataclass_transform(
    eq_default=False,
    frozen_default=True,
    field_specifiers=(dataclasses.field, binding, always_printed_field, ignored_field),
)
def node(type_key: str) -> Callable[[type[_N]], type[_N]]:
    """Class decorator that makes a frozen, slotted dataclass and registers it under `type_key`.

    Raises ValueError when the key is taken.
    """

    def register_class(cls: type[_N]) -> type[_N]:
        """Return the slotted class with its initializer, registered in NODE_TYPES.

        Raises ValueError when the key is taken.
        """
        defaults = read_declared_defaults(cls)
        # Slots need a new class object: from here on `cls` is not the class that programs see.
        node_class = apply_dataclass(
            cls, repr=not hasattr(cls, "astext"), eq=False, frozen=True, slots=True
        )
        node_class.type_key = type_key
        # A second class of one key would make saved programs ambiguous.
        if NODE_TYPES.has(type_key):
            raise ValueError(f"node type {type_key!r}: already made by {NODE_TYPES[type_key]!r}")
        NODE_TYPES[type_key] = node_class
        annotations = cls.__annotations__
        fields = [
            _field_reflection(name, annotations[name], value) for name, value in defaults.items()
        ]
        define_node_class(node_class, _type_key_chain(node_class), fields)
        return node_class

    return register_class


def _type_key_chain(cls: type) -> list[str]:
    """Return the type keys along the class hierarchy, from the root to the class itself.

    Those of abstract classes are their folder and name: "ir.RelayExpr".
    """
    nodes = [base for base in reversed(cls.__mro__) if issubclass(base, Node)]
    return [
        NODE_KEYS.get(base) or NODE_KEYS.setdefault(base, _own_type_key(base)) for base in nodes
    ]


def _own_type_key(cls: type) -> str:
    type_key = getattr(cls, "type_key", "")
    # An abstract class inherits `type_key` from a registered base: that key is not its own.
    is_own = NODE_TYPES.has(type_key) and NODE_TYPES[type_key] is cls
    return type_key if is_own else f"{cls.__module__.split('.')[1]}.{cls.__name__}"


NODE_KEYS: dict[type, str] = {}
"""Type key of each node class, abstract ones included."""


def _field_reflection(
    name: str, annotation: object, default: object
) -> tuple[str, str, bool, bool]:
    """Return a field's reflection record: name, annotation, whether optional, whether equality
    ignores it.
    """
    is_ignored = False
    if isinstance(default, dataclasses.Field):
        is_ignored, default = bool(default.metadata.get("ignored")), default.default
    return name, str(annotation), default is not dataclasses.MISSING, is_ignored


def _read_field(source: object, name: str) -> object:
    """Read a field for the FFI: enums as names, arrays as contiguous."""
    value = getattr(source, name)
    if isinstance(value, Enum):
        return value.name
    # Other languages read arrays by a pointer and a shape, without strides.
    return np.ascontiguousarray(value) if isinstance(value, np.ndarray) and value.ndim else value


def _build_node(cls: type, fields: Mapping[str, object]) -> object:
    """Construct a node from its fields as they come through the FFI."""
    enums = _enum_fields(cls)
    values = {name: enums[name][v] if name in enums else v for name, v in fields.items()}  # type: ignore[index]
    return cls(**values)


@cache
def _enum_fields(cls: type) -> dict[str, type[Enum]]:
    """Return {field name: Enum class} of a node class."""
    hints = typing.get_type_hints(cls)
    return {n: h for n, h in hints.items() if isinstance(h, type) and issubclass(h, Enum)}


set_node_hooks(_read_field, _build_node)


def node_fields(value: Node | type[Node]) -> tuple[dataclasses.Field[Any], ...]:
    """Return a node's dataclass fields, its reflection table."""
    return dataclasses.fields(value)  # type: ignore[arg-type]
