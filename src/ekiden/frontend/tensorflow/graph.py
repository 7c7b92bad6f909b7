"""Importer of a graph, which converts the nodes that its outputs need in topological order.

A subgraph (a branch, the body of a loop) sees the values of the enclosing graph; its own stay
inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ekiden.frontend.common import constant_folding as rules
from ekiden.frontend.common.case_values import CaseValues
from ekiden.frontend.common.graph_walk import GraphWalk
from ekiden.frontend.common.malformed_models import reject_malformed
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.sequence_value import NonTensorValue
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.frontend.tensorflow.graph_analysis import (
    SWITCH_OPS,
    GraphAnalysis,
    data_inputs,
    producer_name,
)
from ekiden.frontend.tensorflow.load import Proto, TensorflowModel
from ekiden.frontend.tensorflow.node import TensorflowNode, TensorflowRow
from ekiden.frontend.tensorflow.registry import lookup_converter
from ekiden.runtime.errors import ImportModelError


class ImportState(GraphWalk):
    """Import state that all graphs of one model share."""

    def __init__(self, model: TensorflowModel, scope: Scope) -> None:
        super().__init__(model.label, scope)
        self.model = model
        self._plans: dict[str, GraphAnalysis] = {}

    def analyse_graph(self, name: str) -> GraphAnalysis:
        """Return the analysis of a library function, or of the main graph for ""."""
        if name not in self._plans:
            plan = GraphAnalysis(self.model.library_function(name) if name else self.model.graph)
            self.scope.used |= plan.used
            self._plans[name] = plan
        return self._plans[name]


class GraphImporter:
    """Importer of a graph or of a subgraph of one."""

    def __init__(
        self, plan: GraphAnalysis, shared: ImportState, outer: GraphImporter | None = None
    ) -> None:
        self.plan, self.shared, self.outer = plan, shared, outer
        self.env = CaseValues(shared.scope, shared.problems)
        self.failed: set[str] = set()
        """Nodes that are not supported, and those behind them."""
        self.taken: dict[str, int] = {}
        """Conditions that are decided here: which output of their Switches is there."""

    def make_subgraph_importer(self) -> GraphImporter:
        """Return an importer of a subgraph, in which this graph's values are visible."""
        return GraphImporter(self.plan, self.shared, self)

    def import_function(self, name: str, inputs: Sequence[Value]) -> list[Value]:
        """Import a library function for these inputs; return its results. Raises Unsupported if one
        of its nodes is.
        """
        callee = GraphImporter(self.shared.analyse_graph(name), self.shared)
        parameters = callee.plan.graph.inputs
        if len(parameters) != len(inputs):
            text = f"expected a function of {len(inputs)} arguments, got one of {len(parameters)}"
            raise Unsupported(f"{name!r}: {text}")
        callee.env.bind({i.tensor: v for i, v in zip(parameters, inputs, strict=True)})
        return callee.import_tensors([tensor for _, tensor in callee.plan.graph.outputs])

    def import_tensors(self, tensors: Sequence[str]) -> list[Value]:
        """Return tensors of the graph, importing their nodes where needed.

        Raises:
            Unsupported: One of them is unsupported; without a message, as that has been reported.
        """
        self._import_tensors(tensors)
        values = [self._lookup(t) for t in tensors]
        if any(v is None for v in values):
            raise Unsupported("")
        return [v for v in values if v is not None]

    def _lookup(self, tensor: str) -> Value | None:
        """Look up a tensor in this graph and its outer ones; None if it is unbound."""
        current: GraphImporter | None = self
        while current is not None:
            if tensor in current.env:
                return current.env[tensor]
            current = current.outer
        return None

    def decided_switch_output(self, condition: str) -> int | None:
        """Return the live Switch output of a condition in this subgraph; None if it is
        undecided.
        """
        current: GraphImporter | None = self
        while current is not None:
            if condition in current.taken:
                return current.taken[condition]
            current = current.outer
        return None

    def _import_tensors(self, tensors: Sequence[str]) -> None:
        """Import the nodes of tensors and their inputs; nodes after a value of several ranks once
        per case.
        """
        order = self._topological_order(
            [producer_name(t) for t in tensors if self._lookup(t) is None]
        )
        last: dict[str, int] = {}

        def live_names(position: int) -> list[str]:
            """Return the names of several ranks that are read from a position on."""
            if not last:
                last.update((t, i) for i, n in enumerate(order) for t in self._tensors_read(n))
                last.update(dict.fromkeys(tensors, len(order)))
            return sorted(t for t in self.env.ranked if last.get(t, -1) >= position)

        for position, name in enumerate(order):
            self._import_node(name, partial(live_names, position))
            self.env.try_merge_cases(partial(live_names, position + 1))
        self.env.merge_outputs([t for t in tensors if t in self.env])

    def _import_node(self, name: str, live: Callable[[], Sequence[str]]) -> None:
        """Import a node in each case that it depends on."""
        proto, outputs = self.plan.find_node(name), [t for t in self.plan.read_outputs(name) if t]
        if outputs and all(self.env.is_bound(t) for t in outputs):
            return  # made with another Exit of its loop
        ranked = (
            self.env.rank_polymorphic_names(self._tensors_read(name)) if self.env.ranked else []
        )
        if not ranked:
            self._convert_node(proto)
            return
        label = f"{proto.op} {proto.name!r}"
        if self.env.import_in_cases(label, ranked, live, lambda: self._import_node(name, live)):
            self.failed.discard(name)

    def _topological_order(self, names: Sequence[str]) -> list[str]:
        """Return nodes in topological order with the nodes that they need."""
        # Iterative depth-first search: deep graphs would overflow Python's stack.
        waiting, open_ = list(reversed(names)), set()
        done: dict[str, None] = {}
        while waiting:
            name = waiting[-1]
            if name in done or name in self.failed:
                waiting.pop()
                continue
            needed = [
                n for n in self._unconverted_inputs(name) if n not in done and n not in self.failed
            ]
            if name in open_ or not needed:
                waiting.pop()
                done[name] = None
                open_.discard(name)
                continue
            open_.add(name)
            # A cycle outside of while loops: the graph is malformed.
            if any(n in open_ for n in needed):
                raise ImportModelError(f"import {self.shared.label}: {name!r} is made of itself")
            waiting += reversed(needed)
        return list(done)

    def _unconverted_inputs(self, name: str) -> list[str]:
        """Return the producers that must be imported before a node."""
        tensors = self._input_tensors(self.plan.find_node(name))
        return [producer_name(t) for t in tensors if self._lookup(t) is None]

    def _tensors_read(self, name: str) -> list[str]:
        """Return the tensors of this graph that importing a node reads; the end of a loop or choice
        reads all that is upstream.
        """
        node = self.plan.find_node(name)
        is_end = node.op in ("Exit", "RefExit", "Merge", "RefMerge")
        return self.plan.upstream_tensors(node) if is_end else self._input_tensors(node)

    def _input_tensors(self, node: Proto) -> list[str]:
        if node.op in ("Exit", "RefExit"):
            frame = self.plan.loop_frame(node)
            return [*(v.initial_tensor for v in frame.variables), *frame.invariants]
        if node.op in ("Merge", "RefMerge") and not self.plan.is_loop_merge(node):
            return [self.plan.merge_sides(node)[0]]
        if node.op in SWITCH_OPS:
            data, condition = data_inputs(node)
            is_decided = (
                self.decided_switch_output(self.plan.skip_identities(condition)) is not None
            )
            return [data] if is_decided else [data, condition]
        return data_inputs(node)

    def _convert_node(self, proto: Proto) -> None:
        inputs = [self._lookup(t) for t in self._input_tensors(proto)]
        if any(v is None for v in inputs):
            self.failed.add(proto.name)  # made of what has been reported
            return
        names = self.plan.read_outputs(proto.name)
        pairs = zip(self._input_tensors(proto), inputs, strict=True)
        named = {t: v for t, v in pairs if not isinstance(v, NonTensorValue)}
        # Whatever raises below leaves the node failed, so that its users are skipped without a
        # report of their own.
        self.failed.add(proto.name)  # until it is made
        with self.shared.convert_node(f"{proto.op} {proto.name!r}", named):
            row = lookup_converter(str(proto.op))
            node = TensorflowNode(proto, inputs, self, names)
            if row.binds_outputs:
                row.convert(node)
                self.failed.discard(proto.name)
                return
            with reject_malformed("its inputs or attributes do not fit the operator"):
                result = _convert_or_fold(row, node)
            outputs = self.shared.bind_outputs(result, names)
            if row.rule is not None and names and names[0] in outputs:
                outputs[names[0]] = _propagate_elements(row, node, outputs[names[0]])
            self.env.bind(outputs)
            self.failed.discard(proto.name)


def _convert_or_fold(row: TensorflowRow, node: TensorflowNode) -> Result:
    rule = row.rule
    if rule is not None and not any(isinstance(v, NonTensorValue) for v in node.inputs):
        folded = rules.evaluate_rule(
            node.inputs, lambda arrays: rule(node, arrays), _rule_dtype(row, node)
        )
        if folded is not None:
            return folded
    converted = row.convert(node)
    if any(isinstance(v, NonTensorValue) for v in node.inputs):
        return converted
    return rules.fold_results(node.scope, node.inputs, converted)


def _rule_dtype(row: TensorflowRow, node: TensorflowNode) -> str:
    """Return the dtype of an evaluation rule's result."""
    if row.is_predicate:
        return "bool"
    for name in ("DstT", "out_type", "T", "dtype", "Tparams"):
        if node.has_attribute(name):
            return node.dtype_attribute(name)
    return node.dtype(0)


def _propagate_elements(row: TensorflowRow, node: TensorflowNode, value: Value) -> Value:
    rule = row.rule
    assert rule is not None
    return rules.propagate_elements(
        node.scope, node.inputs, lambda arrays: rule(node, arrays), value
    )
