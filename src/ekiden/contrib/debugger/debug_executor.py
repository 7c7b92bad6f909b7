"""Debugging graph executor (TVM's interface), which stores and times every node's result.

m = debug_executor.create(lib.get_graph_json(), lib, ekiden.cpu()) m.set_input("data", x) m.run()
# prints a table, writes a folder m.debug_get_output("fused_add", out)
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ekiden.backend.graph.executor_graph import (
    COPY_FUNCTION,
    RESHAPE_FUNCTION,
    ExecutorGraph,
    GraphEntry,
    GraphNode,
    GraphOutput,
)
from ekiden.backend.graph.write_bytecode import create_graph_module
from ekiden.contrib.debugger.debug_result import DebugResult
from ekiden.contrib.graph_executor import GraphModule, executor_library
from ekiden.runtime import BenchmarkResult, Tensor, num_threads
from ekiden.runtime.errors import InputError, RunError
from ekiden.runtime.executor.aot_executor import Devices, ExecutorModule
from ekiden.runtime.profile.report import CallArgument, InstructionTime, KernelCall, Report


def create(
    graph_json_str: str, libmod: object, device: Devices, dump_root: str | None = None
) -> GraphModuleDebug:
    """Create a debugging executor like `graph_executor.create`; `dump_root` is the folder for
    output files.
    """
    library = executor_library(libmod, device)
    executor_module = create_graph_module(
        ExecutorGraph.from_json(graph_json_str), library, every_entry=True
    )
    return GraphModuleDebug(executor_module, device, graph_json_str, dump_root)


class GraphModuleDebug(GraphModule):
    """Graph executor whose nodes can be inspected one by one.

    `module` is what `lib["debug_create"]("default", device)` returns. The outputs of all nodes are
    kept in separate memory. Files go to `dump_root`, a new temporary folder by default, which
    `exit` removes.
    """

    def __init__(
        self,
        module: ExecutorModule,
        device: Devices,
        graph_json_str: str,
        dump_root: str | None = None,
    ) -> None:
        super().__init__(module)
        self.graph = ExecutorGraph.from_json(graph_json_str)
        self._firsts = self.graph.first_entries()
        self._dump_root = dump_root or tempfile.mkdtemp(prefix="tvmdbg_")
        self._dump_path = Path(self._dump_root, "_tvmdbg_device_CPU_0")
        self._dump_path.mkdir(parents=True, exist_ok=True)
        self.debug_datum = DebugResult(self.graph, self._dump_path)

    def get_num_outputs(self) -> int:
        """Return the number of outputs of the graph."""
        return len(self.graph.heads)

    def get_output(self, index: int, out: Tensor | None = None) -> Tensor:
        """Return an output of the last run. Raises InputError for an unknown output."""
        return super().get_output(self._output_index(index), out)

    def get_node_output(self, node: str | int, output: int = 0) -> Tensor:
        """Return a node's output in the last run, by node number or name."""
        return self._entry_tensor((self._node_index(node), output), None)

    def debug_get_output(self, node: str | int, out: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Return the first output of a node, copied to `out` if given; runs the graph if nothing
        has run yet.
        """
        self._ensure_executed()
        return self._entry_tensor((self._node_index(node), 0), out)

    def execute_node(self, node: str | int) -> None:
        """Run one node again on the results of the last run."""
        self._time_node(self._node_index(node), 1, 1, 0, 100, 0, 1)

    def run_individual_node(
        self,
        index: int,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: int = 0,
        limit_zero_time_iterations: int = 100,
        cooldown_interval_ms: int = 0,
        repeats_to_cooldown: int = 1,
    ) -> BenchmarkResult:
        """Return the run time of one node in seconds, for each repeat: `repeat` means over `number`
        calls.
        """
        return self._time_node(
            self._node_index(index),
            number,
            repeat,
            min_repeat_ms,
            limit_zero_time_iterations,
            cooldown_interval_ms,
            repeats_to_cooldown,
        )

    def run_individual(
        self,
        number: int,
        repeat: int = 1,
        min_repeat_ms: int = 0,
        limit_zero_time_iterations: int = 100,
        cooldown_interval_ms: int = 0,
        repeats_to_cooldown: int = 1,
    ) -> list[list[float]]:
        """Return the run time of every node in seconds in every repeat; 0 for nodes that are no
        kernels.
        """
        measured = [
            self.run_individual_node(
                index,
                number,
                repeat,
                min_repeat_ms,
                limit_zero_time_iterations,
                cooldown_interval_ms,
                repeats_to_cooldown,
            )
            for index in range(len(self.graph.nodes))
        ]
        return [list(result.results) for result in measured]

    def run(  # type: ignore[override]  # TVM's, which says how long to measure
        self,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: int = 1,
        limit_zero_time_iterations: int = 100,
        cooldown_interval_ms: int = 0,
        repeats_to_cooldown: int = 1,
        sort_by_time: bool = True,
        **input_dict: object,
    ) -> None:
        """Run the graph, time each node, write outputs and a trace to the folder, and print a
        table.
        """
        super().run(**input_dict)
        seconds = self.run_individual(
            number,
            repeat,
            min_repeat_ms,
            limit_zero_time_iterations,
            cooldown_interval_ms,
            repeats_to_cooldown,
        )
        entries = [
            (n, i) for n, node in enumerate(self.graph.nodes) for i in range(len(node.outputs))
        ]
        self.debug_datum.update(seconds, [self._entry_tensor(e, None) for e in entries])
        self.debug_datum.dump_output_tensor()
        self.debug_datum.dump_chrome_trace()
        self.debug_datum.display_debug_result(sort_by_time)

    def profile(self, collectors: object = None, **input_dict: object) -> Report:
        """Run the graph, then time each node, and return the profile. `collectors` must be None,
        since only time is measured. Raises ValueError otherwise.
        """
        if collectors is not None:
            raise ValueError("profile: collectors are not known here; None expected")
        super().run(**input_dict)
        calls: list[KernelCall] = []
        start_ns = 0
        for number, node in enumerate(self.graph.nodes):
            if node.function:
                (seconds,) = self._time_node(number, 1, 1, 0, 100, 0, 1).results
                shapes = [self.graph.nodes[n].outputs[i] for n, i in node.inputs]
                calls.append(
                    _kernel_call_record(number, node, shapes, start_ns, round(seconds * 1e9))
                )
                start_ns += calls[-1].duration
        times = [InstructionTime("main", c.instruction, c.name, 1, c.duration) for c in calls]
        outputs = [self._entry_tensor(head, None) for head in self.graph.heads]
        return Report(tuple(calls), tuple(times), (), outputs, num_threads())

    def exit(self) -> None:
        """Remove the output folder."""
        shutil.rmtree(self._dump_root, ignore_errors=True)

    def _ensure_executed(self) -> None:
        try:
            self._get_output(0)
        except RunError:
            super().run()

    def _node_index(self, node: str | int) -> int:
        """Return the index of a node, given by index or name. Raises InputError, or AttributeError
        for an unknown name.
        """
        if isinstance(node, int):
            if not 0 <= node < len(self.graph.nodes):
                raise InputError(
                    f"node: a number below {len(self.graph.nodes)} expected, got {node}"
                )
            return node
        matches = [i for i, graph_node in enumerate(self.graph.nodes) if graph_node.name == node]
        if not matches:
            raise AttributeError(f"Could not find a node named {node} in this graph.")
        return matches[0]

    def _entry_tensor(self, entry: GraphEntry, out: Tensor | None) -> Tensor:
        number, output = entry
        if not 0 <= output < len(self.graph.nodes[number].outputs):
            raise InputError(f"node {number}: it has no output {output}")
        behind = len(self.graph.heads) + self._firsts[number] + output
        return super().get_output(behind, out)

    def _time_node(
        self,
        number: int,
        count: int,
        repeat: int,
        least_ms: int,
        zeros: int,
        pause_ms: int,
        pauses: int,
    ) -> BenchmarkResult:
        """Time the kernel of a node on the tensors of the last run."""
        node = self.graph.nodes[number]
        # Parameters and views run no kernel, so their time is 0.
        if node.function in ("", RESHAPE_FUNCTION, COPY_FUNCTION):
            return BenchmarkResult((0.0,) * repeat)
        self._ensure_executed()
        outputs = [(number, i) for i in range(len(node.outputs))]
        arguments = [self._entry_tensor(e, None) for e in (*node.inputs, *outputs)]
        kernel = self.module.time_evaluator(
            node.function, None, count, repeat, least_ms, zeros, pause_ms, pauses
        )
        return kernel(*arguments)


def _kernel_call_record(
    number: int, node: GraphNode, inputs: Sequence[GraphOutput], start: int, duration: int
) -> KernelCall:
    """Return the profile record of a node's kernel call, with times in nanoseconds."""
    arguments = tuple(CallArgument(o.dtype, o.shape, o.nbytes) for o in (*inputs, *node.outputs))
    nbytes = sum(argument.nbytes for argument in arguments)
    return KernelCall(
        "main", number, node.name, "", start, duration, arguments, 0, nbytes, node.function
    )


__all__ = ["GraphModuleDebug", "create"]
