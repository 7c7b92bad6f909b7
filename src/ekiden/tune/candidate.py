"""Candidate of a search: a sketch rule or kernel family, and its decisions."""

from __future__ import annotations

from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """Point of a search space: a rule, and the decisions made in it. `rule` names a kernel family
    or a sketch; `choice` holds its decisions: for a family, text such as "rows=6 unroll=2"; for a
    sketch, a trace as JSON; empty for the default.
    """

    rule: str
    choice: str = ""

    def __str__(self) -> str:
        """Return a one-line summary: traces by their sampled numbers."""
        return f"{self.rule}: {self.choice}" if self.choice else self.rule
