"""Any node or module as JSON, and back: every node once, children before parents, arrays in base64.

    {"ekiden": "1", "root": REF,
     "nodes": [["relay.Var", {"name_hint": "x", ...}], ...],
     "arrays": [[dtype, shape, base64], ...]}

A value is a JSON scalar, a list (tuple), or an object with one key: {"node": 3}, {"array": 0},
{"map": [[k, v], ...]}, {"enum": "NAME"}, {"float": "inf"}. Fields at their defaults are left out.
Inferred types are not saved.
"""

from __future__ import annotations

import base64
import json
import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field
from enum import Enum
from functools import cache

import numpy as np

from ekiden.ir.dtype import to_numpy
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.node import NODE_TYPES, Node, fields_of
from ekiden.ir.op import OPS, Array, Op, get
from ekiden.runtime.errors import LoadError

FORMAT = "1"
_MODULE = ("functions", "type_definitions", "attrs")


def save_json(value: object) -> str:
    """A node, module, array, or tuple or mapping of those, as JSON text; the same value always
    gives the same text.
    """
    writer = _Writer()
    root = writer.write(value)
    document = {"ekiden": FORMAT, "root": root, "nodes": writer.nodes, "arrays": writer.arrays}
    return json.dumps(document, separators=(",", ":"))


def load_json(text: str | bytes) -> object:
    """What `save_json` saved. Raises LoadError for anything else."""
    try:
        document = json.loads(text)
        if document["ekiden"] != FORMAT:
            raise LoadError(f"JSON of format {document['ekiden']!r}, expected {FORMAT!r}")
        return _Reader(document).read()
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise LoadError(f"not a saved node: {type(error).__name__}: {error}") from error


def _parts(value: object) -> Iterator[object]:
    """The nodes and modules directly inside a value."""
    if isinstance(value, (Node, IRModule)):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _parts(each)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _parts(key)
            yield from _parts(each)


@cache
def _fields(type_key: str) -> tuple[Field[object], ...]:
    return fields_of(NODE_TYPES[type_key])  # type: ignore[arg-type]


class _Writer:
    """The nodes written so far."""

    def __init__(self) -> None:
        self.nodes: list[list[object]] = []
        self.arrays: list[list[object]] = []
        self.numbers: dict[int, int] = {}
        """id of a node or array -> its number."""
        self._alive: list[Array] = []
        """Arrays written, kept so that no other object gets their id; nodes live through the root.
        """

    def write(self, root: object) -> object:
        """The reference to a value, after everything in it is written."""
        stack = [(part, False) for part in reversed(list(_parts(root)))]
        while stack:
            at, done = stack.pop()
            if id(at) in self.numbers:
                continue
            if done:
                self.nodes.append(self._record(at))
                self.numbers[id(at)] = len(self.nodes) - 1
                continue
            stack.append((at, True))
            inside = [p for _, value in _values(at) for p in _parts(value)]
            stack.extend((p, False) for p in reversed(inside) if id(p) not in self.numbers)
        return self._encode(root)

    def _record(self, at: object) -> list[object]:
        return [at.type_key, {name: self._encode(value) for name, value in _values(at)}]  # type: ignore[attr-defined]

    def _encode(self, value: object) -> object:
        match value:
            case None | bool() | str():
                return value
            case Node() | IRModule():
                return {"node": self.numbers[id(value)]}
            case Enum():
                return {"enum": value.name}
            case int():
                return value
            case float():
                return value if math.isfinite(value) else {"float": repr(value)}
            case tuple() | list():
                return [self._encode(v) for v in value]
            case Mapping():
                return {"map": [[self._encode(k), self._encode(v)] for k, v in value.items()]}
            case np.ndarray() | np.generic():
                return {"array": self._array(np.asarray(value))}
        raise TypeError(f"save_json: cannot save a {type(value).__name__}: {value!r}")

    def _array(self, value: Array) -> int:
        found = self.numbers.setdefault(id(value), len(self.arrays))
        if found == len(self.arrays):
            self._alive.append(value)
            content = base64.b64encode(value.tobytes()).decode()
            self.arrays.append([str(value.dtype), list(value.shape), content])
        return found


def _values(at: object) -> list[tuple[str, object]]:
    """The fields to save of a node or module."""
    if isinstance(at, IRModule):
        return [(name, getattr(at, name)) for name in _MODULE]
    assert isinstance(at, Node)
    values = ((f, getattr(at, f.name)) for f in _fields(at.type_key))
    return [(f.name, v) for f, v in values if f.default is MISSING or v is not f.default]


class _Reader:
    """The nodes read so far. A reference can only go backwards: a cycle cannot be written."""

    def __init__(self, document: Mapping[str, typing.Any]) -> None:
        self.document = document
        self.arrays = [_read_array(*record) for record in document["arrays"]]
        self.nodes: list[object] = []

    def read(self) -> object:
        """The root."""
        for key, fields in self.document["nodes"]:
            self.nodes.append(self._node(key, fields))
        return self._decode(self.document["root"], None)

    def _node(self, key: str, fields: Mapping[str, object]) -> object:
        if key == IRModule.type_key:
            return self._module(fields)
        kind = NODE_TYPES.get(key)
        if kind is None:
            raise LoadError(f"no node type {key!r}")
        values = {name: self._decode(value, _enum_of(key, name)) for name, value in fields.items()}
        if kind is Op and values["name"] in OPS:
            return get(str(values["name"]))
        return kind(**values)

    def _module(self, fields: Mapping[str, object]) -> IRModule:
        functions, types, attrs = (self._decode(fields[name], None) for name in _MODULE)
        if not (
            isinstance(functions, dict) and isinstance(types, dict) and isinstance(attrs, dict)
        ):
            raise LoadError("a module's functions, types and attributes must be mappings")
        for name, function in functions.items():
            if not isinstance(name, GlobalVar) or not isinstance(function, BaseFunc):
                raise LoadError(
                    f"a module's functions: got {type(name).__name__}: {type(function).__name__}"
                )
        return IRModule(functions, types, attrs)

    def _decode(self, value: object, enum: type[Enum] | None) -> object:
        if isinstance(value, list):
            return tuple(self._decode(v, enum) for v in value)
        if not isinstance(value, dict):
            return value
        ((key, inside),) = value.items()
        match key:
            case "node":
                if not 0 <= inside < len(self.nodes):
                    raise LoadError(
                        f"node {len(self.nodes)} refers to {inside}, which does not come before it"
                    )
                return self.nodes[inside]
            case "array":
                return self.arrays[inside]
            case "map":
                return {self._decode(k, None): self._decode(v, None) for k, v in inside}
            case "float":
                return float(inside)
            case "enum" if enum is not None:
                return enum[inside]
        raise LoadError(f"unexpected {key!r}")


@cache
def _enum_of(type_key: str, name: str) -> type[Enum] | None:
    """The enum class that a field of a node is annotated with."""
    hint = _hints(type_key).get(name)
    return hint if isinstance(hint, type) and issubclass(hint, Enum) else None


@cache
def _hints(type_key: str) -> dict[str, object]:
    return typing.get_type_hints(NODE_TYPES[type_key])


def _read_array(dtype: str, shape: list[int], content: str) -> Array:
    data: Array = np.frombuffer(base64.b64decode(content, validate=True), to_numpy(dtype))
    return data.reshape(shape)
