"""From a graph of AOTAutograd to a module, and how a run's arguments and results map to its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ekiden.frontend.common.complex import Complex
from ekiden.frontend.common.facts import Facts, settled
from ekiden.frontend.common.imported import ImportedModule
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.draws import Draw, is_draw, places_of
from ekiden.frontend.torch.program import Importer, as_value
from ekiden.ir.module import IRModule
from ekiden.runtime.errors import UnsupportedError
from ekiden.runtime.late_methods import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a graph: an argument as it came, an output of the module, or a constant.

    is_size: whether the output is a number; imaginary: the output that has the other part of
    complex numbers.
    """

    argument: int | None = None
    output: int | None = None
    constant: object = None
    is_size: bool = False
    imaginary: int | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """What an input of a module is: an argument of a run, or a part of its complex numbers, the
    real one (0) or the imaginary one (1)."""

    place: int
    part: int | None = None


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """arguments: which of a run's are the module's; None for a module that computes nothing."""

    module: ImportedModule | None
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
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
        taken: list[Argument] = []
        for at, node in enumerate(nodes):
            if at in frozen:
                self.graph.env[node] = self.weight(frozen[at], node.name)
            elif node.users:
                before = len(self.main.input_names)
                self.graph.env[node] = self.input(node, node.name)
                count = len(self.main.input_names) - before
                parts = range(2) if count == 2 else (None,) * count
                taken += [Argument(at, part) for part in parts]
        draws = self._draws(nodes)
        self.graph.run_nodes()
        self.walk.finish()
        results, values = self._results(nodes)
        if not values:
            return ImportedGraph(None, (), results, draws)
        function = self.main.function(values)
        module = ImportedModule(
            IRModule({"main": function}, self.scope.module.type_definitions),
            input_names=tuple(self.main.input_names),
            output_names=tuple(f"output{i}" for i in range(len(values))),
            constraints=tuple(self.scope.constraints.values()),
            owns_results=True,
        )
        return ImportedGraph(module, tuple(taken), results, draws)

    def _draws(self, nodes: Sequence[torch.fx.Node]) -> tuple[Draw, ...]:
        """Inputs for the random numbers that PyTorch draws before a run."""
        places = places_of(nodes)
        found = []
        for node in self.graph.module.graph.nodes:
            if is_draw(node):
                self.graph.env[node] = self.input(node, node.name)
                found.append(Draw(node, places))
        return tuple(found)

    def _results(self, nodes: Sequence[torch.fx.Node]) -> tuple[tuple[Result, ...], list[Value]]:
        places = {node: at for at, node in enumerate(nodes)}
        out = next(n for n in self.graph.module.graph.nodes if n.op == "output")
        given = out.args[0] if isinstance(out.args[0], (list, tuple)) else [out.args[0]]
        results: list[Result] = []
        values: list[Value] = []
        for each in given:
            if isinstance(each, torch.fx.Node) and each in places:
                results.append(Result(argument=places[each]))
                continue
            item = self.graph.item(each)
            if isinstance(item, Complex):
                results.append(Result(output=len(values), imaginary=len(values) + 1))
                values += [item.real, item.imaginary]
                continue
            value = as_value(item, f"import {self.walk.label}: an output")
            if value is None:
                results.append(Result(constant=item))
                continue
            results.append(Result(output=len(values), is_size=not isinstance(item, Value)))
            values.append(value)
        return tuple(results), values
