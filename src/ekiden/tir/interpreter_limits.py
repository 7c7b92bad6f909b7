"""Step budget of the reference interpreter of loop programs.

Interpreting takes 0.05 to 0.5 us a step, a compiled kernel a hundredth of that: what would
take long is refused before it begins, where the extents of its loops are known then.
"""

from __future__ import annotations

from dataclasses import dataclass

from ekiden.runtime.errors import RunError


class StepLimitError(RunError):
    """Error of an interpreter run that exceeds its step budget."""


@dataclass(slots=True)
class StepBudget:
    """Remaining number of expression evaluations that an interpreter run may perform."""

    remaining: int

    def charge(self, steps: int) -> None:
        """Subtract steps from the budget. Raises StepLimitError if fewer remain."""
        self.remaining -= steps
        if self.remaining < 0:
            raise StepLimitError(f"interpreter: {-self.remaining} steps more than the budget has")


__all__ = ["StepBudget", "StepLimitError"]
