"""Validation of a model before import: unsupported operators, opsets and attributes, also in
subgraphs and functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.frontend.common.graph_walk import raise_problems
from ekiden.frontend.common.unsupported import Unsupported, suggest_nearest
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.load import Functions, function_key, opset_versions, subgraph_attributes
from ekiden.frontend.onnx.node import OnnxRow, check_attribute_type, describe_node, parse_attribute
from ekiden.frontend.onnx.registry import CONVERTER_TABLE
from ekiden.frontend.onnx.signatures import OperatorSignature, find_signature, signature_errors

if TYPE_CHECKING:
    from ekiden.frontend.onnx import function_body
else:
    function_body = LazyModule("ekiden.frontend.onnx.function_body")

DEFAULT_DOMAINS = ("", "ai.onnx")


def check_operators(
    nodes: Sequence[onnx.NodeProto],
    versions: Mapping[str, int],
    label: str,
    functions: Functions,
) -> None:
    """Raise UnsupportedError that names every node without a matching converter."""
    problems = unsupported_nodes(nodes, versions, functions)
    raise_problems([f"{describe_node(n)}: {p}" for n, p in problems], label)


def unsupported_nodes(
    nodes: Sequence[onnx.NodeProto],
    versions: Mapping[str, int],
    functions: Functions,
    inside_functions: bool = True,
) -> list[tuple[onnx.NodeProto, str]]:
    """Return (node, reason) for each node that cannot be imported.

    Nodes of nested graphs come after the node that holds them, those of model-local functions after
    the first node that calls the function.

    Args:
        nodes: the nodes to check, in order.
        versions: domain -> opset version.
        functions: the model-local functions by (domain, name, overload).
        inside_functions: whether the bodies of called functions are checked too.

    Returns:
        Pairs of a node and a message.
    """
    problems: list[tuple[onnx.NodeProto, str]] = []
    waiting, checked_functions = [(n, versions) for n in reversed(nodes)], set()
    while waiting:
        node, stated = waiting.pop()
        local = functions.get(function_key(node))
        if local is not None:
            # Each function body is checked once, however many nodes call it.
            if inside_functions and function_key(node) not in checked_functions:
                checked_functions.add(function_key(node))
                inner = opset_versions(local.opset_import)
                waiting.extend((n, inner) for n in reversed(local.node))
            continue
        problems.extend((node, p) for p in _node_errors(node, stated))
        waiting.extend(
            (n, stated) for g in reversed(subgraph_attributes(node)) for n in reversed(g.node)
        )
    return problems


def canonical_domain(node: onnx.NodeProto) -> str:
    """Return the domain of an operator, with "ai.onnx" written as ""."""
    return "" if node.domain in DEFAULT_DOMAINS else node.domain


def since_version(node: onnx.NodeProto, versions: Mapping[str, int]) -> int:
    """Return the opset of the operator's last schema change (`since_version`); the imported version
    outside of ONNX's domains.
    """
    domain = canonical_domain(node)
    stated = versions.get(domain, 1)
    try:
        return int(onnx.defs.get_schema(node.op_type, stated, domain).since_version)
    except onnx.defs.SchemaError:
        return stated


def opset_of_node(node: onnx.NodeProto, versions: Mapping[str, int]) -> int:
    """Return the opset version that the model imports for the node's domain."""
    return versions.get(canonical_domain(node), 1)


def lookup_converter(node: onnx.NodeProto, versions: Mapping[str, int]) -> OnnxRow | None:
    """Look up the converter entry with the highest `since_version` not above the node's opset; None
    if there is none. Rows begin where an operator's meaning changed, so the schema registry need
    not be queried for `since_version`.
    """
    # Newer rows describe changed semantics, so the latest one not above the stated version holds.
    version = opset_of_node(node, versions)
    every = CONVERTER_TABLE.get((canonical_domain(node), node.op_type)) or ()
    rows = [r for r in every if r.since_version <= version]
    return max(rows, key=lambda r: r.since_version) if rows else None


def _node_errors(node: onnx.NodeProto, versions: Mapping[str, int]) -> list[str]:
    """Return the reasons why one node cannot be imported."""
    domain = canonical_domain(node)
    declared = find_signature(domain, node.op_type, opset_of_node(node, versions))
    if (domain, node.op_type) not in CONVERTER_TABLE:
        # An operator without a row is supported if its schema defines it by a function of other
        # operators.
        if function_body.has_function(node, domain, since_version(node, versions)):
            return [] if declared is None else list(signature_errors(node, declared))
        near = suggest_nearest(
            node.op_type, (name for d, name in CONVERTER_TABLE if d == domain), 0.6
        )
        teach = "; ekiden.frontend.onnx.register teaches one" if domain else ""
        return [f"unknown operator{near}{teach}"]
    row = lookup_converter(node, versions)
    if row is None:
        oldest = min(r.since_version for r in CONVERTER_TABLE[domain, node.op_type])
        return [f"opset {versions.get(domain, 1)} is not supported; expected {oldest} or newer"]
    problems = _attribute_errors(node, row, versions)
    # Converters that users register may take attributes and inputs outside of the schema.
    if declared is None or row.is_extension:
        return problems
    problems += signature_errors(node, declared)
    return [*dict.fromkeys(problems), *_unsupported_inputs(node, row, declared)]


def _unsupported_inputs(
    node: onnx.NodeProto, row: OnnxRow, declared: OperatorSignature
) -> Iterator[str]:
    """Yield a message for each present input that the converter does not read."""
    if row.supported_inputs:
        for index, name in enumerate(node.input):
            parameter = declared.input_name(index)
            if name and parameter not in row.supported_inputs.split():
                yield f"input {index} ({parameter!r}) is not supported"


def _attribute_errors(node: onnx.NodeProto, row: OnnxRow, versions: Mapping[str, int]) -> list[str]:
    """Return messages for attributes that are missing, unknown, or of an unsupported value."""
    graphs = row.graph_attributes.split()
    supported = [*graphs, *row.attributes.split()]
    present = {a.name for a in node.attribute}
    problems = [f"attribute {n!r} is missing" for n in graphs if n not in present]
    for attribute in node.attribute:
        try:
            check_attribute_type(attribute)
        except Unsupported as error:
            problems.append(str(error))
            continue
        if attribute.name not in supported and not _is_default(node, attribute, versions):
            choice = f"supported are {', '.join(supported)}" if supported else "it has none"
            problems.append(f"unknown attribute {attribute.name!r}; {choice}")
        elif (
            attribute.name in row.supported_values
            and parse_attribute(attribute) not in row.supported_values[attribute.name]
        ):
            value = parse_attribute(attribute)
            allowed = ", ".join(map(repr, row.supported_values[attribute.name]))
            problems.append(f"attribute {attribute.name!r} must be one of {allowed}, got {value!r}")
    return problems


def _is_default(
    node: onnx.NodeProto, attribute: onnx.AttributeProto, versions: Mapping[str, int]
) -> bool:
    """Return whether an attribute equals its default in the operator's schema."""
    # Exporters write attributes at their default values, also ones that no row supports.
    version = opset_of_node(node, versions)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, canonical_domain(node))
    except onnx.defs.SchemaError:
        return False
    declared = schema.attributes.get(attribute.name)
    if declared is None or declared.default_value.type == onnx.AttributeProto.UNDEFINED:
        return False
    return bool(parse_attribute(attribute) == parse_attribute(declared.default_value))
