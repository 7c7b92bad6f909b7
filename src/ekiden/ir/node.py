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
import reprlib
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

import numpy as np

from ekiden.runtime import define_node_class, set_node_hooks
from ekiden.runtime.late import Table

_N = TypeVar("_N", bound="Node")

NODE_TYPES: Table[type[Node]] = Table()
"""Every node class by type key; what JSON loading looks names up in."""


class Node:
    """Base of all IR nodes: hashable by identity, immutable after construction."""

    __slots__ = ("__weakref__",)
    type_key: ClassVar[str] = "ir.Node"

    def __setattr__(self, name: str, value: object) -> None:
        """Raises FrozenInstanceError for a node, and for its fields in a class made of one."""
        kind = type(self)
        if "__dataclass_fields__" in vars(kind) or name in getattr(
            kind, "__dataclass_fields__", ()
        ):
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        """Raises FrozenInstanceError, as assigning does."""
        kind = type(self)
        if "__dataclass_fields__" in vars(kind) or name in getattr(
            kind, "__dataclass_fields__", ()
        ):
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    def __getstate__(self) -> list[object]:
        """The values of the fields: what copies and pickles have."""
        return [getattr(self, field.name) for field in fields_of(self)]

    def __setstate__(self, state: list[object]) -> None:
        """Take the values of the fields."""
        for field, value in zip(fields_of(self), state, strict=True):
            object.__setattr__(self, field.name, value)

    def with_fields(self: _N, **changes: object) -> _N:
        """A copy with some fields replaced; the node itself if nothing differs by identity."""
        if all(getattr(self, name) is value for name, value in changes.items()):
            return self
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def same_as(self, other: object) -> bool:
        """Whether both are one object."""
        return self is other


def binding(default: object = dataclasses.MISSING) -> Any:  # noqa: ANN401
    """Mark a field whose variables are defined here (compared up to renaming)."""
    return dataclasses.field(default=default, metadata={"binding": True})


def shown(default: object) -> Any:  # noqa: ANN401
    """A field of attributes that texts show even where it has its default: TVM has none for it."""
    return dataclasses.field(default=default, metadata={"shown": True})


def ignored(default: object = None) -> Any:  # noqa: ANN401
    """A field that structural equality and hashing do not look at."""
    return dataclasses.field(default=default, repr=False, compare=False, metadata={"ignored": True})


def freeze(made: Node, **values: object) -> None:
    """Put fields into the form they are kept in; for `__post_init__` alone."""
    for name, value in values.items():
        object.__setattr__(made, name, value)


@dataclass_transform(
    eq_default=False,
    frozen_default=True,
    field_specifiers=(dataclasses.field, binding, shown, ignored),
)
def node(type_key: str) -> Callable[[type[_N]], type[_N]]:
    """Make a class a frozen, slotted dataclass and register it under `type_key`.

    Raises ValueError when the key is taken.

    The dataclass's own `frozen=True` would compile four functions for each class, half of the time
    that importing Ekiden takes; Node has three of them for all.
    """

    def register(cls: type[_N]) -> type[_N]:
        """The class with slots, an initializer of its own fields and its place in NODE_TYPES.
        Raises ValueError when the key is taken.
        """
        made = dataclasses.dataclass(slots=True, init=False, eq=False, repr=False)(cls)
        if "__init__" not in vars(cls):
            made.__init__ = _initializer(made)  # type: ignore[method-assign]
        if not hasattr(cls, "astext") and "__repr__" not in vars(cls):
            made.__repr__ = _repr  # type: ignore[method-assign]
        made.type_key = type_key
        if NODE_TYPES.has(type_key):
            raise ValueError(f"node type {type_key!r}: already made by {NODE_TYPES[type_key]!r}")
        NODE_TYPES[type_key] = made
        define_node_class(made, _keys(made), [_reflected(f) for f in dataclasses.fields(made)])  # type: ignore[arg-type]
        return made

    return register


@reprlib.recursive_repr()
def _repr(self: Node) -> str:
    """As dataclasses write it: `Conv2DAttrs(strides=(1, 1), ...)`."""
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields_of(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _initializer(cls: type[Node]) -> Callable[..., None]:
    """The constructor of a node class: fields are set by their slots, past `__setattr__`; those
    that are `InitVar` go to `__post_init__`.
    """
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    assert all(f.init and f.default_factory is dataclasses.MISSING for f in fields), cls
    rows: Mapping[str, dataclasses.Field[Any]] = cls.__dataclass_fields__  # type: ignore[attr-defined]
    extra = [f for f in rows.values() if str(f.type).startswith(("InitVar", "dataclasses.InitVar"))]
    given = [f for f in rows.values() if f in fields or f in extra]
    names: dict[str, object] = {f"_set_{f.name}": getattr(cls, f.name).__set__ for f in fields}
    parameters = []
    for field in sorted(given, key=lambda f: bool(f.kw_only)):
        if field.kw_only and "*" not in parameters:
            parameters.append("*")
        if field.default is dataclasses.MISSING:
            parameters.append(field.name)
        else:
            names[f"_default_{field.name}"] = field.default
            parameters.append(f"{field.name}=_default_{field.name}")
    body = [f"_set_{f.name}(self, {f.name})" for f in fields]
    if hasattr(cls, "__post_init__"):
        body.append(f"self.__post_init__({', '.join(f.name for f in extra)})")
    exec(f"def __init__(self, {', '.join(parameters)}): {'; '.join(body) or 'pass'}", names)
    made = cast(Callable[..., None], names["__init__"])
    made.__annotations__ = {f.name: f.type for f in given} | {"return": None}
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return made


def _keys(cls: type) -> list[str]:
    """The type keys of the bases of a class that are nodes, the farthest first, and its own. Those
    of abstract classes are their folder and name: "ir.RelayExpr".
    """
    nodes = [base for base in reversed(cls.__mro__) if issubclass(base, Node)]
    return [NODE_KEYS.get(base) or NODE_KEYS.setdefault(base, _key_of(base)) for base in nodes]


def _key_of(cls: type) -> str:
    own = getattr(cls, "type_key", "")
    is_own = NODE_TYPES.has(own) and NODE_TYPES[own] is cls
    return own if is_own else f"{cls.__module__.split('.')[1]}.{cls.__name__}"


NODE_KEYS: dict[type, str] = {}
"""Class of nodes -> the key of its type, also of abstract classes."""


def _reflected(field: dataclasses.Field[Any]) -> tuple[str, str, bool, bool]:
    """What other languages know of a field: name, annotation, whether it may be left out, whether
    equality ignores it.
    """
    is_optional = field.default is not dataclasses.MISSING
    return field.name, str(field.type), is_optional, bool(field.metadata.get("ignored"))


def _read(source: object, name: str) -> object:
    """A field as it crosses to other languages: enums by their names, arrays in one piece."""
    value = getattr(source, name)
    if isinstance(value, Enum):
        return value.name
    return np.ascontiguousarray(value) if isinstance(value, np.ndarray) and value.ndim else value


def _build(cls: type, fields: Mapping[str, object]) -> object:
    """A node from fields as they cross."""
    enums = _enums_of(cls)
    given = {name: enums[name][v] if name in enums else v for name, v in fields.items()}  # type: ignore[index]
    return cls(**given)


@cache
def _enums_of(cls: type) -> dict[str, type[Enum]]:
    """The fields of a class of nodes that are enums, with the classes of these."""
    hints = typing.get_type_hints(cls)
    return {n: h for n, h in hints.items() if isinstance(h, type) and issubclass(h, Enum)}


set_node_hooks(_read, _build)


def fields_of(value: Node) -> tuple[dataclasses.Field[Any], ...]:
    """The dataclass fields of a node: its reflection table."""
    return dataclasses.fields(value)  # type: ignore[arg-type]
