"""Node construction by type key (TVM's `make_node`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from ekiden import runtime
from ekiden.ir.node import NODE_TYPES, Node
from ekiden.ir.prim import PrimExpr
from ekiden.ir.range import Range
from ekiden.runtime.binding._core import is_defined


def _make_range(min: PrimExpr | int, extent: PrimExpr | int, span: object = None) -> Range:
    return Range.from_min_extent(min, extent)


NON_NODE_FACTORIES: dict[str, Callable[..., object]] = {
    "Array": lambda *items: list(items),
    "DictAttrs": dict,
    "Map": dict,
    "Range": _make_range,
    "runtime.String": str,
}
"""Factories of TVM type keys whose values are no nodes here: Python's own, and Range."""
TYPE_KEY_PREFIXES = ("", "ir.", "relay.", "tir.")
"""Prefixes that TVM omits from the keys of types shared by several of its languages: "IntImm"."""


def make_node(type_key: str, **kwargs: object) -> object:
    """Construct a node or runtime object of a type key from its fields.

    "DictAttrs" gives a dictionary, which is what attributes of functions are. A `span` of None may
    be given to nodes that have none. Raises KeyError for a type key that is not known, naming those
    that end alike.
    """
    if type_key in NON_NODE_FACTORIES:
        return NON_NODE_FACTORIES[type_key](**kwargs)
    # The first prefix under which the key is registered; TVM leaves some of them out.
    full = next((p + type_key for p in TYPE_KEY_PREFIXES if p + type_key in NODE_TYPES), type_key)
    if full in NODE_TYPES:
        kind = NODE_TYPES[full]
        if "span" in kwargs and "span" not in _field_names(kind):
            kwargs = {name: value for name, value in kwargs.items() if name != "span"}
        return kind(**kwargs)
    if is_defined(type_key):
        return runtime.make_node(type_key, **kwargs)
    # The part behind the last dot, as the language is what is most often wrong.
    last = type_key.rpartition(".")[2]
    near = sorted(k for k in NODE_TYPES if k.rpartition(".")[2] == last)
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    raise KeyError(f"no node type {type_key!r}{hint}")


def _field_names(kind: type[Node]) -> set[str]:
    return {field.name for field in fields(kind)}  # type: ignore[arg-type]


__all__ = ["make_node"]
