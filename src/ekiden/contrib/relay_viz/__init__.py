"""Visualisation of Relay programs as graphs, with the interface of TVM's `contrib.relay_viz`.

RelayVisualizer(module).render()                                       # a tree, as text
RelayVisualizer(module, plotter=DotPlotter(), parser=DotVizParser()).render("net")   # net.dot
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.contrib.relay_viz.dot import DotGraph, DotPlotter, DotVizParser
from ekiden.contrib.relay_viz.interface import (
    DefaultVizParser,
    Plotter,
    VizEdge,
    VizGraph,
    VizNode,
    VizParser,
)
from ekiden.contrib.relay_viz.terminal import TermGraph, TermPlotter, TermVizParser
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.relay.analysis import post_order_visit
from ekiden.relay.expr import Function

__all__ = [
    "DefaultVizParser",
    "DotGraph",
    "DotPlotter",
    "DotVizParser",
    "Plotter",
    "RelayVisualizer",
    "TermGraph",
    "TermPlotter",
    "TermVizParser",
    "VizEdge",
    "VizGraph",
    "VizNode",
    "VizParser",
]


class RelayVisualizer:
    """Visualiser with one graph per function of a module, `main` first.

    Args:
        relay_mod: The module.
        relay_param: Parameters by name, which are told from inputs.
        plotter: What draws; a tree of text by default.
        parser: What says the node and edges of an expression; that of the text by default.
    """

    def __init__(
        self,
        relay_mod: IRModule,
        relay_param: Mapping[str, object] | None = None,
        plotter: Plotter | None = None,
        parser: VizParser | None = None,
    ) -> None:
        self._plotter = plotter if plotter is not None else TermPlotter()
        self._parser = parser if parser is not None else TermVizParser()
        self._param = relay_param or {}
        functions = sorted(relay_mod.functions.items(), key=lambda f: f[0].name_hint != "main")
        for variable, function in functions:
            if isinstance(function, Function):
                self._add_function(self._plotter.create_graph(variable.name_hint), function)

    def _add_function(self, graph: VizGraph, function: Function) -> None:
        """Add a function's expressions to a graph, operands first."""
        order: list[RelayExpr] = []
        post_order_visit(function, order.append)
        ids = {node: str(number) for number, node in enumerate(order)}
        for node in order:
            viz_node, edges = self._parser.get_node_edges(node, self._param, ids)
            if viz_node is not None:
                graph.node(viz_node)
            for edge in edges:
                graph.edge(edge)

    def render(self, filename: str | None = None) -> None:
        """Render all graphs to a file or, if the plotter supports it, to standard output."""
        self._plotter.render(filename)
