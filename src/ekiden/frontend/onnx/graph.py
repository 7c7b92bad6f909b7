"""Import of one graph of an ONNX model, main or nested: its name scope, and the conversion of its
nodes in topological order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.frontend.common.case_values import CaseValues
from ekiden.frontend.common.graph_walk import MAX_CHAIN_NODES, GraphWalk, NodeError
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.spans import attach_span
from ekiden.frontend.common.string_value import has_string_input, string_constant
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.load import (
    Functions,
    function_key,
    named_initializers,
    referenced_names,
    required_names,
    topological_order,
)
from ekiden.frontend.onnx.node import LazyAttributes, OnnxNode, OnnxRow, describe_node
from ekiden.frontend.onnx.operator_check import (
    canonical_domain,
    lookup_converter,
    opset_of_node,
    since_version,
    unsupported_nodes,
)
from ekiden.frontend.onnx.signatures import OperatorSignature, check_shape_limits, find_signature
from ekiden.frontend.onnx.tensor import densify, to_array
from ekiden.ir.span import Span
from ekiden.runtime.errors import ImportModelError, UnsupportedError
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ekiden.frontend.onnx import function_body, shape_evaluation
    from ekiden.frontend.onnx.converters import strings
else:
    shape_evaluation = LazyModule("ekiden.frontend.onnx.shape_evaluation")
    function_body = LazyModule("ekiden.frontend.onnx.function_body")
    strings = LazyModule("ekiden.frontend.onnx.converters.strings")


class ImportState(GraphWalk):
    """State shared by all graphs of an import: opset versions, model-local functions, scope and
    problems.
    """

    def __init__(
        self, versions: Mapping[str, int], label: str, scope: Scope, functions: Functions
    ) -> None:
        """Create the state of one import; `functions` are the model-local functions."""
        super().__init__(label, scope)
        self.versions, self.functions = versions, functions


@dataclass(slots=True, eq=False)
class InlinedBody:
    """Iterator over the remaining nodes of an inlined function."""

    call: str
    """The node that calls it; empty for the graph itself."""
    nodes: Iterator[onnx.NodeProto]
    versions: Mapping[str, int]


class GraphImporter:
    """Importer of one graph: its values by name, its initializers, and the graph around it. Names
    that it does not define are looked up in the enclosing graph.
    """

    def __init__(
        self,
        proto: onnx.GraphProto,
        shared: ImportState,
        outer: GraphImporter | None = None,
        versions: Mapping[str, int] | None = None,
    ) -> None:
        """Create a graph inside `outer`; `versions` overrides the model's opset versions."""
        self.proto, self.shared, self.outer = proto, shared, outer
        self.versions = shared.versions if versions is None else versions
        self.values = CaseValues(shared.scope, shared.problems)
        self.weights = dict(named_initializers(proto))
        self.nodes = topological_order(proto, shared.label)
        self._makers: dict[str, onnx.NodeProto] = {}
        self._reads: dict[str, int] = {}
        self._position = 0
        """The place, among its nodes, of the one that is imported."""

    @property
    def input_names(self) -> list[str]:
        """Return the names of the graph's inputs that have no initializer."""
        return [i.name for i in self.proto.input if i.name not in self.weights]

    def import_body(self, inputs: Sequence[Value]) -> list[Value]:
        """Import the graph for the given inputs and return its outputs.

        Raises Unsupported when a node is; NodeError for one that does not fit its inputs.
        """
        if len(inputs) != len(self.input_names):
            text = f"expected a graph with {len(inputs)} inputs, got {len(self.input_names)}"
            raise Unsupported(f"{self.proto.name!r}: {text}")
        self.values = CaseValues(self.shared.scope, self.shared.problems)
        self.values.bind(dict(zip(self.input_names, inputs, strict=True)))
        self.import_nodes()
        if any(self.lookup_value(o.name) is None for o in self.proto.output):
            raise Unsupported("")
        return [self.defined_value(o.name) for o in self.proto.output]

    def import_nodes(self) -> None:
        """Import all nodes; function calls are inlined, and nodes after a value of several ranks
        are imported once per rank.

        Raises Unsupported where outputs may have too many combinations of ranks.
        """
        for position, node in enumerate(self.nodes):
            self._position = position
            self._import_body_stack([InlinedBody("", iter([node]), self.versions)])
            # Ends the per-rank import as soon as no later node reads a value of several ranks.
            self.values.try_merge_cases(partial(self._live_names, position))
        self.values.merge_outputs([o.name for o in self.proto.output])

    def _import_body_stack(self, bodies: list[InlinedBody]) -> None:
        """Import the nodes of a stack of bodies; a call pushes its function's body."""
        while bodies:
            node = next(bodies[-1].nodes, None)
            if node is None:
                bodies.pop()
                continue
            try:
                called = self._import_node(node, bodies[-1].versions)
            except (NodeError, UnsupportedError) as error:
                # Deep nesting is cut to the innermost CHAIN calls, so that the error stays
                # readable.
                for body in bodies[: -MAX_CHAIN_NODES - 1 : -1]:
                    if body.call:
                        error.add_note(f"inside {body.call}")
                raise
            if called is not None:
                bodies.append(called)

    # Names.

    def lookup_value(self, name: str) -> Value | None:
        """Return the value of a name in this graph or an enclosing one; None if its node was
        unsupported.
        """
        # ONNX scoping: a subgraph sees the names of all graphs around it (IR specification, static
        # scoping).
        current: GraphImporter | None = self
        while current is not None:
            if name in current.values:
                return current.values[name]
            if name in current.weights:
                current.values.bind_in_all_cases(name, current.initializer_value(name))
                return current.values[name]
            current = current.outer
        return None

    def defined_value(self, name: str) -> Value:
        """Return the value of a name, which must be defined."""
        value = self.lookup_value(name)
        assert value is not None, f"{name!r} is not made: reported before"
        return value

    def initializer_value(self, name: str) -> Value:
        """Return an initializer as a constant value. Raises ImportModelError for one whose data do
        not fit its type and shape, UnsupportedError for an element type that tensors cannot have.
        """
        label, proto = self.shared.label, self.weights[name]
        try:
            if isinstance(proto, onnx.SparseTensorProto):
                from_onnx_dtype(proto.values.data_type)
                array = densify(proto)
            elif proto.data_type == onnx.TensorProto.STRING:
                return string_constant(to_array(proto))
            else:
                from_onnx_dtype(proto.data_type)
                array = to_array(proto)
        except Unsupported as error:
            raise UnsupportedError(f"import {label}: initializer {name!r}: {error}") from error
        except (ValueError, TypeError) as error:
            raise ImportModelError(
                f"import {label}: initializer {name!r} is broken: {error}"
            ) from error
        value = constant_value(array)
        assert value.expr is not None
        value.expr = attach_span([value.expr], Span(f"initializer '{name}'"))[0]
        return value

    def _live_names(self, position: int, of_bodies: bool = False) -> list[str]:
        """Return the names of several ranks that are read after a node."""
        if not self._reads:
            self._reads.update(
                (n, i) for i, node in enumerate(self.nodes) for n in required_names(node)
            )
            self._reads.update((o.name, len(self.nodes)) for o in self.proto.output)
        inner = len(self.nodes) if of_bodies else -1
        return sorted(n for n in self.values.ranked if self._reads.get(n, inner) > position)

    # Nodes.

    def _import_node(
        self, proto: onnx.NodeProto, versions: Mapping[str, int]
    ) -> InlinedBody | None:
        """Import a node, once per rank of its inputs; return the body to inline if it calls a
        function.
        """
        names = list(dict.fromkeys(required_names(proto))) if self.values.ranked else []
        if self.values.rank_polymorphic_names(names):
            self.values.import_in_cases(
                describe_node(proto), names,
                lambda: self._live_names(self._position - 1, of_bodies=True),
                lambda: self._import_body_stack([InlinedBody("", iter([proto]), versions)]),
            )  # fmt: skip
            return None
        shared = self.shared
        inputs = [self.lookup_value(i) if i else None for i in proto.input]
        if any(i and v is None for i, v in zip(proto.input, inputs, strict=True)):
            return None  # made by a node that has already been reported
        self._makers.update((o, proto) for o in proto.output)
        named = dict(zip(proto.input, inputs, strict=True))
        called: InlinedBody | None = None  # also of a node that is noted as not supported
        with shared.convert_node(describe_node(proto), named, lambda: self._producer_chain(proto)):
            called = self._convert_node(proto, versions, inputs)
        return called

    def _convert_node(
        self, proto: onnx.NodeProto, versions: Mapping[str, int], inputs: Sequence[Value | None]
    ) -> InlinedBody | None:
        """Apply the node's converter and bind its outputs; return the body to inline if it calls a
        function.
        """
        local = self.shared.functions.get(function_key(proto))
        if local is not None:
            return self._inline_function(proto, local, versions)
        row = lookup_converter(proto, versions)
        node = OnnxNode(
            proto,
            opset_of_node(proto, versions),
            LazyAttributes(proto.attribute),
            inputs,
            self.shared.scope,
            lambda graph: GraphImporter(graph, self.shared, self, versions),
            self.lookup_value,
            self._makers,
        )
        declared = None
        # The schema does not bind converters that users register.
        if row is None or not row.is_extension:
            declared = find_signature(canonical_domain(proto), node.op_type, node.opset)
        if declared is not None:
            check_shape_limits(node, declared)
        if row is None:
            version = since_version(proto, versions)
            function = function_body.schema_function(
                proto, canonical_domain(proto), version, inputs
            )
            if not function.node:
                raise Unsupported("ONNX does not define it for inputs of these types")
            return self._inline_function(proto, function, versions)
        result = _apply_converter(row, node, declared)
        values = self.shared.bind_outputs(result, proto.output)
        first = proto.output[0] if proto.output else ""
        if first in values:
            values[first] = shape_evaluation.annotate_result(node, values[first])
        self.values.bind(values)
        return None

    def _inline_function(
        self, proto: onnx.NodeProto, function: onnx.FunctionProto, around: Mapping[str, int]
    ) -> InlinedBody | None:
        """Return the body of a function for a call, or None if it has unsupported nodes, which are
        recorded.
        """
        nodes, stated = function_body.inline_function(function, proto, self.shared.label)
        versions = {**around, **stated}
        # Functions that it calls are looked at when their bodies come here: a chain of them is so
        # looked at once.
        node_problems = unsupported_nodes(
            nodes, versions, self.shared.functions, inside_functions=False
        )
        problems = [f"{describe_node(n)}: {p}" for n, p in node_problems]
        self.shared.problems += problems
        self.shared.scope.used |= referenced_names(nodes)
        return None if problems else InlinedBody(describe_node(proto), iter(nodes), versions)

    def _producer_chain(self, proto: onnx.NodeProto) -> list[str]:
        """Return descriptions of the node's producers, breadth first from the nearest."""
        descriptions: dict[str, None] = {}
        waiting = [proto]
        while waiting and len(descriptions) <= MAX_CHAIN_NODES:
            for name in waiting.pop(0).input:
                maker = self._makers.get(name)
                if maker is not None and describe_node(maker) not in descriptions:
                    descriptions[describe_node(maker)] = None
                    waiting.append(maker)
        return list(descriptions)


def _apply_converter(row: OnnxRow, node: OnnxNode, declared: OperatorSignature | None) -> Result:
    """Apply a converter to a node after constant evaluation; raise Unsupported for an input that
    stays unread.
    """
    is_text = has_string_input(node)
    folded = None if is_text else shape_evaluation.evaluate_node(node)
    if folded is not None:
        return folded
    node.inputs.read.clear()  # what was looked at so far says nothing about the converter
    result = strings.convert_text(node, row) if is_text else row.convert(node)
    if declared is not None:
        for index in node.inputs.unused_inputs():
            name = declared.input_name(index)
            if name not in row.ignorable_inputs.split():
                raise Unsupported(f"input {index} ({name!r}) is not supported beside the others")
    return result if is_text or row.is_unfoldable else shape_evaluation.fold_result(node, result)
