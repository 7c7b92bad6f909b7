"""What of a model cannot be imported, found before any node is: operators, opsets and attributes
that no row of the converter table has, in the graph and in the graphs inside its nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.frontend.common.unsupported import Unsupported, nearest
from ekiden.frontend.common.walk import raise_problems
from ekiden.frontend.onnx.load import Functions, key_of, subgraphs, versions_of
from ekiden.frontend.onnx.messages import onnx
from ekiden.frontend.onnx.node import Row, check_kind, describe, read_attribute
from ekiden.frontend.onnx.registry import TABLE
from ekiden.frontend.onnx.signatures import Signature, signature, signature_problems

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
    """Raise UnsupportedError for all nodes whose operator, opset or attributes no row has."""
    found = problems_of(nodes, versions, functions)
    raise_problems([f"{describe(n)}: {p}" for n, p in found], label)


def problems_of(
    nodes: Sequence[onnx.NodeProto],
    versions: Mapping[str, int],
    functions: Functions,
    inside_functions: bool = True,
) -> list[tuple[onnx.NodeProto, str]]:
    """Each node that cannot be imported and why, those in nested graphs after the node around
    them, those in functions of the model after the first node that calls it, if they are not known
    already.
    """
    found: list[tuple[onnx.NodeProto, str]] = []
    waiting, seen = [(n, versions) for n in reversed(nodes)], set()
    while waiting:
        each, stated = waiting.pop()
        local = functions.get(key_of(each))
        if local is not None:
            if inside_functions and key_of(each) not in seen:
                seen.add(key_of(each))
                inner = versions_of(local.opset_import)
                waiting.extend((n, inner) for n in reversed(local.node))
            continue
        found.extend((each, p) for p in _node_problems(each, stated))
        waiting.extend((n, stated) for g in reversed(subgraphs(each)) for n in reversed(g.node))
    return found


def domain_of(node: onnx.NodeProto) -> str:
    """The domain of an operator; that of ONNX itself is empty."""
    return "" if node.domain in DEFAULT_DOMAINS else node.domain


def schema_version(node: onnx.NodeProto, versions: Mapping[str, int]) -> int:
    """The opset in which the node's meaning was last changed; the stated version for domains that
    ONNX does not define.
    """
    domain = domain_of(node)
    stated = versions.get(domain, 1)
    try:
        return int(onnx.defs.get_schema(node.op_type, stated, domain).since_version)
    except onnx.defs.SchemaError:
        return stated


def stated_version(node: onnx.NodeProto, versions: Mapping[str, int]) -> int:
    """The opset that the model states for the domain of a node."""
    return versions.get(domain_of(node), 1)


def find_row(node: onnx.NodeProto, versions: Mapping[str, int]) -> Row | None:
    """The row of the converter table for a node; None if there is none for its version. Rows begin
    where meanings were changed, so that ONNX need not be asked since when its meaning holds.
    """
    version = stated_version(node, versions)
    every = TABLE.get((domain_of(node), node.op_type)) or ()
    rows = [r for r in every if r.since <= version]
    return max(rows, key=lambda r: r.since) if rows else None


def _node_problems(node: onnx.NodeProto, versions: Mapping[str, int]) -> list[str]:
    domain = domain_of(node)
    declared = signature(domain, node.op_type, stated_version(node, versions))
    if (domain, node.op_type) not in TABLE:
        if function_body.has_function(node, domain, schema_version(node, versions)):
            return [] if declared is None else list(signature_problems(node, declared))
        near = nearest(node.op_type, (name for d, name in TABLE if d == domain), 0.6)
        teach = "; ekiden.frontend.onnx.register teaches one" if domain else ""
        return [f"unknown operator{near}{teach}"]
    row = find_row(node, versions)
    if row is None:
        oldest = min(r.since for r in TABLE[domain, node.op_type])
        return [f"opset {versions.get(domain, 1)} is not supported; expected {oldest} or newer"]
    problems = _attribute_problems(node, row, versions)
    if declared is None or row.is_users:
        return problems
    problems += signature_problems(node, declared)
    return [*dict.fromkeys(problems), *_unread_inputs(node, row, declared)]


def _unread_inputs(node: onnx.NodeProto, row: Row, declared: Signature) -> Iterator[str]:
    """Give the inputs of a node that its row does not read."""
    if row.inputs:
        for index, name in enumerate(node.input):
            parameter = declared.name_of_input(index)
            if name and parameter not in row.inputs.split():
                yield f"input {index} ({parameter!r}) is not supported"


def _attribute_problems(node: onnx.NodeProto, row: Row, versions: Mapping[str, int]) -> list[str]:
    graphs = row.graphs.split()
    supported = [*graphs, *row.attributes.split()]
    given = {a.name for a in node.attribute}
    problems = [f"attribute {n!r} is missing" for n in graphs if n not in given]
    for each in node.attribute:
        try:
            check_kind(each)
        except Unsupported as error:
            problems.append(str(error))
            continue
        if each.name not in supported and not _is_default(node, each, versions):
            choice = f"supported are {', '.join(supported)}" if supported else "it has none"
            problems.append(f"unknown attribute {each.name!r}; {choice}")
        elif each.name in row.values and read_attribute(each) not in row.values[each.name]:
            value = read_attribute(each)
            allowed = ", ".join(map(repr, row.values[each.name]))
            problems.append(f"attribute {each.name!r} must be one of {allowed}, got {value!r}")
    return problems


def _is_default(
    node: onnx.NodeProto, attribute: onnx.AttributeProto, versions: Mapping[str, int]
) -> bool:
    """Whether an attribute says no more than its absence would."""
    version = stated_version(node, versions)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, domain_of(node))
    except onnx.defs.SchemaError:
        return False
    declared = schema.attributes.get(attribute.name)
    if declared is None or declared.default_value.type == onnx.AttributeProto.UNDEFINED:
        return False
    return bool(read_attribute(attribute) == read_attribute(declared.default_value))
