"""Attributes: the compile-time parameters of an operator call, one frozen dataclass per operator
family.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from functools import cache

from ekiden.ir.dtype import spelled
from ekiden.ir.node import NODE_TYPES, Node, fields_of, freeze, node
from ekiden.ir.prim import PrimExpr


class Attrs(Node):
    """Base of attribute classes: `@node("relay.attrs.Conv2DAttrs") class Conv2DAttrs(Attrs): ...`.

    Fields are bool, int, float, str, PrimExpr, None, or (nested) tuples of those. Every field has a
    default where TVM has one. `attrs["axis"]` and `**attrs` work as on a dictionary.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        """Replace TVM's spellings of dtypes by those of `ekiden.ir.dtype`."""
        for name in _dtype_fields(self.type_key):
            dtype = getattr(self, name)
            if isinstance(dtype, str) and (spelling := spelled(dtype)) != dtype:
                freeze(self, **{name: spelling})

    def keys(self) -> tuple[str, ...]:
        """Return the names of the fields, in their order."""
        return tuple(field.name for field in fields_of(self))

    def __getitem__(self, name: str) -> object:
        if name not in self.keys():
            field_names = ", ".join(self.keys()) or "none"
            raise KeyError(f"{self.type_key} has no field {name!r}; there are {field_names}")
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __bool__(self) -> bool:
        return True

    @classmethod
    def in_full(cls, fields: dict[str, object]) -> dict[str, object]:
        """Fields as a text may shorten them, as they are kept."""
        return fields

    def check(self) -> None:
        """Look at the values alone, whatever the arguments are. Raises ValueError for what none
        goes with."""


@node("relay.attrs.NamedDimsAttrs")
class NamedDimsAttrs(Attrs):
    """The attributes of a program's own operator, and names for the dimensions of its result that
    its type relation leaves open: what the program has written sees `own` alone.
    """

    own: Attrs | None = None
    symbols: tuple[PrimExpr, ...] = ()


def own_attrs(attrs: Attrs | None) -> Attrs | None:
    """Return the attributes as a program has given them."""
    return attrs.own if isinstance(attrs, NamedDimsAttrs) else attrs


def with_symbols(attrs: Attrs | None, symbols: tuple[PrimExpr, ...]) -> Attrs:
    """Attributes with names for the dimensions of a result that are open."""
    # Operators with shapes that depend on data have the field themselves; others are wrapped.
    if attrs is not None and "symbols" in attrs.keys():  # noqa: SIM118 - it is no dictionary
        return attrs.with_fields(symbols=symbols)
    return NamedDimsAttrs(attrs, symbols)


@cache
def _dtype_fields(type_key: str) -> tuple[str, ...]:
    names = (name for b in NODE_TYPES[type_key].__mro__ for name in inspect.get_annotations(b))
    return tuple(n for n in dict.fromkeys(names) if n == "dtype" or n.endswith("_dtype"))


@cache
def field_classes(type_key: str) -> dict[str, frozenset[object]]:
    """Return the classes that each field of an attribute class may hold, alone or in tuples."""
    hints = typing.get_type_hints(NODE_TYPES[type_key])
    return {name: frozenset(_leaves(hint)) for name, hint in hints.items()}


@cache
def expression_fields(type_key: str) -> frozenset[str]:
    """Return the fields whose numbers are always PrimExpr, never Python ints."""
    classes = field_classes(type_key).items()
    return frozenset(
        name for name, allowed in classes if PrimExpr in allowed and int not in allowed
    )


@cache
def sequence_fields(type_key: str) -> frozenset[str]:
    """Return the fields that are tuples of numbers and never a number alone."""
    hints = typing.get_type_hints(NODE_TYPES[type_key]).items()
    return frozenset(name for name, hint in hints if _is_sequence(hint))


def _is_sequence(hint: object) -> bool:
    # `tuple[int, ...] | None` is a sequence, `int | tuple[int, ...]` is not.
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    tuples = [kind for kind in kinds if typing.get_origin(kind) is tuple]
    inner = {of for tuple_hint in tuples for of in typing.get_args(tuple_hint)}
    return bool(inner & {int, float, PrimExpr}) and not {int, float, PrimExpr}.intersection(kinds)


def _leaves(hint: object) -> typing.Iterator[object]:
    """Yield the classes that an annotation is made of."""
    inside = typing.get_args(hint)
    if not inside:
        yield hint
    for argument in inside:
        yield from _leaves(argument)
