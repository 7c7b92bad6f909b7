"""A limit of the work of the interpreter of loop programs.

Interpreting takes 0.05 to 0.5 us a step, a compiled kernel a hundredth of that: what would
take long is refused before it begins, where the extents of its loops are known then.
"""

from __future__ import annotations

from dataclasses import dataclass

from ekiden.runtime.errors import RunError


class StepLimitError(RunError):
    """Refusal of a run that takes more steps than its budget has."""


@dataclass(slots=True)
class StepBudget:
    """Evaluations of expression nodes that a run may still do."""

    remaining: int

    def charge(self, steps: int) -> None:
        """Take steps from the budget. Raises StepLimitError where there are too few."""
        self.remaining -= steps
        if self.remaining < 0:
            raise StepLimitError(f"interpreter: {-self.remaining} steps more than the budget has")


__all__ = ["StepBudget", "StepLimitError"]
