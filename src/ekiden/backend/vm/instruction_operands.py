"""Operand queries of bytecode instructions: registers read and written, and jump targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from ekiden.runtime.binding.opcodes import BY_NAME
from ekiden.runtime.debug.instructions import Instruction, Operand

__all__ = [
    "jump_offsets",
    "movable_registers",
    "read_registers",
    "rename_registers",
    "with_jump_offsets",
    "written_registers",
]


class _OperandPositions(NamedTuple):
    """The positions of an instruction's operands, by kind."""

    writes: tuple[int, ...]
    reads: tuple[int, ...]
    plain: tuple[int, ...]
    """Registers read without moving."""
    movable: tuple[int, ...]
    """Registers that may be moved from."""
    jumps: tuple[int, ...]


@cache
def _operand_positions(name: str) -> _OperandPositions:
    letters = BY_NAME[name].format.replace("n", "")
    positions = (
        tuple(i for i, letter in enumerate(letters) if letter in kinds)
        for kinds in ("w", "reEuvRV", "reER", "uvV", "jJ")
    )
    return _OperandPositions(*positions)


def _operands_at(instruction: Instruction, positions: Sequence[int]) -> list[int]:
    registers: list[int] = []
    for i in positions:
        operand = instruction.operands[i]
        registers.extend(operand if isinstance(operand, tuple) else (operand,))
    return registers


def read_registers(instruction: Instruction) -> list[int]:
    """Return the registers that are read, in order."""
    return _operands_at(instruction, _operand_positions(instruction.name).reads)


def written_registers(instruction: Instruction) -> list[int]:
    """Return the registers that are written."""
    return _operands_at(instruction, _operand_positions(instruction.name).writes)


def jump_offsets(instruction: Instruction) -> list[int]:
    """Return the jump offsets, in order."""
    return _operands_at(instruction, _operand_positions(instruction.name).jumps)


def movable_registers(instruction: Instruction) -> list[int]:
    """Return the registers that an instruction can read and clear at once."""
    return _operands_at(instruction, _operand_positions(instruction.name).movable)


def with_jump_offsets(instruction: Instruction, offsets: Sequence[int]) -> Instruction:
    """Return the instruction with other jump offsets."""
    remaining = iter(offsets)
    return _map_operands(
        instruction, _operand_positions(instruction.name).jumps, lambda _: next(remaining)
    )


def rename_registers(
    instruction: Instruction, read: dict[int, int], write: dict[int, int], moved: set[int]
) -> Instruction:
    """Return the instruction with renamed registers. Those of `moved` are cleared at their last
    read.
    """
    form = _operand_positions(instruction.name)
    renamed = _map_operands(instruction, form.writes, write.__getitem__)
    renamed = _map_operands(renamed, form.plain, read.__getitem__)
    remaining = movable_registers(instruction)

    def renamed_read(register: int) -> int:
        """Return the new number of a read register; -1 - number at the last read of a moved one, so
        that a register read twice is still valid for the second read.
        """
        remaining.remove(register)
        is_moved = register in moved and register not in remaining
        return -1 - read[register] if is_moved else read[register]

    return _map_operands(renamed, form.movable, renamed_read)


def _map_operands(
    instruction: Instruction, positions: Sequence[int], change: Callable[[int], int]
) -> Instruction:
    if not positions:
        return instruction
    operands: list[Operand] = list(instruction.operands)
    for i in positions:
        operand = operands[i]
        operands[i] = tuple(map(change, operand)) if isinstance(operand, tuple) else change(operand)
    return replace(instruction, operands=tuple(operands))
