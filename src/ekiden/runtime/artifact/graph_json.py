"""Serialise object graphs as JSON, and back; every object once, children before parents, arrays in
base64.

    {"ekiden": "1", "root": REF,
     "nodes": [["myns.MyExpr", {"value": 3, ...}], ...],
     "arrays": [[dtype, shape, base64], ...]}

A value is a JSON scalar, a list (tuple), or an object with one key: {"node": 3}, {"array": 0},
{"tensor": 0}, {"list": [...]}, {"map": [[k, v], ...]}, {"adt": [tag, fields]}, {"shape": [...]},
{"dtype": "int8"}, {"device": [1, 0]}, {"bytes": base64}, {"error": [kind, message]}, {"enum":
"NAME"}, {"float": "inf"}.

What becomes a node is open: a family of classes says how its objects are taken apart and made again
(`register_family`). Objects of the runtime are one, by the fields their types were defined with;
the compiler adds the nodes of its languages.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekiden.runtime.binding._core import (
    ADT,
    DataType,
    Device,
    Executable,
    Object,
    Shape,
    Tensor,
    error_from,
    fields_of,
    is_defined,
    is_node_type,
    kind_of_error,
    make_node,
    tensor,
)
from ekiden.runtime.errors import LoadError

GRAPH_JSON_FORMAT = "1"
NodeFields = list[tuple[str, object]]
Decode = Callable[[object, type[Enum] | None], object]


class NodeFamily(NamedTuple):
    """Serialisation of a family of classes: how a node becomes a key and fields, and back."""

    classes: tuple[type, ...]
    to_fields: Callable[[Any], tuple[str, NodeFields]]
    """Type key and fields of an object; TypeError if it cannot be saved."""
    has_key: Callable[[str], bool]
    from_fields: Callable[[str, Mapping[str, object], Decode], object]
    """Function (type key, encoded fields, decode) -> object, which decodes the fields."""


NODE_FAMILIES: list[NodeFamily] = []
"""Node families in order of precedence; the first one whose classes match serialises an object."""


def register_family(family: NodeFamily) -> None:
    """Register the serialisation of more classes."""
    NODE_FAMILIES.append(family)


TVM_JSON_READERS: list[Callable[[Mapping[str, Any]], object]] = []
"""Reader of TVM's JSON documents: one function, or none before it is registered."""


def register_tvm_json_reader(read: Callable[[Mapping[str, Any]], object]) -> None:
    """Register a reader of TVM documents, a function of the whole document."""
    TVM_JSON_READERS[:] = [read]


def save_json(value: object) -> str:
    """Serialise an object or node, or a scalar, array or container of those, as JSON text. The same
    value always gives the same text. Raises TypeError for what has no serialisation (functions,
    machines, types without fields), and ValueError for cyclic objects.
    """
    writer = _GraphWriter()
    root = writer.write(value)
    document = {
        "ekiden": GRAPH_JSON_FORMAT,
        "root": root,
        "nodes": writer.nodes,
        "arrays": writer.arrays,
    }
    return json.dumps(document, separators=(",", ":"))


def load_json(text: str | bytes) -> object:
    """Load what `save_json` saved; TVM's programs too (relay/tvm_json.py), where `ekiden.relay` is
    imported. Raises LoadError for anything else.
    """
    try:
        document = json.loads(text)
        if _is_tvm_document(document):
            return _read_tvm_document(document)
        if document["ekiden"] != GRAPH_JSON_FORMAT:
            raise LoadError(
                f"JSON of format {document['ekiden']!r}, expected {GRAPH_JSON_FORMAT!r}"
            )
        return _GraphReader(document).read()
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise LoadError(f"not a saved node: {type(error).__name__}: {error}") from error


def _is_tvm_document(document: object) -> bool:
    return isinstance(document, dict) and "ekiden" not in document and "nodes" in document


def _read_tvm_document(document: Mapping[str, Any]) -> object:
    if TVM_JSON_READERS and "root" in document:
        return TVM_JSON_READERS[0](document)
    attrs = document.get("attrs")
    version = attrs.get("tvm_version", "?") if isinstance(attrs, dict) else "?"
    raise LoadError(
        f"this is JSON of TVM (version {version}), but no program that can be read here; save a"
        " module there by tvm.ir.save_json(mod), or as text, mod.astext(), which"
        " ekiden.relay.parse reads"
    )


def _find_node_family(value: object) -> NodeFamily | None:
    """Return the family of an object's class."""
    if isinstance(value, Tensor):
        return None
    return next((family for family in NODE_FAMILIES if isinstance(value, family.classes)), None)


def _inner_objects(value: object) -> Iterator[object]:
    """Yield the objects directly inside a value that become nodes."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _inner_objects(item)
    elif isinstance(value, Mapping) and _find_node_family(value) is None:
        for key, item in value.items():
            yield from _inner_objects(key)
            yield from _inner_objects(item)
    elif _find_node_family(value) is not None:
        yield value


def _identity(value: object) -> object:
    """Return the identity of an object: runtime handles are equal when their objects are
    the same.
    """
    return value if isinstance(value, Object) else id(value)


class _GraphWriter:
    """Writer of nodes, operands before users."""

    def __init__(self) -> None:
        self.nodes: list[list[object]] = []
        self.arrays: list[list[object]] = []
        self.numbers: dict[object, int] = {}
        """Identity of a node or array -> its number."""
        self._alive: list[object] = []
        """Numbered objects by `id`, kept alive so that no other object reuses the id."""

    def write(self, root: object) -> object:
        """Write everything in a value and return the reference to it."""
        stack: list[tuple[object, list[object] | None]] = [
            (inner, None) for inner in reversed(list(_inner_objects(root)))
        ]
        begun: set[object] = set()
        # Iterative, because graphs nest deeper than Python's recursion limit.
        while stack:
            position, record = stack.pop()
            identity = _identity(position)
            if record is not None:
                record[1] = {name: self._encode(value) for name, value in record[1]}  # type: ignore[attr-defined]
                self.nodes.append(record)
                self.numbers[identity] = len(self.nodes) - 1
                # Identities are reused once an object is freed.
                self._alive.append(position)
            elif identity not in self.numbers:
                # Begun but not numbered: the object is its own descendant, and JSON cannot refer
                # forwards.
                if identity in begun:
                    raise ValueError(
                        f"save_json: an object of {type(position).__name__} contains itself"
                    )
                begun.add(identity)
                stack.extend(self._work_items(position))
        return self._encode(root)

    def _work_items(self, at: object) -> list[tuple[object, list[object] | None]]:
        """Return the work items of an object: itself, then its contents."""
        family = _find_node_family(at)
        assert family is not None, "only what has a family becomes a node"
        key, fields = family.to_fields(at)
        inside = [inner for _, value in fields for inner in _inner_objects(value)]
        return [(at, [key, fields]), *((nested, None) for nested in reversed(inside))]

    def _encode(self, value: object) -> object:
        match value:
            case DataType():
                return {"dtype": str(value)}
            case Enum():
                return {"enum": value.name}
            case None | bool() | str() | int():
                return value
            case float():
                # JSON has no infinities and NaN.
                return value if math.isfinite(value) else {"float": repr(value)}
            case Tensor():
                return {"tensor": self._encode_array(value, value.numpy())}
            case Device():
                return {"device": list(value)}
            case Shape():
                return {"shape": list(value)}
            case ADT():
                return {"adt": [value.tag, [self._encode(v) for v in value]]}
            case tuple():
                return [self._encode(v) for v in value]
            case list():
                return {"list": [self._encode(v) for v in value]}
            case bytes():
                return {"bytes": base64.b64encode(value).decode()}
            case np.ndarray() | np.generic():
                return {"array": self._encode_array(value, np.asarray(value))}
            case BaseException():
                return {"error": list(kind_of_error(value))}
        if _identity(value) in self.numbers:
            return {"node": self.numbers[_identity(value)]}
        if isinstance(value, Mapping):
            return {"map": [[self._encode(k), self._encode(v)] for k, v in value.items()]}
        raise TypeError(f"save_json: cannot save a {type(value).__name__}: {value!r}")

    def _encode_array(self, owner: object, value: NDArray[Any]) -> int:
        number = self.numbers.setdefault(_identity(owner), len(self.arrays))
        if number == len(self.arrays):
            self._alive.append(owner)
            content = base64.b64encode(value.tobytes()).decode()
            self.arrays.append([str(value.dtype), list(value.shape), content])
        return number


class _GraphReader:
    """Reader of nodes. References only go backwards: cycles cannot be written."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.arrays = [_read_array(*record) for record in document["arrays"]]
        self.nodes: list[object] = []
        self.tensors: dict[int, Tensor] = {}

    def read(self) -> object:
        """Return the root object."""
        for key, fields in self.document["nodes"]:
            self.nodes.append(self._node(key, fields))
        return self._decode(self.document["root"])

    def _node(self, key: str, fields: Mapping[str, object]) -> object:
        for family in NODE_FAMILIES:
            if family.has_key(key):
                return family.from_fields(key, fields, self._decode)
        raise LoadError(f"no node type {key!r}")

    def _tensor(self, number: int) -> Tensor:
        """Return the writable tensor of an array, one object for all references."""
        if number not in self.tensors:
            self.tensors[number] = tensor(self.arrays[number].copy())
        return self.tensors[number]

    def _decode(self, value: object, enum: type[Enum] | None = None) -> object:
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
            case "list":
                return [self._decode(v, enum) for v in inside]
            case "map":
                return {self._decode(k): self._decode(v) for k, v in inside}
            case "adt":
                return ADT(inside[0], [self._decode(v) for v in inside[1]])
            case "enum" if enum is not None:
                return enum[inside]
            case _ if key in _SCALAR_DECODERS:
                return _SCALAR_DECODERS[key](inside)
            case "tensor":
                return self._tensor(inside)
        raise LoadError(f"unexpected {key!r}")


_SCALAR_DECODERS: dict[str, Callable[[Any], object]] = {
    "float": float,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "dtype": DataType,
    "device": lambda pair: Device(*pair),
    "shape": Shape,
    "error": lambda pair: error_from(*pair),
}
"""Values that need nothing else -> how they are read."""


def _read_array(dtype: str, shape: list[int], content: str) -> NDArray[Any]:
    numpy_dtype = np.dtype(DataType(dtype).numpy_dtype)
    return np.frombuffer(base64.b64decode(content, validate=True), numpy_dtype).reshape(shape)


def _node_to_fields(value: Object) -> tuple[str, NodeFields]:
    if isinstance(value, Executable):
        return value.type_key, [("file", value.to_bytes())]
    if not is_defined(value.type_key):
        raise TypeError(f"save_json: objects of {value.type_key} have no fields that can be saved")
    return value.type_key, list(fields_of(value).items())


def _node_from_fields(key: str, fields: Mapping[str, object], decode: Decode) -> object:
    values = {name: decode(value, None) for name, value in fields.items()}
    if key == "ek.Executable":
        return Executable.from_bytes(values["file"])  # type: ignore[arg-type]
    return make_node(key, **values)


register_family(
    NodeFamily(
        (Object,),
        _node_to_fields,
        lambda key: key == "ek.Executable" or (is_defined(key) and not is_node_type(key)),
        _node_from_fields,
    )
)
