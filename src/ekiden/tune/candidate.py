"""What is tried: a rule, and what was chosen in it."""

from __future__ import annotations

from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to compute a task.

    rule: the name of a family of kernels, or of a sketch. choice: what was chosen: of a family a
    decision's text ("rows=6 own=8"), of a sketch a trace as JSON; empty for the rule's default.
    """

    rule: str
    choice: str = ""

    def __str__(self) -> str:
        """Short enough for a line: traces by their sampled numbers."""
        return f"{self.rule}: {self.choice}" if self.choice else self.rule
