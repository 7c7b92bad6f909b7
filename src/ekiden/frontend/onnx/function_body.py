"""Operators that ONNX defines by a function: the nodes of its body in place of the node."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.dtype import DTYPES
from ekiden.frontend.onnx.load import sorted_nodes, versions_of
from ekiden.frontend.onnx.messages import onnx
from ekiden.frontend.onnx.node import describe
from ekiden.ir.prim import IntImm
from ekiden.ir.type import TensorType

MAX_PREFIX = 200
"""Letters of a call that the names inside it begin with."""


def has_function(proto: onnx.NodeProto, domain: str, version: int) -> bool:
    """Whether ONNX defines the operator by a function at that version."""
    try:
        schema = onnx.defs.get_schema(proto.op_type, version, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def defined_by(
    proto: onnx.NodeProto, domain: str, version: int, inputs: Sequence[Value | None]
) -> onnx.FunctionProto:
    """The function that defines a node, for the types of its inputs."""
    schema = onnx.defs.get_schema(proto.op_type, version, domain)
    function = onnx.FunctionProto()
    if schema.has_function:
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


def body(
    function: onnx.FunctionProto, proto: onnx.NodeProto, label: str
) -> tuple[list[onnx.NodeProto], dict[str, int]]:
    """The nodes of a function's body as they stand for a node that calls it, and the versions of
    their operators. Tensors inside are named after the node; absent inputs and outputs stay absent.
    """
    prefix = _prefix(describe(proto))
    names = dict(zip(function.input, proto.input, strict=False))
    names.update(dict.fromkeys(function.input[len(proto.input) :], ""))
    names.update({f: o for f, o in zip(function.output, proto.output, strict=False) if o})
    attributes = _attributes(function, proto)
    graph = onnx.GraphProto()
    for position, each in enumerate(function.node):
        made = graph.node.add()
        made.CopyFrom(each)
        made.name = f"{prefix}{each.name or position}"
        _bind_attributes(made, attributes)
        _rename_all(made, names, prefix)
    for name in filter(None, proto.output):
        graph.output.add(name=name)
    for each in _passed_through(function, proto):
        graph.node.append(each)
    return sorted_nodes(graph, label), versions_of(function.opset_import)


def _prefix(call: str) -> str:
    """Return what the names of a body begin with. In deep chains of calls a digest stands for most
    of it: whole, all names together would grow by the square of the depth."""
    if len(call) <= MAX_PREFIX:
        return f"{call}/"
    digest = hashlib.sha256(call.encode()).hexdigest()[:16]
    return f"{call[: MAX_PREFIX // 2]}...{digest}/"


def _rename_all(node: onnx.NodeProto, names: Mapping[str, str], prefix: str) -> None:
    """Rename every tensor of a node and of its subgraphs, which see the names of the body."""

    def rename(name: str) -> str:
        return names.get(name, f"{prefix}{name}") if name else ""

    stack = [node]
    while stack:
        each = stack.pop()
        each.input[:] = map(rename, each.input)
        each.output[:] = map(rename, each.output)
        for graph in (a.g for a in each.attribute if a.HasField("g")):
            for named in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
                named.name = rename(named.name)
            stack.extend(graph.node)


def _passed_through(function: onnx.FunctionProto, proto: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Outputs that are inputs, as Identity nodes."""
    given = dict(zip(function.input, proto.input, strict=False))
    return [
        onnx.helper.make_node("Identity", [given[f]], [o])
        for f, o in zip(function.output, proto.output, strict=False)
        if o and f in given
    ]


def _attributes(
    function: onnx.FunctionProto, proto: onnx.NodeProto
) -> dict[str, onnx.AttributeProto]:
    """What the names of a function's attributes stand for: what the node gives, or the default."""
    found = {a.name: a for a in function.attribute_proto}
    try:
        schema = onnx.defs.get_schema(function.name, domain=function.domain)
        for name, declared in schema.attributes.items():
            if declared.default_value.type != onnx.AttributeProto.UNDEFINED:
                found[name] = declared.default_value
    except onnx.defs.SchemaError:
        pass  # a function of the model, which states its defaults itself
    found.update({a.name: a for a in proto.attribute})
    return found


def _bind_attributes(node: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]) -> None:
    """Put values for references to attributes, in subgraphs too; absent ones leave no attribute."""
    stack = [node]
    while stack:
        each = stack.pop()
        kept = []
        for attribute in each.attribute:
            if not attribute.ref_attr_name:
                kept.append(attribute)
            elif attribute.ref_attr_name in attributes:
                value = onnx.AttributeProto()
                value.CopyFrom(attributes[attribute.ref_attr_name])
                value.name = attribute.name
                kept.append(value)
        copied = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in kept]
        del each.attribute[:]
        each.attribute.extend(copied)
        stack.extend(n for a in each.attribute for n in a.g.node)


def _type_proto(value: Value | None) -> onnx.TypeProto:
    """The type of a value as ONNX writes it; an empty one for an absent input."""
    if value is None or not isinstance(value.type, TensorType):
        return onnx.TypeProto()
    kinds = {ours: theirs for theirs, ours in DTYPES.items()}
    shape = [d.value if isinstance(d, IntImm) else None for d in value.type.shape]
    return onnx.helper.make_tensor_type_proto(kinds[value.type.dtype], shape)
