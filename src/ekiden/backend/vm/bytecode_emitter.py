"""Bytecode emitter with virtual registers, jump labels and nested scopes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ekiden.backend.vm.instruction_operands import jump_offsets, with_jump_offsets
from ekiden.runtime.debug.instructions import Instruction, Operand, make_instruction

__all__ = ["BytecodeEmitter", "ScopeIterator", "emit_scope"]

ScopeIterator = Iterator["ScopeIterator"]
"""Generator that emits a scope and yields its inner scopes."""


class BytecodeEmitter:
    """Emitter of one function's instructions over virtual registers; register_allocation.py assigns
    real ones.
    """

    def __init__(self, n_params: int) -> None:
        self.num_registers = n_params
        self._code: list[Instruction] = []
        self.source_node = ""
        """Model node of the instructions that follow."""
        self._labels: list[int] = []
        """Position of each label."""

    def emit(self, name: str, **operands: Operand | str) -> None:
        """Append an instruction."""
        self._code.append(replace(make_instruction(name, **operands), source=self.source_node))

    def name_checks(self, names: tuple[str, ...]) -> None:
        """Record the names of the operators that may reject an index in the last instruction."""
        self._code[-1] = replace(self._code[-1], checks=names)

    def new_register(self) -> int:
        """Return a new virtual register."""
        self.num_registers += 1
        return self.num_registers - 1

    def emit_into(self, name: str, **operands: Operand | str) -> int:
        """Append an instruction whose result is a new register, and return it."""
        target = self.new_register()
        self.emit(name, dst=target, **operands)
        return target

    def new_label(self) -> int:
        """Return a new unbound label."""
        self._labels.append(-1)
        return len(self._labels) - 1

    def bind_label(self, label: int) -> None:
        """Bind a label to the next instruction."""
        self._labels[label] = len(self._code)

    def emit_goto(self, label: int) -> None:
        """Jump to a label."""
        self.emit("Goto", offset=label)

    def emit_switch(self, value: int, labels: tuple[int, ...]) -> None:
        """Emit a jump table on a tag or number; values without an entry go to the last label."""
        self.emit("Switch", value=value, offsets=labels)

    def resolve_labels(self) -> list[Instruction]:
        """Return the instructions with labels resolved to offsets."""
        return [
            with_jump_offsets(
                instruction, [self._labels[label] - index for label in jump_offsets(instruction)]
            )
            for index, instruction in enumerate(self._code)
        ]


def emit_scope(scope: ScopeIterator) -> None:
    """Emit a scope and its nested scopes without recursion."""
    stack = [scope]
    while stack:
        inner = next(stack[-1], None)
        if inner is None:
            stack.pop()
        else:
            stack.append(inner)
