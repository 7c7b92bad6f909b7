"""What may be chosen about a kernel, and what is.

    space:     rows in 1..9, k_block in (0, 384, 768), order in (panel, row), ...
    decision:  rows=9 k_block=768 order=panel ...

A decision is a value: it is printed, read back, compared, and part of the name under which code is
cached.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

Value: TypeAlias = int | str
"""Of a choice: a number, or a word."""
Fixed: TypeAlias = Mapping[str, Value]
"""Choices that are made already, by name."""


_NUMBER = re.compile("[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing to choose: its name, every value it may have, and what it means."""

    name: str
    domain: tuple[Value, ...]
    doc: str
    is_early: bool = False
    """Whether it is made before there is a kernel, when weights are put in order."""

    def check(self, value: Value, of: str) -> None:
        """Raises CompileError for a value outside the domain; `of` says whose choice it is."""
        if value not in self.domain or isinstance(value, bool):
            there = ", ".join(map(str, self.domain))
            raise CompileError(f"decisions: {of}: '{self.name}' is one of {there}, got {value!r}")


Space: TypeAlias = tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Decision(Mapping[str, Value]):
    """A value for each choice of a space, in its order."""

    pairs: tuple[tuple[str, Value], ...] = ()

    @staticmethod
    def of(given: Fixed) -> Decision:
        """The decision with these values."""
        return Decision(tuple(given.items()))

    @staticmethod
    def parse(text: str) -> Decision:
        """What `str` wrote: "rows=9 order=panel". Raises CompileError for anything else."""
        found: dict[str, Value] = {}
        for part in text.split():
            name, equals, value = part.partition("=")
            if not (name and equals and value) or name in found:
                raise CompileError(f"decisions: expected 'name=value ...' once each, got {text!r}")
            found[name] = int(value) if _NUMBER.fullmatch(value) else value
        return Decision.of(found)

    def __getitem__(self, name: str) -> Value:
        """The value of a choice. Raises KeyError."""
        return dict(self.pairs)[name]

    def __iter__(self) -> Iterator[str]:
        """The names of the choices."""
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        """How many choices there are."""
        return len(self.pairs)

    def number(self, name: str) -> int:
        """The value of a choice that is a number."""
        value = self[name]
        assert isinstance(value, int), f"{name} is {value!r}"
        return value

    def __str__(self) -> str:
        """The text form that `parse` reads."""
        return " ".join(f"{name}={value}" for name, value in self.pairs)


def check_fixed(space: Space, fixed: Fixed, of: str) -> None:
    """Raises CompileError for a choice that a space has not, or a value outside its domain. What is
    chosen early is not looked at: that is over when there is a kernel.
    """
    rows = {choice.name: choice for choice in space}
    for name, value in fixed.items():
        if name not in rows:
            there = ", ".join(rows) or "none"
            raise CompileError(f"decisions: {of} has no choice '{name}'; there are: {there}")
        if not rows[name].is_early:
            rows[name].check(value, of)


def steps_down(most: int, least: int = 1) -> tuple[int, ...]:
    """`most`, ..., `least`."""
    return tuple(range(most, least - 1, -1))


def divisors(total: int, least: int = 1) -> tuple[int, ...]:
    """The divisors of a number from `least` on, the largest first."""
    return tuple(d for d in range(total, least - 1, -1) if total % d == 0)
