"""Registers that an instruction reads and writes, and its jump targets, from the
instruction table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from ekiden.runtime.binding.opcodes import BY_NAME
from ekiden.runtime.debug.instructions import Instruction, Operand

__all__ = ["jumps", "may_move", "reads", "rename", "with_jumps", "writes"]


class _OperandPositions(NamedTuple):
    """The positions of an instruction's operands, by kind."""

    writes: tuple[int, ...]
    reads: tuple[int, ...]
    plain: tuple[int, ...]
    """Those read that stay."""
    movable: tuple[int, ...]
    """Those read that may be forgotten at once."""
    jumps: tuple[int, ...]


@cache
def _form(name: str) -> _OperandPositions:
    letters = BY_NAME[name].format.replace("n", "")
    positions = (
        tuple(i for i, letter in enumerate(letters) if letter in kinds)
        for kinds in ("w", "reEuvRV", "reER", "uvV", "jJ")
    )
    return _OperandPositions(*positions)


def _values(instruction: Instruction, positions: Sequence[int]) -> list[int]:
    registers: list[int] = []
    for i in positions:
        operand = instruction.operands[i]
        registers.extend(operand if isinstance(operand, tuple) else (operand,))
    return registers


def reads(instruction: Instruction) -> list[int]:
    """Return the registers that are read, in order."""
    return _values(instruction, _form(instruction.name).reads)


def writes(instruction: Instruction) -> list[int]:
    """Return the registers that are written."""
    return _values(instruction, _form(instruction.name).writes)


def jumps(instruction: Instruction) -> list[int]:
    """Return the jump offsets, in order."""
    return _values(instruction, _form(instruction.name).jumps)


def may_move(instruction: Instruction) -> list[int]:
    """Return the registers that an instruction can read and clear at once."""
    return _values(instruction, _form(instruction.name).movable)


def with_jumps(instruction: Instruction, offsets: Sequence[int]) -> Instruction:
    """Return the instruction with other jump offsets."""
    remaining = iter(offsets)
    return _changed(instruction, _form(instruction.name).jumps, lambda _: next(remaining))


def rename(
    instruction: Instruction, read: dict[int, int], write: dict[int, int], moved: set[int]
) -> Instruction:
    """Return the instruction over other registers. Those of `moved` are cleared at their
    last read.
    """
    form = _form(instruction.name)
    renamed = _changed(instruction, form.writes, write.__getitem__)
    renamed = _changed(renamed, form.plain, read.__getitem__)
    remaining = may_move(instruction)

    def give(register: int) -> int:
        """Return the new number of a read register; -1 - number at the last read of a moved one, so
        that a register read twice is still valid for the second read.
        """
        remaining.remove(register)
        is_moved = register in moved and register not in remaining
        return -1 - read[register] if is_moved else read[register]

    return _changed(renamed, form.movable, give)


def _changed(
    instruction: Instruction, positions: Sequence[int], change: Callable[[int], int]
) -> Instruction:
    if not positions:
        return instruction
    operands: list[Operand] = list(instruction.operands)
    for i in positions:
        operand = operands[i]
        operands[i] = tuple(map(change, operand)) if isinstance(operand, tuple) else change(operand)
    return replace(instruction, operands=tuple(operands))
