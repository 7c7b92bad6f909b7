"""Conversion of bytecode to an executor graph.

Abstract interpretation of straight-line code, in which a register holds an output of a node, a
storage, a tuple of these, or a number. A kernel call is a node over the contents of its argument
registers; allocations and moves leave none. A jump, a call or a data-dependent shape is rejected by
the instruction's name: graphs are straight lines of static shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace

import numpy as np

from ekiden.backend.graph.executor_graph import (
    COPY_FUNCTION,
    RESHAPE_FUNCTION,
    ExecutorGraph,
    GraphDevice,
    GraphEntry,
    GraphNode,
    GraphOutput,
)
from ekiden.ir.name_uniquer import NameUniquer
from ekiden.runtime import Executable, Tensor
from ekiden.runtime.artifact.metadata import OBJECT_DTYPE, tensor_infos
from ekiden.runtime.binding.opcodes import BY_NAME
from ekiden.runtime.debug.instructions import Instruction, decode, dtype_name
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

HOST_DEVICE_NUMBER = 0
"""Number of the host in an executable's device table."""


@dataclass(slots=True)
class _GraphTensor:
    """Tensor value, whose graph entry is set when a node computes it."""

    shape: tuple[int, ...]
    dtype: str
    storage: int
    device_number: int
    """Device number in the executable; the host's for an argument that is not read yet."""
    entry: GraphEntry | None = None


@dataclass(slots=True)
class _GraphConstant:
    """Constant value, which becomes a node when a kernel reads it."""

    number: int


@dataclass(slots=True)
class _GraphTuple:
    fields: tuple[_Value, ...]


_Value = _GraphTensor | _GraphConstant | _GraphTuple | int | None
"""Value of a register: a tensor, constant or tuple, or an int for a number or storage."""


@dataclass(slots=True)
class _BytecodeReader:
    """Abstract interpreter of bytecode that builds a graph."""

    executable: Executable
    constants: list[Tensor | None]
    primitives: list[str]
    graph: ExecutorGraph = field(default_factory=ExecutorGraph)
    params: dict[str, Tensor] = field(default_factory=dict)
    registers: dict[int, _Value] = field(default_factory=dict)
    _storages: dict[tuple[object, int], int] = field(default_factory=dict)
    _constant_nodes: dict[int, _GraphTensor] = field(default_factory=dict)
    _names: NameUniquer = field(default_factory=NameUniquer)
    _allocated: int = 0
    _storage_devices: dict[object, int] = field(default_factory=dict)
    """Device number of each allocated storage."""
    _read_arguments: set[int] = field(default_factory=set)
    """Arguments that a node has read, which are placed on the first reader's device."""

    def device(self, place: int) -> GraphDevice:
        """Return the device of a number in the executable."""
        device = self.executable.devices[place]
        return device.device_type, device.device_id

    def storage(self, owner: object, offset: int) -> int:
        """Return the storage number of a memory location."""
        return self._storages.setdefault((owner, offset), len(self._storages))

    def add_argument(
        self, name: str, shape: tuple[int, ...], dtype: str, constant: int | None = None
    ) -> _GraphTensor:
        """Add a node that is set from outside."""
        number = len(self.graph.nodes)
        storage = self.storage(("argument", number), 0)
        outputs = (GraphOutput(shape, dtype, storage),)
        self.graph.nodes.append(
            GraphNode(self._names.fresh(name), outputs=outputs, constant=constant)
        )
        return _GraphTensor(shape, dtype, storage, HOST_DEVICE_NUMBER, (number, 0))

    def load_constant(self, number: int) -> Tensor:
        """Return a constant of the executable. Raises CompileError if it is bound late and has no
        value yet.
        """
        value = self.constants[number]
        if value is None:
            raise CompileError(f"graph: constant {number} is late-bound and has no value yet")
        return value

    def to_tensor(self, value: _Value) -> _GraphTensor:
        """Return a value as a tensor of the graph; a constant becomes a node."""
        if isinstance(value, _GraphConstant):
            if value.number not in self._constant_nodes:
                data = self.load_constant(value.number)
                name = f"p{len(self.params)}"
                node_tensor = self.add_argument(name, data.shape, data.dtype, value.number)
                self.params[self.graph.nodes[-1].name] = data
                self._constant_nodes[value.number] = node_tensor
            return self._constant_nodes[value.number]
        if not isinstance(value, _GraphTensor):
            raise CompileError("graph: a result or argument of a kernel is not a tensor")
        return value

    def flatten_tensors(self, value: _Value) -> Iterator[_GraphTensor]:
        """Yield the tensors in a value, with tuples flattened."""
        stack = [value]
        while stack:
            current = stack.pop()
            if isinstance(current, _GraphTuple):
                stack.extend(reversed(current.fields))
            else:
                yield self.to_tensor(current)

    def add_node(
        self, name: str, inputs: Sequence[_GraphTensor], outputs: Sequence[_GraphTensor], place: int
    ) -> None:
        """Add a function call that computes its outputs from inputs on a device."""
        number = len(self.graph.nodes)
        for operand in inputs:
            self._read_argument(operand, place)
        for index, output in enumerate(outputs):
            output.entry = (number, index)
        entries = tuple(operand.entry for operand in inputs if operand.entry is not None)
        if len(entries) != len(inputs):
            raise CompileError(
                f"graph: {name} reads a tensor that no node gives: several kernels write its parts;"
                " relay.build makes executables without such tensors"
            )
        output_rows = tuple(
            GraphOutput(o.shape, o.dtype, o.storage, self.device(o.device_number)) for o in outputs
        )
        self.graph.nodes.append(GraphNode(self._names.fresh(name), name, entries, output_rows))

    def _read_argument(self, operand: _GraphTensor, place: int) -> None:
        """Move an argument that no node has read to the device of the node that reads it."""
        number = -1 if operand.entry is None else operand.entry[0]
        if number < 0 or self.graph.nodes[number].function or number in self._read_arguments:
            return
        self._read_arguments.add(number)
        operand.device_number = place
        node = self.graph.nodes[number]
        outputs = tuple(replace(output, device=self.device(place)) for output in node.outputs)
        self.graph.nodes[number] = replace(node, outputs=outputs)

    def register_value(self, operand: int) -> _Value:
        """Return a register's value; the operand -1 - r is register r at its last use."""
        return self.registers.get(operand if operand >= 0 else -1 - operand)

    def interpret(self, instruction: Instruction) -> None:
        """Interpret one instruction."""
        name, position = instruction.name, instruction.operands
        registers = self.registers
        match name, position:
            case "Move", (int(dst), int(src)):
                registers[dst] = self.register_value(src)
            case "LoadConst", (int(dst), int(number)):
                registers[dst] = _GraphConstant(number)
            case "LoadConsti", (int(dst), int(number)):
                registers[dst] = number
            case "AllocStorage" | "AllocArena", (int(dst), *_, int(place)):
                self._allocated += 1
                registers[dst] = self._allocated
                self._storage_devices[self._allocated] = place
            case "AllocTensor", (int(dst), int(of), int(offset), tuple(dtype), tuple(shape)):
                storage = self.storage(registers.get(of), offset)
                device_number = self._storage_devices.get(registers.get(of), HOST_DEVICE_NUMBER)
                registers[dst] = _GraphTensor(shape, dtype_name(*dtype), storage, device_number)
            case "Own", (int(dst), int(of), _):
                source = self.to_tensor(self.register_value(of))
                registers[dst] = self.interpret_copy(
                    source, source.device_number, source.device_number
                )
            case "AllocADT", (int(dst), 0, tuple(fields)):
                registers[dst] = _GraphTuple(tuple(map(self.register_value, fields)))
            case "GetField", (int(dst), int(of), int(index)):
                aggregate = registers.get(of)
                if not isinstance(aggregate, _GraphTuple):
                    raise CompileError("graph: a field of what is not a tuple made here")
                registers[dst] = aggregate.fields[index]
            case _, (int(number), int(count), tuple(args), *_) if instruction.has("kernel"):
                self.interpret_invoke(self.primitives[number], count, args)
            case "ReshapeTensor", (int(dst), int(of), int(shape_register), int(index), int(ndim)):
                registers[dst] = self.reshape(registers.get(of), shape_register, index, ndim)
            case "DeviceCopy", (int(dst), int(of), int(to_place), int(from_place)):
                source = self.to_tensor(registers.get(of))
                registers[dst] = self.interpret_copy(source, to_place, from_place)
            case "KillRegister", (int(dst),):
                registers[dst] = None
            case "Ret", (int(src),):
                self.graph.heads = [
                    e.entry for e in self.flatten_tensors(self.register_value(src)) if e.entry
                ]
            case _:
                raise CompileError(_no_graph_reason(name))

    def interpret_invoke(self, name: str, count: int, args: Sequence[int]) -> None:
        """Interpret InvokePacked."""
        inputs = [
            t
            for r in args[: len(args) - count]
            for t in self.flatten_tensors(self.registers.get(r))
        ]
        outputs = [
            t
            for r in args[len(args) - count :]
            for t in self.flatten_tensors(self.registers.get(r))
        ]
        self.add_node(
            name, inputs, outputs, outputs[0].device_number if outputs else HOST_DEVICE_NUMBER
        )

    def reshape(self, value: _Value, register: int, index: int, ndim: int) -> _GraphTensor:
        """Interpret ReshapeTensor: a node that shares the storage of its input."""
        shape = self.registers.get(register)
        if not isinstance(shape, _GraphConstant):
            raise CompileError(_no_graph_reason("ReshapeTensor"))
        dims = np.asarray(self.load_constant(shape.number).numpy())[index : index + ndim]
        source = self.to_tensor(value)
        reshaped = _GraphTensor(
            tuple(map(int, dims)), source.dtype, source.storage, source.device_number
        )
        self.add_node(RESHAPE_FUNCTION, [source], [reshaped], source.device_number)
        return reshaped

    def interpret_copy(self, source: _GraphTensor, to_place: int, from_place: int) -> _GraphTensor:
        """Interpret DeviceCopy."""
        storage = self.storage(("copy", len(self.graph.nodes)), 0)
        copied = _GraphTensor(source.shape, source.dtype, storage, to_place)
        self.add_node(COPY_FUNCTION, [source], [copied], from_place)
        return copied


def _is_control_flow(name: str) -> bool:
    """Return whether an instruction other than the last one jumps or names a function."""
    opcode = BY_NAME[name]
    has_function = not {*"fF"}.isdisjoint(opcode.format)
    goes = not {"ends", "frames"}.isdisjoint(opcode.properties)
    return name != "Ret" and (has_function or goes)


def _no_graph_reason(name: str) -> str:
    """Return why a program with an instruction has no graph."""
    if _is_control_flow(name):
        why = "it is not a straight line"
    elif name in ("AllocTensorReg", "ShapeOf", "ReshapeTensor"):
        why = "shapes in it are only known when it runs"
    else:
        why = "it handles more than tensors"
    return f"graph: 'main' has none: {why} (instruction {name}); the virtual machine runs it"


def read_graph(executable: Executable) -> tuple[ExecutorGraph, dict[str, Tensor]]:
    """Return the graph of `main`, and its constants under their nodes' names. Raises CompileError
    for control flow, functions, computed shapes, and arguments that are not tensors of a known
    shape.
    """
    _, words = executable.code("main")
    code = decode(words)
    if jump := next((i.name for i in code if _is_control_flow(i.name)), None):
        raise CompileError(_no_graph_reason(jump))
    reader = _BytecodeReader(executable, executable.constants, executable.primitives)
    for register, (name, shape, dtype) in enumerate(_main_inputs(executable)):
        reader.registers[register] = reader.add_argument(name, shape, dtype)
    for instruction in code:
        reader.interpret(instruction)
    return reader.graph, reader.params


def _main_inputs(executable: Executable) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Yield name, shape and dtype of the inputs of `main`."""
    inputs, _ = tensor_infos(executable.metadata, executable.source)
    for tensor_info in inputs:
        shape = tuple(d for d in tensor_info.shape if isinstance(d, int))
        if tensor_info.dtype == OBJECT_DTYPE or shape != tensor_info.shape:
            raise CompileError(
                f"graph: input '{tensor_info.name}' is no tensor of a known shape:"
                f" {tensor_info.dtype}{list(tensor_info.shape)}; the virtual machine runs it"
            )
        yield tensor_info.name, shape, tensor_info.dtype


__all__ = ["read_graph"]
