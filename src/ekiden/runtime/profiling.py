"""Measurement values under TVM's names; reports of runs, and metrics of one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

from ekiden.runtime.binding._core import Device, Module
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.profile.report import Report


@dataclass(frozen=True, slots=True)
class Count:
    """Count of an event."""

    count: int


@dataclass(frozen=True, slots=True)
class Duration:
    """Time in microseconds."""

    duration: float


@dataclass(frozen=True, slots=True)
class Percent:
    """Share in percent."""

    percent: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of two numbers."""

    ratio: float


def profile_function(
    mod: Module,
    dev: Device,
    collectors: Sequence[object] = (),
    func_name: str | None = None,
    warmup_iters: int = 10,
) -> Callable[..., dict[str, Duration]]:
    """Return a function that measures a module's function, by default its entry, and returns the
    duration.

    Raises ValueError for collectors: there are no hardware counters; `exe.profile` reports kernels.
    """
    if collectors:
        raise ValueError("profile_function: there are no collectors; expected none")
    function = mod[func_name or mod.entry_name]

    def measure(*args: object) -> dict[str, Duration]:
        """Run the function until it is warm, and then once with a clock."""
        for _ in range(warmup_iters):
            function(*args)
        dev.sync()
        begin = perf_counter_ns()
        function(*args)
        dev.sync()
        return {"Duration (us)": Duration((perf_counter_ns() - begin) / 1000)}

    return measure


__all__ = ["Count", "Duration", "Percent", "Ratio", "Report", "profile_function"]
