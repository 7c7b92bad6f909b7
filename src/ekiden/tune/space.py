"""Search spaces of tasks."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from ekiden.kernels.decision import Decision, Knob, KnobValue, Overrides, with_current_names
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tune.candidate import Candidate


class Space(Protocol):
    """Interface of a task's search space."""

    @property
    def default(self) -> Candidate:
        """Return the candidate used without search."""

    def sample(self, source: random.Random) -> Candidate:
        """Return a random candidate."""

    def mutate(self, candidate: Candidate, source: random.Random) -> Candidate:
        """Return a neighbour of a candidate."""

    def cross(self, a: Candidate, b: Candidate, source: random.Random) -> Candidate:
        """Return a combination of two candidates."""

    def features(self, candidate: Candidate) -> Mapping[str, float]:
        """Return the cost-model features of a candidate by name."""

    def refusal(self, candidate: Candidate) -> str:
        """Return why a candidate is not in this space; empty if it is one."""


class DecisionFunction(Protocol):
    """Decision function of a kernel family under some overrides."""

    def __call__(self, fixed: Overrides) -> Decision:
        """Return the decision. Raises CompileError for impossible overrides."""


@dataclass(frozen=True)
class FamilySpace:
    """Search space of a kernel family's decisions for one kernel. A random candidate fixes some
    knobs and lets the family's model decide the rest, so that dependent knobs stay consistent
    and candidates stay near the default.
    """

    family: str
    choices: tuple[Knob, ...]
    decide: DecisionFunction

    @property
    def default(self) -> Candidate:
        """Return the model's decision."""
        return Candidate(self.family)

    @property
    def free(self) -> tuple[Knob, ...]:
        """Return the knobs that can still be set for an existing kernel and have more than one
        value.
        """
        return tuple(c for c in self.choices if not c.is_early and len(c.domain) > 1)

    @property
    def size(self) -> int:
        """Return the number of decisions."""
        total = 1
        for choice in self.free:
            total *= len(choice.domain)
        return total

    def _complete_candidate(self, fixed: Overrides) -> Candidate:
        """Complete a candidate that fixes some knobs: all knobs are spelled out, because models
        change and records do not. A candidate equal to the model's choice is the default.
        """
        chosen = self._fixed_candidate(fixed)
        return self.default if fixed and chosen == self._fixed_candidate({}) else chosen

    def _fixed_candidate(self, fixed: Overrides) -> Candidate:
        decision = self.decide(fixed)
        names = [c.name for c in self.free]
        return Candidate(self.family, str(Decision(tuple((n, decision[n]) for n in names))))

    def sample(self, source: random.Random) -> Candidate:
        """Fix some knobs at random; the model decides the rest."""
        count = source.randint(1, len(self.free))
        return self._complete_candidate(
            {c.name: source.choice(c.domain) for c in source.sample(self.free, count)}
        )

    def _parse(self, candidate: Candidate) -> Overrides:
        return with_current_names(self.choices, Decision.parse(candidate.choice))

    def _full_decision(self, candidate: Candidate) -> Decision:
        """Return all knob values; those missing from a record are filled in by the model."""
        recorded = Decision.from_mapping(self._parse(candidate))
        if all(c.name in recorded for c in self.free):
            return recorded
        return Decision.parse(self._fixed_candidate(dict(recorded)).choice)

    def mutate(self, candidate: Candidate, source: random.Random) -> Candidate:
        """Change one knob, usually a number to a neighbouring value; sometimes let the model revise
        the others.
        """
        values: dict[str, KnobValue] = dict(self._full_decision(candidate))
        choice = source.choice(self.free)
        values[choice.name] = _neighbouring_value(choice, values[choice.name], source)
        if source.random() < 0.3:
            fixed_knobs = source.sample(self.free, source.randint(1, len(self.free)))
            return self._complete_candidate(
                {c.name: values[c.name] for c in {choice, *fixed_knobs}}
            )
        return self._complete_candidate(values)

    def cross(self, a: Candidate, b: Candidate, source: random.Random) -> Candidate:
        """Take each knob from one of the two candidates."""
        one, second = self._full_decision(a), self._full_decision(b)
        return self._complete_candidate({n: source.choice((one, second))[n] for n in one})

    def features(self, candidate: Candidate) -> Mapping[str, float]:
        """Return numeric knobs as numbers, and word knobs one-hot."""
        values: dict[str, float] = {}
        for name, value in self._full_decision(candidate).items():
            if isinstance(value, int):
                values[name] = float(value)
            else:
                values[f"{name}={value}"] = 1.0
        return values

    def refusal(self, candidate: Candidate) -> str:
        """Return why a candidate is of another family, or has an unknown knob or value."""
        if candidate.rule != self.family:
            return f"the kernel is of the family '{self.family}', not '{candidate.rule}'"
        rows = {c.name: c for c in self.choices if not c.is_early}
        for name, value in self._parse(candidate).items():
            if name not in rows:
                return f"'{self.family}' has no choice '{name}'"
            if value not in rows[name].domain:
                return f"'{name}' cannot be {value} any more"
        return ""


def _neighbouring_value(choice: Knob, value: KnobValue, source: random.Random) -> KnobValue:
    """Return another value of a knob, usually a neighbouring number."""
    position, last = choice.domain.index(value), len(choice.domain) - 1
    if source.random() < 0.7 and isinstance(value, int):
        return choice.domain[min(last, max(0, position + source.choice((-2, -1, 1, 2))))]
    alternatives: Sequence[KnobValue] = [v for v in choice.domain if v != value]
    return source.choice(alternatives)
