"""Writing instructions: a register for each value, jumps to labels, scopes inside scopes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ekiden.backend.vm.operands import jumps, with_jumps
from ekiden.runtime.debug.instructions import Instruction, Operand, make

__all__ = ["Emitter", "Scope", "emit_scope"]

Scope = Iterator["Scope"]
"""Emits a scope; gives each scope inside where that is to be emitted."""


class Emitter:
    """The instructions of one function while they are written; registers.py comes after it."""

    def __init__(self, n_params: int) -> None:
        self.count = n_params
        self._code: list[Instruction] = []
        self.source = ""
        """What the instructions that follow are made from."""
        self._labels: list[int] = []
        """Label -> position."""

    def emit(self, name: str, **operands: Operand | str) -> None:
        """An instruction."""
        self._code.append(replace(make(name, **operands), source=self.source))

    def name_checks(self, names: tuple[str, ...]) -> None:
        """Say what the operators are called that may refuse an index in the last instruction."""
        self._code[-1] = replace(self._code[-1], checks=names)

    def new(self) -> int:
        """A register of its own."""
        self.count += 1
        return self.count - 1

    def into(self, name: str, **operands: Operand | str) -> int:
        """An instruction whose result is in a new register: that one."""
        target = self.new()
        self.emit(name, dst=target, **operands)
        return target

    def label(self) -> int:
        """A name for a place that `place` will say."""
        self._labels.append(-1)
        return len(self._labels) - 1

    def place(self, label: int) -> None:
        """The label stands for the next instruction."""
        self._labels[label] = len(self._code)

    def goto(self, label: int) -> None:
        """Jump to a label."""
        self.emit("Goto", offset=label)

    def switch(self, value: int, labels: tuple[int, ...]) -> None:
        """Jump to the label of a tag or number; to the last one where it has none."""
        self.emit("Switch", value=value, offsets=labels)

    def code(self) -> list[Instruction]:
        """The instructions, with offsets where labels were."""
        return [
            with_jumps(each, [self._labels[label] - at for label in jumps(each)])
            for at, each in enumerate(self._code)
        ]


def emit_scope(scope: Scope) -> None:
    """Emit a scope and those inside, however deep they are."""
    stack = [scope]
    while stack:
        inner = next(stack[-1], None)
        if inner is None:
            stack.pop()
        else:
            stack.append(inner)
