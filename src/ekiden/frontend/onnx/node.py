"""ONNX node context of converters: typed attributes, inputs as values, subgraphs, and rejection of
unsupported nodes.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import NoReturn, Self, TypeAlias

import numpy as np

from ekiden.frontend.common import node as common
from ekiden.frontend.common.node import Result, Subgraph
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.tensor import densify, to_array
from ekiden.ir.op import Array
from ekiden.runtime.lazy_dataclass import dataclass

Attribute: TypeAlias = (
    int
    | float
    | str
    | tuple[int, ...]
    | tuple[float, ...]
    | tuple[str, ...]
    | Array
    | onnx.GraphProto
    | onnx.TypeProto
)
Converter: TypeAlias = Callable[["OnnxNode"], Result]


@dataclass(frozen=True, slots=True)
class OnnxRow:
    """Converter table entry: an operator, the opset that introduced its semantics, and its
    converter.

    since_version: the first opset whose meaning `convert` implements; of an operator's rows the one
    with the highest `since_version` not above the model's opset is used. attributes: the supported
    names, separated by blanks. supported_values: attribute -> its supported values, where not all
    are.
    graph_attributes: the attributes that are graphs, which the node must have. supported_inputs:
    the names of those that `convert` reads, where the operator has further ones, which are
    rejected. ignorable_inputs: inputs without effect beside some attributes or other inputs; any
    other input that is present and that `convert` did not read is an error. is_extension: the row
    comes from `register`, and its operator may have more than its signature declares.
    is_unfoldable: results of constant inputs are not folded at import, because passes match the
    operators.
    """

    op_type: str
    convert: Converter
    since_version: int = 1
    attributes: str = ""
    supported_values: Mapping[str, tuple[Attribute, ...]] = field(default_factory=dict)
    domain: str = ""
    graph_attributes: str = ""
    supported_inputs: str = ""
    ignorable_inputs: str = ""
    is_extension: bool = False
    is_unfoldable: bool = False


def node_name(proto: onnx.NodeProto) -> str:
    """Return a node's name, or that of its first output where it has none."""
    return proto.name or next(filter(None, proto.output), "")


def describe_node(proto: onnx.NodeProto) -> str:
    """Return a node's name for messages, such as `Conv 'layer1/conv'`. A node without a name goes
    by its first output.
    """
    kind = (
        f"{proto.domain}::{proto.op_type}" if proto.domain not in ("", "ai.onnx") else proto.op_type
    )
    return f"{kind} '{node_name(proto)}'"


def parse_attribute(proto: onnx.AttributeProto) -> Attribute:
    """Convert an AttributeProto to a Python value, array, graph or type.

    Raises Unsupported for lists of graphs and the like.
    """
    kinds = onnx.AttributeProto
    match proto.type:
        case kinds.INT:
            return int(proto.i)
        case kinds.FLOAT:
            return float(proto.f)
        case kinds.STRING:
            # A string that is not UTF-8 must not end the import.
            return str(proto.s, "utf-8", "replace")
        case kinds.INTS:
            return tuple(proto.ints)
        case kinds.FLOATS:
            return tuple(proto.floats)
        case kinds.STRINGS:
            return tuple(str(s, "utf-8", "replace") for s in proto.strings)
        case kinds.TENSOR:
            tensor: Array = to_array(proto.t)
            return tensor
        case kinds.SPARSE_TENSOR:
            return densify(proto.sparse_tensor)
        case kinds.GRAPH:
            return proto.g
        case kinds.TYPE_PROTO:
            return proto.tp
    check_attribute_type(proto)
    raise AssertionError(f"attribute {proto.name!r} has a kind that cannot be read")


def check_attribute_type(proto: onnx.AttributeProto) -> None:
    """Raise Unsupported for attribute types that cannot be read, such as lists of graphs."""
    if proto.type not in READABLE_ATTRIBUTE_TYPES:
        name = onnx.AttributeProto.AttributeType.Name(proto.type)
        raise Unsupported(f"attribute {proto.name!r} has the unsupported kind {name}")


_PROTO = onnx.AttributeProto
READABLE_ATTRIBUTE_TYPES = (
    _PROTO.INT,
    _PROTO.FLOAT,
    _PROTO.STRING,
    _PROTO.INTS,
    _PROTO.FLOATS,
    _PROTO.STRINGS,
    _PROTO.TENSOR,
    _PROTO.GRAPH,
    _PROTO.TYPE_PROTO,
    _PROTO.SPARSE_TENSOR,
)
"""The kinds of attributes that can be read."""
LIST_ATTRIBUTE_TYPES = (_PROTO.INTS, _PROTO.FLOATS, _PROTO.STRINGS)
"""Those that are lists."""


class LazyAttributes(Mapping[str, Attribute]):
    """Mapping of a node's attributes that decodes each on first access."""

    def __init__(self, protos: Iterable[onnx.AttributeProto]) -> None:
        self._protos = {a.name: a for a in protos}
        self._read: dict[str, Attribute] = {}

    def __getitem__(self, name: str) -> Attribute:
        if name not in self._read:
            self._read[name] = parse_attribute(self._protos[name])
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._protos

    def __iter__(self) -> Iterator[str]:
        return iter(self._protos)

    def __len__(self) -> int:
        return len(self._protos)

    def array(self, name: str) -> Array:
        """Return a list attribute as an array: int64, float32 or strings."""
        proto, kinds = self._protos[name], onnx.AttributeProto
        match proto.type:
            case kinds.INTS:
                return np.array(proto.ints, np.int64)
            case kinds.FLOATS:
                return np.array(proto.floats, np.float32)
        return np.array(self[name])

    def strings(self, name: str) -> Iterable[bytes]:
        """Return a list of strings as undecoded bytes."""
        return self._protos[name].strings  # type: ignore[no-any-return]


class OnnxNode(common.Node):
    """ONNX node with its attributes, subgraphs and the names visible to it."""

    def __init__(
        self,
        proto: onnx.NodeProto,
        opset: int,
        attributes: Mapping[str, Attribute],
        inputs: Sequence[Value | None],
        scope: Scope,
        nest: Callable[[onnx.GraphProto], Subgraph] | None = None,
        named: Callable[[str], Value | None] | None = None,
        makers: Mapping[str, onnx.NodeProto] | None = None,
    ) -> None:
        """Create a node.

        Args:
            proto: the node's message.
            opset: the version of its domain.
            attributes: name -> value.
            inputs: the values of its inputs; None where one is absent.
            scope: the scope of the import.
            nest: makes an attribute's graph importable in place.
            named: looks up a value of the enclosing graph.
            makers: tensor name -> the node of the enclosing graph that produces it.
        """
        super().__init__(describe_node(proto), inputs, scope, proto.output)
        self._nest, self._named, self._makers = nest, named, makers or {}
        self.proto = proto
        self.opset = opset
        self._attributes = attributes

    def with_inputs(
        self, inputs: Sequence[Value | None], attributes: Mapping[str, Attribute] | None = None
    ) -> Self:
        """Return a copy of the node with other inputs, and other attributes if given."""
        copied = super().with_inputs(inputs)
        if attributes is not None:
            copied._attributes = attributes
        return copied

    def producer_node(self, index: int) -> onnx.NodeProto | None:
        """Return the node of the same graph that produces an input; None for graph inputs and
        initializers. The input counts as read, because callers use the producer's inputs in its
        place.
        """
        self.inputs.read.add(index)
        names = self.proto.input
        return self._makers.get(names[index]) if index < len(names) else None

    def lookup_value(self, name: str) -> Value:
        """Return the value of a name in the enclosing graphs."""
        value = None if self._named is None else self._named(name)
        return self.reject(f"there is no tensor {name!r} yet") if value is None else value

    @property
    def op_type(self) -> str:
        """Return the operator's name."""
        return str(self.proto.op_type)

    def list_length(self, name: str) -> int | None:
        """Return the length of a list attribute; None for attributes that are absent or no
        lists.
        """
        # Counted on the message, without decoding lists that may have millions of elements.
        lists = (a for a in self.proto.attribute if a.name == name)
        attribute = next(lists, None) if name in self._attributes else None
        if attribute is None or attribute.type not in LIST_ATTRIBUTE_TYPES:
            return None
        return len(attribute.ints) + len(attribute.floats) + len(attribute.strings)

    # Attributes: each reader gives the default when the attribute is absent.

    def has(self, name: str) -> bool:
        """Return whether the node sets an attribute."""
        return name in self._attributes

    def get_int(self, name: str, default: int = 0) -> int:
        """Return an integer attribute."""
        value = self._attributes.get(name, default)
        return (
            value
            if isinstance(value, int)
            else self._raise_bad_attribute(name, "an integer", value)
        )

    def get_float(self, name: str, default: float | np.float32) -> float:
        """Return a float attribute: the nearest float32, as the model stores it."""
        # Defaults come as np.float32, so that they round as values do that a model stores.
        value = self._attributes.get(name, default)
        return (
            float(value)
            if isinstance(value, (int, float, np.floating))
            else self._raise_bad_attribute(name, "a float", value)
        )

    def get_required_float(self, name: str) -> float:
        """Return a float attribute that the schema requires."""
        return self.get_float(name, 0.0)

    def get_string(self, name: str, default: str) -> str:
        """Return a string attribute."""
        value = self._attributes.get(name, default)
        return (
            value if isinstance(value, str) else self._raise_bad_attribute(name, "a string", value)
        )

    def get_ints(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Return a list of integers. Without a default the attribute must be present."""
        value = self._attributes.get(name, default)
        if not isinstance(value, tuple) or not all(isinstance(v, int) for v in value):
            self._raise_bad_attribute(name, "a list of integers", value)
        return tuple(v for v in value if isinstance(v, int))

    def get_floats(self, name: str) -> tuple[float, ...]:
        """Return a required list of floats."""
        value = self._attributes.get(name)
        if not isinstance(value, tuple) or not all(isinstance(v, (int, float)) for v in value):
            self._raise_bad_attribute(name, "a list of floats", value)
        return tuple(float(v) for v in value if isinstance(v, (int, float)))

    def get_strings(self, name: str) -> tuple[str, ...]:
        """Return a list of strings; empty if the attribute is absent."""
        value = self._attributes.get(name, ())
        if not isinstance(value, tuple) or not all(isinstance(v, str) for v in value):
            self._raise_bad_attribute(name, "a list of strings", value)
        return tuple(v for v in value if isinstance(v, str))

    def get_int_array(self, name: str) -> Array:
        """Return a list of integers as an int64 array; empty if the attribute is absent."""
        return self._numeric_list(name, "a list of integers", np.int64)

    def get_float_array(self, name: str) -> Array:
        """Return a list of floats as a float32 array; empty if the attribute is absent."""
        return self._numeric_list(name, "a list of floats", np.float32)

    def _numeric_list(self, name: str, expected: str, dtype: type) -> Array:
        """Return a list attribute as a vector of a dtype; raise Unsupported for other types."""
        if name not in self._attributes:
            return np.zeros(0, dtype)
        attributes = self._attributes
        elements = (
            attributes.array(name)
            if isinstance(attributes, LazyAttributes)
            else np.array(attributes[name])
        )
        if elements.ndim != 1 or (elements.size and elements.dtype != dtype):
            self._raise_bad_attribute(name, expected, self._attributes[name])
        return elements.astype(dtype, copy=False)

    def get_string_indices(self, name: str, numbers: Mapping[str, int]) -> Array:
        """Map a list of strings to int64 numbers by a table; raise Unsupported for other strings.
        Raises Unsupported naming a string that the table lacks.
        """
        attributes = self._attributes
        words: Iterable[bytes]
        if isinstance(attributes, LazyAttributes) and name in attributes:
            words = attributes.strings(name)
        else:
            words = [w.encode() for w in self.get_strings(name)]
        # Looked up as bytes, because tree ensembles have millions of mode names.
        table = {word.encode(): number for word, number in numbers.items()}
        try:
            return np.fromiter(map(table.__getitem__, words), np.int64)
        except KeyError as error:
            word = error.args[0].decode("utf-8", "replace")
            allowed = ", ".join(map(repr, numbers))
            return self.reject(f"{name!r} must hold {allowed}, got {word!r}")

    def get_tensor(self, name: str) -> Array | None:
        """Return a tensor attribute, or None."""
        value = self._attributes.get(name)
        return value if isinstance(value, np.ndarray) else None

    def subgraph_importer(self, name: str) -> Subgraph:
        """Return the importer of a required graph attribute."""
        value = self._attributes.get(name)
        if not isinstance(value, onnx.GraphProto) or self._nest is None:
            self._raise_bad_attribute(name, "a graph", value)
        return self._nest(value)

    def _raise_bad_attribute(self, name: str, expected: str, value: object) -> NoReturn:
        """Raise Unsupported for an attribute of another type than expected."""
        came = "nothing" if value is None else reprlib.repr(value)
        raise Unsupported(f"attribute {name!r} must be {expected}, got {came}")
