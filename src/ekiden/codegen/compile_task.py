"""Compile task: one kernel to compile, picklable for any process of this version of Ekiden."""

from __future__ import annotations

from collections.abc import Callable

from ekiden.ir.pass_context import DEBUG_LEVEL, time_phase
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["CompileTask"]


@dataclass(frozen=True, slots=True)
class CompileTask:
    """Compile task: its cache key, a name to show, a function and its arguments."""

    key: str
    name: str
    function: Callable[..., bytes]
    arguments: tuple[object, ...] = ()
    is_local: bool = False
    """Whether only this process can run it, for example because it uses a registered function."""

    def compile(self) -> bytes:
        """Return the object code. Raises what the function raises."""
        with time_phase(f"kernel: {self.name}", DEBUG_LEVEL):
            return self.function(*self.arguments)
