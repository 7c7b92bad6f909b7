"""Measure options: which builder and which runner measure the configurations of a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ekiden.autotvm.measure.measure import Builder, MeasureInput, MeasureResult, Runner
from ekiden.autotvm.measure.measure_methods import LocalBuilder, LocalRunner
from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["MeasureOption", "create_measure_batch", "measure_option"]


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
    built = LocalBuilder() if builder == "local" else builder
    run = LocalRunner() if runner == "local" else runner
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
