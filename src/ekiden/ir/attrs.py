"""Attributes: the compile-time parameters of an operator call, one frozen dataclass per operator family."""

from __future__ import annotations

from ekiden.ir.node import Node


class Attrs(Node):
    """Base of attribute classes: `@node("relay.attrs.Conv2DAttrs") class Conv2DAttrs(Attrs): ...`.

    Fields are bool, int, float, str, PrimExpr, None, or (nested) tuples of those. Every field has a default where TVM has one.
    """

    __slots__ = ()
