"""Tuners: grid, random, evolutionary and local search over the configurations of a task.

A search of `ekiden.tune` proposes configurations, and the runner of a measure option measures them.
The fastest configuration of a model's kernel is confirmed by a session before it is logged as a
record that compilation applies.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ekiden.autotvm.measure.measure import MeasureInput, MeasureResult, candidate_of
from ekiden.autotvm.measure.measure_methods import MeasurerRunner
from ekiden.autotvm.measure.option import MeasureOption, create_measure_batch
from ekiden.autotvm.task.space import ConfigEntity, ConfigSpace
from ekiden.autotvm.task.task import Task
from ekiden.autotvm.tuner.callback import Callback
from ekiden.kernels.decision import Decision
from ekiden.runtime.errors import InputError
from ekiden.tune.candidate import Candidate
from ekiden.tune.cost_model import NearestNeighbours
from ekiden.tune.records import Best
from ekiden.tune.search import Evolution, RatioByCandidate, Replay, Search
from ekiden.tune.session import Session
from ekiden.tune.space import Space

__all__ = ["DropletTuner", "GATuner", "GridSearchTuner", "RandomTuner", "Tuner", "XGBTuner"]

_LOG = logging.getLogger("autotvm")


@dataclass(frozen=True)
class _IndexSearch:
    """Search of the indices of a range, in order or at random."""

    configs: ConfigSpace
    begin: int
    end: int
    is_random: bool
    name: str

    def propose(
        self, space: Space, history: RatioByCandidate, count: int, source: random.Random
    ) -> list[Candidate]:
        """Return up to `count` untried candidates of the range."""
        rule = space.default.rule
        indices: list[int] = [
            self.configs.index_of(Decision.parse(tried.choice)) for tried in history
        ]
        proposed: list[Candidate] = []
        last = max(indices, default=self.begin - 1)
        while len(proposed) < count:
            index = (
                self.configs.get_rand_index(self.begin, self.end, indices)
                if self.is_random
                else self.configs.get_next_index(last, 1, self.begin, self.end)
            )
            if index is None:
                break
            indices.append(index)
            last = index
            proposed.append(self.configs.get(index).candidate(rule))
        return proposed


class Tuner:
    """Tuner of a task. best_config, best_flops and best_measure_pair describe the fastest
    configuration.
    """

    def __init__(self, task: Task, search: Search | None = None) -> None:
        self.task = task
        self.search = search if search is not None else Evolution()
        self.history: dict[Candidate, float] = {}
        self.pending: list[ConfigEntity] = []
        self.n_trial = 0
        self.ttl: int | None = None
        self.reset()

    def reset(self) -> None:
        """Discard the best configuration."""
        self.best_config: ConfigEntity | None = None
        self.best_flops = 0.0
        self.best_measure_pair: tuple[MeasureInput, MeasureResult] | None = None
        self.best_iter = 0

    @property
    def space(self) -> ConfigSpace:
        """Return the configuration space."""
        return self.task.config_space

    @property
    def visited(self) -> set[int]:
        """Return the indices of the measured configurations."""
        return {self.space.index_of(Decision.parse(tried.choice)) for tried in self.history}

    def has_next(self) -> bool:
        """Return whether the search may propose further configurations."""
        self.pending = self.pending or self._propose(1)
        return bool(self.pending)

    def next_batch(self, batch_size: int) -> list[ConfigEntity]:
        """Return the next configurations, at most `batch_size`."""
        # What has_next() proposed is a candidate of the search's next batch, too.
        self.pending = []
        return self._propose(batch_size)

    def _propose(self, count: int) -> list[ConfigEntity]:
        source = random.Random(f"{self.task.workload} {len(self.history)}")
        space = self.task.tuning_task.space
        candidates: dict[Candidate, None] = {}
        rejected: dict[Candidate, float] = {}
        while len(candidates) < count:
            tried = {**self.history, **dict.fromkeys(candidates, math.inf), **rejected}
            proposed = self.search.propose(space, tried, count - len(candidates), source)
            if not proposed or len(rejected) > 64 * count:
                break
            for candidate in proposed:
                if candidate.choice and self.space.accepts(candidate):
                    candidates[candidate] = None
                else:
                    rejected[candidate] = math.inf
        return [ConfigEntity(self.space, Decision.parse(c.choice)) for c in candidates]

    def update(self, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:
        """Report the measured run times to the search."""
        for inp, result in zip(inputs, results, strict=True):
            worked = result.error_no == 0
            self.history[candidate_of(inp)] = float(np.mean(result.costs)) if worked else math.inf

    def load_history(
        self, data_set: Iterable[tuple[MeasureInput, MeasureResult]], min_seed_records: int = 500
    ) -> None:
        """Mark the measurements of this task as tried; those of other tasks are ignored, as indices
        are specific to a space.
        """
        task_records = [(i, r) for i, r in data_set if i.task.workload == self.task.workload]
        pairs = [(inp._replace(task=self.task), result) for inp, result in task_records]
        self.update([inp for inp, _ in pairs], [result for _, result in pairs])

    def tune(
        self,
        n_trial: int,
        measure_option: MeasureOption,
        early_stopping: int | None = None,
        callbacks: Sequence[Callback] = (),
        si_prefix: str = "G",
    ) -> None:
        """Run the tuning loop.

        Args:
            n_trial: How many, at most.
            measure_option: How they are built and run.
            early_stopping: Trials without a faster one after which it ends.
            callbacks: Called after each batch with the tuner, its inputs and results.
            si_prefix: The prefix of the speeds that are logged.

        Raises:
            RunError: No configuration can be measured.
        """
        if n_trial < 1:
            raise InputError(f"tune: n_trial above 0 expected, got {n_trial}")
        self.n_trial, done = n_trial, 0
        measure_batch = create_measure_batch(self.task, measure_option)
        batch_size: int = getattr(measure_batch, "n_parallel", 8)
        while done < n_trial and (configs := self.next_batch(min(batch_size, n_trial - done))):
            inputs = [MeasureInput(self.task.tuning_task.target, self.task, c) for c in configs]
            results = measure_batch(inputs)
            for number, (inp, result) in enumerate(zip(inputs, results, strict=True)):
                self._record_best(inp, result, done + number)
            done += len(results)
            self.ttl = min(n_trial, self.best_iter + (early_stopping or n_trial)) - done
            self.update(inputs, results)
            for callback in callbacks:
                callback(self, inputs, results)
            if early_stopping and done >= self.best_iter + early_stopping:
                _LOG.debug("no faster one in %d trials", early_stopping)
                break
        if self.best_config is None:
            _LOG.warning("%s: no configuration of %d works", self.task, done)
        elif isinstance(measure_option.runner, MeasurerRunner):
            self._confirm_best(measure_option.runner, callbacks)

    def _record_best(self, inp: MeasureInput, result: MeasureResult, trial: int) -> None:
        flops = inp.task.flop / float(np.mean(result.costs)) if result.error_no == 0 else 0.0
        _LOG.debug("trial %d: %.2f of %.2f FLOPS: %s", trial, flops, self.best_flops, inp.config)
        if flops > self.best_flops:
            self.best_flops, self.best_iter = flops, trial
            self.best_config, self.best_measure_pair = inp.config, (inp, result)

    def _confirm_best(self, runner: MeasurerRunner, callbacks: Sequence[Callback]) -> None:
        """Log the fastest configuration again with a record that compilation applies, if it is a
        kernel of a model and separate processes confirm that it beats the default.
        """
        task = self.task.tuning_task
        if task.lowering is not None or self.best_measure_pair is None:
            return
        inp, result = self.best_measure_pair
        session = Session([task], measurer=runner.measurer, search=Replay((candidate_of(inp),)))
        session.run(1)
        for record in session.records:
            if isinstance(record, Best):
                inp.config.record = record
                for callback in callbacks:
                    callback(self, [inp], [result])


class _IndexTuner(Tuner):
    """Tuner over an inclusive range of indices; None for all."""

    is_random = False

    def __init__(self, task: Task, range_idx: tuple[int, int] | None = None) -> None:
        space = task.config_space
        begin, end = (0, space.range_length) if range_idx is None else range_idx
        self.begin_idx = begin
        self.end_idx = end if range_idx is None else end + 1
        name = "random" if self.is_random else "grid"
        search = _IndexSearch(space, self.begin_idx, self.end_idx, self.is_random, name)
        super().__init__(task, search)
        self.range_length = self.end_idx - self.begin_idx
        self.visited_max = space.subrange_length(self.begin_idx, self.end_idx)

    @property
    def index(self) -> int | None:
        """Return the next index of the range that was not measured."""
        last = max(self.visited, default=self.begin_idx - 1)
        return self.space.get_next_index(last, 1, self.begin_idx, self.end_idx)


class GridSearchTuner(_IndexTuner):
    """Tuner that measures configurations in index order."""


class RandomTuner(_IndexTuner):
    """Tuner by random search."""

    is_random = True


class GATuner(Tuner):
    """Tuner by evolutionary search (`tune.Evolution`)."""

    def __init__(
        self, task: Task, pop_size: int = 100, elite_num: int = 3, mutation_prob: float = 0.1
    ) -> None:
        self.pop_size = min(pop_size, len(task.config_space))
        super().__init__(task, Evolution(population=max(elite_num, 12)))


class XGBTuner(Tuner):
    """Tuner by evolutionary search with a cost model trained on this run's measurements by nearest
    neighbours; XGBoost is not needed.

    Args:
        task: The task.
        plan_size: Configurations that the model ranks for each that is measured, of a batch.
        feature_type: "knob", "itervar" or "curve": features are the values of knobs in any case.
        loss_type: "reg", "rank" or "rank-binary": the model learns ratios in any case.
        num_threads: Unused.
        optimizer: "sa": children of the best are what is ranked.
        diversity_filter_ratio: Unused.
        log_interval: Unused.

    Raises:
        InputError: Another feature type or loss.
    """

    def __init__(
        self,
        task: Task,
        plan_size: int = 64,
        feature_type: str = "itervar",
        loss_type: str = "reg",
        num_threads: int | None = None,
        optimizer: object = "sa",
        diversity_filter_ratio: float | None = None,
        log_interval: int = 50,
    ) -> None:
        if feature_type not in ("knob", "itervar", "curve"):
            raise InputError(f"XGBTuner: no features are of the type {feature_type!r}")
        if loss_type not in ("reg", "rank", "rank-binary"):
            raise InputError(f"XGBTuner: no loss is of the type {loss_type!r}")
        super().__init__(task, Evolution(model=NearestNeighbours, pool=max(2, plan_size // 8)))


class DropletTuner(Tuner):
    """Tuner by local search: `tune.Evolution` that mutates one knob of the best configuration at a
    time.
    """

    def __init__(
        self, task: Task, start_position: Sequence[int] | None = None, pvalue: float = 0.05
    ) -> None:
        super().__init__(task, Evolution(population=1, exploration=0.0, crossing=0.0))
