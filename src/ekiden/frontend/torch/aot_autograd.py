"""Import of an AOTAutograd graph, and the mapping of a run's arguments and results to the
module's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
import torch

from ekiden.frontend.common.complex_arithmetic import ComplexValue
from ekiden.frontend.common.dim_facts import DimFacts, import_to_fixpoint
from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.effects import is_effect_token
from ekiden.frontend.torch.graph_results import (
    ComputedTensor,
    GraphResults,
    SizeResult,
    dense_memory_order,
    view_base,
)
from ekiden.frontend.torch.program import FxImportAttempt, to_output_value
from ekiden.frontend.torch.rng import RandomDraw, is_shape_only_draw
from ekiden.frontend.torch.symbolic_sizes import (
    SymbolSources,
    find_symbol_sources,
    size_symbol_names,
)
from ekiden.ir.module import IRModule
from ekiden.relay import op
from ekiden.runtime.errors import UnsupportedError
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ModuleArgument:
    """Origin of a module input: an argument of the run, or its real (0) or imaginary (1) part."""

    argument_index: int
    part: int | None = None


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """Imported AOTAutograd graph, with the mapping of its arguments and results to a run's.

    arguments: the run's arguments that the module reads. module: None if nothing is computed.
    symbol_sources: the arguments and axes that symbolic sizes are read from.
    """

    module: ImportResult | None
    arguments: tuple[ModuleArgument, ...]
    results: GraphResults
    symbol_sources: SymbolSources
    random_draws: tuple[RandomDraw, ...] = ()
    """Random numbers, which are the module's last arguments."""


def import_graph(
    graph: torch.fx.GraphModule, label: str, frozen: Mapping[int, torch.Tensor]
) -> ImportedGraph:
    """Import a graph whose nodes carry fake tensors (`meta["val"]`); the inputs at `frozen`
    positions are constants.

    Raises:
        UnsupportedError: Lists every node that cannot be imported.
    """

    def attempt(facts: DimFacts) -> ImportedGraph:
        """Import the graph under the dimension facts known so far."""
        return _GraphImport(graph, label, facts).run(frozen)

    try:
        return import_to_fixpoint(attempt)
    except Unsupported as error:
        raise UnsupportedError(f"import {label}: {error}", error.inputs) from error


class _GraphImport(FxImportAttempt):
    takes_complex = True

    def run(self, frozen: Mapping[int, torch.Tensor]) -> ImportedGraph:
        """Import inputs, nodes and results; raise the collected problems if there are some."""
        nodes = self.graph.inputs
        inputs = [n for index, n in enumerate(nodes) if index not in frozen]
        self.name_input_symbols(inputs)
        self.name_compound_dims([n for n in inputs if n.users])
        arguments: list[ModuleArgument] = []
        for index, node in enumerate(nodes):
            if index in frozen:
                self.graph.env[node] = self.weight_value(frozen[index], node.name)
            elif is_effect_token(node):
                self.graph.env[node] = None  # as PyTorch gives it
            elif node.users:
                before = len(self.main.input_names)
                self.graph.env[node] = self.add_input(node, node.name)
                count = len(self.main.input_names) - before
                components = range(2) if count == 2 else (None,) * count
                arguments += [ModuleArgument(index, component) for component in components]
        draws = self._add_random_inputs()
        symbol_sources, plan = (
            find_symbol_sources(nodes),
            _ResultPlan.classify_graph(self.graph.module.graph),
        )
        self.graph.import_nodes(plan.nodes_to_compute)
        self.walk.raise_collected_problems()
        results, values = self._collect_results(plan, symbol_sources)
        if not values:
            return ImportedGraph(None, (), results, symbol_sources, draws)
        function = self.main.build_main(values)
        module = ImportResult(
            IRModule({"main": function}, self.scope.module.type_definitions),
            input_names=tuple(self.main.input_names),
            output_names=tuple(f"output{i}" for i in range(len(values))),
            constraints=tuple(self.scope.constraints.values()),
            owns_results=True,
        )
        return ImportedGraph(module, tuple(arguments), results, symbol_sources, draws)

    def _add_random_inputs(self) -> tuple[RandomDraw, ...]:
        """Add inputs for the random numbers that PyTorch draws before a run."""
        draws = []
        # Random numbers are drawn by PyTorch itself, so that its generator advances as in eager
        # mode.
        for node in self.graph.module.graph.nodes:
            if is_shape_only_draw(node):
                self.graph.env[node] = self.add_input(node, node.name)
                draws.append(RandomDraw(node))
        return tuple(draws)

    def _collect_results(
        self, plan: _ResultPlan, symbol_sources: SymbolSources
    ) -> tuple[GraphResults, list[Value]]:
        """Return the results of the graph, and the module outputs that they read."""
        values: list[Value] = []
        computed: list[ComputedTensor] = []
        for node in plan.made:
            meta = node.meta["val"]
            order = dense_memory_order(meta)
            components = self._computed_values(node)
            imaginary = len(values) + 1 if len(components) > 1 else None
            computed.append(ComputedTensor(node, len(values), imaginary, order))
            values += [self._to_memory_order(component, order) for component in components]
        items: list[object] = []
        for result in plan.given:
            is_tensor = isinstance(result, torch.fx.Node) and plan.is_tensor_result(result)
            value = (
                None
                if is_tensor
                else to_output_value(self.graph.import_argument(result), self._output_label(result))
            )
            items.append(result if value is None else SizeResult(len(values)))
            values += [] if value is None else [value]
        symbols: dict[str, int] = {}
        for name in plan.required_symbols(computed):
            # Strides and views may depend on data-dependent symbols that no argument's shape shows:
            # the module returns these as extra outputs.
            if name not in symbol_sources:
                dim = self.symbols.convert(sympy.Symbol(name))
                value = to_output_value(dim, self._output_label(name))
                assert value is not None
                symbols[name] = len(values)
                values.append(value)
        attributes = tuple((node, plan.graph_tensor(node)) for node in plan.attributes)
        arguments = tuple((node, plan.inputs[node]) for node in plan.arguments)
        views = tuple(plan.views)
        return GraphResults(
            tuple(items), arguments, attributes, tuple(computed), views, symbols
        ), values

    def _output_label(self, what: object) -> str:
        return f"import {self.walk.label}: an output ({what})"

    def _computed_values(self, node: torch.fx.Node) -> list[Value]:
        """Return the value of a node: one tensor, or the two parts of a complex one."""
        item = self.graph.env[node]
        if isinstance(item, ComplexValue):
            return [item.real, item.imaginary]
        value = to_output_value(item, self._output_label(node.name))
        if value is None:
            raise UnsupportedError(f"{self._output_label(node.name)} is no tensor here")
        return [value]

    def _to_memory_order(self, value: Value, order: tuple[int, ...] | None) -> Value:
        """Transpose a tensor to the axis order that PyTorch expects in memory."""
        if order is None or list(order) == sorted(order):
            return value
        # PyTorch expects the strides that it inferred: the data are laid out in that order and
        # viewed back.
        moved = self.scope.attach_span(op.transpose(self.scope.expr(value), axes=list(order)))
        kind = self.scope.tensor_type_of(moved)
        return Value(kind, expr=moved)


class _ResultPlan:
    """Classification of a graph's results: computed tensors, views, arguments, attributes and
    sizes.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self.inputs = {n: index for index, n in enumerate(graph.find_nodes(op="placeholder"))}
        (output,) = graph.find_nodes(op="output")
        output_value = output.args[0]
        outputs = output_value if isinstance(output_value, (list, tuple)) else [output_value]
        self.given = [
            None if isinstance(n, torch.fx.Node) and is_effect_token(n) else n for n in outputs
        ]
        self.arguments: list[torch.fx.Node] = []
        self.attributes: list[torch.fx.Node] = []
        self.made: list[torch.fx.Node] = []
        self.views: list[torch.fx.Node] = []
        self.numbers: list[torch.fx.Node] = []
        """Results that are sizes."""

    @staticmethod
    def classify_graph(graph: torch.fx.Graph) -> _ResultPlan:
        """Classify the results of a graph and the nodes that they are views of."""
        plan = _ResultPlan(graph)
        reached: set[torch.fx.Node] = set()
        stack = [node for node in plan.given if isinstance(node, torch.fx.Node)]
        while stack:
            node = stack.pop()
            if node in reached:
                continue
            reached.add(node)
            # A view shares its base's memory, so PyTorch makes it from the base after the run.
            source = view_base(node)
            if source is not None:
                stack.append(source)
        for node in graph.nodes:  # in this order: views follow what they are of
            if node in reached:
                plan._classify(node)
        return plan

    def _classify(self, node: torch.fx.Node) -> None:
        if node in self.inputs:
            self.arguments.append(node)
        elif view_base(node) is not None:
            self.views.append(node)
        elif node.op == "get_attr":
            self.attributes.append(node)
        elif isinstance(node.meta.get("val"), torch.Tensor):
            self.made.append(node)
        else:
            self.numbers.append(node)

    def is_tensor_result(self, node: torch.fx.Node) -> bool:
        """Return whether a result is a tensor (computed, viewed or an argument) instead of
        a size.
        """
        return node not in self.numbers

    @property
    def nodes_to_compute(self) -> list[torch.fx.Node]:
        """Return the nodes that the module computes: tensors and sizes."""
        return [*self.made, *self.numbers]

    def graph_tensor(self, node: torch.fx.Node) -> torch.Tensor:
        """Return a tensor of the graph."""
        value: object = self.graph.owning_module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        assert isinstance(value, torch.Tensor), f"{node.target} is a result"
        return value

    def required_symbols(self, computed: Sequence[ComputedTensor]) -> list[str]:
        """Return the sorted names of the symbols that views and the strides of computed tensors
        depend on.
        """
        sizes: list[object] = []
        for view in self.views:
            sizes += [n.meta.get("val") for n in view.all_input_nodes]
        for tensor in computed:
            sizes += tensor.node.meta["val"].stride() if tensor.memory_order is None else ()
        symbolic = [
            s for s in sizes if isinstance(s, (torch.SymInt, torch.SymFloat, torch.SymBool))
        ]
        return sorted({name for size in symbolic for name in size_symbol_names(size)})
