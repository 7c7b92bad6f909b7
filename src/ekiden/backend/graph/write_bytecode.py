"""Conversion of an executor graph to an executable whose arguments are all inputs and constants.

The graph executor of TVM's interface is so the virtual machine over bytecode: set_input keeps
tensors, run passes all of them. Entries of one storage_id share memory only where that is asked
for, as inner results may be looked at otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np

from ekiden import runtime
from ekiden.backend.graph.executor_graph import (
    COPY_FUNCTION,
    HOST,
    RESHAPE_FUNCTION,
    ExecutorGraph,
    GraphDevice,
    GraphEntry,
    GraphNode,
    GraphOutput,
)
from ekiden.backend.vm.write_executable import DeviceTable, VMFunction, write_executable
from ekiden.ir.type import tensor_type
from ekiden.runtime import Module
from ekiden.runtime.debug.instructions import Instruction, Operand, make_instruction
from ekiden.runtime.executor.aot_executor import ExecutorModule

KernelLibrary = TypeVar("KernelLibrary", bound=ExecutorModule)
"""Local or remote module of kernels, which creates modules of its own kind."""


class _MainWriter:
    """Writer of `main` in bytecode: argument registers first, then one for each entry and each
    storage.
    """

    def __init__(
        self, graph: ExecutorGraph, results: Sequence[GraphEntry], is_shared: bool
    ) -> None:
        self.graph = graph
        self.results = list(results)
        self.is_shared = is_shared
        self.code: list[Instruction] = []
        self.constants: list[np.ndarray] = []
        self.primitives: dict[str, int] = {}
        arguments = graph.argument_nodes
        self.registers: dict[GraphEntry, int] = {(n, 0): i for i, n in enumerate(arguments)}
        self.num_registers = len(arguments)
        self.storages: dict[object, int] = {}
        outputs = [output for node in graph.nodes for output in node.outputs]
        self.devices = list(dict.fromkeys([HOST, *(output.device for output in outputs)]))
        self.primitive_devices: list[int] = []
        """Device number of the memory that each primitive writes."""
        self.sizes = self._storage_sizes()

    def _storage_sizes(self) -> dict[object, int]:
        """Return the size in bytes of each storage that nodes write."""
        sizes: dict[object, int] = {}
        for number, node in enumerate(self.graph.nodes):
            for index, output in enumerate(node.outputs):
                key = self._storage_key((number, index), output)
                sizes[key] = max(sizes.get(key, 0), output.nbytes)
        return sizes

    def _storage_key(self, entry: GraphEntry, output: GraphOutput) -> object:
        return output.storage if self.is_shared else entry

    def _place(self, device: GraphDevice) -> int:
        return self.devices.index(device)

    def device_table(self) -> DeviceTable:
        """Return the device table of arguments, constants and kernels."""
        arguments = [self.graph.nodes[number].outputs[0] for number in self.graph.argument_nodes]
        params = tuple(self._place(argument.device) for argument in arguments)
        constants = (self._place(HOST),) * len(self.constants)
        return DeviceTable(tuple(self.devices), constants, tuple(self.primitive_devices), (params,))

    def build_function(self) -> VMFunction:
        """Return the whole function."""
        for number, node in enumerate(self.graph.nodes):
            if node.function:
                self._emit_node(number, node)
        registers = tuple(self.registers[e] for e in self.results)
        result = registers[0] if registers else 0
        if len(registers) != 1:
            result = self._emit_into("AllocADT", tag=0, fields=registers)
        self.code.append(make_instruction("Ret", src=result))
        arguments = [self.graph.nodes[n] for n in self.graph.argument_nodes]
        names = tuple(node.name for node in arguments)
        types = tuple(tensor_type(n.outputs[0].shape, n.outputs[0].dtype) for n in arguments)
        return VMFunction("main", names, self.num_registers, tuple(self.code), types)

    def _emit_into(self, name: str, **operands: Operand | str) -> int:
        self.num_registers += 1
        self.code.append(make_instruction(name, dst=self.num_registers - 1, **operands))
        return self.num_registers - 1

    def _emit_node(self, number: int, node: GraphNode) -> None:
        inputs = tuple(self.registers[e] for e in node.inputs)
        if node.function == RESHAPE_FUNCTION:
            shape = node.outputs[0].shape
            self.registers[number, 0] = self._emit_into(
                "ReshapeTensor", tensor=inputs[0], shape=self._emit_shape(shape), shape_index=0,
                ndim=len(shape)
            )  # fmt: skip
        elif node.function == COPY_FUNCTION:
            source_node, source_index = node.inputs[0]
            source = self.graph.nodes[source_node].outputs[source_index]
            to_place, from_place = (self._place(o.device) for o in (node.outputs[0], source))
            self.registers[number, 0] = self._emit_into(
                "DeviceCopy", src=inputs[0], dst_device=to_place, src_device=from_place
            )
        else:
            outputs = tuple(
                self._emit_alloc_tensor((number, i), o) for i, o in enumerate(node.outputs)
            )
            index = self._primitive_index(node)
            self.code.append(
                make_instruction("InvokePacked", packed_index=index, output_size=len(outputs),
                                 args=(*inputs, *outputs))
            )  # fmt: skip

    def _emit_shape(self, shape: tuple[int, ...]) -> int:
        self.constants.append(np.array(shape, np.int64))
        return self._emit_into("LoadConst", const_index=len(self.constants) - 1)

    def _primitive_index(self, node: GraphNode) -> int:
        index = self.primitives.setdefault(node.function, len(self.primitives))
        if index == len(self.primitive_devices):
            self.primitive_devices.append(
                self._place(node.outputs[0].device) if node.outputs else -1
            )
        return index

    def _emit_alloc_tensor(self, entry: GraphEntry, output: GraphOutput) -> int:
        key = self._storage_key(entry, output)
        if key not in self.storages:
            size = self._emit_into("LoadConsti", value=self.sizes[key])
            self.storages[key] = self._emit_into(
                "AllocStorage", size=size, size_index=0, alignment=64,
                device=self._place(output.device)
            )  # fmt: skip
        self.registers[entry] = self._emit_into(
            "AllocTensor",
            storage=self.storages[key],
            offset=0,
            dtype=output.dtype,
            shape=output.shape,
        )
        return self.registers[entry]


def write_graph(graph: ExecutorGraph, *, every_entry: bool = False) -> bytes:
    """Return the bytes of an executable that runs a graph; kernels are looked up by name when it is
    linked. It returns the graph's results, and with `every_entry` then every node's outputs,
    each in memory of its own.
    """
    results = [*graph.heads]
    if every_entry:
        results += [(n, i) for n, node in enumerate(graph.nodes) for i in range(len(node.outputs))]
    writer = _MainWriter(graph, results, is_shared=not every_entry)
    main = writer.build_function()
    metadata: dict[str, object] = {
        "main": {
            "inputs": [_describe_entry(graph, (n, 0)) for n in graph.argument_nodes],
            "outputs": [_describe_entry(graph, entry) for entry in results],
            "limits": {},
        }
    }
    primitives, table = list(writer.primitives), writer.device_table()
    return write_executable([main], writer.constants, primitives, b"", metadata, table)


def _describe_entry(graph: ExecutorGraph, entry: GraphEntry) -> dict[str, object]:
    node = graph.nodes[entry[0]]
    output = node.outputs[entry[1]]
    return {"name": node.name, "shape": list(output.shape), "dtype": output.dtype}


def create_graph_module(
    graph: ExecutorGraph, library: KernelLibrary, *, every_entry: bool = False
) -> KernelLibrary:
    """Create a graph executor with its constants set, on the machine of the kernel library. With
    `every_entry` its outputs are the graph's, then those of all nodes.
    """
    find = runtime.get_global_func if isinstance(library, Module) else library.get_global_func
    program = write_graph(graph, every_entry=every_entry)
    executor = cast("KernelLibrary", find("ek.graph_executor.create")(program, library))
    for number in graph.argument_nodes:
        node = graph.nodes[number]
        if node.constant is not None and library.implements_function("get_constant"):
            executor["set_input_zero_copy"](node.name, library["get_constant"](node.constant))
    return executor


__all__ = ["create_graph_module", "write_graph"]
