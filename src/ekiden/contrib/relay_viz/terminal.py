"""Plotter of Relay programs as text trees."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from ekiden.contrib.relay_viz.interface import (
    DefaultVizParser,
    Plotter,
    VizEdge,
    VizGraph,
    VizNode,
    VizParser,
)
from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.op import Op
from ekiden.relay.expr import Call, Function, If, Let

__all__ = ["TermGraph", "TermPlotter", "TermVizParser"]


class TermVizParser(VizParser):
    """Parser of all expression classes, with the callee as an operand."""

    def get_node_edges(
        self,
        node: RelayExpr,
        relay_param: Mapping[str, object],
        node_to_id: Mapping[RelayExpr, str],
    ) -> tuple[VizNode | None, list[VizEdge]]:
        """Return the node of an expression and its incoming edges."""
        operands: tuple[RelayExpr, ...] = ()
        match node:
            case Call():
                title, detail, operands = "Call", "", (node.op, *node.args)
            case Let():
                title, detail = "Let", "(var, val, body)"
                operands = (node.var, node.value, node.body)
            case GlobalVar():
                title, detail = "GlobalVar", node.name_hint
            case If():
                title, detail = "If", "(cond, true, false)"
                operands = (node.cond, node.true_branch, node.false_branch)
            case Op():
                title, detail = node.name, ""
            case Function():
                params = ", ".join(p.name_hint for p in node.params)
                title, detail, operands = "Func", f"({params})", (node.body,)
            case _:
                return DefaultVizParser().get_node_edges(node, relay_param, node_to_id)
        name = node_to_id[node]
        edges = [VizEdge(node_to_id[x], name) for x in operands if x in node_to_id]
        return VizNode(name, title, detail), edges


class TermGraph(VizGraph):
    """Graph rendered as a text tree from the function downwards."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: dict[str, VizNode] = {}
        self._operands: dict[str, list[str]] = {}
        self._root = ""

    def node(self, viz_node: VizNode) -> None:
        """Add a node; the last one without users is the root."""
        self._nodes[viz_node.identity] = viz_node
        self._operands.setdefault(viz_node.identity, [])
        self._root = viz_node.identity

    def edge(self, viz_edge: VizEdge) -> None:
        """Add an edge."""
        self._operands.setdefault(viz_edge.end, []).append(viz_edge.start)

    def render(self) -> str:
        """Return the text tree; a node that was printed before is not expanded again."""
        lines = [f"@{self._name}({_detail(self._nodes[self._root])})"]
        drawn = {self._root}
        stack = self._branches(self._root, "")
        while stack:
            name, indent, is_last = stack.pop()
            node = self._nodes.get(name)
            if node is None:
                continue
            branch = "`--" if is_last else "|--"
            lines.append(f"{indent}{branch}{node.type_name} {_detail(node)}".rstrip())
            if name not in drawn:
                drawn.add(name)
                stack += self._branches(name, indent + ("   " if is_last else "|  "))
        return "\n".join(lines)

    def _branches(self, name: str, indent: str) -> list[tuple[str, str, bool]]:
        """Return the operands of a node with their indentation, last to first."""
        operands = self._operands[name]
        return [(x, indent, n == len(operands) - 1) for n, x in enumerate(operands)][::-1]


def _detail(node: VizNode) -> str:
    return node.detail.replace("\n", ", ")


class TermPlotter(Plotter):
    """Plotter of text trees."""

    def __init__(self) -> None:
        self._name_to_graph: dict[str, TermGraph] = {}

    def create_graph(self, name: str) -> VizGraph:
        """Create the graph of a function."""
        self._name_to_graph[name] = TermGraph(name)
        return self._name_to_graph[name]

    def render(self, filename: str | None = None) -> None:
        """Write all graphs to a file or to standard output."""
        text = "\n".join(graph.render() for graph in self._name_to_graph.values()) + "\n"
        if filename is None:
            sys.stdout.write(text)
        else:
            Path(filename).write_text(text)
