"""What an instruction reads, writes and jumps to, as the table of instructions says it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from ekiden.runtime.binding.opcodes import BY_NAME
from ekiden.runtime.debug.instructions import Instruction, Operand

__all__ = ["jumps", "may_move", "reads", "rename", "with_jumps", "writes"]


class _Form(NamedTuple):
    """The positions of an instruction's operands, by kind."""

    writes: tuple[int, ...]
    reads: tuple[int, ...]
    plain: tuple[int, ...]
    """Those read that stay."""
    movable: tuple[int, ...]
    """Those read that may be forgotten at once."""
    jumps: tuple[int, ...]


@cache
def _form(name: str) -> _Form:
    letters = BY_NAME[name].format.replace("n", "")
    places = (
        tuple(i for i, letter in enumerate(letters) if letter in kinds)
        for kinds in ("w", "reEuvRV", "reER", "uvV", "jJ")
    )
    return _Form(*places)


def _values(instruction: Instruction, places: Sequence[int]) -> list[int]:
    found: list[int] = []
    for i in places:
        operand = instruction.operands[i]
        found.extend(operand if isinstance(operand, tuple) else (operand,))
    return found


def reads(instruction: Instruction) -> list[int]:
    """The registers that are read, in order."""
    return _values(instruction, _form(instruction.name).reads)


def writes(instruction: Instruction) -> list[int]:
    """The registers that are written."""
    return _values(instruction, _form(instruction.name).writes)


def jumps(instruction: Instruction) -> list[int]:
    """The offsets of jumps, in order."""
    return _values(instruction, _form(instruction.name).jumps)


def may_move(instruction: Instruction) -> list[int]:
    """Registers that an instruction can read and forget at once."""
    return _values(instruction, _form(instruction.name).movable)


def with_jumps(instruction: Instruction, offsets: Sequence[int]) -> Instruction:
    """The instruction with other offsets."""
    left = iter(offsets)
    return _changed(instruction, _form(instruction.name).jumps, lambda _: next(left))


def rename(
    instruction: Instruction, read: dict[int, int], write: dict[int, int], moved: set[int]
) -> Instruction:
    """The instruction over other registers. Those of `moved` are forgotten where they are read
    last.
    """
    form = _form(instruction.name)
    renamed = _changed(instruction, form.writes, write.__getitem__)
    renamed = _changed(renamed, form.plain, read.__getitem__)
    left = may_move(instruction)

    def give(register: int) -> int:
        """The new number of a register that is read; as -1 - number in the last of its reads by
        this instruction, where it moves: one that is read twice is still there for the second.
        """
        left.remove(register)
        is_moved = register in moved and register not in left
        return -1 - read[register] if is_moved else read[register]

    return _changed(renamed, form.movable, give)


def _changed(
    instruction: Instruction, places: Sequence[int], change: Callable[[int], int]
) -> Instruction:
    if not places:
        return instruction
    operands: list[Operand] = list(instruction.operands)
    for i in places:
        operand = operands[i]
        operands[i] = tuple(map(change, operand)) if isinstance(operand, tuple) else change(operand)
    return replace(instruction, operands=tuple(operands))
