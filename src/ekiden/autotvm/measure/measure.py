"""Measure inputs, results and options, and the base classes of builders and runners."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ekiden._lazy import LazyModule
from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tune.candidate import Candidate
from ekiden.tune.measure import Outcome

if TYPE_CHECKING:
    from ekiden.autotvm.measure import measure_methods
else:  # whose classes are those of this module
    measure_methods = LazyModule("ekiden.autotvm.measure.measure_methods")

__all__ = [
    "Builder",
    "MeasureErrorNo",
    "MeasureInput",
    "MeasureOption",
    "MeasureResult",
    "Runner",
    "create_measure_batch",
    "measure_option",
]


class MeasureErrorNo(enum.IntEnum):
    """Error code of a failed measurement."""

    NO_ERROR = 0
    INSTANTIATION_ERROR = 1
    COMPILE_HOST = 2
    COMPILE_DEVICE = 3
    RUNTIME_DEVICE = 4
    WRONG_ANSWER = 5
    BUILD_TIMEOUT = 6
    RUN_TIMEOUT = 7
    UNKNOWN_ERROR = 8


STATUS_ERRORS: Mapping[str, MeasureErrorNo] = {
    "ok": MeasureErrorNo.NO_ERROR,
    "refused": MeasureErrorNo.INSTANTIATION_ERROR,
    "build crash": MeasureErrorNo.COMPILE_HOST,
    "build memory": MeasureErrorNo.COMPILE_HOST,
    "build timeout": MeasureErrorNo.BUILD_TIMEOUT,
    "crash": MeasureErrorNo.RUNTIME_DEVICE,
    "memory": MeasureErrorNo.RUNTIME_DEVICE,
    "timeout": MeasureErrorNo.RUN_TIMEOUT,
    "wrong": MeasureErrorNo.WRONG_ANSWER,
}
"""Status of an outcome -> its number in a log; any other is UNKNOWN_ERROR."""


class MeasureInput(NamedTuple):
    """Measure input: a configuration of a task for a target."""

    target: Target
    task: Any
    config: Any


class MeasureResult(NamedTuple):
    """Measure result: run times in seconds, or the error as (stage, reason)."""

    costs: tuple[Any, ...]
    error_no: int
    all_cost: float
    timestamp: float

    @staticmethod
    def from_outcome(outcome: Outcome, all_cost: float) -> MeasureResult:
        """Return the result of a trial of `ekiden.tune`."""
        error = STATUS_ERRORS.get(outcome.status, MeasureErrorNo.UNKNOWN_ERROR)
        costs = (outcome.seconds,) if outcome.is_ok else (outcome.status, outcome.said)
        return MeasureResult(costs, error, all_cost, time.time())


class Builder:
    """Base class of builders. n_parallel: number of concurrent compilations. timeout: seconds per
    compilation.
    """

    def __init__(
        self,
        timeout: float = 10,
        n_parallel: int | None = None,
        build_kwargs: Mapping[str, object] | None = None,
    ) -> None:
        self.timeout = timeout
        self.n_parallel = n_parallel or 1
        self.build_kwargs = dict(build_kwargs or {})
        self.task: Any = None

    def set_task(self, task: Any, build_kwargs: Mapping[str, object] | None = None) -> None:  # noqa: ANN401  a Task
        """Set the task to build for."""
        self.task = task
        self.build_kwargs.update(build_kwargs or {})

    def build(self, measure_inputs: Sequence[MeasureInput]) -> Sequence[object]:
        """Return the build results that the runner accepts, one per input."""
        raise NotImplementedError


class Runner:
    """Base class of runners. n_parallel: number of concurrent runs. timeout: seconds per run."""

    def __init__(self, timeout: float = 5, n_parallel: int | None = None) -> None:
        self.timeout = timeout
        self.n_parallel = n_parallel or 1
        self.task: Any = None

    def set_task(self, task: Any) -> None:  # noqa: ANN401  a Task
        """Set the task to run."""
        self.task = task

    def get_build_kwargs(self) -> Mapping[str, object]:
        """Return the machine's attributes that the builder needs."""
        return {}

    def run(
        self, measure_inputs: Sequence[MeasureInput], build_results: Sequence[object]
    ) -> Sequence[MeasureResult]:
        """Return the measure results of built inputs."""
        raise NotImplementedError


@dataclass(frozen=True)
class MeasureOption:
    """Measure option: a builder and a runner."""

    builder: Builder
    runner: Runner

    def __getitem__(self, name: str) -> object:
        return getattr(self, name)


def measure_option(builder: Builder | str, runner: Runner | str) -> MeasureOption:
    """Return a measure option; "local" selects this machine. Raises InputError for anything
    else.
    """
    built = measure_methods.LocalBuilder() if builder == "local" else builder
    run = measure_methods.LocalRunner() if runner == "local" else runner
    if not isinstance(built, Builder) or not isinstance(run, Runner):
        raise InputError(
            f"measure_option: a builder and a runner expected, got {builder!r}, {runner!r}"
        )
    return MeasureOption(built, run)


MeasureBatch: TypeAlias = Callable[[Sequence[MeasureInput]], Sequence[MeasureResult]]


def create_measure_batch(task: Any, option: MeasureOption) -> MeasureBatch:  # noqa: ANN401  a Task
    """Return a function that measures a batch of inputs of a task; its `n_parallel` is the batch
    size.
    """
    option.builder.set_task(task, option.runner.get_build_kwargs())
    option.runner.set_task(task)

    def measure_batch(measure_inputs: Sequence[MeasureInput]) -> Sequence[MeasureResult]:
        return option.runner.run(measure_inputs, option.builder.build(measure_inputs))

    measure_batch.n_parallel = max(option.builder.n_parallel, 8)  # type: ignore[attr-defined]
    return measure_batch


def candidate_of(inp: MeasureInput) -> Candidate:
    """Return the candidate that a configuration denotes in its task's search space."""
    candidate: Candidate = inp.config.candidate(inp.task.tuning_task.space.default.rule)
    return candidate
