"""Where in a run that stands still a tensor of the model lies."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ekiden import runtime
from ekiden.backend.vm.operands import reads, writes
from ekiden.runtime.artifact.metadata import tensor_infos
from ekiden.runtime.debug.instructions import Instruction
from ekiden.runtime.debug.stepping import Place
from ekiden.runtime.errors import InputError
from ekiden.runtime.profile.report import sources, tensors

__all__ = ["Where", "find_tensor"]

Code = Mapping[str, Sequence[Instruction]]


class Where(NamedTuple):
    """A register of a frame, 0 the innermost."""

    frame: int
    register: int


def find_tensor(
    executable: runtime.Executable, code: Code, frames: Sequence[Place], name: str
) -> Where:
    """The register that holds an input of the model or what one of its nodes made.

    Raises InputError where there is no such tensor, where it is made inside a kernel, and where it
    is not there yet or not any more: memory is used again after the last reader.
    """
    inputs, _ = tensor_infos(executable.metadata, executable.source)
    names = [i.name for i in inputs]
    if name in names:
        return _live(code, frames, "main", -1, names.index(name), name)
    node, output = _known(executable, name, names)
    for (function, at), source in sources(executable).items():
        if source == node:
            register = _output(code[function][at], output)
            return _live(code, frames, function, at, register, name)
    raise InputError(f"'{name}' is made inside a kernel, of {node}")


def _known(executable: runtime.Executable, name: str, inputs: Sequence[str]) -> tuple[str, int]:
    table = tensors(executable)
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, [*inputs, *table], n=5, cutoff=0.4)
    there = ", ".join(f"'{n}'" for n in near or [*inputs, *table][:8])
    raise InputError(f"no tensor '{name}' is kept outside of kernels; there are {there}")


def _output(instruction: Instruction, number: int) -> int:
    """The register of an output of what an instruction calls."""
    if not instruction.has("kernel"):
        return writes(instruction)[0]
    arguments, count = instruction["args"], instruction["output_size"]
    assert isinstance(arguments, tuple) and isinstance(count, int)
    outputs = arguments[len(arguments) - count :]
    return outputs[number if number < count else 0]


def _live(
    code: Code, frames: Sequence[Place], function: str, at: int, register: int, name: str
) -> Where:
    """Whether instruction `at` has run and the register holds its result."""
    for frame, place in enumerate(frames):
        if place.function != function:
            continue
        now, body = place.instruction, code[function]
        if now <= at:
            text = f'it is made by {function}:{at}: break "{name}", continue, step'
            raise InputError(f"'{name}' is not there yet; {text}")
        gone = any(register in writes(i) for i in body[at + 1 : now])
        if gone or not any(register in _registers(i) for i in body[now:]):
            raise InputError(f"'{name}' is not there any more: its memory is used again")
        return Where(frame, register)
    raise InputError(f"'{name}' is made by the function '{function}', which is not under way")


def _registers(instruction: Instruction) -> list[int]:
    """What an instruction reads; a negative number is a register that is forgotten then."""
    return [r if r >= 0 else -1 - r for r in reads(instruction)]
