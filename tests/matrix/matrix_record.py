"""What runs over the matrix have shown: programs, cells by outcome, pairs of names in a cell."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from matrix_axes import EXECUTORS, TARGETS, VIEWS
from matrix_cells import AGREES, Cell, Outcome
from matrix_refusals import no_call
from matrix_ways import WAYS
from program_features import FEATURES

NAMES: dict[str, list[str]] = {
    "feature": [row.name for row in FEATURES],
    "executor": [row.name for row in EXECUTORS],
    "target": [row.name for row in TARGETS],
    "way": [row.name for row in WAYS],
    "view": [row.name for row in VIEWS],
}
"""Features and axes -> the names of their rows."""
Pair = tuple[str, str]
"""Two names in alphabetical order."""


@dataclass
class Record:
    """Counts of a run, or of several runs together."""

    processors: set[str] = field(default_factory=set)
    programs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    """Kind of an outcome -> cells."""
    ran: Counter[Pair] = field(default_factory=Counter)
    """Pair -> cells that had both."""
    agreed: Counter[Pair] = field(default_factory=Counter)
    """Pair -> those of them whose program agreed with the interpreter."""

    def add(self, cell: Cell, outcome: Outcome) -> None:
        """Count an outcome."""
        self.outcomes[outcome.kind] += 1
        pairs = list(itertools.combinations(sorted((*cell.values(), *outcome.features)), 2))
        self.ran.update(pairs)
        if outcome.kind == AGREES:
            self.agreed.update(pairs)

    def least(self, first: Iterable[str], second: Iterable[str]) -> int:
        """Return in how many cells the rarest pair was of a name of each, where there is a call."""
        pairs = [pair for pair in itertools.product(first, second) if not no_call(pair)]
        return min(self.ran[min(pair), max(pair)] for pair in pairs)

    def least_of_axes(self) -> int:
        """Return in how many cells the rarest pair of values of two axes was."""
        axes = [names for axis, names in NAMES.items() if axis != "feature"]
        return min(self.least(*two) for two in itertools.combinations(axes, 2))

    def least_of_features(self) -> int:
        """Return in how many cells the rarest pair of a feature and a value was."""
        axes = [names for axis, names in NAMES.items() if axis != "feature"]
        return min(self.least(NAMES["feature"], names) for names in axes)

    def save(self, path: Path) -> None:
        """Write it to a file, whole or not at all."""
        pairs = [[*pair, count, self.agreed[pair]] for pair, count in sorted(self.ran.items())]
        rows = {
            "processors": sorted(self.processors),
            "programs": self.programs,
            "outcomes": self.outcomes,
            "pairs": pairs,
        }
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(rows))
        beside.replace(path)


def load_records(paths: Iterable[Path]) -> Record:
    """Return the counts of files together."""
    whole = Record()
    for path in paths:
        rows = json.loads(path.read_text())
        whole.processors.update(rows["processors"])
        whole.programs += rows["programs"]
        whole.outcomes.update(rows["outcomes"])
        whole.ran.update({(x, y): count for x, y, count, _ in rows["pairs"]})
        whole.agreed.update({(x, y): agreed for x, y, _, agreed in rows["pairs"] if agreed})
    return whole
