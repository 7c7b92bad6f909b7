"""Location of a model tensor in a paused run, for the debugger."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ekiden import runtime
from ekiden.backend.vm.instruction_operands import read_registers, written_registers
from ekiden.runtime.artifact.metadata import tensor_infos
from ekiden.runtime.debug.debugger import CodeLocation
from ekiden.runtime.debug.instructions import Instruction
from ekiden.runtime.errors import InputError
from ekiden.runtime.profile.report import instruction_sources, tensor_nodes

__all__ = ["RegisterLocation", "find_tensor"]

FunctionCode = Mapping[str, Sequence[Instruction]]


class RegisterLocation(NamedTuple):
    """Register of a stack frame; frame 0 is the innermost."""

    frame: int
    register: int


def find_tensor(
    executable: runtime.Executable, code: FunctionCode, frames: Sequence[CodeLocation], name: str
) -> RegisterLocation:
    """Return the register that holds an input of the model or a node's result. Raises InputError
    for an unknown tensor, one that only exists inside a kernel, and one that is not computed yet
    or not live any more: memory is reused after the last reader.
    """
    inputs, _ = tensor_infos(executable.metadata, executable.source)
    names = [i.name for i in inputs]
    if name in names:
        return _live_register(code, frames, "main", -1, names.index(name), name)
    node, output = _tensor_node(executable, name, names)
    for (function, at), source in instruction_sources(executable).items():
        if source == node:
            register = _output_register(code[function][at], output)
            return _live_register(code, frames, function, at, register, name)
    raise InputError(f"'{name}' is computed inside a kernel, of {node}")


def _tensor_node(
    executable: runtime.Executable, name: str, inputs: Sequence[str]
) -> tuple[str, int]:
    table = tensor_nodes(executable)
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, [*inputs, *table], n=5, cutoff=0.4)
    suggestions = ", ".join(f"'{n}'" for n in near or [*inputs, *table][:8])
    raise InputError(f"no tensor '{name}' is stored outside of kernels; there are {suggestions}")


def _output_register(instruction: Instruction, number: int) -> int:
    """Return the register of an output of the kernel that an instruction calls."""
    if not instruction.has("kernel"):
        return written_registers(instruction)[0]
    arguments, count = instruction["args"], instruction["output_size"]
    assert isinstance(arguments, tuple) and isinstance(count, int)
    outputs = arguments[len(arguments) - count :]
    return outputs[number if number < count else 0]


def _live_register(
    code: FunctionCode,
    frames: Sequence[CodeLocation],
    function: str,
    at: int,
    register: int,
    name: str,
) -> RegisterLocation:
    """Return the register if instruction `at` has run and its result is live. Raises InputError
    otherwise.
    """
    for frame, location in enumerate(frames):
        if location.function != function:
            continue
        current, body = location.instruction, code[function]
        if current <= at:
            text = f'it is made by {function}:{at}: break "{name}", continue, step'
            raise InputError(f"'{name}' is not computed yet; {text}")
        gone = any(register in written_registers(i) for i in body[at + 1 : current])
        if gone or not any(register in _read_registers(i) for i in body[current:]):
            raise InputError(f"'{name}' is no longer available: its memory has been reused")
        return RegisterLocation(frame, register)
    raise InputError(f"'{name}' is made by the function '{function}', which is not running")


def _read_registers(instruction: Instruction) -> list[int]:
    """Return the registers that an instruction reads; a negative operand is a register that the
    read clears.
    """
    return [r if r >= 0 else -1 - r for r in read_registers(instruction)]
