"""Nodes: immutable, slotted values with a type key, whose dataclass fields are the reflection.

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
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, dataclass_transform

_N = TypeVar("_N", bound="Node")

NODE_TYPES: dict[str, type[Node]] = {}
"""Every node class by type key; what JSON loading looks names up in."""


class Node:
    """Base of all IR nodes: hashable by identity, immutable after construction."""

    __slots__ = ("__weakref__",)
    type_key: ClassVar[str] = "ir.Node"

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


def ignored(default: object = None) -> Any:  # noqa: ANN401
    """A field that structural equality and hashing do not look at."""
    return dataclasses.field(default=default, repr=False, compare=False, metadata={"ignored": True})


def freeze(made: Node, **values: object) -> None:
    """Put fields into the form they are kept in; for `__post_init__` alone."""
    for name, value in values.items():
        object.__setattr__(made, name, value)


@dataclass_transform(
    eq_default=False, frozen_default=True, field_specifiers=(dataclasses.field, binding, ignored)
)
def node(type_key: str) -> Callable[[type[_N]], type[_N]]:
    """Make a class a frozen, slotted dataclass and register it under `type_key`.

    Raises ValueError when the key is taken.
    """

    def register(cls: type[_N]) -> type[_N]:
        own_repr = hasattr(cls, "astext")
        made = dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=not own_repr)(cls)
        made.type_key = type_key
        if type_key in NODE_TYPES:
            raise ValueError(f"node type {type_key!r}: already made by {NODE_TYPES[type_key]!r}")
        NODE_TYPES[type_key] = made
        return made

    return register


def fields_of(value: Node) -> tuple[dataclasses.Field[Any], ...]:
    """The dataclass fields of a node: its reflection table."""
    return dataclasses.fields(value)  # type: ignore[arg-type]
