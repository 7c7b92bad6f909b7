"""From a graph of AOTAutograd to a module, and how a run's arguments and results map to its own."""

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
    """What an input of a module is: an argument of a run, or a part of its complex numbers, the
    real one (0) or the imaginary one (1)."""

    place: int
    part: int | None = None


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """arguments: which of a run's are the module's; None for a module that computes nothing.
    places: where the symbols of its sizes can be read from."""

    module: ImportedModule | None
    arguments: tuple[Argument, ...]
    results: Results
    places: Places
    draws: tuple[Draw, ...] = ()
    """Random numbers, which are the module's last arguments."""


def import_graph(
    graph: torch.fx.GraphModule, label: str, frozen: Mapping[int, torch.Tensor]
) -> ImportedGraph:
    """A graph whose nodes say their shapes (`meta["val"]`); the inputs at the places `frozen` are
    constants. Raises UnsupportedError listing every node that cannot be imported.
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
        """Import everything, or raise."""
        nodes = self.graph.inputs
        inputs = [n for at, n in enumerate(nodes) if at not in frozen]
        self.name_symbols(inputs)
        self.name_expressions([n for n in inputs if n.users])
        taken: list[Argument] = []
        for at, node in enumerate(nodes):
            if at in frozen:
                self.graph.env[node] = self.weight(frozen[at], node.name)
            elif is_token(node):
                self.graph.env[node] = None  # as PyTorch gives it
            elif node.users:
                before = len(self.main.input_names)
                self.graph.env[node] = self.input(node, node.name)
                count = len(self.main.input_names) - before
                parts = range(2) if count == 2 else (None,) * count
                taken += [Argument(at, part) for part in parts]
        draws = self._draws()
        places, plan = places_of(nodes), _Plan.of(self.graph.module.graph)
        self.graph.run_nodes(plan.needed)
        self.walk.finish()
        results, values = self._results(plan, places)
        if not values:
            return ImportedGraph(None, (), results, places, draws)
        function = self.main.function(values)
        module = ImportedModule(
            IRModule({"main": function}, self.scope.module.type_definitions),
            input_names=tuple(self.main.input_names),
            output_names=tuple(f"output{i}" for i in range(len(values))),
            constraints=tuple(self.scope.constraints.values()),
            owns_results=True,
        )
        return ImportedGraph(module, tuple(taken), results, places, draws)

    def _draws(self) -> tuple[Draw, ...]:
        """Inputs for the random numbers that PyTorch draws before a run."""
        draws = []
        for node in self.graph.module.graph.nodes:
            if is_draw(node):
                self.graph.env[node] = self.input(node, node.name)
                draws.append(Draw(node))
        return tuple(draws)

    def _results(self, plan: _Plan, places: Places) -> tuple[Results, list[Value]]:
        """Return the results, and the outputs that the module has for them."""
        values: list[Value] = []
        made: list[Made] = []
        for node in plan.made:
            meta = node.meta["val"]
            order = memory_order(meta)
            parts = self._parts(node)
            imaginary = len(values) + 1 if len(parts) > 1 else None
            made.append(Made(node, len(values), imaginary, order))
            values += [self._in_memory(part, order) for part in parts]
        given: list[object] = []
        for each in plan.given:
            is_tensor = isinstance(each, torch.fx.Node) and plan.is_result(each)
            value = None if is_tensor else as_value(self.graph.item(each), self._subject(each))
            given.append(each if value is None else Number(len(values)))
            values += [] if value is None else [value]
        symbols: dict[str, int] = {}
        for name in plan.symbols(made):
            if name not in places:
                dim = self.symbols.convert(sympy.Symbol(name))
                value = as_value(dim, self._subject(name))
                assert value is not None
                symbols[name] = len(values)
                values.append(value)
        attributes = tuple((node, plan.attribute(node)) for node in plan.attributes)
        arguments = tuple((node, plan.inputs[node]) for node in plan.arguments)
        views = tuple(plan.views)
        return Results(tuple(given), arguments, attributes, tuple(made), views, symbols), values

    def _subject(self, what: object) -> str:
        return f"import {self.walk.label}: an output ({what})"

    def _parts(self, node: torch.fx.Node) -> list[Value]:
        """Return what a node gives: one tensor, or the parts of complex numbers."""
        item = self.graph.env[node]
        if isinstance(item, Complex):
            return [item.real, item.imaginary]
        value = as_value(item, self._subject(node.name))
        if value is None:
            raise UnsupportedError(f"{self._subject(node.name)} is no tensor here")
        return [value]

    def _in_memory(self, value: Value, order: tuple[int, ...] | None) -> Value:
        """Return a tensor with its axes as they are to lie in memory."""
        if order is None or list(order) == sorted(order):
            return value
        moved = self.scope.spanned(op.transpose(self.scope.expr(value), axes=list(order)))
        kind = self.scope.typed(moved)
        return Value(kind, expr=moved)


class _Plan:
    """How the results of a graph come about: what its module makes, what is viewed of that and of
    the arguments afterwards.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self.inputs = {n: at for at, n in enumerate(graph.find_nodes(op="placeholder"))}
        (output,) = graph.find_nodes(op="output")
        whole = output.args[0]
        many = whole if isinstance(whole, (list, tuple)) else [whole]
        self.given = [None if isinstance(n, torch.fx.Node) and is_token(n) else n for n in many]
        self.arguments: list[torch.fx.Node] = []
        self.attributes: list[torch.fx.Node] = []
        self.made: list[torch.fx.Node] = []
        self.views: list[torch.fx.Node] = []
        self.numbers: list[torch.fx.Node] = []
        """Results that are sizes."""

    @staticmethod
    def of(graph: torch.fx.Graph) -> _Plan:
        """Return the plan of a graph."""
        plan = _Plan(graph)
        reached: set[torch.fx.Node] = set()
        stack = [node for node in plan.given if isinstance(node, torch.fx.Node)]
        while stack:
            node = stack.pop()
            if node in reached:
                continue
            reached.add(node)
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
        """Whether a result is a tensor, or an argument as it came."""
        return node not in self.numbers

    @property
    def needed(self) -> list[torch.fx.Node]:
        """The nodes that the module must compute."""
        return [*self.made, *self.numbers]

    def attribute(self, node: torch.fx.Node) -> torch.Tensor:
        """Return a tensor of the graph."""
        value: object = self.graph.owning_module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        assert isinstance(value, torch.Tensor), f"{node.target} is a result"
        return value

    def symbols(self, made: Sequence[Made]) -> list[str]:
        """Return the symbols that views, and the strides of what is made, are said by."""
        sizes: list[object] = []
        for view in self.views:
            sizes += [n.meta.get("val") for n in view.all_input_nodes]
        for each in made:
            sizes += each.node.meta["val"].stride() if each.order is None else ()
        symbolic = [
            s for s in sizes if isinstance(s, (torch.SymInt, torch.SymFloat, torch.SymBool))
        ]
        return sorted({name for size in symbolic for name in symbols_of(size)})
