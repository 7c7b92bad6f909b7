"""Attributes: the compile-time parameters of an operator call, one frozen dataclass per operator
family.
"""

from __future__ import annotations

import typing
from functools import cache

from ekiden.ir.node import NODE_TYPES, Node
from ekiden.ir.prim import PrimExpr


class Attrs(Node):
    """Base of attribute classes: `@node("relay.attrs.Conv2DAttrs") class Conv2DAttrs(Attrs): ...`.

    Fields are bool, int, float, str, PrimExpr, None, or (nested) tuples of those. Every field has a
    default where TVM has one.
    """

    __slots__ = ()


@cache
def expression_fields(type_key: str) -> frozenset[str]:
    """The fields of an attribute class whose numbers are always PrimExpr, never Python ints, by
    their annotations.
    """
    hints = typing.get_type_hints(NODE_TYPES[type_key])
    leaves = {name: set(_leaves(hint)) for name, hint in hints.items()}
    return frozenset(
        name for name, found in leaves.items() if PrimExpr in found and int not in found
    )


def _leaves(hint: object) -> typing.Iterator[object]:
    """The classes that an annotation is made of."""
    inside = typing.get_args(hint)
    if not inside:
        yield hint
    for each in inside:
        yield from _leaves(each)
