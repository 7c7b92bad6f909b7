"""Results of a debugging run: a table, tensors, a trace (TVM's names for them)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ekiden import runtime
from ekiden.backend.graph.executor_graph import ExecutorGraph, GraphNode
from ekiden.runtime import Tensor
from ekiden.runtime.files import write_atomic, write_text

GRAPH_DUMP_FILE = "_tvmdbg_graph_dump.json"
OUTPUT_TENSORS_FILE = "output_tensors.params"
EXECUTION_TRACE_FILE = "_tvmdbg_execution_trace.json"
DEBUG_COLUMN_NAMES = (
    "Node Name",
    "Ops",
    "Time(us)",
    "Time(%)",
    "Shape",
    "Inputs",
    "Outputs",
    "Measurements(us)",
)


class DebugResult:
    """Times and output tensors of a graph's nodes. The graph itself is written to the folder
    immediately.
    """

    def __init__(self, graph: ExecutorGraph, folder: Path) -> None:
        self.graph = graph
        self.folder = folder
        self.seconds: list[list[float]] = []
        self.tensors: list[Tensor] = []
        write_text(folder / GRAPH_DUMP_FILE, graph.to_json())

    def update(self, seconds: Sequence[Sequence[float]], tensors: Sequence[Tensor]) -> None:
        """Set the seconds of each node in each repeat, and the outputs of all nodes in order."""
        self.seconds = [list(node_seconds) for node_seconds in seconds]
        self.tensors = list(tensors)

    def get_graph_nodes(self) -> list[dict[str, object]]:
        """Return each node's name, its function as "op", and the shape of its first output."""
        return [
            {
                "name": node.name,
                "op": node.function or "param",
                "shape": list(node.outputs[0].shape) if node.outputs else [],
                "attrs": {"num_outputs": str(len(node.outputs))},
            }
            for node in self.graph.nodes
        ]

    def get_output_tensors(self) -> dict[str, Tensor]:
        """Return the last run's outputs by node name, position and output number."""
        return {
            f"{node.name}____topo-index:{number}____output-num:{index}": tensor
            for (number, node, index), tensor in zip(
                self._output_entries(), self.tensors, strict=True
            )
        }

    def _output_entries(self) -> list[tuple[int, GraphNode, int]]:
        return [
            (number, node, index)
            for number, node in enumerate(self.graph.nodes)
            for index in range(len(node.outputs))
        ]

    def dump_output_tensor(self) -> None:
        """Write the outputs as `runtime.save_param_dict` does."""
        data = runtime.save_param_dict(self.get_output_tensors())
        write_atomic(self.folder / OUTPUT_TENSORS_FILE, lambda file: file.write(data))

    def dump_chrome_trace(self) -> None:
        """Write the nodes in sequence as a trace for Chrome and Perfetto."""
        events: list[dict[str, object]] = []
        start = 0.0
        for node, seconds in zip(self.graph.nodes, self._mean_node_seconds(), strict=True):
            common = {"tid": 1, "pid": 1, "name": node.name}
            # Chrome's trace event format: "B" and "E" pairs with timestamps in microseconds.
            events.append({"ts": start * 1e6, "ph": "B", **common})
            start += seconds
            events.append({"ts": start * 1e6, "ph": "E", **common})
        trace = {"displayTimeUnit": "ns", "traceEvents": events}
        write_text(self.folder / EXECUTION_TRACE_FILE, json.dumps(trace))

    def _mean_node_seconds(self) -> list[float]:
        """Return the mean duration of each node in seconds."""
        return [sum(repeats) / len(repeats) for repeats in self.seconds]

    def get_debug_result(self, sort_by_time: bool = True) -> str:
        """Return a table with one row per kernel call, slowest first, followed by the total."""
        means = self._mean_node_seconds()
        total = sum(means) or 1.0
        order = [n for n, node in enumerate(self.graph.nodes) if node.function]
        if sort_by_time:
            order.sort(key=lambda n: -means[n])
        rows = [self._table_row(n, means[n], means[n] / total) for n in order]
        rows.append(["Total_time", "-", f"{sum(means) * 1e6:.3f}", *["-"] * 5])
        lines = [list(DEBUG_COLUMN_NAMES), ["-" * len(head) for head in DEBUG_COLUMN_NAMES], *rows]
        widths = [max(len(line[i]) for line in lines) + 2 for i in range(len(DEBUG_COLUMN_NAMES))]
        return "\n".join(
            "".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True))
            for line in lines
        )

    def _table_row(self, number: int, seconds: float, share: float) -> list[str]:
        """Return the table row of a node."""
        node = self.graph.nodes[number]
        shape = str(node.outputs[0].shape) if node.outputs else ""
        measured = [round(repeat_seconds * 1e6, 3) for repeat_seconds in self.seconds[number]]
        counts = (str(len(node.inputs)), str(len(node.outputs)))
        time = f"{seconds * 1e6:.3f}"
        return [node.name, node.function, time, f"{share:.1%}", shape, *counts, str(measured)]

    def display_debug_result(self, sort_by_time: bool = True) -> None:
        """Print the table."""
        print(self.get_debug_result(sort_by_time))


__all__ = ["DebugResult"]
