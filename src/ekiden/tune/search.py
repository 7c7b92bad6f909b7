"""Search strategies, which propose the next candidates.

A search has no state: it is asked with all that was tried, so a run that was ended goes on where it
was, and records of another run are as good as its own.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from ekiden.runtime.errors import CompileError, InputError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tune.candidate import Candidate
from ekiden.tune.cost_model import CostModel, Features
from ekiden.tune.records import Records
from ekiden.tune.space import Space
from ekiden.tune.task import Task

RatioByCandidate: TypeAlias = Mapping[Candidate, float]
"""Time ratio to the default of each tried candidate; infinite for failures."""
DRAWS_PER_CANDIDATE = 20
"""Maximum number of draws per requested candidate; a space may be exhausted."""


class Search(Protocol):
    """Search strategy, which proposes the next candidates."""

    @property
    def name(self) -> str:
        """Return the strategy's name in records."""

    def propose(
        self, space: Space, history: RatioByCandidate, count: int, source: random.Random
    ) -> list[Candidate]:
        """Return up to `count` candidates, none of which was tried."""


def draw_untried(
    draw: object, history: RatioByCandidate, count: int, initial: Sequence[Candidate] = ()
) -> list[Candidate]:
    """Draw candidates that are not in `history`, in addition to `initial`; invalid draws are
    repeated.
    """
    assert callable(draw)
    new_candidates = dict.fromkeys(initial)
    for _ in range(DRAWS_PER_CANDIDATE * count):
        if len(new_candidates) >= count:
            break
        try:
            candidate = draw()
        except CompileError:  # choices that do not go together
            continue
        if candidate not in history:
            new_candidates[candidate] = None
    return list(new_candidates)[:count]


@dataclass(frozen=True)
class Random:
    """Uniform random search."""

    name: str = "random"

    def propose(
        self, space: Space, history: RatioByCandidate, count: int, source: random.Random
    ) -> list[Candidate]:
        """Return random candidates."""
        tried_ratios = {space.default: 1.0, **history}
        return draw_untried(lambda: space.sample(source), tried_ratios, count)


@dataclass(frozen=True)
class Replay:
    """Replay of recorded candidates, on another machine or after the compiler changed."""

    candidates: tuple[Candidate, ...]
    name: str = "replay"

    def propose(
        self, space: Space, history: RatioByCandidate, count: int, source: random.Random
    ) -> list[Candidate]:
        """Return the recorded candidates of this space, in order."""
        untried = [c for c in self.candidates if not space.refusal(c) and c not in history]
        return list(dict.fromkeys(untried))[:count]


@dataclass(frozen=True)
class Evolution:
    """Evolutionary search: mutations of the best candidates, crossovers of two of them, and a share
    of random ones. With a model, `pool` times as many candidates are drawn and the most
    promising are kept.
    """

    population: int = 12
    """Number of best candidates that are parents."""
    exploration: float = 0.2
    """Share of random candidates."""
    crossing: float = 0.25
    """Share of children with two parents."""
    model: Callable[[], CostModel] | None = None
    """Factory of the cost model; None for none."""
    pool: int = 8
    known: tuple[tuple[Features, float], ...] = ()
    """Training data of the cost model from earlier records: see `learned`."""
    name: str = "evolution"

    def __post_init__(self) -> None:
        if not (0 <= self.exploration <= 1 and 0 <= self.crossing <= 1 and self.population > 0):
            raise InputError("tune: shares from 0 to 1 and a population above 0 expected")

    def propose(
        self, space: Space, history: RatioByCandidate, count: int, source: random.Random
    ) -> list[Candidate]:
        """Return children of the best candidates, and random ones; the first batches are random and
        near the default.
        """
        tried_ratios = {space.default: 1.0, **history}
        parents = sorted(
            (c for c in tried_ratios if tried_ratios[c] < math.inf), key=tried_ratios.__getitem__
        )
        parents = parents[: self.population]
        random_ones = round(self.exploration * count)
        draw_count = (count - random_ones) * (self.pool if self.model is not None else 1)
        children = draw_untried(
            lambda: self._make_child(space, parents, source), tried_ratios, draw_count
        )
        selected = self._rank_children(space, history, children, count - random_ones)
        return draw_untried(lambda: space.sample(source), tried_ratios, count, selected)

    def _make_child(
        self, space: Space, parents: Sequence[Candidate], source: random.Random
    ) -> Candidate:
        """Return a child of good parents: the better of two draws."""

        def pick_parent() -> Candidate:
            # The minimum of two uniform draws favours better parents linearly.
            return parents[min(source.randrange(len(parents)), source.randrange(len(parents)))]

        if len(parents) > 1 and source.random() < self.crossing:
            return space.mutate(space.cross(pick_parent(), pick_parent(), source), source)
        return space.mutate(pick_parent(), source)

    def _rank_children(
        self, space: Space, history: RatioByCandidate, children: list[Candidate], count: int
    ) -> list[Candidate]:
        measured = {c: ratio for c, ratio in history.items() if ratio < math.inf}
        too_few = len(measured) + len(self.known) < MIN_MODEL_SAMPLES
        # With few measurements a model ranks no better than chance.
        if self.model is None or len(children) <= count or too_few:
            return children[:count]
        model = self.model()
        # Ratios to a task's median are comparable between tasks.
        rows = [*self.known, *_ratios_to_median(space, measured)]
        model.fit([features for features, _ in rows], [ratio for _, ratio in rows])
        guessed = model.predict([space.features(c) for c in children])
        order = sorted(range(len(children)), key=guessed.__getitem__)
        return [children[i] for i in order[:count]]


def _ratios_to_median(space: Space, measured: RatioByCandidate) -> list[tuple[Features, float]]:
    """Return the features of candidates, with their ratios to the median: what defaults are worth
    differs from task to task.
    """
    # Relative to the median, ratios of tasks with different defaults become comparable.
    middle = statistics.median(measured.values()) if measured else 1.0
    return [(space.features(c), ratio / middle) for c, ratio in measured.items()]


def learned(records: Records, tasks: Sequence[Task]) -> tuple[tuple[Features, float], ...]:
    """Return cost-model training data from earlier records of tasks, for `Evolution(known=)`."""
    rows: list[tuple[Features, float]] = []
    for task in tasks:
        trials = records.query(task.workload, str(task.target), kind="trial")
        tried = {Candidate(t.rule, t.choice): t.ratio for t in trials if t.status == "ok"}
        usable = {c: ratio for c, ratio in tried.items() if not task.space.refusal(c)}
        rows += _ratios_to_median(task.space, usable)
    return tuple(rows)


MIN_MODEL_SAMPLES = 12
"""Minimum number of measurements before the cost model is used."""
