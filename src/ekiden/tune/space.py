"""The candidates of a task."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from ekiden.kernels.decision import Choice, Decision, Fixed, Value
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tune.candidate import Candidate


class Space(Protocol):
    """What may be tried."""

    @property
    def default(self) -> Candidate:
        """What is chosen without search."""

    def sample(self, source: random.Random) -> Candidate:
        """One at random."""

    def mutate(self, candidate: Candidate, source: random.Random) -> Candidate:
        """One near to another."""

    def cross(self, a: Candidate, b: Candidate, source: random.Random) -> Candidate:
        """One with something of each of two."""

    def features(self, candidate: Candidate) -> Mapping[str, float]:
        """What a model of costs may look at, by name."""

    def refusal(self, candidate: Candidate) -> str:
        """Why a candidate is none of this space; empty if it is one."""


class Decide(Protocol):
    """A family's default for what is fixed already."""

    def __call__(self, fixed: Fixed) -> Decision:
        """Raises CompileError for what cannot be."""


@dataclass(frozen=True)
class FamilySpace:
    """The decisions of a family of kernels for one kernel.

    A random one fixes some choices and lets the family's model say the rest: what belongs together
    stays together, and the default is never far.
    """

    family: str
    choices: tuple[Choice, ...]
    decide: Decide

    @property
    def default(self) -> Candidate:
        """The model's decision."""
        return Candidate(self.family)

    @property
    def free(self) -> tuple[Choice, ...]:
        """What can still be chosen when there is a kernel, of more than one value."""
        return tuple(c for c in self.choices if not c.is_early and len(c.domain) > 1)

    @property
    def size(self) -> int:
        """How many decisions there are."""
        total = 1
        for choice in self.free:
            total *= len(choice.domain)
        return total

    def _whole(self, fixed: Fixed) -> Candidate:
        """The candidate that fixes some choices, all of it said: models change, records do not.
        What the model chooses anyway is the default."""
        chosen = self._said(fixed)
        return self.default if fixed and chosen == self._said({}) else chosen

    def _said(self, fixed: Fixed) -> Candidate:
        decision = self.decide(fixed)
        names = [c.name for c in self.free]
        return Candidate(self.family, str(Decision(tuple((n, decision[n]) for n in names))))

    def sample(self, source: random.Random) -> Candidate:
        """Some choices at random, the rest as the model has it then."""
        count = source.randint(1, len(self.free))
        return self._whole(
            {c.name: source.choice(c.domain) for c in source.sample(self.free, count)}
        )

    def _decision(self, candidate: Candidate) -> Decision:
        """All that is chosen; what a record lacks, of a version with fewer choices or by hand, as
        the model has it."""
        known = Decision.parse(candidate.choice)
        if all(c.name in known for c in self.free):
            return known
        return Decision.parse(self._said(dict(known)).choice)

    def mutate(self, candidate: Candidate, source: random.Random) -> Candidate:
        """One choice changed, a number mostly to one of its neighbours; now and then, what follows
        from it changes too."""
        known: dict[str, Value] = dict(self._decision(candidate))
        choice = source.choice(self.free)
        known[choice.name] = _near(choice, known[choice.name], source)
        if source.random() < 0.3:
            kept = source.sample(self.free, source.randint(1, len(self.free)))
            return self._whole({c.name: known[c.name] for c in {choice, *kept}})
        return self._whole(known)

    def cross(self, a: Candidate, b: Candidate, source: random.Random) -> Candidate:
        """Each choice from one of the two."""
        one, other = self._decision(a), self._decision(b)
        return self._whole({n: source.choice((one, other))[n] for n in one})

    def features(self, candidate: Candidate) -> Mapping[str, float]:
        """Of a choice of numbers the number, of words a 1 for the one that is chosen."""
        found: dict[str, float] = {}
        for name, value in self._decision(candidate).items():
            if isinstance(value, int):
                found[name] = float(value)
            else:
                found[f"{name}={value}"] = 1.0
        return found

    def refusal(self, candidate: Candidate) -> str:
        """Of another family, with a choice that there is not, or a value it cannot have."""
        if candidate.rule != self.family:
            return f"the kernel is of the family '{self.family}', not '{candidate.rule}'"
        rows = {c.name: c for c in self.choices if not c.is_early}
        for name, value in Decision.parse(candidate.choice).items():
            if name not in rows:
                return f"'{self.family}' has no choice '{name}'"
            if value not in rows[name].domain:
                return f"'{name}' cannot be {value} any more"
        return ""


def _near(choice: Choice, value: Value, source: random.Random) -> Value:
    at, last = choice.domain.index(value), len(choice.domain) - 1
    if source.random() < 0.7 and isinstance(value, int):
        return choice.domain[min(last, max(0, at + source.choice((-2, -1, 1, 2))))]
    others: Sequence[Value] = [v for v in choice.domain if v != value]
    return source.choice(others)
