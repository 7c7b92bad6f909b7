"""Dataflow facts about registers: the kind of value each holds before an instruction, which saves
native code run-time checks.

A forward analysis over straight code: at a label that several jumps lead to nothing is known but
what all ways agree on. That a register is empty or plain saves a release before it is written; that
it is a tensor of a shape, the checks of a kernel's arguments; that it was allocated here, the
question whether it may be written to.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.runtime.binding.opcodes import BY_NAME
from ekiden.runtime.debug.instructions import Instruction, Operand
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class RegisterFact:
    """Fact about a register's value. The default is anything but an object."""

    is_object: bool = False
    number: int | None = None
    """Known integer value."""
    is_tensor: bool = False
    shape: tuple[int, ...] | None = None
    """Shape of a tensor, with -1 for an unknown dimension."""
    is_writable: bool = False
    """Whether kernels may write to it, because this function allocated it."""


PLAIN_FACT = RegisterFact()
OBJECT_FACT = RegisterFact(is_object=True)
TENSOR_FACT = RegisterFact(is_object=True, is_tensor=True)

RegisterFacts = dict[int, RegisterFact]
"""Facts by register; nothing is known about registers without one."""


def entry_facts(n_params: int, n_registers: int) -> RegisterFacts:
    """Return the facts at a function's entry: all registers but parameters are empty."""
    return dict.fromkeys(range(n_params, n_registers), PLAIN_FACT)


def transfer_facts(instruction: Instruction, facts: RegisterFacts) -> RegisterFacts:
    """Return the facts after an instruction that falls through (the transfer function)."""
    result_fact = _result_fact(instruction, facts)
    updated = dict(facts)
    opcode = BY_NAME[instruction.name]
    letters = opcode.format.replace("n", "")
    for letter, operand in zip(letters, instruction.operands, strict=True):
        for register in _movable_operands(letter, operand):
            if register < 0:
                updated[-1 - register] = PLAIN_FACT
    for letter, operand in zip(letters, instruction.operands, strict=True):
        if letter == "w" and isinstance(operand, int):
            updated.pop(operand, None)
            if result_fact is not None:
                updated[operand] = result_fact
    return updated


def _movable_operands(letter: str, operand: Operand) -> Sequence[int]:
    """Yield the operands that may move a register's value."""
    if letter in "uv" and isinstance(operand, int):
        return (operand,)
    return operand if letter == "V" and isinstance(operand, tuple) else ()


def _result_fact(instruction: Instruction, facts: RegisterFacts) -> RegisterFact | None:
    """Return the fact about the written register."""
    match instruction.name, instruction.operands:
        case "Move", (_, int(src)):
            return facts.get(src if src >= 0 else -1 - src)
        case "LoadConsti", (_, int(value)):
            return RegisterFact(number=value)
        case (("GetTag" | "ReadElement" | "KillRegister"), _):
            return PLAIN_FACT
        case "AllocTensor", (*_, tuple(shape)):
            return RegisterFact(True, None, True, shape, True)
        case "AllocTensorReg", (_, _, _, _, _, _, int(ndim), _):
            return RegisterFact(True, None, True, (-1,) * ndim, True)
        case "Own", _:
            return RegisterFact(True, None, True, None, True)
        case "ReshapeTensor", (_, int(src), _, _, int(ndim)):
            writable = facts.get(src, OBJECT_FACT).is_writable
            return RegisterFact(True, None, True, (-1,) * ndim, writable)
        case (("LoadConst" | "ShapeOf" | "DeviceCopy"), _):
            return TENSOR_FACT
        case (("AllocStorage" | "AllocArena" | "AllocADT" | "AllocClosure" | "AllocRef"), _):
            return OBJECT_FACT
        case _:
            return None


__all__ = ["RegisterFact", "RegisterFacts", "entry_facts", "transfer_facts"]
