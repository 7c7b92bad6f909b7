"""Interface of a compilation that continues while its program runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ekiden.runtime.binding._core import Executable


class Upgrade(Protocol):
    """Upgrade of a running program to faster kernels.

    `ekiden.compiler.tiered_execution` implements it.
    """

    @property
    def tiers(self) -> dict[str, str]:
        """Return "general" or "compiled" for each kernel."""

    def start(self, publish: Callable[[Executable], None]) -> None:
        """Start the compilation; `publish` is called with the final program."""

    def wait(self, timeout: float | None = None) -> Executable:
        """Return the final program. Raises what compiling raised, and TimeoutError after `timeout`
        seconds."""
        ...

    def stop(self) -> None:
        """Stop the compilation; kernels keep the code that they have."""
