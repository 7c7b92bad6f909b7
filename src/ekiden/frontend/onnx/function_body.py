"""Inlining of ONNX function bodies: a node is replaced by the nodes of the function that defines
it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.dtype import ELEMENT_DTYPES
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.load import opset_versions, topological_order
from ekiden.frontend.onnx.node import describe_node
from ekiden.ir.prim import IntImm
from ekiden.ir.type import TensorType

MAX_PREFIX_LENGTH = 200
"""Letters of a call that the names inside it begin with."""


def has_function(proto: onnx.NodeProto, domain: str, version: int) -> bool:
    """Return whether the operator's schema has a function body at that opset."""
    try:
        schema = onnx.defs.get_schema(proto.op_type, version, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def schema_function(
    proto: onnx.NodeProto, domain: str, version: int, inputs: Sequence[Value | None]
) -> onnx.FunctionProto:
    """Return the FunctionProto of a node's schema, specialised to its input types where it is
    context dependent.
    """
    schema = onnx.defs.get_schema(proto.op_type, version, domain)
    function = onnx.FunctionProto()
    if schema.has_function:
        # A function body may be written for several opsets of its inner operators; the newest
        # imported one holds.
        versions = [v for v in schema.function_opset_versions if v <= version]
        chosen = max(versions, default=schema.function_opset_versions[0])
        function.ParseFromString(schema.get_function_with_opset_version(chosen))
        return function
    versions = schema.context_dependent_function_opset_versions
    chosen = max((v for v in versions if v <= version), default=versions[0])
    types = [_type_proto(v).SerializeToString() for v in inputs]
    function.ParseFromString(
        schema.get_context_dependent_function_with_opset_version(
            chosen, proto.SerializeToString(), types
        )
    )
    return function


def inline_function(
    function: onnx.FunctionProto, proto: onnx.NodeProto, label: str
) -> tuple[list[onnx.NodeProto], dict[str, int]]:
    """Inline a function for a calling node; return its nodes in topological order and their opset
    versions. Tensors inside are prefixed with the node's name; absent inputs and outputs stay
    absent.
    """
    prefix = _name_prefix(describe_node(proto))
    names = dict(zip(function.input, proto.input, strict=False))
    # Fewer actual than formal inputs: trailing optional inputs are absent (an empty name in ONNX
    # IR).
    names.update(dict.fromkeys(function.input[len(proto.input) :], ""))
    # An output that the caller does not name keeps a private name inside of the body.
    names.update({f: o for f, o in zip(function.output, proto.output, strict=False) if o})
    attributes = _attribute_bindings(function, proto)
    graph = onnx.GraphProto()
    for position, template in enumerate(function.node):
        inlined = graph.node.add()
        inlined.CopyFrom(template)
        inlined.name = f"{prefix}{template.name or position}"
        _bind_attributes(inlined, attributes)
        _rename_tensors(inlined, names, prefix)
    for name in filter(None, proto.output):
        graph.output.add(name=name)
    for template in _passthrough_identity_nodes(function, proto):
        graph.node.append(template)
    return topological_order(graph, label), opset_versions(function.opset_import)


def _name_prefix(call: str) -> str:
    """Return the prefix of the names inside a call, shortened by a hash where the call's name is
    long: in deep chains of calls, whole names would grow by the square of the depth.
    """
    if len(call) <= MAX_PREFIX_LENGTH:
        return f"{call}/"
    # Nested calls would otherwise make names whose lengths grow with each level.
    digest = hashlib.sha256(call.encode()).hexdigest()[:16]
    return f"{call[: MAX_PREFIX_LENGTH // 2]}...{digest}/"


def _rename_tensors(node: onnx.NodeProto, names: Mapping[str, str], prefix: str) -> None:
    """Qualify every tensor name of a node and of its subgraphs."""

    def qualified_name(name: str) -> str:
        """Return the caller's name of a formal parameter, otherwise the prefixed name."""
        return names.get(name, f"{prefix}{name}") if name else ""

    stack = [node]
    while stack:
        inner = stack.pop()
        inner.input[:] = map(qualified_name, inner.input)
        inner.output[:] = map(qualified_name, inner.output)
        for graph in (a.g for a in inner.attribute if a.HasField("g")):
            for named in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
                named.name = qualified_name(named.name)
            stack.extend(graph.node)


def _passthrough_identity_nodes(
    function: onnx.FunctionProto, proto: onnx.NodeProto
) -> list[onnx.NodeProto]:
    """Return Identity nodes for the outputs of a function that are also its inputs."""
    actual_names = dict(zip(function.input, proto.input, strict=False))
    return [
        onnx.helper.make_node("Identity", [actual_names[f]], [o])
        for f, o in zip(function.output, proto.output, strict=False)
        if o and f in actual_names
    ]


def _attribute_bindings(
    function: onnx.FunctionProto, proto: onnx.NodeProto
) -> dict[str, onnx.AttributeProto]:
    """Return the attribute values of a call: the caller's, otherwise the function's or schema's
    default.
    """
    values = {a.name: a for a in function.attribute_proto}
    try:
        schema = onnx.defs.get_schema(function.name, domain=function.domain)
        for name, declared in schema.attributes.items():
            if declared.default_value.type != onnx.AttributeProto.UNDEFINED:
                values[name] = declared.default_value
    except onnx.defs.SchemaError:
        pass  # a function of the model, which states its defaults itself
    values.update({a.name: a for a in proto.attribute})
    return values


def _bind_attributes(node: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]) -> None:
    """Replace references to function attributes (`ref_attr_name`) by their values, in subgraphs
    too. References to absent attributes are dropped.
    """
    stack = [node]
    while stack:
        inner = stack.pop()
        bound = []
        for attribute in inner.attribute:
            if not attribute.ref_attr_name:
                bound.append(attribute)
            elif attribute.ref_attr_name in attributes:
                value = onnx.AttributeProto()
                value.CopyFrom(attributes[attribute.ref_attr_name])
                value.name = attribute.name
                bound.append(value)
        # Copies, because `del` frees the messages that the repeated field owns.
        copied = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in bound]
        del inner.attribute[:]
        inner.attribute.extend(copied)
        stack.extend(n for a in inner.attribute for n in a.g.node)


def _type_proto(value: Value | None) -> onnx.TypeProto:
    """Return the TypeProto of a value; an empty one for an absent input."""
    if value is None or not isinstance(value.type, TensorType):
        return onnx.TypeProto()
    kinds = {ours: theirs for theirs, ours in ELEMENT_DTYPES.items()}
    shape = [d.value if isinstance(d, IntImm) else None for d in value.type.shape]
    return onnx.helper.make_tensor_type_proto(kinds[value.type.dtype], shape)
