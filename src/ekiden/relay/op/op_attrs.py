"""Attribute classes of operators, under TVM's module name: `op_attrs.Conv2DAttrs`."""

from __future__ import annotations

from ekiden.ir.node import NODE_TYPES


def __getattr__(name: str) -> type:
    """Return an attribute class by name. Raises AttributeError."""
    if name.startswith("__") or f"relay.attrs.{name}" not in NODE_TYPES:
        raise AttributeError(f"relay.op.op_attrs: no operator has attributes {name!r}")
    return NODE_TYPES[f"relay.attrs.{name}"]
