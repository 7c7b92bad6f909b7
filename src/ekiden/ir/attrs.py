"""Attributes: the compile-time parameters of an operator call, one frozen dataclass per operator
family.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from functools import cache

from ekiden.ir.dtype import canonical_dtype
from ekiden.ir.node import NODE_TYPES, Node, node, node_fields, set_frozen_fields
from ekiden.ir.prim import PrimExpr


class Attrs(Node):
    """Base of attribute classes: `@node("relay.attrs.Conv2DAttrs") class Conv2DAttrs(Attrs): ...`.

    Fields are bool, int, float, str, PrimExpr, None, or (nested) tuples of those. Every field has a
    default where TVM has one. `attrs["axis"]` and `**attrs` work as on a dictionary.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        """Replace TVM's spellings of dtypes by those of `ekiden.ir.dtype`."""
        # "bool" and "uint1" would otherwise be unequal attributes, and miss each other in every
        # cache.
        for name in _dtype_fields(self.type_key):
            dtype = getattr(self, name)
            if isinstance(dtype, str) and (spelling := canonical_dtype(dtype)) != dtype:
                set_frozen_fields(self, **{name: spelling})

    def keys(self) -> tuple[str, ...]:
        """Return the names of the fields, in their order."""
        return tuple(field.name for field in node_fields(self))

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
        # Attributes without fields would be false by their length.
        return True

    @classmethod
    def expand_abbreviations(cls, fields: dict[str, object]) -> dict[str, object]:
        """Expand the abbreviated fields of a text to the form in which they are stored."""
        return fields

    def check(self) -> None:
        """Validate the attribute values, independent of the arguments. Raises ValueError for what
        none goes with.
        """


@node("relay.attrs.NamedDimsAttrs")
class NamedDimsAttrs(Attrs):
    """Wrapper of a user-defined operator's attributes that names the unknown dimensions of its
    result; user code sees `user_attrs` only.
    """

    user_attrs: Attrs | None = None
    symbols: tuple[PrimExpr, ...] = ()


def unwrap_user_attrs(attrs: Attrs | None) -> Attrs | None:
    """Return the attributes as user code gave them, without the NamedDimsAttrs wrapper."""
    return attrs.user_attrs if isinstance(attrs, NamedDimsAttrs) else attrs


def with_dim_symbols(attrs: Attrs | None, symbols: tuple[PrimExpr, ...]) -> Attrs:
    """Attach symbols for the unknown result dimensions to the attributes."""
    # Operators with shapes that depend on data have the field themselves; others are wrapped.
    if attrs is not None and "symbols" in attrs.keys():  # noqa: SIM118 - it is no dictionary
        return attrs.with_fields(symbols=symbols)
    return NamedDimsAttrs(attrs, symbols)


@cache
def _dtype_fields(type_key: str) -> tuple[str, ...]:
    names = (name for b in NODE_TYPES[type_key].__mro__ for name in inspect.get_annotations(b))
    return tuple(n for n in dict.fromkeys(names) if n == "dtype" or n.endswith("_dtype"))


@cache
def allowed_field_types(type_key: str) -> dict[str, frozenset[object]]:
    """Return for each field of an attribute class the set of classes its annotation allows, tuples
    flattened.
    """
    # Resolved once for each class: annotations are texts, and evaluating them is slow.
    hints = typing.get_type_hints(NODE_TYPES[type_key])
    return {name: frozenset(_leaf_types(hint)) for name, hint in hints.items()}


@cache
def prim_expr_fields(type_key: str) -> frozenset[str]:
    """Return the fields annotated with PrimExpr but not int, whose numbers must become PrimExpr."""
    classes = allowed_field_types(type_key).items()
    return frozenset(
        name for name, allowed in classes if PrimExpr in allowed and int not in allowed
    )


@cache
def numeric_tuple_fields(type_key: str) -> frozenset[str]:
    """Return the fields that are always tuples of numbers, never a scalar."""
    hints = typing.get_type_hints(NODE_TYPES[type_key]).items()
    return frozenset(name for name, hint in hints if _is_numeric_tuple(hint))


def _is_numeric_tuple(hint: object) -> bool:
    # `tuple[int, ...] | None` is a sequence, `int | tuple[int, ...]` is not.
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    tuples = [kind for kind in kinds if typing.get_origin(kind) is tuple]
    inner = {of for tuple_hint in tuples for of in typing.get_args(tuple_hint)}
    return bool(inner & {int, float, PrimExpr}) and not {int, float, PrimExpr}.intersection(kinds)


def _leaf_types(hint: object) -> typing.Iterator[object]:
    """Yield the leaf classes of a type annotation, depth first."""
    inside = typing.get_args(hint)
    if not inside:
        yield hint
    for argument in inside:
        yield from _leaf_types(argument)
