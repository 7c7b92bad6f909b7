"""Dispatch contexts that select a fixed configuration, or the best of logs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from io import TextIOBase
from typing import Any, TypeAlias

import numpy as np

from ekiden.autotvm.measure.measure import MeasureInput, MeasureResult
from ekiden.autotvm.record import load_from_buffer, load_from_file
from ekiden.autotvm.task.dispatch_context import DispatchContext, Workload
from ekiden.compiler.options import use_records
from ekiden.target import Target, TargetLike, target_or_current
from ekiden.tune.records import Best, Records
from ekiden.tune.schedule_templates import Config

__all__ = ["ApplyConfig", "ApplyHistoryBest"]

LogSource: TypeAlias = "str | os.PathLike[str] | TextIOBase | Iterable[Any]"


class ApplyConfig(DispatchContext):
    """Context that applies one configuration to every workload."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.workload: Workload | None = None

    def _query_inside(self, target: TargetLike | None, workload: Workload) -> Config | None:
        self.workload = workload
        return self._config

    def update(self, target: TargetLike, workload: Workload, cfg: Config) -> None:
        """Set the configuration."""
        self.workload, self._config = workload, cfg


class ApplyHistoryBest(DispatchContext):
    """Context that applies the fastest configurations of logs, which are files, open files, pairs
    of MeasureInput and MeasureResult, or several of these. Models that are compiled in it are by
    their records of Relay kernels (see `tune.use_records`).
    """

    def __init__(self, records: LogSource | None) -> None:
        self.best_by_targetkey: dict[tuple[str, Workload], tuple[MeasureInput, MeasureResult]] = {}
        self.best_by_model: dict[tuple[str, Workload], tuple[MeasureInput, MeasureResult]] = {}
        self._records = Records()
        self._stack = ExitStack()
        if records is not None:
            self.load(records)

    def load(self, records: LogSource) -> None:
        """Add logs."""
        for inp, result in _iter_log_pairs(records):
            if result.error_no != 0:
                continue
            if isinstance(inp.config.record, Best):
                self._records.append(inp.config.record)
            for key in dict.fromkeys((str(inp.target), *inp.target.keys)):
                self._add(self.best_by_targetkey, (key, inp.task.workload), inp, result)
            model = str(getattr(inp.target, "model", "unknown"))
            self._add(self.best_by_model, (model, inp.task.workload), inp, result)

    @staticmethod
    def _add(
        best: dict[tuple[str, Workload], tuple[MeasureInput, MeasureResult]],
        key: tuple[str, Workload],
        inp: MeasureInput,
        result: MeasureResult,
    ) -> None:
        if key not in best or np.mean(result.costs) < np.mean(best[key][1].costs):
            best[key] = inp, result

    def _query_inside(self, target: TargetLike | None, workload: Workload) -> Config | None:
        chosen = target if isinstance(target, Target) else target_or_current(target)
        for key in (str(chosen), *chosen.keys):
            if (key, workload) in self.best_by_targetkey:
                config: Config = self.best_by_targetkey[key, workload][0].config
                return config
        return None

    def update(self, target: TargetLike, workload: Workload, cfg: Config) -> None:
        """Set the configuration of a workload."""
        from_user = MeasureInput(Target.parse(target), _NamedWorkload(workload), cfg)
        self.best_by_targetkey[str(from_user.target), workload] = from_user, _SET_BY_USER

    def __enter__(self) -> DispatchContext:
        super().__enter__()
        if len(self._records):
            self._stack.enter_context(use_records(self._records))
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()
        super().__exit__(*details)


class _NamedWorkload:
    """Task represented by its workload name alone."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload


def _iter_log_pairs(records: Any) -> Iterable[tuple[MeasureInput, MeasureResult]]:  # noqa: ANN401  LogSource
    """Yield the (input, result) pairs of logs, which may be nested."""
    if isinstance(records, (str, os.PathLike)):
        yield from load_from_file(records)
    elif isinstance(records, TextIOBase):
        yield from load_from_buffer(records)
    elif isinstance(records, tuple) and records and isinstance(records[0], MeasureInput):
        yield records
    else:
        for source in records:
            yield from _iter_log_pairs(source)


_SET_BY_USER = MeasureResult((0.0,), 0, 0.0, 0.0)
