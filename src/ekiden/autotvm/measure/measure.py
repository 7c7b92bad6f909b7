"""Measure inputs and results, and the base classes of builders and runners."""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ekiden.target import Target
from ekiden.tune.candidate import Candidate
from ekiden.tune.measure import Outcome

__all__ = [
    "Builder",
    "MeasureErrorNo",
    "MeasureInput",
    "MeasureResult",
    "Runner",
    "candidate_of",
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


def candidate_of(inp: MeasureInput) -> Candidate:
    """Return the candidate that a configuration denotes in its task's search space."""
    candidate: Candidate = inp.config.candidate(inp.task.tuning_task.space.default.rule)
    return candidate
