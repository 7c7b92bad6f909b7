"""Interfaces of visualisation: nodes, edges, parsers, graphs and plotters."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass

from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.op import Op
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Constant, Function, Tuple, TupleGetItem, Var

UNKNOWN_TYPE = "unknown"

__all__ = [
    "UNKNOWN_TYPE",
    "DefaultVizParser",
    "Plotter",
    "VizEdge",
    "VizGraph",
    "VizNode",
    "VizParser",
]


@dataclass(frozen=True)
class VizNode:
    """Node of a rendered graph, with its identifier, kind and detail lines."""

    identity: str
    type_name: str
    detail: str


@dataclass(frozen=True)
class VizEdge:
    """Edge of a rendered graph, from an operand's identifier to its user's."""

    start: str
    end: str


class VizParser(abc.ABC):
    """Protocol of parsers, which convert expressions to nodes and edges."""

    @abc.abstractmethod
    def get_node_edges(
        self,
        node: RelayExpr,
        relay_param: Mapping[str, object],
        node_to_id: Mapping[RelayExpr, str],
    ) -> tuple[VizNode | None, list[VizEdge]]:
        """Return the node of an expression, or None, and its incoming edges.

        Args:
            node: The expression.
            relay_param: Parameters by name.
            node_to_id: The identifier of each expression.
        """


class VizGraph(abc.ABC):
    """Protocol of graphs, to which nodes and edges are added in topological order."""

    @abc.abstractmethod
    def node(self, viz_node: VizNode) -> None:
        """Add a node."""

    @abc.abstractmethod
    def edge(self, viz_edge: VizEdge) -> None:
        """Add an edge."""


class Plotter(abc.ABC):
    """Protocol of plotters, which render graphs."""

    @abc.abstractmethod
    def create_graph(self, name: str) -> VizGraph:
        """Create the graph of a function."""

    @abc.abstractmethod
    def render(self, filename: str | None) -> None:
        """Render all graphs to a file or to standard output."""


def _format_attributes(attrs: object) -> str:
    """Format attributes as lines of text."""
    pairs = attrs.items() if isinstance(attrs, Mapping) else attribute_fields(attrs).items()
    return "\n".join(f"{key}: {value}" for key, value in pairs)


def attribute_fields(attrs: object) -> dict[str, object]:
    """Return the fields of an operator's attributes; none for None."""
    fields = getattr(type(attrs), "__dataclass_fields__", {})
    return {name: getattr(attrs, name) for name in fields}


class DefaultVizParser(VizParser):
    """Parser of dataflow graphs with calls, inputs, constants and tuples."""

    def get_node_edges(
        self,
        node: RelayExpr,
        relay_param: Mapping[str, object],
        node_to_id: Mapping[RelayExpr, str],
    ) -> tuple[VizNode | None, list[VizEdge]]:
        """Return the node of an expression, or None, and its incoming edges."""
        name = node_to_id[node]
        operands: tuple[RelayExpr, ...] = ()
        match node:
            case Function():
                title, detail, operands = "Func", _format_attributes(node.attrs), (node.body,)
            case Call():
                title, detail, operands = (
                    f"Call {_callee_name(node)}",
                    _format_attributes(node.attrs),
                    node.args,
                )
            case Var():
                title = "Var(Param)" if node.name_hint in relay_param else "Var(Input)"
                detail = f"name_hint: {node.name_hint}"
                if isinstance(node.type_annotation, TensorType):
                    shape = ", ".join(map(str, node.type_annotation.shape))
                    detail += f"\nshape: ({shape})\ndtype: {node.type_annotation.dtype}"
            case Tuple():
                title, detail, operands = "Tuple", "", node.fields
            case TupleGetItem():
                title, detail = "TupleGetItem", f"idx: {node.index}"
                operands = (node.tuple_value,)
            case Constant():
                title = "Const"
                detail = f"shape: {node.data.shape}, dtype: {node.data.dtype}"
            case GlobalVar() | Op():
                return None, []
            case _:
                title, detail = UNKNOWN_TYPE, f"don't know how to parse {type(node).__name__}"
        return VizNode(name, title, detail), [VizEdge(node_to_id[x], name) for x in operands]


def _callee_name(call: Call) -> str:
    """Return the callee's name."""
    match call.op:
        case Op() as op:
            return op.name
        case GlobalVar() as function:
            return function.name_hint
        case Function() as function:
            return str(function.attr("Composite") or "Anonymous Func")
        case other:
            return type(other).__name__
