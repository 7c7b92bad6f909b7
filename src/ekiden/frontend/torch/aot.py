"""Import of an AOTAutograd graph, and the mapping of a run's arguments and results to the
module's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
import torch

from ekiden.frontend.common.complex import Complex
from ekiden.frontend.common.facts import Facts, settled
from ekiden.frontend.common.imported import ImportedModule
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.draws import Draw, is_draw
from ekiden.frontend.torch.effects import is_token
from ekiden.frontend.torch.program import Importer, as_value
from ekiden.frontend.torch.results import Made, Number, Results, memory_order, viewed
from ekiden.frontend.torch.run_sizes import Places, places_of, symbols_of
from ekiden.ir.module import IRModule
from ekiden.relay import op
from ekiden.runtime.errors import UnsupportedError
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Argument:
    """Origin of a module input: an argument of the run, or its real (0) or imaginary (1) part."""

    place: int
    part: int | None = None


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """Imported AOTAutograd graph: the module and how its arguments and results map to a run's.

    arguments: the run's arguments that the module reads. module: None if nothing is computed.
    places: the arguments and axes that symbolic sizes are read from.
    """

    module: ImportedModule | None
    arguments: tuple[Argument, ...]
    results: Results
    places: Places
    draws: tuple[Draw, ...] = ()
    """Random numbers, which are the module's last arguments."""


def import_graph(
    graph: torch.fx.GraphModule, label: str, frozen: Mapping[int, torch.Tensor]
) -> ImportedGraph:
    """Import a graph whose nodes carry fake tensors (`meta["val"]`); the inputs at `frozen`
    positions are constants.

    Raises:
        UnsupportedError: Lists every node that cannot be imported.
    """

    def attempt(facts: Facts) -> ImportedGraph:
        return _Import(graph, label, facts).run(frozen)

    try:
        return settled(attempt)
    except Unsupported as error:
        raise UnsupportedError(f"import {label}: {error}", error.inputs) from error


class _Import(Importer):
    takes_complex = True

    def run(self, frozen: Mapping[int, torch.Tensor]) -> ImportedGraph:
        """Import inputs, nodes and results; raise the collected problems if there are some."""
        nodes = self.graph.inputs
        inputs = [n for at, n in enumerate(nodes) if at not in frozen]
        self.name_symbols(inputs)
        self.name_expressions([n for n in inputs if n.users])
        arguments: list[Argument] = []
        for at, node in enumerate(nodes):
            if at in frozen:
                self.graph.env[node] = self.weight(frozen[at], node.name)
            elif is_token(node):
                self.graph.env[node] = None  # as PyTorch gives it
            elif node.users:
                before = len(self.main.input_names)
                self.graph.env[node] = self.input(node, node.name)
                count = len(self.main.input_names) - before
                components = range(2) if count == 2 else (None,) * count
                arguments += [Argument(at, component) for component in components]
        draws = self._draws()
        symbol_sources, plan = places_of(nodes), _Plan.of(self.graph.module.graph)
        self.graph.run_nodes(plan.needed)
        self.walk.finish()
        results, values = self._results(plan, symbol_sources)
        if not values:
            return ImportedGraph(None, (), results, symbol_sources, draws)
        function = self.main.function(values)
        module = ImportedModule(
            IRModule({"main": function}, self.scope.module.type_definitions),
            input_names=tuple(self.main.input_names),
            output_names=tuple(f"output{i}" for i in range(len(values))),
            constraints=tuple(self.scope.constraints.values()),
            owns_results=True,
        )
        return ImportedGraph(module, tuple(arguments), results, symbol_sources, draws)

    def _draws(self) -> tuple[Draw, ...]:
        """Add inputs for the random numbers that PyTorch draws before a run."""
        draws = []
        # Random numbers are drawn by PyTorch itself, so that its generator advances as in eager
        # mode.
        for node in self.graph.module.graph.nodes:
            if is_draw(node):
                self.graph.env[node] = self.input(node, node.name)
                draws.append(Draw(node))
        return tuple(draws)

    def _results(self, plan: _Plan, symbol_sources: Places) -> tuple[Results, list[Value]]:
        """Return the results of the graph, and the module outputs that they read."""
        values: list[Value] = []
        computed: list[Made] = []
        for node in plan.made:
            meta = node.meta["val"]
            order = memory_order(meta)
            components = self._parts(node)
            imaginary = len(values) + 1 if len(components) > 1 else None
            computed.append(Made(node, len(values), imaginary, order))
            values += [self._in_memory(component, order) for component in components]
        items: list[object] = []
        for result in plan.given:
            is_tensor = isinstance(result, torch.fx.Node) and plan.is_result(result)
            value = None if is_tensor else as_value(self.graph.item(result), self._subject(result))
            items.append(result if value is None else Number(len(values)))
            values += [] if value is None else [value]
        symbols: dict[str, int] = {}
        for name in plan.symbols(computed):
            # Strides and views may depend on data-dependent symbols that no argument's shape shows:
            # the module returns these as extra outputs.
            if name not in symbol_sources:
                dim = self.symbols.convert(sympy.Symbol(name))
                value = as_value(dim, self._subject(name))
                assert value is not None
                symbols[name] = len(values)
                values.append(value)
        attributes = tuple((node, plan.attribute(node)) for node in plan.attributes)
        arguments = tuple((node, plan.inputs[node]) for node in plan.arguments)
        views = tuple(plan.views)
        return Results(tuple(items), arguments, attributes, tuple(computed), views, symbols), values

    def _subject(self, what: object) -> str:
        return f"import {self.walk.label}: an output ({what})"

    def _parts(self, node: torch.fx.Node) -> list[Value]:
        """Return the value of a node: one tensor, or the two parts of a complex one."""
        item = self.graph.env[node]
        if isinstance(item, Complex):
            return [item.real, item.imaginary]
        value = as_value(item, self._subject(node.name))
        if value is None:
            raise UnsupportedError(f"{self._subject(node.name)} is no tensor here")
        return [value]

    def _in_memory(self, value: Value, order: tuple[int, ...] | None) -> Value:
        """Transpose a tensor to the axis order that PyTorch expects in memory."""
        if order is None or list(order) == sorted(order):
            return value
        # PyTorch expects the strides that it inferred: the data are laid out in that order and
        # viewed back.
        moved = self.scope.spanned(op.transpose(self.scope.expr(value), axes=list(order)))
        kind = self.scope.typed(moved)
        return Value(kind, expr=moved)


class _Plan:
    """Classification of a graph's results: computed tensors, views, arguments, attributes and
    sizes.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self.inputs = {n: at for at, n in enumerate(graph.find_nodes(op="placeholder"))}
        (output,) = graph.find_nodes(op="output")
        output_value = output.args[0]
        outputs = output_value if isinstance(output_value, (list, tuple)) else [output_value]
        self.given = [None if isinstance(n, torch.fx.Node) and is_token(n) else n for n in outputs]
        self.arguments: list[torch.fx.Node] = []
        self.attributes: list[torch.fx.Node] = []
        self.made: list[torch.fx.Node] = []
        self.views: list[torch.fx.Node] = []
        self.numbers: list[torch.fx.Node] = []
        """Results that are sizes."""

    @staticmethod
    def of(graph: torch.fx.Graph) -> _Plan:
        """Classify the results of a graph and the nodes that they are views of."""
        plan = _Plan(graph)
        reached: set[torch.fx.Node] = set()
        stack = [node for node in plan.given if isinstance(node, torch.fx.Node)]
        while stack:
            node = stack.pop()
            if node in reached:
                continue
            reached.add(node)
            # A view shares its base's memory, so PyTorch makes it from the base after the run.
            source = viewed(node)
            if source is not None:
                stack.append(source)
        for node in graph.nodes:  # in this order: views follow what they are of
            if node in reached:
                plan._sort(node)
        return plan

    def _sort(self, node: torch.fx.Node) -> None:
        if node in self.inputs:
            self.arguments.append(node)
        elif viewed(node) is not None:
            self.views.append(node)
        elif node.op == "get_attr":
            self.attributes.append(node)
        elif isinstance(node.meta.get("val"), torch.Tensor):
            self.made.append(node)
        else:
            self.numbers.append(node)

    def is_result(self, node: torch.fx.Node) -> bool:
        """Return whether a result is a tensor (computed, viewed or an argument) instead of
        a size.
        """
        return node not in self.numbers

    @property
    def needed(self) -> list[torch.fx.Node]:
        """Return the nodes that the module computes: tensors and sizes."""
        return [*self.made, *self.numbers]

    def attribute(self, node: torch.fx.Node) -> torch.Tensor:
        """Return a tensor of the graph."""
        value: object = self.graph.owning_module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        assert isinstance(value, torch.Tensor), f"{node.target} is a result"
        return value

    def symbols(self, computed: Sequence[Made]) -> list[str]:
        """Return the sorted names of the symbols that views and the strides of computed tensors
        depend on.
        """
        sizes: list[object] = []
        for view in self.views:
            sizes += [n.meta.get("val") for n in view.all_input_nodes]
        for tensor in computed:
            sizes += tensor.node.meta["val"].stride() if tensor.order is None else ()
        symbolic = [
            s for s in sizes if isinstance(s, (torch.SymInt, torch.SymFloat, torch.SymBool))
        ]
        return sorted({name for size in symbolic for name in symbols_of(size)})
