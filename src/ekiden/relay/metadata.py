"""The section `#[metadata]` of Relay text: what has no form of its own, as JSON in TVM's form.

    {"root": 1, "nodes": [{"type_key": ""}, {"type_key": "Map", "keys": [...], "data": [2]}, ...],
     "b64ndarrays": ["P6G0lvBAXt0AAAAA...", ...], "attrs": {"tvm_version": "0.16.0"}}

Node 0 is nothing; the others name each other by number. `meta[relay.Constant][3]` is the fourth
entry of the array under that key of the root.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import cast

from ekiden.ir import prim
from ekiden.ir.nd_format import array_from_bytes, array_to_bytes
from ekiden.ir.node import NODE_TYPES, Node
from ekiden.ir.op import Array
from ekiden.ir.prim import AnyDim, FloatImm, IntImm, PrimExpr, SizeVar
from ekiden.relay.expr import Constant
from ekiden.runtime.errors import LoadError
from ekiden.target import VirtualDevice

Entries = Mapping[str, Sequence[object]]
"""Type key -> the objects of that type, in the order of their numbers."""
_VERSION = "0.16.0"
_BINARY = {
    f"tir.{name}": kind
    for name in ("Add", "Sub", "Mul", "Div", "FloorDiv", "FloorMod", "Min", "Max")
    if issubclass(kind := NODE_TYPES[f"tir.{name}"], prim.BinaryExpr)
}


def write_metadata(constants: Sequence[Constant]) -> str:
    """The section's JSON for the constants of a text."""
    first = 3
    numbers = list(range(first, first + len(constants)))
    nodes: list[dict[str, object]] = [
        {"type_key": ""},
        {"type_key": "Map", "keys": ["relay.Constant"], "data": [2]},
        {"type_key": "Array", "data": numbers},
    ]
    for place in range(len(constants)):
        attrs = {"_checked_type_": "0", "data": str(place), "span": "0", "virtual_device_": "0"}
        nodes.append({"type_key": "relay.Constant", "attrs": attrs})
    arrays = [base64.b64encode(array_to_bytes(c.data)).decode() for c in constants]
    made = {"root": 1, "nodes": nodes, "b64ndarrays": arrays, "attrs": {"tvm_version": _VERSION}}
    return json.dumps(made, separators=(",", ":"))


def read_metadata(text: str) -> Entries:
    """The entries of a section. Raises LoadError for what is not such JSON; an entry of a type that
    is not known is None.
    """
    if not text.strip():
        return {}
    try:
        document = json.loads(text)
        arrays = [array_from_bytes(base64.b64decode(a))[0] for a in document.get("b64ndarrays", ())]
        found = _Reader(document["nodes"], arrays).read(int(document["root"]))
        if not isinstance(found, dict):
            raise LoadError("the root is no map")
        return cast(Entries, found)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise LoadError(f"{type(error).__name__}: {error}") from error


class _Reader:
    """The nodes of one section, made when they are asked for."""

    def __init__(self, nodes: Sequence[Mapping[str, object]], arrays: Sequence[Array]) -> None:
        self.nodes = nodes
        self.arrays = arrays
        self.made: dict[int, object] = {}

    def read(self, number: int) -> object:
        """What a node describes."""
        if number not in self.made:
            self.made[number] = self._read(self.nodes[number])
        return self.made[number]

    def _read(self, node: Mapping[str, object]) -> object:
        kind = str(node["type_key"])
        data = [self.read(n) for n in cast(Sequence[int], node.get("data", ()))]
        attrs = cast(Mapping[str, str], node.get("attrs", {}))
        match kind:
            case "Map" if "keys" in node:
                return dict(zip(cast(Sequence[str], node["keys"]), data, strict=True))
            case "Map":
                return dict(zip(data[::2], data[1::2], strict=True))
            case "Array":
                return tuple(data)
            case "runtime.String":
                return str(node.get("repr_str", ""))
            case "VirtualDevice":
                kind, number = attrs["device_type_int"], attrs["virtual_device_id"]
                scope = str(self.read(int(attrs.get("memory_scope", 0))) or "")
                return VirtualDevice(int(kind), memory_scope=scope, virtual_device_id=int(number))
            case "relay.Constant":
                return Constant(self.arrays[int(attrs["data"])])
        return self._scalar(kind, attrs)

    def _scalar(self, kind: str, attrs: Mapping[str, str]) -> Node | None:
        """A scalar expression; a dimension counts in int64 whatever it was saved as."""
        match kind:
            case "IntImm":
                return IntImm(int(attrs["value"]))
            case "FloatImm":
                return FloatImm(float(attrs["value"]), attrs["dtype"])
            case "tir.Any":
                return AnyDim()
            case "tir.SizeVar" | "tir.Var":
                name = self.read(int(attrs["name"])) if attrs["name"].isdigit() else attrs["name"]
                return SizeVar(str(name))
        if kind not in _BINARY:
            return None
        a, b = self.read(int(attrs["a"])), self.read(int(attrs["b"]))
        assert isinstance(a, PrimExpr) and isinstance(b, PrimExpr)
        return prim.binary(_BINARY[kind], a, b)
