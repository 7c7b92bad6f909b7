"""Reader of TVM's JSON (`tvm.ir.save_json`): rebuild saved programs as our nodes.

    {"root": 1, "nodes": [{"type_key": ""}, {"type_key": "relay.Var", "attrs": {"vid": "2", ...}},
     {"type_key": "relay.Id", "attrs": {"name_hint": "x"}}, ...], "b64ndarrays": ["P6G0lvBA..."],
     "attrs": {"tvm_version": "0.16.0"}}

Node 0 is nothing; the others name each other by number. A field is a text: a number, a word, or the
number of a node, which the class here tells: ours have TVM's fields. Inferred types are left out;
what a field of TVM's says that ours have not is refused, unless it says nothing.
"""

from __future__ import annotations

import base64
import typing
from collections.abc import Generator, Mapping, Sequence
from dataclasses import MISSING, Field
from enum import Enum
from functools import cache
from typing import Any, cast

from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.ndarray_format import array_from_bytes
from ekiden.ir.node import NODE_TYPES, Node, node_fields
from ekiden.ir.op import Array, Op, get
from ekiden.ir.prim import FloatImm, IntImm, PrimExpr, SizeVar
from ekiden.ir.prim import Var as PrimVar
from ekiden.ir.span import Span
from ekiden.relay.expr import Constant, Var
from ekiden.runtime.artifact.graph_json import register_tvm_json_reader
from ekiden.runtime.errors import LoadError
from ekiden.target import VirtualDevice

Row = Mapping[str, Any]
"""JSON record of a node."""
Steps = Generator[int, object, object]
"""Node-building coroutine: yields the numbers of other nodes, and receives the nodes."""

_TYPE_KEY_PREFIXES = ("", "ir.", "relay.", "tir.")
"""Prefixes of our type keys, which differ between TVM versions."""
_RENAMED_TYPE_KEYS = {"Variable": "tir.Var"}
_STRING_TYPE_KEYS = ("runtime.String", "relay.Id", "SourceName", "relay.SourceName", "Variable")
"""Nodes that stand for a name in some TVM versions."""
_IGNORED_FIELDS = frozenset({
    "span", "_checked_type_", "checked_type_", "virtual_device_", "struct_info_", "source_map",
    "global_var_map_", "global_type_var_map_", "global_infos", "data", "data_alignment",
    "offset_factor", "buffer_type", "dtype", "type_annotation",
})  # fmt: skip
"""Fields of TVM nodes without a counterpart that are safe to ignore."""
_OBJECT_VALUED_FIELDS = frozenset({
    ("MultinomialAttrs", "num_samples"), ("ReshapeLikeAttrs", "lhs_end"),
    ("ReshapeLikeAttrs", "rhs_end"), ("TakeAttrs", "batch_dims"), ("TakeAttrs", "axis"),
    ("GatherNDAttrs", "batch_dims"), ("RepeatAttrs", "repeats"), ("RepeatAttrs", "axis"),
    ("StackAttrs", "axis"), ("ReverseAttrs", "axis"), ("ReverseSequenceAttrs", "seq_axis"),
    ("ReverseSequenceAttrs", "batch_axis"), ("ScanopAttrs", "axis"), ("UniqueAttrs", "axis"),
    ("GatherAttrs", "axis"), ("YoloReorgAttrs", "stride"),
})  # fmt: skip
"""Integer attributes that TVM documents store as nodes."""


def read_document(document: Row) -> object:
    """Rebuild the root object of a TVM JSON document.

    Errors of Python are raised for anything that is no such document.

    Raises:
        LoadError: A node or a field, which is named, has no meaning here.
    """
    return TvmJsonReader(document).read(int(document["root"]))


class TvmJsonReader:
    """Lazy reader of one document's nodes."""

    def __init__(self, document: Row, *, skips_unknown: bool = False) -> None:
        """Create a reader; with `skips_unknown`, nodes of unsupported types become None."""
        self._skips_unknown = skips_unknown
        self._nodes: Sequence[Row] = document["nodes"]
        texts = document.get("b64ndarrays", ())
        self._arrays: list[Array] = [array_from_bytes(base64.b64decode(a))[0] for a in texts]
        version = str(document.get("attrs", {}).get("tvm_version", ""))
        self._version = tuple(int(v) for v in version.split(".")[:2] if v.isdigit())
        self._built_nodes: dict[int, object] = {0: None}
        self._dims: dict[PrimExpr, PrimExpr] = {}

    def read(self, number: int) -> object:
        """Rebuild a node and its dependencies, without recursion.

        Raises:
            LoadError: A node has no meaning here.
        """
        making = {number: self._node_steps(number)} if number not in self._built_nodes else {}
        answer: object = None
        while making:
            # The node added last first: it is what the others wait for.
            position, steps = next(reversed(making.items()))
            try:
                requested = steps.send(answer)
            except StopIteration as end:
                self._built_nodes[position] = answer = end.value
                del making[position]
                continue
            answer = self._built_nodes.get(requested)
            # A node that is still under construction cannot be its own field.
            if requested in making:
                raise LoadError(f"JSON of TVM: node {requested} is a part of itself")
            if requested not in self._built_nodes:
                making[requested] = self._node_steps(requested)
        return self._built_nodes[number]

    def _node_steps(self, number: int) -> Steps:
        row = self._nodes[number]
        kind = str(row["type_key"])
        match kind:
            case "":
                return None
            case "Array":
                return tuple((yield from _read_all(row.get("data", ()))))
            case "Map" | "StrMap":
                return (yield from _read_mapping(row))
            case "runtime.String":
                return str(row.get("repr_str", ""))
            case "relay.Id" | "SourceName" | "relay.SourceName":
                return (yield from self._read_name(row, ("name_hint", "name")))
            case "Op" | "relay.Op":
                # An operator is one object in each process, found by its name.
                return get((yield from self._read_name(row, ("name",))))
            case "DictAttrs":
                pairs = yield int(row.get("attrs", {}).get("__dict__", 0))
                return {
                    k: _to_python(v) for k, v in cast(Mapping[str, object], pairs or {}).items()
                }
            case "IRModule" | "relay.Module":
                return (yield from self._read_module(row["attrs"]))
            case "VirtualDevice":
                return (yield from self._read_virtual_device(row["attrs"]))
            case "relay.Constant":
                return Constant(self._arrays[int(row["attrs"]["data"])])
        return (yield from self._build_node(kind, row.get("attrs", {})))

    def _read_name(self, row: Row, fields: Sequence[str]) -> Generator[int, object, str]:
        """Read a node's name, stored inline or in a string node."""
        for key in ("global_key", "repr_str"):
            if key in row:
                return str(row[key])
        attrs = row.get("attrs", {})
        text = next(str(attrs[name]) for name in fields if name in attrs)
        return (yield from self._read_text(text))

    def _read_text(self, text: str) -> Generator[int, object, str]:
        if text.isdigit() and int(text) < len(self._nodes):
            kind = self._nodes[int(text)].get("type_key")
            if kind in _STRING_TYPE_KEYS:
                named = yield int(text)
                return named.name if isinstance(named, PrimVar) else str(named)
        return text

    def _read_virtual_device(self, attrs: Mapping[str, str]) -> Steps:
        scope = yield from self._read_text(attrs.get("memory_scope", ""))
        kind, number = int(attrs["device_type_int"]), int(attrs["virtual_device_id"])
        scope = "" if scope == "0" else scope
        return VirtualDevice(kind, memory_scope=scope, virtual_device_id=number)

    def _read_module(self, attrs: Mapping[str, str]) -> Steps:
        sections = []
        for name in ("functions", "type_definitions", "attrs"):
            sections.append((yield int(attrs.get(name, 0))))
        functions, types, module_attrs = (
            cast(Mapping[Any, Any], section or {}) for section in sections
        )
        for name, function in functions.items():
            if not isinstance(name, GlobalVar) or not isinstance(function, BaseFunc):
                raise LoadError(f"a module's functions: got {name!r}: {type(function).__name__}")
        return IRModule(dict(functions), dict(types), dict(module_attrs))

    # Nodes by our classes

    def _build_node(self, kind: str, attrs: Mapping[str, str]) -> Steps:
        node_class = _node_class(kind)
        if node_class is None:
            if self._skips_unknown:
                return None
            raise LoadError(f"JSON of TVM: a node {kind!r} has no meaning here")
        entries = dict(attrs)
        if node_class is Var or node_class.type_key in ("relay.TypeVar", "relay.GlobalTypeVar"):
            entries = _rename_var_fields(entries)
        if node_class.type_key == "tir.Buffer":
            entries["scope"] = self._buffer_scope(entries)
        values: dict[str, object] = {}
        for field in _node_fields(node_class.type_key):
            if field.name in entries and (node_class is not Span or field.name != "span"):
                values[field.name] = yield from self._read_field(
                    node_class, field.name, entries[field.name]
                )
        # A field that is unknown here but set must not be ignored: the program would mean something
        # else.
        for name in (
            entries.keys() - {f.name for f in _node_fields(node_class.type_key)} - _IGNORED_FIELDS
        ):
            if (yield from self._has_nonempty_value(entries[name])):
                raise LoadError(f"JSON of TVM: {kind}: the field {name!r} has no meaning here")
        return node_class(**_fill_defaults(node_class, values))

    def _read_field(self, kind: type[Node], name: str, text: str) -> Steps:
        """Convert a field to the form of our node class."""
        hint = _field_type_hints(kind.type_key)[name]
        args = set(typing.get_args(hint)) or {hint}
        is_raw = (kind.type_key.rpartition(".")[2], name) not in _OBJECT_VALUED_FIELDS
        if is_raw and isinstance(hint, type) and issubclass(hint, Enum):
            return hint(int(text))
        if str in args and name != "op":
            text_value = yield from self._read_text(str(text))
            return None if text_value == "0" and type(None) in args else text_value
        # Newer documents have some numbers as nodes.
        if is_raw and (args <= {int, float, bool} or self._is_legacy_lanes(kind, name)):
            return float(text) if float in args else bool(int(text)) if bool in args else int(text)
        child = yield int(text)
        # TVM's call of an intrinsic has an operator node; ours has the name.
        if isinstance(child, Op) and kind.type_key == "tir.Call":
            return child.name.removeprefix("tir.")
        if name == "elem_offset":
            return None if isinstance(child, IntImm) and child.value == 0 else child
        if issubclass(kind, Attrs):
            return _to_python(child)
        return self.as_dims(child) if kind.type_key == "relay.TensorType" else child

    def as_dims(self, value: object) -> object:
        """Convert dimensions to int64."""
        if isinstance(value, tuple):
            return tuple(map(self.as_dims, value))
        if not isinstance(value, PrimExpr):
            return value
        if value not in self._dims:
            field_values = {
                f.name: self.as_dims(getattr(value, f.name)) for f in _node_fields(value.type_key)
            }
            field_values["dtype"] = "int64"
            # TVM's shape variables are plain int32 variables; here a dimension is an int64 SizeVar.
            kind = SizeVar if isinstance(value, PrimVar) else type(value)
            self._dims[value] = kind(**field_values)
        return self._dims[value]

    def _is_legacy_lanes(self, kind: type[Node], name: str) -> bool:
        """Return whether a field is the integer lanes of documents before 0.16."""
        is_vector = kind.type_key in ("tir.Ramp", "tir.Broadcast")
        return is_vector and name == "lanes" and self._version < (0, 16)

    def _has_nonempty_value(self, text: str) -> Generator[int, object, bool]:
        """Return whether a field that our class does not have holds a significant value."""
        if not str(text).isdigit() or int(text) >= len(self._nodes):
            return bool(text)
        kind = self._nodes[int(text)].get("type_key")
        return kind not in ("", "Array", "Map", "runtime.String") or bool((yield int(text)))

    def _buffer_scope(self, buffer: Mapping[str, str]) -> str:
        """Return a buffer's memory scope, from its pointer type."""
        position: Row = buffer
        for name in ("data", "type_annotation"):
            position = self._nodes[int(position.get(name, 0))].get("attrs", {})
        return (
            str(self._nodes[int(position.get("storage_scope", 0))].get("repr_str", "")) or "global"
        )


def _read_all(numbers: Sequence[int]) -> Generator[int, object, list[object]]:
    objects = []
    for number in numbers:
        objects.append((yield int(number)))
    return objects


def _read_mapping(row: Row) -> Steps:
    data = yield from _read_all(row.get("data", ()))
    if "keys" in row:
        return dict(zip(row["keys"], data, strict=True))
    return dict(zip(data[::2], data[1::2], strict=True))


@cache
def _node_class(kind: str) -> type[Node] | None:
    """Return our node class for a TVM type key, or None."""
    kind = _RENAMED_TYPE_KEYS.get(kind, kind)
    exact = NODE_TYPES.get(kind)
    if exact is not None:
        return exact
    language, _, last = kind.rpartition(".")
    if f"{language}.".lstrip(".") not in _TYPE_KEY_PREFIXES:
        return None
    # Prefixes have changed between TVM's versions: the last part of the key identifies the class.
    return next((NODE_TYPES[p + last] for p in _TYPE_KEY_PREFIXES if p + last in NODE_TYPES), None)


@cache
def _field_type_hints(type_key: str) -> dict[str, Any]:
    return typing.get_type_hints(NODE_TYPES[type_key])


@cache
def _node_fields(type_key: str) -> tuple[Field[object], ...]:
    return node_fields(NODE_TYPES[type_key])


def _rename_var_fields(entries: dict[str, str]) -> dict[str, str]:
    """Return the fields of a variable with its name taken from TVM's separate id node."""
    name = entries.pop("vid", entries.pop("var", None))
    return entries if name is None else {**entries, "name_hint": name}


def _fill_defaults(kind: type[Node], values: Mapping[str, object]) -> dict[str, object]:
    """Return a node's fields without those the document omits; lists default to empty."""
    hints = _field_type_hints(kind.type_key)
    complete: dict[str, object] = {}
    for field in _node_fields(kind.type_key):
        value = values.get(field.name)
        if value is not None:
            complete[field.name] = value
        elif field.name in values and field.default is MISSING:
            complete[field.name] = () if typing.get_origin(hints[field.name]) is tuple else None
    return complete


def _to_python(value: object) -> object:
    """Convert numbers, also within lists, to Python."""
    if isinstance(value, (IntImm, FloatImm)):
        return value.value
    return tuple(map(_to_python, value)) if isinstance(value, tuple) else value


register_tvm_json_reader(read_document)

__all__ = ["TvmJsonReader", "read_document"]
