"""Nodes by their type key."""

from __future__ import annotations

from ekiden.ir.node import NODE_TYPES, Node


def make_node(type_key: str, **kwargs: object) -> Node | dict[str, object]:
    """A node of that type from its fields; "DictAttrs" gives a dictionary, which is what attributes
    of functions are. Raises KeyError for a type key that is not known.
    """
    if type_key == "DictAttrs":
        return kwargs
    if type_key not in NODE_TYPES:
        last = type_key.rpartition(".")[2]
        near = sorted(k for k in NODE_TYPES if k.rpartition(".")[2] == last)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise KeyError(f"no node type {type_key!r}{hint}")
    return NODE_TYPES[type_key](**kwargs)


__all__ = ["make_node"]
