"""Knobs of kernels, search spaces, and the decisions that choose a value for each knob.

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

KnobValue: TypeAlias = int | str
"""Value of a knob: an integer or a word."""
Overrides: TypeAlias = Mapping[str, KnobValue]
"""Overridden knob values by name."""


_DECIMAL_PATTERN = re.compile("[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Knob:
    """Tuning knob of a kernel: its name, its domain, and its documentation."""

    name: str
    domain: tuple[KnobValue, ...]
    doc: str
    is_early: bool = False
    """Whether the knob is decided when weights are packed, before the kernel exists."""

    def check(self, value: KnobValue, of: str) -> None:
        """Raise CompileError unless a value is in the knob's domain.

        Args:
            value: The value.
            of: Names the owner of the knob in the message.

        Raises:
            CompileError: If the value is outside the domain.
        """
        # True == 1 would otherwise pass as a number of the domain.
        if value not in self.domain or isinstance(value, bool):
            domain_text = ", ".join(map(str, self.domain))
            raise CompileError(
                f"decisions: {of}: '{self.name}' is one of {domain_text}, got {value!r}"
            )


SearchSpace: TypeAlias = tuple[Knob, ...]

RENAMED_KNOBS: Mapping[str, tuple[str, ...]] = {
    "ahead": ("pack_prefetch", "prefetch_distance"),
    "how": ("rhs_access",),
    "near": ("access_width", "copied_lines"),
    "own": ("l1_prefetch",),
    "spread": ("l2_prefetch",),
}
"""Names of knobs before version 0.2, as older tuning records store them, with the current names:
that of the kernel's search space applies."""
RENAMED_VALUES: Mapping[tuple[str, KnobValue], KnobValue] = {
    ("pack_prefetch", "first"): "l1",
    ("pack_prefetch", "second"): "l2",
}
"""Values of knobs before version 0.2, by the current name of the knob, with the current values."""


def with_current_names(space: SearchSpace, fixed: Overrides) -> Overrides:
    """Return overrides with knobs and values under their current names; unknown knobs stay."""
    names = {choice.name for choice in space}
    if names.issuperset(fixed):
        return fixed
    current: dict[str, KnobValue] = {}
    for name, value in fixed.items():
        candidates = (n for n in RENAMED_KNOBS.get(name, ()) if n in names)
        new = name if name in names else next(candidates, name)
        current[new] = RENAMED_VALUES.get((new, value), value)
    return current


@dataclass(frozen=True, slots=True)
class Decision(Mapping[str, KnobValue]):
    """Decision: a value for each knob of a search space, in its order."""

    pairs: tuple[tuple[str, KnobValue], ...] = ()

    @staticmethod
    def from_mapping(values: Overrides) -> Decision:
        """Return the decision with these values."""
        return Decision(tuple(values.items()))

    @staticmethod
    def parse(text: str) -> Decision:
        """Parse the text form that `str` returns, for instance "rows=9 order=panel".

        Raises:
            CompileError: For any other text.
        """
        values: dict[str, KnobValue] = {}
        for pair in text.split():
            name, equals, value = pair.partition("=")
            if not (name and equals and value) or name in values:
                raise CompileError(f"decisions: expected 'name=value ...' once each, got {text!r}")
            values[name] = int(value) if _DECIMAL_PATTERN.fullmatch(value) else value
        return Decision.from_mapping(values)

    def __getitem__(self, name: str) -> KnobValue:
        """Return the value of a knob. Raises KeyError."""
        return dict(self.pairs)[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the knobs."""
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        """Return the number of knobs."""
        return len(self.pairs)

    def int_value(self, name: str) -> int:
        """Return the value of an integer knob."""
        value = self[name]
        assert isinstance(value, int), f"{name} is {value!r}"
        return value

    def __str__(self) -> str:
        """Return the text form that `parse` reads."""
        return " ".join(f"{name}={value}" for name, value in self.pairs)


def require_valid_overrides(space: SearchSpace, fixed: Overrides, of: str) -> None:
    """Raise CompileError unless overrides are values of the search space's knobs.

    Knobs that are set early are not checked: they are settled before there is a kernel.

    Args:
        space: The knobs of a kernel.
        fixed: The overrides.
        of: Names the kernel in the message.

    Raises:
        CompileError: For a knob that the space does not have, or a value outside its domain.
    """
    rows = {choice.name: choice for choice in space}
    for name, value in fixed.items():
        if name not in rows:
            known_names = ", ".join(rows) or "none"
            raise CompileError(f"decisions: {of} has no choice '{name}'; there are: {known_names}")
        # One set of overrides serves both the packing of weights and the kernel.
        if not rows[name].is_early:
            rows[name].check(value, of)


def descending_range(maximum: int, minimum: int = 1) -> tuple[int, ...]:
    """Return the integers from `maximum` down to `minimum`."""
    return tuple(range(maximum, minimum - 1, -1))


def divisors(total: int, minimum: int = 1) -> tuple[int, ...]:
    """Return the divisors of a number from `minimum` on, the largest first."""
    return tuple(d for d in range(total, minimum - 1, -1) if total % d == 0)
