"""Graphs and their JSON in TVM's format."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ekiden.runtime.binding.dtypes import dtype_code, dtype_name
from ekiden.runtime.errors import InternalError, LoadError
from ekiden.runtime.lazy_dataclass import dataclass

RESHAPE_FUNCTION = "__nop"
"""Function name of a reshape node."""
COPY_FUNCTION = "__copy"
"""Function name of a device copy node."""

GraphEntry = tuple[int, int]
"""Node number and output index."""


GraphDevice = tuple[int, int]
"""Device as (DLPack type, id)."""
HOST: GraphDevice = (1, 0)


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """Output of a node, with its tensor type, storage number and device."""

    shape: tuple[int, ...]
    dtype: str
    storage: int
    device: GraphDevice = HOST

    @property
    def nbytes(self) -> int:
        """Return the size of the elements in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class GraphNode:
    """Graph node: an input or constant (`function` is empty), or a kernel call."""

    name: str
    function: str = ""
    inputs: tuple[GraphEntry, ...] = ()
    outputs: tuple[GraphOutput, ...] = ()
    constant: int | None = None
    """Number of the library constant that initialises an argument."""


@dataclass(slots=True)
class ExecutorGraph:
    """Graph of nodes in execution order, and the entries that are its results."""

    nodes: list[GraphNode] = field(default_factory=list)
    heads: list[GraphEntry] = field(default_factory=list)

    @property
    def argument_nodes(self) -> list[int]:
        """Return the nodes that are set from outside: inputs and constants."""
        return [i for i, node in enumerate(self.nodes) if not node.function]

    def first_entries(self) -> list[int]:
        """Return for each node the index of its first output among those of all nodes, then their
        total.
        """
        counts = [0]
        for node in self.nodes:
            counts.append(counts[-1] + len(node.outputs))
        return counts

    def to_json(self) -> str:
        """Return the graph in TVM's JSON format."""
        outputs = [output for node in self.nodes for output in node.outputs]
        attrs = {
            "dltype": ["list_str", [output.dtype for output in outputs]],
            "device_index": ["list_int", [output.device[0] for output in outputs]],
            "storage_id": ["list_int", [output.storage for output in outputs]],
            "shape": ["list_shape", [list(output.shape) for output in outputs]],
        }
        if any(output.device[1] for output in outputs):  # TVM's format tells types alone
            attrs["device_number"] = ["list_int", [output.device[1] for output in outputs]]
        document = {
            "nodes": [_node_json(node) for node in self.nodes],
            "arg_nodes": self.argument_nodes,
            "heads": [[node, output, 0] for node, output in self.heads],
            "attrs": attrs,
            "node_row_ptr": self.first_entries(),
        }
        return json.dumps(document, indent=2)

    @staticmethod
    def from_json(text: str | bytes) -> ExecutorGraph:
        """Parse a graph in TVM's JSON format. Raises LoadError that names what is wrong with it."""
        try:
            return _parse_document(json.loads(text))
        except _PARSE_ERRORS as error:
            raise LoadError(f"read graph: {type(error).__name__}: {error}") from error


_PARSE_ERRORS = (
    ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError,
    InternalError,
)  # fmt: skip
"""Exceptions that parsing malformed JSON raises."""


def _node_json(node: GraphNode) -> dict[str, object]:
    if not node.function:
        constant = {} if node.constant is None else {"attrs": {"constant": str(node.constant)}}
        return {"op": "null", "name": node.name, "inputs": [], **constant}
    attrs = {
        "func_name": node.function,
        "num_inputs": str(len(node.inputs)),
        "num_outputs": str(len(node.outputs)),
        "flatten_data": "0",
    }
    inputs = [[number, output, 0] for number, output in node.inputs]
    return {"op": "tvm_op", "name": node.name, "attrs": attrs, "inputs": inputs}


def _parse_document(document: Mapping[str, Any]) -> ExecutorGraph:
    attrs = document["attrs"]
    lists = [attrs[key][1] for key in ("shape", "dltype", "storage_id")]
    types, numbers = (
        attrs[key][1] if key in attrs else [default] * len(lists[0])
        for key, default in zip(("device_index", "device_number"), HOST, strict=True)
    )
    rows = [_parse_output(row) for row in zip(*lists, types, numbers, strict=True)]
    graph = ExecutorGraph()
    position = 0
    for entry in document["nodes"]:
        count = int(entry["attrs"]["num_outputs"]) if entry["op"] == "tvm_op" else 1
        graph.nodes.append(_parse_node(entry, graph, rows[position : position + count]))
        position += count
    if position != len(rows):
        raise LoadError(f"read graph: {len(rows)} outputs are described, nodes have {position}")
    graph.heads = [_parse_entry(graph, head) for head in document["heads"]]
    return graph


def _parse_output(row: Sequence[Any]) -> GraphOutput:
    shape, dtype, storage, *device = row
    if any(type(d) is not int or not 0 <= d < 2**31 for d in device):
        raise LoadError(f"read graph: numbers of a device expected, got {device}")
    if any(type(d) is not int or not 0 <= d < 2**63 for d in (*shape, storage)):
        raise LoadError(
            "read graph: numbers from 0 to 2**63 - 1 expected, got shape "
            f"{shape}, storage {storage}"
        )
    code, bits, _ = dtype_code(dtype)
    device_type, number = device
    return GraphOutput(tuple(shape), dtype_name(code, bits, 1), storage, (device_type, number))


def _parse_node(
    entry: Mapping[str, Any], graph: ExecutorGraph, outputs: Sequence[GraphOutput]
) -> GraphNode:
    name, kind = str(entry["name"]), entry["op"]
    if kind not in ("null", "tvm_op"):
        raise LoadError(f"read graph: node '{name}': 'null' or 'tvm_op' expected, got {kind!r}")
    inputs = tuple(_parse_entry(graph, input_entry) for input_entry in entry["inputs"])
    attrs = entry.get("attrs", {})
    function = str(attrs["func_name"]) if kind == "tvm_op" else ""
    constant = int(attrs["constant"]) if "constant" in attrs else None
    return GraphNode(name, function, inputs, tuple(outputs), constant)


def _parse_entry(graph: ExecutorGraph, written: Sequence[int]) -> GraphEntry:
    """Return a reference to an output of an earlier node. Raises LoadError where there is none."""
    number, output = written[0], written[1]
    if not 0 <= number < len(graph.nodes) or not 0 <= output < len(graph.nodes[number].outputs):
        raise LoadError(f"read graph: no node before has the output {list(written)}")
    return number, output
