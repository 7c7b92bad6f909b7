"""JSON serialization of nodes and modules, as a node family of `runtime.artifact.graph_json`.

Inferred types are not saved; fields at their defaults are left out. Importing this makes
`save_json` and `load_json` know the nodes of every language that is imported.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field
from enum import Enum
from functools import cache

from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.node import NODE_TYPES, Node, node_fields
from ekiden.ir.op import OP_NODES, Op, get
from ekiden.runtime import register_func
from ekiden.runtime.artifact.graph_json import (
    Decode,
    NodeFamily,
    NodeFields,
    load_json,
    register_family,
    save_json,
)
from ekiden.runtime.errors import LoadError

__all__ = ["load_json", "save_json"]

_MODULE_FIELDS = ("functions", "type_definitions", "attrs")


@cache
def _dataclass_fields(type_key: str) -> tuple[Field[object], ...]:
    return node_fields(NODE_TYPES[type_key])


def _encode_node(at: Node | IRModule) -> tuple[str, NodeFields]:
    """Return the type key and the fields of a node or module that differ from their defaults."""
    if isinstance(at, IRModule):
        return at.type_key, [(name, getattr(at, name)) for name in _MODULE_FIELDS]
    values = ((f, getattr(at, f.name)) for f in _dataclass_fields(at.type_key))
    return at.type_key, [
        # By identity: a value that equals the default may be of another type, as 0 and False are.
        (f.name, v)
        for f, v in values
        if f.default is MISSING or v is not f.default
    ]


def _decode_node(key: str, fields: Mapping[str, object], decode: Decode) -> object:
    if key == IRModule.type_key:
        return _decode_module(fields, decode)
    kind = NODE_TYPES[key]
    values = {name: decode(value, _field_enum(key, name)) for name, value in fields.items()}
    # An operator is one object, which others compare by identity.
    if kind is Op and values["name"] in OP_NODES:
        return get(str(values["name"]))
    return kind(**values)


def _decode_module(fields: Mapping[str, object], decode: Decode) -> IRModule:
    functions, types, attrs = (decode(fields[name], None) for name in _MODULE_FIELDS)
    if not (isinstance(functions, dict) and isinstance(types, dict) and isinstance(attrs, dict)):
        raise LoadError("a module's functions, types and attributes must be mappings")
    for name, function in functions.items():
        if not isinstance(name, GlobalVar) or not isinstance(function, BaseFunc):
            raise LoadError(
                f"a module's functions: got {type(name).__name__}: {type(function).__name__}"
            )
    return IRModule(functions, types, attrs)


@cache
def _field_enum(type_key: str, name: str) -> type[Enum] | None:
    """Return the Enum class a node field is annotated with, or None."""
    hint = _field_type_hints(type_key).get(name)
    return hint if isinstance(hint, type) and issubclass(hint, Enum) else None


@cache
def _field_type_hints(type_key: str) -> dict[str, object]:
    return typing.get_type_hints(NODE_TYPES[type_key])


def _is_known_type_key(key: str) -> bool:
    return key in NODE_TYPES or key == IRModule.type_key


register_family(NodeFamily((Node, IRModule), _encode_node, _is_known_type_key, _decode_node))
register_func("node.SaveJSON", save_json, override=True)
register_func("node.LoadJSON", load_json, override=True)
