"""Plotter of Relay programs as Graphviz files (`NAME.dot`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from ekiden.contrib.relay_viz.interface import (
    DefaultVizParser,
    Plotter,
    VizEdge,
    VizGraph,
    VizNode,
)
from ekiden.runtime.errors import InputError

__all__ = ["DotGraph", "DotPlotter", "DotVizParser"]

DotVizParser = DefaultVizParser
Attributes = Mapping[str, str]


def _default_node_attr(node: VizNode) -> Attributes:
    return {"shape": "ellipse" if "Var" in node.type_name else "box"}


def _render_attributes(attributes: Attributes) -> str:
    return ", ".join(f"{key}={json.dumps(value)}" for key, value in attributes.items())


class DotGraph(VizGraph):
    """Graph rendered as a cluster of a dot file.

    Args:
        name: The name of the function.
        graph_attr: Attributes of the cluster.
        node_attr: Attributes of all nodes.
        edge_attr: Attributes of all edges.
        get_node_attr: A function that gives the attributes of a node.
    """

    def __init__(
        self,
        name: str,
        graph_attr: Attributes | None = None,
        node_attr: Attributes | None = None,
        edge_attr: Attributes | None = None,
        get_node_attr: Callable[[VizNode], Attributes] | None = None,
    ) -> None:
        self._name, self._get_node_attr = name, get_node_attr or _default_node_attr
        self._lines = [f"  label={json.dumps(name)};"]
        for kind, attributes in (("graph", graph_attr), ("node", node_attr), ("edge", edge_attr)):
            if attributes:
                self._lines.append(f"  {kind} [{_render_attributes(attributes)}];")

    def node(self, viz_node: VizNode) -> None:
        """Add a node."""
        label = f"{viz_node.type_name}\n{viz_node.detail}".rstrip()
        attributes = {"label": label, **self._get_node_attr(viz_node)}
        name = json.dumps(f"{self._name}.{viz_node.identity}")
        self._lines.append(f"  {name} [{_render_attributes(attributes)}];")

    def edge(self, viz_edge: VizEdge) -> None:
        """Add an edge."""
        ends = (json.dumps(f"{self._name}.{end}") for end in (viz_edge.start, viz_edge.end))
        self._lines.append(f"  {' -> '.join(ends)};")

    def render(self) -> str:
        """Return the cluster as dot text."""
        name = json.dumps(f"cluster_{self._name}")
        return "\n".join([f"subgraph {name} {{", *self._lines, "}"])


class DotPlotter(Plotter):
    """Plotter of dot files, with the arguments of `DotGraph`."""

    def __init__(
        self,
        graph_attr: Attributes | None = None,
        node_attr: Attributes | None = None,
        edge_attr: Attributes | None = None,
        get_node_attr: Callable[[VizNode], Attributes] | None = None,
    ) -> None:
        self._options = (graph_attr, node_attr, edge_attr, get_node_attr)
        self._name_to_graph: dict[str, DotGraph] = {}

    def create_graph(self, name: str) -> VizGraph:
        """Create the graph of a function."""
        self._name_to_graph[name] = DotGraph(name, *self._options)
        return self._name_to_graph[name]

    def render(self, filename: str | None = None) -> None:
        """Write `filename`.dot. Raises InputError without a name."""
        if filename is None:
            raise InputError("DotPlotter: a file name expected, as render('net')")
        clusters = "\n".join(graph.render() for graph in self._name_to_graph.values())
        Path(f"{filename}.dot").write_text(f"digraph {{\n{clusters}\n}}\n")
